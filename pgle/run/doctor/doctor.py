"""`pgle doctor`: is this machine ready to profile, rehearse and run? With ``--fix``, what mends jax's CUDA plugin."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pgle.masking import kept_text
from pgle.run.ask.flag_probe import installed
from pgle.run.ask.machine import Check, Machine, read_gpus
from pgle.run.ask.plugins import Repair, repair
from pgle.run.directory.manifest import Gpu
from pgle.run.doctor import checks

PLUGIN = "CUDA plugin"
TO_REHEARSE = ("jax", PLUGIN, "packages", "XLA_FLAGS", "disk", "run directory")
"""Checks that matter where there is no GPU."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, in the order of the table."""

    checks: tuple[Check, ...]  # what was looked at
    gpus: tuple[Gpu, ...]  # of this host

    @property
    def keeps_from_profiling(self) -> tuple[str, ...]:
        """Why this machine cannot profile or measure: names of checks, ``GPUs`` if it has no GPU; empty: it can."""
        failed = [check.name for check in self.checks if check.verdict == "fail"]
        return tuple(dict.fromkeys([*([] if self.gpus else ["GPUs"]), *failed]))

    @property
    def keeps_from_rehearsing(self) -> tuple[str, ...]:
        """Why this machine cannot compile for GPUs and simulate them: names of checks; empty: it can."""
        needed = [check for check in self.checks if check.name in TO_REHEARSE]
        failed = [check.name for check in needed if check.verdict == "fail"]
        plugin = [check.name for check in needed if check.name == PLUGIN and check.verdict != "ok"]
        return tuple(dict.fromkeys([*failed, *plugin]))

    @property
    def ok(self) -> bool:
        """Whether nothing fails; warnings are allowed."""
        return all(check.verdict != "fail" for check in self.checks)


def diagnose(machine: Machine, run_dir: str = ".") -> Diagnosis:
    """Look at everything; a check that breaks is a warning, never a traceback.

    Args:
        machine: the machine.
        run_dir: where runs are to be kept.
    """
    gpus = read_gpus(machine)
    probes: tuple[tuple[str, Callable[[], Check]], ...] = (
        ("GPUs", lambda: checks.check_gpus(machine, gpus)),
        ("driver", lambda: checks.check_driver(machine, gpus)),
        ("CUPTI", lambda: checks.check_counters(machine)),
        ("DCGM", lambda: checks.check_monitors(machine)),
        ("profilers", lambda: checks.check_profilers(machine)),
        ("nsys", lambda: checks.check_nsys(machine)),
        ("jax", lambda: checks.check_jax(machine)),
        (PLUGIN, lambda: checks.check_plugin(machine)),
        ("ptxas", lambda: checks.check_ptxas(machine)),
        ("packages", lambda: checks.check_packages(machine)),
        ("XLA_FLAGS", lambda: checks.check_flags(machine)),
        ("variables", lambda: checks.check_variables(machine)),
        ("XLA log", lambda: checks.check_log(machine)),
        ("compilation cache", lambda: checks.check_compilation_cache(machine)),
        ("disk", lambda: checks.check_disk(machine, run_dir)),
        ("run directory", lambda: checks.check_run_dir(machine, run_dir)),
        ("limits", lambda: checks.check_limits(machine)),
        ("shared memory", lambda: checks.check_shared_memory(machine, gpus)),
    )
    with ThreadPoolExecutor(len(probes)) as pool:  # nsys and jaxlib are asked at the same time
        return Diagnosis(tuple(pool.map(lambda probe: _safely(*probe), probes)), gpus)


def _safely(name: str, probe: Callable[[], Check]) -> Check:
    try:
        check = probe()
        return replace(check, name=name, found=kept_text(check.found), remedy=kept_text(check.remedy))
    except Exception as error:
        return Check(name, "warn", f"could not be looked at ({type(error).__name__}: {error})", "please report this")


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
