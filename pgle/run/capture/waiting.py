"""A program that waits at its step, while pgle captures alternatives of the step.

A program may need far longer to reach its step than jax needs to trace it. So it runs once. The
hook stops it when it calls its step, and traces the step with each requested alternative
(`pgle_hook/served.py`). It is used only if it reproduces the unchanged program's module byte for
byte. What it cannot make needs its own run (`capture_modules`).
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
    """A program that starts at the first request, and is ended by `close`."""

    command: Sequence[str]
    module: Path  # the unchanged module of its step
    folder: Path  # folder for the program's files
    target: Target
    devices: Devices
    quiet_s: float  # as in `capture_modules`
    # folders of all requests, and the number of requests since the program was started
    _asked: list[Path] = field(default_factory=list)
    _count: int = 0
    _running: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """End the program."""
        self._running.close()

    def begin(self, switches: Switches, folder: Path) -> None:
        """Request what `make` will need later. The program makes it meanwhile."""
        self._renew_if_ended()
        if self._is_usable:
            self._request(switches, folder.resolve(), compares=False)

    def make(self, switches: Switches, folder: Path) -> bool:
        """Capture the step with some alternatives into a new folder. Return whether that was
        possible.
        """
        self._renew_if_ended()
        return self._is_usable and self._ask(switches, folder)

    def compare(self, switches: Switches, folder: Path) -> ComparedValues | None:
        """Return how some alternatives change the step's values; None if this cannot be determined
        here.
        """
        self._renew_if_ended()
        if not self._is_usable or not self._ask(switches, folder, compares=True):
            return None
        return read_captured(folder).compared

    def _renew_if_ended(self) -> None:
        """Prepare a restart if the program has ended, as a comparison that takes too long ends
        it.
        """
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
        """Whether it reproduces the unchanged program's module."""
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
        """Return the program, waiting at its step; None if it never reached the step."""
        claim(self.folder)
        self.folder.mkdir(parents=True)
        name = module_name(self.module)
        # with other arguments, such as parameters that are on one device before the first step
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
        """Request a module or a comparison. Return whether the answer came."""
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
        """Write a request, unless it exists."""
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
        """Return the file that marks a request as answered."""
        return folder / str(hook_module("served").DONE)

    def _wait(self, child: subprocess.Popen[bytes], folder: Path, file: Path) -> None:
        """Wait until a file exists, or the program has ended or was stopped."""
        with terminal.working("running the program"):
            wait_or_stop(
                child,
                folder,
                quiet_s=self.quiet_s * UNSETTLED,
                choose=None,
                until_step=False,
                is_ready=file.exists,
            )
