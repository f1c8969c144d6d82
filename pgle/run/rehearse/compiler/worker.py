"""The compiler's process: loads XLA's plugin once and forks a child for every compilation, ended at its schedule.

Started by `compile.py`, maybe in another Python than ours. Requests and answers are lines of JSON on
stdin and stdout. XLA reads XLA_FLAGS once in a process and ends it on a bad one, so each compilation has a process of
its own; this one starts no thread, so that it can fork. Modules are read in a child as well, since that takes jax.
Nothing outlives it: the children end when it does, and it ends when its stdin is closed.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.run.rehearse.compiler.children import TEMPORARY, Child, Compilation, Reader, key_of

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
