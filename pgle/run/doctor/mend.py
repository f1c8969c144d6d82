"""`pgle doctor --fix`: the commands that mend jax's CUDA plugin, shown or run, and what they changed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from pgle.run.ask.flag_probe import installed
from pgle.run.ask.plugins import Repair, repair
from pgle.run.doctor.machine import Machine


@dataclass(frozen=True, slots=True)
class Mended:
    """What was to be mended, and what came of it."""

    repair: Repair | None  # None where nothing is wrong
    was_run: bool  # whether the commands were run
    # before, after: versions of jax, jaxlib and the plugin's wheels
    before: Mapping[str, str]
    after: Mapping[str, str]
    failed: str = ""  # what the command that failed printed last; empty where none did

    @property
    def ok(self) -> bool:
        """Whether nothing is left to do, and jax is what it was."""
        kept = all(self.before.get(name) == self.after.get(name) for name in ("jax", "jaxlib"))
        return self.repair is None or (self.was_run and not self.failed and kept)


def mend(machine: Machine, *, yes: bool) -> Mended:
    """Find the commands; run them where `yes` says so."""
    found = repair(machine.installed.versions, machine.python)
    before = _of_jax(machine.installed.versions)
    if found is None or not yes:
        return Mended(found, False, before, before)
    failed = ""
    for command in found.commands:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            failed = lines[-1] if lines else f"{command[0]} ended with {done.returncode}"
            break
    return Mended(found, True, before, _of_jax(installed(machine.python).versions), failed)


def _of_jax(versions: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in versions.items() if name.startswith("jax")}
