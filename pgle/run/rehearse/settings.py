"""As the user would have it compiled: which module, by whose jaxlib, with which flags, in how much memory."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.errors import UserError
from pgle.run.ask.flag_probe import installed, lint_flags
from pgle.run.ask.plugins import repair
from pgle.run.launch.captured import CapturedProgram, candidates, capture_warnings, choose_module, no_step, partitioned
from pgle.run.launch.environment import EFFORTS, OF_CPUS, checked_effort, flags_with, user_flags
from pgle.run.rehearse.compiler.messages import devices_in
from pgle.run.rehearse.compiler.request import RehearsalRequest
from pgle.xla.flags.catalogue import known_in
from pgle.xla.flags.text import Finding, FlagList, typed_flag
from pgle.xla.hardware import find_hardware
from pgle.xla.targets import Target

OURS: Mapping[str, str] = {
    "xla_dump_to": "give the folder with -o",
    "xla_gpu_pgle_profile_file_or_directory_path": "give the profile with --profile",
}
"""Flags that a rehearsal sets itself, and what to do instead."""

MEMORY_FRACTION = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Variables that say which part of a GPU's memory jax's allocator takes, the newer first."""
DEFAULT_FRACTION = 0.75

MODEL_OPTIONS = "xla_gpu_analytical_latency_estimator_options"
OF_XLA = 8  # GPUs of a host, as XLA's model assumes (openxla/xla `sol_gpu_cost_model.cc`)

_ENDS_XLA = ("unknown", "removed", "too-new", "needs-value", "bad-value")
OLDEST_PYTHON = (3, 11)  # that can run pgle's half of the compiler's process


@dataclass(frozen=True)
class Setting:
    """What is compiled, and how."""

    module: Path  # the file
    others: tuple[str, ...]  # the other modules, which were not chosen, in words, the largest first
    python: str  # the interpreter whose jaxlib compiles
    flags: tuple[str, ...]  # of the user, from XLA_FLAGS and from the command line, as text; the later wins
    warnings: tuple[str, ...]  # one line each
    # part of the GPU's memory that the job's allocator has; 0: it has no limit
    memory_fraction: float = DEFAULT_FRACTION
    topology: str | None = None  # of a captured step that is for other devices than were asked for
    no_step: str = ""  # why the module is no step of its captured program
    assumed: bool = False  # nobody said how many devices the captured program has

    def request(
        self, target: Target, out: Path, *, topology: str | None, flags: tuple[str, ...] = (), as_job: bool = False
    ) -> RehearsalRequest:
        """What all compilations of it for one target share."""
        return RehearsalRequest(
            module=partitioned(self.module),
            target=target.text,
            portable_target=target.portable_text,
            allocator_bytes=int(self.memory_fraction * target.memory_bytes),
            dump_dir=out,
            topology=self.topology or topology,
            flags=flags,
            as_job=as_job,
        )


def settle(modules: Sequence[Path], choose: str | None, program: CapturedProgram, flags: Sequence[str]) -> Setting:
    """Everything that is decided before the first compilation.

    Args:
        modules: one file, or all of a program or folder.
        choose: which, as in `choose_module`; None: the program's step.
        program: that compiled them; its environment compiles where it can.
        flags: from the command line, after XLA_FLAGS and the flags that the program sets itself.

    Raises:
        UserError: no module matches, or XLA would end over a flag.
    """
    module = choose_module(modules, choose) if len(modules) > 1 or choose else modules[0]
    python, warnings = _compiling_python(program)
    kept, more = _flags(flags, python, program.flags_of(module))
    doubt = repair(installed(python).versions, python)
    if doubt and doubt.fails:
        warnings = (*warnings, f"the CUDA plugin: {doubt.what}; {doubt.line}")
    others = candidates([path for path in modules if path != module])
    said = (*capture_warnings(module), *warnings, *more)
    unsure = "" if choose else no_step(module)
    return Setting(module, tuple(others), python, kept, said, memory_fraction(os.environ), no_step=unsure)


