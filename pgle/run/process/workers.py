"""Run a function over many values, in processes of this machine or on the workers of a cluster.

The caller gets a `Workers` from `workers`, and gives it the function and the values. Results do not
depend on the place.
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
    """Runs a function over values."""

    def results(
        self, function: Callable[[T], R], values: Sequence[T]
    ) -> Iterator[tuple[int, R]]:
        """Yield (index of the value, result), in the order of completion.

        The function must be importable; values and results are pickled. Its exceptions are raised
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
    """Yield the results of `Workers.results` in the order of their values, each as soon as all
    before it exist.
    """
    waiting: dict[int, R] = {}
    place = 0
    for done, result in results:
        waiting[done] = result
        while place in waiting:
            yield waiting.pop(place)
            place += 1


def check_place(where: str) -> None:
    """Raise `UserError` if no workers answer at a place, before any work begins."""
    if where != PROCESSES:
        from pgle.run.process.dask_workers import check_scheduler

        check_scheduler(where)


@contextmanager
def workers(where: str, tasks: int, seen: Seen | None = None) -> Iterator[Workers]:
    """Return the workers at a place.

    Args:
        where: `PROCESSES`, or ``dask://HOST:PORT``.
        tasks: most tasks at a time.
        seen: paths that workers on other machines must see; checked before the first task.
    """
    if where == PROCESSES:
        with executor(tasks) as pool:
            yield _Processes(pool)
        return
    from pgle.run.process.dask_workers import connected

    with connected(where, seen or Seen()) as cluster:
        yield cluster
