"""The workers of an existing Dask cluster, and their tasks.

Dask runs the tasks of a lost worker again. Each worker runs one task and queues one, whatever its
number of threads. This bounds memory, and lets tasks change their process's folder and environment.
Versions are compared on every worker, also on workers that join later.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from pgle.errors import UserError, some
from pgle.requests.kinds import DASK
from pgle.run.process.on_worker import (
    SAME_VERSIONS,
    Asker,
    Look,
    Seen,
    difference,
    end_work,
    look,
    run_task,
    versions,
)

T = TypeVar("T")
R = TypeVar("R")

CONNECT_S = 10  # seconds to wait for the scheduler's answer
PATIENCE_S = 60  # seconds that a working cluster may be without workers
AT_A_WORKER = 2  # tasks at each worker: one runs, one waits

TALKATIVE = ("client", "comm", "core", "batched")  # prefixes of Dask's noisy loggers


class DaskWorkers:
    """Workers of a Dask cluster. They answer, see our files and have our versions."""

    def __init__(self, client: Any, where: str) -> None:
        self._client = client
        self._where = where
        self._asker = Asker.here()

    def results(
        self, function: Callable[[T], R], values: Sequence[T]
    ) -> Iterator[tuple[int, R]]:
        """Same as `Workers.results`. Tasks go to workers as these become free."""
        waiting: dict[Any, int] = {}
        left = iter(enumerate(values))
        try:
            while True:
                # hand out at least one task, because all workers may be restarting
                wanted = max(AT_A_WORKER * len(self._client.nthreads()), 1)
                free = max(wanted - len(waiting), 0)
                for place, value in islice(left, free):
                    task = self._client.submit(
                        run_task, self._asker, function, value, pure=False
                    )
                    waiting[task] = place
                if not waiting:
                    return
                for done in self._some_done(list(waiting)):
                    yield waiting.pop(done), done.result()
        finally:
            with suppress(Exception):  # the cluster may be gone
                self._client.cancel(list(waiting))

    def _some_done(self, tasks: Sequence[Any]) -> Sequence[Any]:
        """Wait until at least one task has ended; return those that have."""
        from distributed import wait

        while True:
            try:
                with self._client.as_current():
                    return list(wait(tasks, PATIENCE_S, "FIRST_COMPLETED").done)
            except TimeoutError:
                if not self._client.nthreads():
                    raise _lost(self._where) from None


def check_scheduler(where: str) -> None:
    """Raise `UserError` if nothing listens where a scheduler should, or Dask is missing."""
    place = f"--executor {where}"
    if find_spec("distributed") is None:
        raise _no_dask(place)
    host, _, port = where.removeprefix(DASK).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_scheduler(place, error) from None


@contextmanager
def connected(where: str, seen: Seen) -> Iterator[DaskWorkers]:
    """Connect to a cluster. Its workers must have this machine's versions and see its paths."""
    place = f"--executor {where}"
    try:
        from distributed import CancelledError, Client, KilledWorker
        from distributed.comm.core import CommClosedError
    except ImportError:
        raise _no_dask(place) from None
    address = _address(where)
    with _quiet():
        try:
            client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError, RuntimeError, TypeError) as error:
            raise _no_scheduler(place, error) from None
        try:
            _check(client, place, seen)
            yield DaskWorkers(client, place)
            _release(client)
        except KilledWorker as error:
            raise UserError(
                f"workers were killed by one task, the last {error.last_worker.address}, "
                "most likely for memory",
                where=place,
                remedy="give each worker more: dask worker --memory-limit",
            ) from None
        except (CancelledError, CommClosedError):
            raise _lost(place) from None
        finally:
            with suppress(Exception):  # the cluster may be gone
                client.close(timeout=CONNECT_S)


def _address(where: str) -> str:
    """Return the scheduler's address in Dask's form, with TLS if Dask's configuration asks for
    it.
    """
    from distributed import Security

    scheme = "tls://" if Security().require_encryption else "tcp://"
    return where.replace(DASK, scheme, 1)


def _no_dask(place: str) -> UserError:
    return UserError(
        "needs Dask", where=place, remedy="pip install 'distributed>=2024.1'"
    )


def _no_scheduler(place: str, error: Exception) -> UserError:
    """Return the error for a failed connection. Dask raises `RuntimeError` if encryption is
    required but impossible, and `TypeError` without certificates.
    """
    if isinstance(error, RuntimeError | TypeError):
        reason = next(iter(str(error).splitlines()), "")
        return UserError(
            f"Dask's configuration allows no connection ({reason})",
            where=place,
            remedy="see distributed.comm.require-encryption and distributed.comm.tls",
        )
    return UserError(
        "no Dask scheduler answers",
        where=place,
        remedy="start it (dask scheduler), or name the host and port that it prints",
    )


def _lost(place: str) -> UserError:
    return UserError(
        "the cluster or all its workers are gone",
        where=place,
        remedy="start it again, and give the same command",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's messages on lost connections; pgle reports them once."""
    logs = [logging.getLogger(f"distributed.{name}") for name in TALKATIVE]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)


def _check(client: Any, place: str, seen: Seen) -> None:
    """Raise `UserError` if a worker differs from this machine, or does not answer."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError:
        raise UserError(
            "the cluster has no workers",
            where=place,
            remedy=f"start some: dask worker {place.rpartition('/')[2]} --nthreads 1",
        ) from None
    names = sorted(client.nthreads())
    with _token(seen.written) as token:
        paths = [str(path.absolute()) for path in (Path.cwd(), *seen.read)]
        if token is not None:
            paths.append(token)
        found = client.run(look, tuple(dict.fromkeys(paths)), on_error="return")
    ours = versions()
    for name in names:
        look_of = found.get(name)
        if look_of is None or isinstance(look_of, OSError):
            continue  # lost meanwhile; each task compares versions, too
        if not isinstance(look_of, Look):
            raise UserError(
                f"worker {name} cannot run pgle ({look_of})",
                where=place,
                remedy=f"install pgle {ours['pgle']} there",
            )
        if wrong := difference(look_of.versions, ours):
            raise UserError(
                f"worker {name} has {wrong}", where=place, remedy=SAME_VERSIONS
            )
        if token in look_of.missing:
            raise UserError(
                f"worker {name} does not see the folder {seen.written}",
                where=place,
                remedy="choose one that all machines share: -o DIR",
            )
        if look_of.missing:
            raise UserError(
                f"worker {name} does not see {some(look_of.missing, 2)}",
                where=place,
                remedy="put it on a file system that all machines share",
            )


@contextmanager
def _token(folder: Path | None) -> Iterator[str | None]:
    """Make a file in a folder that tasks write into. A worker that sees the file has the same
    folder.
    """
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder.absolute(), prefix=".pgle-seen-") as token:
        yield token.name


def _release(client: Any) -> None:
    """Let workers release what tasks kept for later tasks."""
    with suppress(Exception):  # a lost worker keeps nothing
        client.run(end_work)
