"""Where work on many files runs: processes of this machine, or a Dask cluster; one `concurrent.futures` executor.

    with executor("dask://head:8786", len(files)) as pool:
        results = list(pool.map(read, files))

A submitted function must be importable (a function of a module, no lambda), and return values are pickled. On a cluster
the workers need pgle and see the same file system.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.errors import UserError

if TYPE_CHECKING:  # most commands read one file, in this process
    from concurrent.futures import Executor

PROCESSES = "processes"
DASK = "dask://"
CONNECT_S = 10  # seconds for which a scheduler may not answer


@contextmanager
def executor(where: str, tasks: int) -> Iterator[Executor]:
    """An executor for so many tasks. An exception that leaves the block ends the running ones, and drops the others.

    Args:
        where: `PROCESSES`, one for each core and no more than tasks; or ``dask://HOST:PORT``.
        tasks: how many there are.

    Raises:
        UserError: `where` is neither, the cluster does not answer or lacks pgle, or a worker was killed.
    """
    if where == PROCESSES:
        opened = _processes(tasks)
    elif where.startswith(DASK) and where.removeprefix(DASK):
        opened = _dask(where)
    else:
        raise UserError(
            "is neither 'processes' nor dask://HOST:PORT", where=f"--executor {where}", remedy="name the scheduler"
        )
    with opened as pool:
        yield pool


@contextmanager
def _processes(tasks: int) -> Iterator[Executor]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    workers = max(min(tasks, os.cpu_count() or 1), 1)
    ours = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(
        workers, ours, initializer=_begin, initargs=(Path.cwd(), dict(os.environ), gc.get_threshold())
    )
    try:
        with _blank_main():
            yield pool
    except BrokenProcessPool:
        what = f"one of {workers} processes was killed, most likely for memory"
        raise UserError(
            what, remedy="give fewer or smaller inputs at a time; pgle convert: or --executor dask://HOST:PORT"
        ) from None
    except BaseException:  # what was begun would be waited for
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(folder: Path, environment: dict[str, str], thresholds: tuple[int, int, int]) -> None:
    """What a new process does first: be as the one that it works for, and end without a word when interrupted."""
    os.chdir(folder)
    os.environ.clear()  # the server that starts processes has the environment of its own start
    os.environ.update(environment)
    gc.set_threshold(*thresholds)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _blank_main() -> Iterator[None]:
    """New processes import the program that they come from; ours need nothing of it and must not run it again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _dask(where: str) -> Iterator[Executor]:
    try:
        from distributed import CancelledError, Client, KilledWorker
        from distributed.comm.core import CommClosedError
    except ImportError:
        raise UserError("needs Dask", where=f"--executor {where}", remedy="pip install 'pgle[dask]'") from None
    try:
        client = Client(where.replace(DASK, "tcp://"), timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError):
        remedy = "is the scheduler running there, and may this machine reach it?"
        raise UserError("no Dask scheduler answers", where=where, remedy=remedy) from None
    try:
        if not client.scheduler_info()["workers"]:
            raise UserError("the cluster has no workers", where=where, remedy="start some: dask worker HOST:PORT")
        try:
            client.run(os.chdir, Path.cwd())  # a command and its files may be named from here
        except OSError:
            remedy = "start pgle in a folder that they share"
            raise UserError(f"the workers do not see {Path.cwd()}", where=where, remedy=remedy) from None
        yield client.get_executor(pure=False)
    except KilledWorker:
        remedy = "give its workers more, --memory-limit of dask worker"
        raise UserError(
            "a worker of the cluster was killed, most likely for memory", where=where, remedy=remedy
        ) from None
    except ModuleNotFoundError as error:
        what = f"the cluster's workers have no module {error.name}"
        raise UserError(what, where=where, remedy="install the same pgle there") from None
    except (CancelledError, CommClosedError):
        raise UserError("the cluster went away", where=where, remedy="start it again") from None
    finally:
        client.close(timeout=CONNECT_S)
