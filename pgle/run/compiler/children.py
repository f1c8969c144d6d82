"""The compiler's process: loads XLA's plugin once and forks a child for every compilation, ended at its schedule.

Started by `compile.py`, maybe in another Python than ours. Requests and answers are lines of JSON on
stdin and stdout. XLA reads XLA_FLAGS once in a process and ends it on a bad one, so each compilation has a process of
its own; this one starts no thread, so that it can fork. Modules are read in a child as well, since that takes jax.
Nothing outlives it: the children end when it does, and it ends when its stdin is closed.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import re
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.run.compiler.dumps import (
    LOG,
    SCHEDULING,
    find_before,
    find_dump,
    find_schedule,
    is_generating_code,
    scheduled_module,
)
from pgle.xla.log.events import SLOW_FOLDING

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


POLL_S = 0.02


class Worker:
    """Serves one client until it closes our stdin."""

    def __init__(self) -> None:
        from pgle.run.ask import jax_private

        self.api = jax_private
        self.release = jax_private.version()
        self.plugin = jax_private.Plugin()
        from jaxlib import xla_client  # before the first fork, so that no child has to

        del xla_client
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # XLA may print
        self.programs: dict[tuple[str, int], Any] = {}
        self.children: list[Child] = []

    def serve(self) -> None:
        """Take requests until the client closes our stdin, then end what still runs."""
        self.say({"jaxlib": ".".join(map(str, self.release)), "plugin": str(self.api.library())})
        rest = b""
        try:
            while True:
                pipes = [child.pipe for child in self.children]
                ready, _, _ = select.select([0, *pipes], [], [], POLL_S if self.children else None)
                if 0 in ready:
                    piece = os.read(0, 1 << 16)
                    if not piece:
                        return
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self.begin(json.loads(line))
                for child in list(self.children):
                    self.look_after(child, readable=child.pipe in ready)
        finally:
            for child in self.children:
                child.end(kill=True)

    def say(self, answer: dict[str, Any]) -> None:
        """One line to the client."""
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def begin(self, request: dict[str, Any]) -> None:
        """Read the module of a request, or compile it where it has been read already."""
        if "cancel" in request:
            for child in [child for child in self.children if child.request["id"] == request["cancel"]]:
                self.children.remove(child)
                child.end(kill=True)
            return
        program = self.programs.get(key_of(request))
        reader = next((child for child in self.children if isinstance(child, Reader) and child.reads(request)), None)
        if program is not None:
            self.compile(request, program)
        elif reader is not None:
            reader.others.append(request)
        else:
            self.phase(request, "reading")
            self.children.append(Reader(request, lambda: self.read_program(request)))

    def read_program(self, request: dict[str, Any]) -> Any:
        """In a child: the program in the request's file."""
        path, wanted = Path(request["module"]), request["topology"]

        def devices_for(count: int) -> Any:
            return self.api.topology_devices(request["target"], wanted or f"1x1x{count}")

        return self.api.read_program(path, read_bytes(path), _devices_in(wanted) if wanted else 1, devices_for)

    def compile(self, request: dict[str, Any], program: Any) -> None:
        """Compile in a child, or say why that cannot be."""
        wanted, needed = request["topology"], program.num_devices
        if wanted and needed > 1 and _devices_in(wanted) != needed:
            asked = _devices_in(wanted)
            what = f"{program.name} is partitioned for {needed} devices and topology {wanted} has {asked}"
            remedy = f"say --devices {needed}; for {asked} rehearse the program itself: --devices {asked} -- COMMAND"
            self.answer(request, user_error={"what": what, "where": request["module"], "remedy": remedy})
            return
        self.phase(request, "compiling", program)
        self.children.append(Compilation(request, program, lambda: self.compile_program(request, program)))

    def compile_program(self, request: dict[str, Any], program: Any) -> None:
        """In a child: compile to the end."""
        temporary = Path(request["dump_dir"]) / TEMPORARY
        temporary.mkdir(exist_ok=True)
        flags = request["xla_flags"]
        os.environ |= {
            "XLA_FLAGS": flags if request["as_job"] else self.api.fitted_flags(self.release, flags),
            "TMPDIR": str(temporary),
        }
        profile = request["fdo_profile"] and read_bytes(Path(request["fdo_profile"]))
        topology = request["topology"] or f"1x1x{program.num_devices}"
        options = self.api.compile_options(program, profile or None, request["allocator_bytes"], request["efforts"])
        self.api.compile_program(self.plugin, program, request["target"], request["portable_target"], topology, options)

    def look_after(self, child: Child, *, readable: bool) -> None:
        """See whether a child has ended, or may be ended."""
        if readable and not child.read():
            self.children.remove(child)
            code = child.end(kill=False)
            if isinstance(child, Compilation):
                self.compiled(child, code)
            elif isinstance(child, Reader):
                self.have_read(child, code)
        elif isinstance(child, Compilation):
            for phase in child.new_phases():
                self.phase(child.request, phase, child.program)
            if child.may_end():
                self.children.remove(child)
                child.end(kill=True)
                self.compiled(child, 0)

    def have_read(self, reader: Reader, code: int) -> None:
        """A reader has ended."""
        kind, value = reader.outcome or ("crashed", code)
        reader.request["read_s"] = time.perf_counter() - reader.began
        for request in [reader.request, *reader.others]:
            if kind == "done":
                self.programs[key_of(request)] = value
                self.compile(request, value)
            else:
                self.answer(request, **{kind: value})

    def compiled(self, child: Compilation, code: int) -> None:
        """A compilation has ended: by itself, or at its schedule."""
        kind, value = child.outcome or ("done", None)
        program = child.program
        answer = {
            "module_name": program.name,
            "num_partitions": program.num_partitions,
            "num_replicas": program.num_replicas,
            "compile_s": time.perf_counter() - child.began,
            "read_s": child.request.get("read_s", 0.0),
            "cpu_s": child.cpu_s,
            "peak_bytes": child.peak_bytes,
        }
        if kind == "user_error":
            self.answer(child.request, user_error=value)
        elif child.written() is not None:
            self.answer(child.request, **answer, stopped_by=value)  # what failed then was code generation
        elif code or child.outcome is None:
            self.answer(child.request, crashed=code)
        else:
            self.answer(child.request, xla_error=value or "it ended without a word")

    def answer(self, request: dict[str, Any], **content: Any) -> None:
        """The last line about a request."""
        self.say({"id": request["id"], "answer": content})

    def phase(self, request: dict[str, Any], phase: str, program: Any = None) -> None:
        """What a request has come to."""
        about = {} if program is None else {"module": program.name, "devices": program.num_devices}
        self.say({"id": request["id"], "phase": phase, **about})


def _devices_in(topology: str) -> int:
    count = 1
    for part in re.findall(r"\d+", topology):
        count *= int(part)
    return count


def main() -> None:
    """Serve the client on stdin and stdout."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        worker = Worker()
    except UserError as error:
        print(json.dumps({"user_error": {"what": error.what, "where": error.where, "remedy": error.remedy}}))
        return
    worker.serve()
