"""A function over many values: run by processes of this machine, or by the workers of a cluster.

Whoever has such work asks `workers` for a `Workers` and gives it the function and the values. The
results are the same wherever they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from typing import Protocol, TypeVar

from pgle.requests.kinds import PROCESSES
from pgle.run.process.on_worker import Seen
from pgle.run.process.process import executor

T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
    """What runs a function over values."""

    def results(
        self, function: Callable[[T], R], values: Sequence[T]
    ) -> Iterator[tuple[int, R]]:
        """The place of each value and its result, as they come.

        The function must be importable, values and results are pickled. What it raises is raised
        here.
        """


class _Processes:
    """Processes of this machine, one for each core."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def results(
        self, function: Callable[[T], R], values: Sequence[T]
    ) -> Iterator[tuple[int, R]]:
        places = {
            self._pool.submit(function, value): place
            for place, value in enumerate(values)
        }
        for done in as_completed(list(places)):
            yield places.pop(done), done.result()


def in_order(results: Iterable[tuple[int, R]]) -> Iterator[R]:
    """`Workers.results` in the order of their values, each as soon as it and those before it
    exist.
    """
    waiting: dict[int, R] = {}
    place = 0
    for done, result in results:
        waiting[done] = result
        while place in waiting:
            yield waiting.pop(place)
            place += 1


def check_place(where: str) -> None:
    """Raise `UserError` if nothing answers at a place of workers, before work is done for them."""
    if where != PROCESSES:
        from pgle.run.process.dask_workers import check_scheduler

        check_scheduler(where)


@contextmanager
def workers(where: str, tasks: int, seen: Seen | None = None) -> Iterator[Workers]:
    """The workers at a place.

    Args:
        where: `PROCESSES`, or ``dask://HOST:PORT``.
        tasks: how many tasks there are at once at most.
        seen: what workers on other machines must see, which is checked before the first task.
    """
    if where == PROCESSES:
        with executor(tasks) as pool:
            yield _Processes(pool)
        return
    from pgle.run.process.dask_workers import connected

    with connected(where, seen or Seen()) as cluster:
        yield cluster
