"""The compiler's process: loads XLA's plugin once and forks a child for every compilation, which ends at its schedule.

Started by `compile.py`, maybe in another Python than ours. Requests and answers are lines of JSON on stdin and stdout.
XLA reads XLA_FLAGS once in a process and ends it on a bad one, so each compilation has a process of its own; this one
starts no thread, so that it can fork. A child reads its module where no earlier one has, since that takes jax.
Nothing outlives this process: the children end when it does, and it ends when its stdin is closed.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import prod
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.run.compiler import dumps
from pgle.xla.log.events import SLOW_FOLDING

FOLDING = "folding constants, which is slow (--flag=--xla_disable_hlo_passes=constant_folding avoids it)"
"""The phase in which XLA computes large constants."""

LOG_BYTES = 1 << 20  # of the end of a log that are looked at while a module compiles

TEMPORARY = ".tmp"  # folder for temporary files of a compilation that may be ended at any time, inside its dump folder

POLL_S = 0.02

MOST_SAID = 3_000  # characters of an error; what two threads write to a pipe stays whole up to 4096 bytes

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


class Compilation:
    """One compilation in a forked child, which ends itself once the schedule is written, before code generation."""

    def __init__(self, worker: Worker, request: dict[str, Any]) -> None:
        self.worker, self.api, self.request = worker, worker.api, request
        self.folder = Path(request["dump_dir"])
        self.began = time.perf_counter()
        self.about: dict[str, Any] = {}  # the last phase with a module, then what went wrong
        self.pipe, outward = Pipe(duplex=False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.pipe = outward
            self.run(parent)
        outward.close()

    # In the worker.

    def kill(self) -> None:
        """End it with all that it started."""
        for kill in (os.killpg, os.kill):  # the group is there only once the child has made it
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for its end; the answer for the client."""
        _, status = os.waitpid(self.pid, 0)
        self.pipe.close()
        shutil.rmtree(self.folder / TEMPORARY, ignore_errors=True)
        if "user_error" in self.about:
            return self.about
        if (name := self.about.get("module")) and self.wanted(name) is not None:
            took_s = time.perf_counter() - self.began  # what failed then was code generation
            return {"module_name": name, "num_devices": self.about["devices"], "compile_s": took_s}
        if "xla_error" in self.about:
            return self.about
        code = os.waitstatus_to_exitcode(status)
        return {"crashed": code} if code else {"xla_error": "it ended without a word"}

    def wanted(self, name: str) -> Path | None:
        """The module that the request is for, once XLA has begun to write it."""
        is_early = self.request["passes"] == "before scheduling"
        if is_early:
            return dumps.find_unscheduled(self.folder)
        return dumps.find_dump(self.folder, name, dumps.SCHEDULED)

    # In the child.

    def run(self, parent: int) -> NoReturn:
        """Compile, and end; `pipe` says why if that fails."""
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, 0)  # ptxas and what else it starts end with it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        log = os.open(self.folder / dumps.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        (self.folder / TEMPORARY).mkdir(exist_ok=True)
        os.environ |= {  # before jaxlib does anything: it reads them once
            "XLA_FLAGS": self.api.fitted_flags(self.worker.release, self.request["xla_flags"]),
            "TMPDIR": str(self.folder / TEMPORARY),
        }
        try:
            self.compile(self.program())
        except UserError as error:
            self.pipe.send({"user_error": vars(error)})
        except Exception as error:
            self.pipe.send({"xla_error": str(error)[:MOST_SAID] or type(error).__name__})
        finally:  # whatever it was, nothing continues as the worker that this process was forked from
            sys.stderr.flush()
            os._exit(0)  # the plugin's threads need not be joined, and some releases crash while they are

    def program(self) -> Any:
        """The program in the request's file, read once for all compilations."""
        path, topology = Path(self.request["module"]), self.request["topology"]
        key = path, path.stat().st_mtime_ns  # a module that changes is another
        if key not in self.worker.programs:
            self.pipe.send({"phase": "reading"})
            program = self.api.read_program(path, read_bytes(path), _devices_in(topology) if topology else 1)
            self.pipe.send({"program": program, "key": key})
            return program
        return self.worker.programs[key]

    def compile(self, program: Any) -> None:
        """Compile to the end, which `watch` does not wait for."""
        request, needed = self.request, program.num_devices
        topology = request["topology"] or f"1x1x{needed}"
        if 1 < needed != (asked := _devices_in(topology)):
            what = f"{program.name} is partitioned for {needed} devices and topology {topology} has {asked}"
            remedy = f"say --devices {needed}; for {asked} rehearse the program itself: --devices {asked} -- COMMAND"
            raise UserError(what, where=request["module"], remedy=remedy)
        self.pipe.send({"phase": "compiling", "module": program.name, "devices": needed})
        options = self.api.compile_options(program, request["allocator_bytes"], request["efforts"])
        threading.Thread(target=self.watch, args=(program,), daemon=True).start()
        target, portable = request["target"], request["portable_target"]
        self.api.compile_program(self.worker.plugin, program, target, portable, topology, options)

    def watch(self, program: Any) -> NoReturn:
        """Say what phase begins, and end all once the wanted files are written."""
        folder, name = self.folder, program.name
        has_begun: dict[str, Callable[[], bool]] = {
            "optimising": lambda: dumps.find_dump(folder, name, "before_optimizations.hlo.pb") is not None,
            "partitioned, optimising": lambda: (
                dumps.find_dump(folder, name, "after_spmd_partitioner.hlo.pb") is not None
            ),
            dumps.SCHEDULING: lambda: _are_written(dumps.find_unscheduled(folder)),
            FOLDING: lambda: folds_slowly(folder / dumps.LOG),
        }
        while not self.may_end(name):
            for phase in [phase for phase, begun in has_begun.items() if begun()]:
                del has_begun[phase]
                self.pipe.send({"phase": phase, "module": name, "devices": program.num_devices})
            time.sleep(POLL_S)
        os.killpg(0, signal.SIGKILL)
        raise SystemExit

    def may_end(self, name: str) -> bool:
        """Whether the module, and with it schedule and memory report, are written."""
        module = self.wanted(name)
        if module is None or self.request["passes"] == "before scheduling":
            return _are_written(module)
        reports = list(self.folder.glob("*-memory-usage-report.*"))
        schedule = dumps.find_schedule(self.folder, name)  # of XLA's threads that dump any may be late
        is_generating = bool(reports) or any(path.suffix in dumps.CODE_GENERATION for path in self.folder.iterdir())
        return is_generating and _are_written(module, *reports, *([] if schedule is None else [schedule]))


