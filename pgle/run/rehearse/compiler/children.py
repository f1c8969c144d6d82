"""Forked children of the compiler's process: one reads a module, one compiles until its schedule is written."""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pgle.errors import UserError
from pgle.run.rehearse.compiler.dumps import (
    LOG,
    SCHEDULING,
    find_before,
    find_dump,
    find_schedule,
    is_generating_code,
    scheduled_module,
)
from pgle.xla.log.wordings import SLOW_FOLDING

FOLDING = "folding constants, which is slow (--flag=--xla_disable_hlo_passes=constant_folding avoids it)"
"""The phase in which XLA computes large constants."""

LOG_BYTES = 1 << 20  # of the end of a log that are looked at while a module compiles

TEMPORARY = ".tmp"  # folder for temporary files of a compilation that may be ended at any time, inside its dump folder

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


class Child:
    """A forked process at work on one request.

    Args:
        request: as the client sent it.
        work: runs in the child; what it returns or raises is the outcome.
    """

    def __init__(self, request: dict[str, Any], work: Callable[[], Any]) -> None:
        self.request = request
        self.folder = Path(request["dump_dir"])
        self.began = time.perf_counter()
        self.outcome: Any = None
        parent = os.getpid()
        inward, outward = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(inward)
            _run_child(work, outward, self.folder, parent)
        os.close(outward)
        self.pipe = inward
        self._pieces: list[bytes] = []

    def read(self) -> bool:
        """Take what the child has sent; False once it has closed its end."""
        piece = os.read(self.pipe, 1 << 20)
        self._pieces.append(piece)
        return bool(piece)

    def end(self, *, kill: bool) -> int:
        """Wait for the child, killed first with all that it started where `kill`; its return code."""
        if kill:
            _kill_group(self.pid)
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.pipe)
        shutil.rmtree(self.folder / TEMPORARY, ignore_errors=True)
        self.peak_bytes = usage.ru_maxrss * 1024
        self.cpu_s = usage.ru_utime + usage.ru_stime
        sent = b"".join(self._pieces)
        self.outcome = pickle.loads(sent) if sent and not kill else None
        return os.waitstatus_to_exitcode(status)


def _run_child(work: Callable[[], Any], outward: int, folder: Path, parent: int) -> NoReturn:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.setpgid(0, 0)  # ptxas and what else it starts end with it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        sent: Any = ("done", work())
    except UserError as error:
        sent = ("user_error", {"what": error.what, "where": error.where, "remedy": error.remedy})
    except Exception as error:
        sent = ("xla_error", str(error)[:20_000] or type(error).__name__)
    with os.fdopen(outward, "wb") as pipe:
        pickle.dump(sent, pipe)
    sys.stderr.flush()
    os._exit(0)  # the plugin's threads need not be joined, and some releases crash while they are


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the group is there only once the child has made it
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Reader(Child):
    """Reads a module, for all requests that come meanwhile."""

    def __init__(self, request: dict[str, Any], work: Callable[[], Any]) -> None:
        self.others: list[dict[str, Any]] = []
        super().__init__(request, work)

    def reads(self, request: dict[str, Any]) -> bool:
        """Whether it is at the module of this request."""
        return key_of(self.request) == key_of(request)


class Compilation(Child):
    """Compiles one, watched through what XLA dumps."""

    PHASES = (("before_optimizations", "optimising"), ("after_spmd_partitioner", "partitioned, optimising"))

    def __init__(self, request: dict[str, Any], program: Any, work: Callable[[], Any]) -> None:
        super().__init__(request, work)
        self.program = program
        self._left = list(self.PHASES)
        self._is_scheduling = self._is_folding = False

    def new_phases(self) -> list[str]:
        """Phases that have begun since the last call."""
        begun = [said for dump, said in self._left if find_dump(self.folder, self.program.name, f"{dump}.hlo.pb")]
        self._left = [(dump, said) for dump, said in self._left if said not in begun]
        if not self._is_scheduling and self._is_written(find_before(self.folder, "scheduling")):
            self._is_scheduling = True
            begun.append(SCHEDULING)
        if not self._is_folding and folds_slowly(self.folder / LOG):
            self._is_folding = True
            begun.append(FOLDING)
        return begun

    def written(self) -> Path | None:
        """The module that is wanted, once XLA has begun to write it."""
        if self.request["until_scheduling"]:
            return find_before(self.folder, "scheduling")
        return scheduled_module(self.folder, self.program.name)

    def _is_written(self, dump: Path | None) -> bool:
        return dump is not None and bool(dump.stat().st_size) and dump.resolve() not in _open_files(self.pid)

    def may_end(self) -> bool:
        """Whether the schedule and the memory report are written: what is left is code generation."""
        if self.request["to_the_end"]:
            return False
        module = self.written()
        if module is None:
            return False
        if self.request["until_scheduling"]:
            return self._is_written(module)
        reports = list(self.folder.glob("*-memory-usage-report.*"))
        schedule = find_schedule(self.folder, self.program.name)  # of XLA's threads that dump any may be late
        wanted = [module, *reports, *([] if schedule is None else [schedule])]
        written = {path.resolve() for path in wanted if path.stat().st_size}
        if not (reports or is_generating_code(self.folder)) or len(written) < len(wanted):
            return False
        return not written & _open_files(self.pid)


def folds_slowly(log: Path) -> bool:
    """Whether XLA's log says that folding a constant takes long."""
    return log.is_file() and SLOW_FOLDING in log.read_bytes()[-LOG_BYTES:]


def _open_files(pid: int) -> set[Path]:
    """The files that a process holds open."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(entry.readlink())
        except OSError:
            continue  # closed meanwhile
    return found


def key_of(request: dict[str, Any]) -> tuple[str, int]:
    """What tells one module from another, and from itself after a change."""
    stat = Path(request["module"]).stat()
    return request["module"], stat.st_mtime_ns
