"""A program that waits at its step, while alternatives of the step are captured.

A program may need far longer to reach its step than jax needs to trace it. So it is run once: the
hook stops it where it calls its step, and traces the step with each alternative that is asked for
(`pgle_hook/served.py`). It is used only if it makes the module of the program as it is, byte for
byte. What it cannot make, a run of its own makes (`capture_modules`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from subprocess import DEVNULL

from pgle.files import read_kept, write_files
from pgle.run.capture.capture import Devices, capture_environment
from pgle.run.capture.captured import (
    ComparedValues,
    module_name,
    modules_in,
    partitioned,
    read_captured,
)
from pgle.run.capture.running import (
    OUTPUT,
    UNSETTLED,
    ProgramOutput,
    program_started,
    wait_or_stop,
)
from pgle.run.directory.directory import claim, free
from pgle.run.hook import hook_module
from pgle.run.process import terminal
from pgle.xla.targets import Target

Switches = Sequence[Mapping[str, str]]
"""Alternatives for the hook to make: ``kind``, ``where``, ``value``."""


@dataclass(eq=False)
class WaitingProgram:
    """A program that is started when it is first asked for something, and ended by `close`."""

    command: Sequence[str]
    module: Path  # its step's, as it is
    folder: Path  # of its own, for what it leaves
    target: Target
    devices: Devices
    quiet_s: float  # as of `capture_modules`
    # folders of all that it was asked for, and how many of them since it was started
    _asked: list[Path] = field(default_factory=list)
    _count: int = 0
    _running: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """End it."""
        self._running.close()

    def begin(self, switches: Switches, folder: Path) -> None:
        """Ask for what `make` is to make later. The program makes it meanwhile."""
        self._renew_if_ended()
        if self._is_usable:
            self._request(switches, folder.resolve(), compares=False)

    def make(self, switches: Switches, folder: Path) -> bool:
        """Capture the step with some alternatives into a new folder; whether that was possible."""
        self._renew_if_ended()
        return self._is_usable and self._ask(switches, folder)

    def compare(self, switches: Switches, folder: Path) -> ComparedValues | None:
        """What some alternatives do to the step's values; None: it cannot be found out here."""
        self._renew_if_ended()
        if not self._is_usable or not self._ask(switches, folder, compares=True):
            return None
        return read_captured(folder).compared

    def _renew_if_ended(self) -> None:
        """Be ready to start again: a comparison that takes too long ends the program."""
        if not self._is_usable or self._child is None or self._child.poll() is None:
            return
        self._running.close()
        made = [folder for folder in self._asked if self._done(folder).exists()]
        for folder in self._asked:
            if folder not in made:
                shutil.rmtree(folder, ignore_errors=True)
        self._asked = made
        self._count = 0
        self.folder = free(self.folder)
        del self._child, self._is_usable

    @cached_property
    def _is_usable(self) -> bool:
        """Whether it makes the module of the program as it is."""
        if self._child is None:
            return False
        again = self.folder / "same"
        return self._ask((), again) and self._is_same(again)

    def _is_same(self, folder: Path) -> bool:
        name = module_name(self.module)
        made = [path for path in modules_in(folder) if module_name(path) == name]
        own = partitioned(self.module).read_bytes()
        return bool(made) and partitioned(made[-1]).read_bytes() == own

    @cached_property
    def _child(self) -> subprocess.Popen[bytes] | None:
        """The program, which waits at its step; None if it never came there."""
        claim(self.folder)
        self.folder.mkdir(parents=True)
        name = module_name(self.module)
        # of other arguments: parameters that are on one device before the first step, say
        before = [
            path
            for path in modules_in(self.module.parent)
            if module_name(path) == name and path.name < self.module.name
        ]
        environment = capture_environment(
            self.folder,
            self.devices,
            self.target,
            serves=name.removeprefix("jit_"),
            passes=len(before),
        )
        printed = ProgramOutput(self.folder / OUTPUT, names_log=False)
        started = program_started(self.command, environment, printed, output=DEVNULL)
        child = self._running.enter_context(started)
        waits = self.folder / hook_module("served").WAITS
        self._wait(child, self.folder, waits)
        return child if waits.exists() else None

    def _ask(self, switches: Switches, folder: Path, *, compares: bool = False) -> bool:
        """Ask for a module, or for a comparison; whether the answer came."""
        folder = folder.resolve()
        self._request(switches, folder, compares=compares)
        done = self._done(folder)
        if self._child is not None:
            self._wait(self._child, folder, done)
        if done.exists() and not read_kept(done):
            return True
        shutil.rmtree(folder, ignore_errors=True)
        return False

    def _request(self, switches: Switches, folder: Path, *, compares: bool) -> None:
        """Write a request, once."""
        if folder in self._asked:
            return
        folder.mkdir(parents=True)
        request = {
            "folder": str(folder),
            "alternatives": list(switches),
            "compares": compares,
        }
        name = hook_module("served").REQUEST % self._count
        write_files({self.folder / name: json.dumps(request)})
        self._count += 1
        self._asked.append(folder)

    def _done(self, folder: Path) -> Path:
        """The file that says that a request was answered."""
        return folder / str(hook_module("served").DONE)

    def _wait(self, child: subprocess.Popen[bytes], folder: Path, file: Path) -> None:
        """Wait until a file is there, or the program has ended or was stopped."""
        with terminal.working("running the program"):
            wait_or_stop(
                child,
                folder,
                quiet_s=self.quiet_s * UNSETTLED,
                choose=None,
                until_step=False,
                is_ready=file.exists,
            )