def _are_written(*files: Path | None) -> bool:
    """Whether this process has written them, and closed them."""
    paths = {path.resolve() for path in files if path is not None and path.stat().st_size}
    if len(paths) < len(files):
        return False
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if entry.readlink() in paths:
                return False
    return True


def folds_slowly(log: Path) -> bool:
    """Whether XLA's log says that folding a constant takes long."""
    return log.is_file() and SLOW_FOLDING in log.read_bytes()[-LOG_BYTES:]


def _devices_in(topology: str) -> int:
    return prod(int(part) for part in re.findall(r"\d+", topology))


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
        self.programs: dict[tuple[Path, int], Any] = {}
        self.children: list[Compilation] = []

    def serve(self) -> None:
        """Take requests until the client closes our stdin, then end what still runs."""
        self.say({"jaxlib": ".".join(map(str, self.release))})
        rest = b""
        try:
            while True:
                ready = wait([0, *(child.pipe for child in self.children)])
                for child in [child for child in self.children if child.pipe in ready]:
                    self.hear(child)
                if 0 in ready:
                    piece = os.read(0, 1 << 16)
                    if not piece:
                        return
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self.children.append(Compilation(self, json.loads(line)))
        finally:
            for child in self.children:
                child.kill()

    def say(self, answer: dict[str, Any]) -> None:
        """One line to the client."""
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def hear(self, child: Compilation) -> None:
        """Take what a child says: its program, a phase, what went wrong; or that it has ended."""
        try:
            message = child.pipe.recv()
        except (EOFError, OSError):
            self.children.remove(child)
            self.say({"id": child.request["id"], "answer": child.answer()})
            return
        if "program" in message:
            self.programs[message["key"]] = message["program"]
        elif "phase" in message:
            child.about = {**child.about, **message}
            self.say({"id": child.request["id"], **message})
        else:
            child.about |= message


def main() -> None:
    """Serve the client on stdin and stdout."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        worker = Worker()
    except UserError as error:
        print(json.dumps({"user_error": vars(error)}))
        return
    worker.serve()