def told_of_hosts(setting: Setting, target: Target, topology: str | None, network_gb_s: float | None) -> Setting:
    """The setting with a flag by which XLA's speed-of-light model, too, knows the hosts and the network of the user.

    XLA assumes hosts of 8 GPUs and a network of its own. Nothing changes if that is right, if no collective can cross
    hosts, if the user has set the flag, or if the jaxlib does not know it.

    Args:
        setting: as the user has it.
        target: the GPU.
        topology: ``SxHxD``; None: not known.
        network_gb_s: what the user says of the network, per GPU and direction.
    """
    shape = setting.topology or topology
    hardware = find_hardware(target, topology=shape, network_gb_s=network_gb_s)
    together, devices = hardware.devices_per_host, devices_in(shape) if shape else math.inf
    options = {"gpus_per_node": f"{together}"} if together != OF_XLA and devices > min(together, OF_XLA) else {}
    if network_gb_s and devices > together:
        options["nic_speed_gbps"] = f"{network_gb_s:g}"  # in GB/s, whatever its name says
    given = any(typed_flag(flag).name == MODEL_OPTIONS for flag in setting.flags)
    if not options or given or known_in(MODEL_OPTIONS, installed(setting.python).jaxlib) is False:
        return setting
    flag = f"--{MODEL_OPTIONS}={','.join(f'{name}={value}' for name, value in options.items())}"
    line = f"XLA's own cost model gets your topology and network by {flag}; give your job the same flag"
    return replace(setting, flags=(*setting.flags, flag), warnings=(*setting.warnings, line))


def memory_fraction(environment: Mapping[str, str]) -> float:
    """The part of a GPU's memory that jax's allocator has under these variables; 0 where it has no limit.

    Raises:
        UserError: a variable is no positive number.
    """
    if environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() == "platform":
        return 0.0
    name = next((name for name in MEMORY_FRACTION if environment.get(name)), "")
    if not name:
        return DEFAULT_FRACTION
    try:
        fraction = float(environment[name])
    except ValueError:
        fraction = math.nan
    if not 0 < fraction < math.inf:
        raise UserError("is no part of a memory", where=f"{name}={environment[name]}", remedy="0.75 is jax's own")
    return fraction


def _compiling_python(program: CapturedProgram) -> tuple[str, tuple[str, ...]]:
    """The program's own interpreter where that can compile for GPUs, else ours, with a warning where they differ."""
    is_new = program.version >= OLDEST_PYTHON
    if program.plugin and is_new and shutil.which(program.python):
        return program.python, ()
    ours = installed().jaxlib
    if not program.python or program.jaxlib == ours:
        return sys.executable, ()
    mended = repair({"jaxlib": program.jaxlib}, program.python)
    if not program.plugin:
        why, remedy = "has no CUDA plugin", mended.line if mended else "install one there"
    elif not is_new:
        why, remedy = f"is Python {'.'.join(map(str, program.version))}", "use Python 3.11 or newer there"
    else:
        why, remedy = "is not on this machine", f"compile where jaxlib {program.jaxlib} is"
    what = f"the program runs jaxlib {program.jaxlib} ({program.python} {why}), and pgle's jaxlib {ours} compiles here"
    return sys.executable, (f"{what}: releases differ by several per cent; {remedy}",)


def _flags(given: Sequence[str], python: str, own: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The user's flags that count, what a captured program asks of XLA by its `own` too, and warnings.

    A flag that the program sets and the jaxlib that compiles does not take is left out: another one ran the program.

    Raises:
        UserError: the jaxlib that compiles would end over one of them.
    """
    environment, warnings = [], []
    for flag in flags_with(own):
        if flag.name in OURS:
            warnings.append(f"--{flag.name} of XLA_FLAGS is left out; {OURS[flag.name]}")
        elif flag.name not in OF_CPUS and not flag.name.startswith("xla_dump_"):
            environment.append(flag)
    typed = [typed_flag(text) for text in given]
    for flag in typed:
        if flag.name in OURS:
            raise UserError("rehearse sets this flag itself", where=f"--flag {flag.word}", remedy=OURS[flag.name])
        if flag.name in EFFORTS:
            checked_effort(flag, f"--flag {flag.word}")
    if not environment and not typed:
        return (), tuple(warnings)
    of_xla = tuple(flag for flag in (*environment, *typed) if flag.name not in EFFORTS)
    found = lint_flags(FlagList(of_xla), python=python).findings
    errors = [finding for finding in found if finding.level == "error"]
    ours = {flag.name for flag in (*user_flags().flags, *typed)}
    for finding in errors:
        if finding.code in _ENDS_XLA and finding.flag in ours:
            raise _refused(finding, any(flag.name == finding.flag for flag in typed))
    unknown = {finding.flag for finding in errors if finding.code in _ENDS_XLA}
    warnings += [f"{finding.line()}{' (left out)' * (finding.flag in unknown)}" for finding in errors]
    return tuple(flag.word for flag in (*environment, *typed) if flag.name not in unknown), tuple(warnings)


def _refused(finding: Finding, is_typed: bool) -> UserError:
    where = f"{'--flag' if is_typed else 'XLA_FLAGS:'} --{finding.flag}"
    return UserError(finding.message, where=where, remedy=finding.remedy or "see: pgle flags lint")
