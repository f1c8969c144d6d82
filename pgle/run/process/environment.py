"""The environment of a child: what the user has, what pgle adds and why, and which rank of a job
this process is.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.run.ask.jaxlib import installed, probe
from pgle.xla.flags.presets import Mode, flags_for
from pgle.xla.flags.text import (
    Flag,
    FlagFinding,
    FlagList,
    FlagPlan,
    as_bool,
    format_flags,
    parse_flags,
    typed_flag,
)

MAX_FLAG_FILE_BYTES = 1 << 20

OF_CPUS = ("xla_force_host_platform_device_count", "xla_backend_optimization_level")
"""Flags that matter for a captured program, which runs on CPUs, and not for the GPU's modules."""

EFFORTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("jax_optimization_level", "jax_memory_fitting_level"), "UNKNOWN|O[0-3]"
    ),
    **dict.fromkeys(
        ("jax_exec_time_optimization_effort", "jax_memory_fitting_effort"),
        r"-?(0|1)?(\.\d*)?",
    ),
}
"""Settings of jax that go to XLA as options of each compilation and change schedules (level ``O1``:
the latency-hiding scheduler, pipelined collectives, two copies of loop bodies), with the form of
their values. They are written like flags here, ``--jax_optimization_level=O1``, and go with them;
to a program they are given as environment variables.
"""


@dataclass(frozen=True, slots=True)
class ChildEnvironment:
    """The environment of a child."""

    values: Mapping[str, str]  # the whole environment, for `subprocess`
    plan: FlagPlan  # the flags and why
    warnings: tuple[FlagFinding, ...]  # what gives way, is left out or will go wrong

    @property
    def flags(self) -> FlagList:
        """All that it asks of XLA: XLA_FLAGS, and jax's settings of effort."""
        return with_efforts(self.plan.xla_flags, efforts(self.values))


def user_flags(environ: Mapping[str, str] = os.environ) -> FlagList:
    """The user's XLA_FLAGS; where the variable names a file, what that file holds, with the finding
    that it does.
    """
    parsed = parse_flags(environ.get("XLA_FLAGS", ""))
    if not parsed.file:
        return parsed
    try:
        held = read_flag_file(parsed.file)
    except UserError as error:
        what = f"XLA_FLAGS does not begin with '-', so XLA reads it as a file: {error.what}"
        raise UserError(
            what, where=parsed.file[:80], remedy="write --flag=value, or mend the path"
        ) from None
    return replace(held, findings=(*parsed.findings, *held.findings))


def flags_with(own: str) -> tuple[Flag, ...]:
    """The flags of a captured program: the user's, then those of `own`, the whole XLA_FLAGS as the
    program had them.
    """
    set_there = [
        flag
        for flag in user_flags({"XLA_FLAGS": own}).flags
        if flag.name not in OF_CPUS
    ]
    given = (*user_flags().flags, *efforts())
    return (*(flag for flag in given if flag not in set_there), *set_there)


def environment_with(own: str) -> dict[str, str]:
    """This process's environment as a captured program had it; `own` as of `flags_with`."""
    flags = flags_with(own)
    asked = {
        flag.name.upper(): flag.value or "" for flag in flags if flag.name in EFFORTS
    }
    text = format_flags(flag for flag in flags if flag.name not in EFFORTS)
    return {**os.environ, "XLA_FLAGS": text, **asked}


def efforts(
    environ: Mapping[str, str] = os.environ, more: Sequence[str] = ()
) -> tuple[Flag, ...]:
    """The `EFFORTS` that environment variables state, or flags of the command line, which win."""
    found = {
        name: Flag(name, environ[name.upper()])
        for name in EFFORTS
        if environ.get(name.upper())
    }
    checked = {
        name: checked_effort(flag, f"{name.upper()}={flag.value}")
        for name, flag in found.items()
    }
    for flag in map(typed_flag, more):
        if flag.name in EFFORTS:
            checked[flag.name] = checked_effort(flag, f"--flag {flag.word}")
    return tuple(checked.values())


def checked_effort(flag: Flag, where: str) -> Flag:
    """One of `EFFORTS`, if its value is one that jax takes; `UserError` otherwise."""
    if not re.fullmatch(EFFORTS[flag.name], flag.value or ""):
        raise UserError(
            "is no value that jax takes",
            where=where,
            remedy="O0 to O3; of an effort -1 to 1",
        )
    return flag


def with_efforts(text: str, asked: Sequence[Flag]) -> FlagList:
    """XLA_FLAGS with `EFFORTS` behind them."""
    return parse_flags(" ".join(filter(None, (text, format_flags(asked)))))


def given_flags(
    environ: Mapping[str, str] = os.environ,
    more: Sequence[str] = (),
    *,
    own_dumps: bool = False,
) -> FlagList:
    """All flags that a user gives: XLA_FLAGS of the environment, then `more` of the command line,
    which win.

    `own_dumps` leaves out the user's ``xla_dump_…``: a compilation whose dumps pgle reads has a
    folder of its own.
    """
    user = user_flags(environ)
    dropped = [
        flag for flag in user.flags if own_dumps and flag.name.startswith("xla_dump_")
    ]
    if not (dropped or more):
        return user
    flags = [flag for flag in user.flags if flag not in dropped]
    flags += [flag for flag in map(typed_flag, more) if flag.name not in EFFORTS]
    what = "left out: pgle has XLA dump into a folder of its own"
    findings = (
        FlagFinding("warning", "own-dumps", flag.name, what)
        for flag in dict.fromkeys(dropped)
    )
    text = " ".join(filter(None, (format_flags(flags), user.ignored)))
    return replace(
        user, flags=tuple(flags), text=text, findings=(*user.findings, *findings)
    )


def read_flag_file(path: str) -> FlagList:
    """The flags in a file, as XLA reads them where XLA_FLAGS names it."""
    held = parse_flags(
        read_bytes(Path(path), max_bytes=MAX_FLAG_FILE_BYTES).decode(errors="replace")
    )
    if held.file:  # XLA does not follow a second file: nothing in it counts
        message = f"{path} does not begin with '-', so XLA reads no flag from it"
        return FlagList(text="", findings=(FlagFinding("error", "file", "", message),))
    return held


def build_environment(
    mode: Mode,
    *,
    python: str | None = None,
    environ: Mapping[str, str] = os.environ,
    dump_to: str = "",
    stablehlo_to: str = "",
    profile: str = "",
    cache: Path | None = None,
    more_flags: Sequence[str] = (),
    own_dumps: bool = False,
) -> ChildEnvironment:
    """The environment of a run.

    Args:
        python: the interpreter of the user's program, asked which flags its jaxlib knows; default:
        ours.
        dump_to: absolute directory for XLA's dumps; none where empty.
        stablehlo_to: the same for the StableHLO of every compiled function.
        profile: absolute path of the cost profile, for mode ``perf``.
        cache: folder of JAX's compilation cache. None: off, so that everything is compiled: a
        cached executable gives
            neither log lines nor dumps, and the cache does not notice a changed profile under an
            old name.
        more_flags: of the command line; they win over XLA_FLAGS of `environ`.
        own_dumps: as of `given_flags`.
    """
    base = dict(environ)
    user = given_flags(base, more_flags, own_dumps=own_dumps)
    plan = flags_for(
        mode, installed(python).jaxlib or None, user, dump_to=dump_to, profile=profile
    )
    plan, unknown = _leave_out_unknown(plan, user, python)
    wanted = dict(plan.environment)
    if stablehlo_to:
        wanted["JAX_DUMP_IR_TO"] = (
            stablehlo_to  # the program as it was before XLA, for rehearsals
        )
    asked = {flag.name.upper(): flag.value or "" for flag in efforts(base, more_flags)}
    values = {**wanted, **base, "XLA_FLAGS": plan.xla_flags, **asked}
    off = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    values |= off if cache is None else {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    return ChildEnvironment(
        values, plan, (*plan.warnings, *unknown, *_conflicts(values, mode))
    )


def interpreter(command: Sequence[str]) -> str | None:
    """The Python of the user's command where it names one, to ask which flags its jaxlib knows;
    else ours.
    """
    name = Path(command[0]).name if command else ""
    is_python = name.startswith("python") and not name.endswith(
        (".sh", ".py")
    )  # python_job.sh would start its job
    return shutil.which(command[0]) if is_python else None


def compiler_of(command: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The Python whose XLA compiles a command's modules for GPUs that are not there, and warnings.

    It is the command's own if that has jax and a CUDA plugin, else None: ours. If ours is of
    another release, a warning says so, since schedules of two releases differ.
    """
    python = interpreter(command)
    if python is None:
        return None, ()
    theirs, ours = installed(python), installed(None)
    if not theirs.jaxlib or theirs.plugins:
        return (python if theirs.plugins else None), ()
    if theirs.jaxlib == ours.jaxlib:
        return None, ()
    what = f"{python} has jaxlib {theirs.jaxlib} and no CUDA plugin: pgle's jaxlib {ours.jaxlib} compiles in its place"
    return None, (
        f"{what}, and schedules of two releases differ; pgle doctor --python {python}",
    )


def check_compiler(command: Sequence[str], *, by_name: bool = False) -> None:
    """Refuse a program whose modules nothing here can compile for GPUs, before it runs.

    `by_name`: a command that names no Python is not refused, since it may start one that can
    compile.
    """
    if compiler_of(command)[0] is None and not (
        by_name and interpreter(command) is None
    ):
        from pgle.run.ask.jax_private import library, version

        version()
        library()


def _leave_out_unknown(
    plan: FlagPlan, user: FlagList, python: str | None
) -> tuple[FlagPlan, tuple[FlagFinding, ...]]:
    """The plan without our flags that the installed jaxlib rejects, and what it says of the
    user's.
    """
    asked = probe([*plan.flags, *user.flags], python)
    known = {
        text for text, verdict in asked.verdicts.items() if verdict.status == "known"
    }
    findings: list[FlagFinding] = []
    for flag in (flag for flag in plan.flags if flag.text not in known):
        message = f"left out: jaxlib {asked.jaxlib} says '{asked.verdicts[flag.text].message}'"
        findings.append(FlagFinding("warning", "left-out", flag.name, message))
    for flag in (flag for flag in dict.fromkeys(user.flags) if flag.text not in known):
        verdict = asked.verdicts[flag.text]
        message = f"yours, and jaxlib {asked.jaxlib} ends your program over it: '{verdict.message}'"
        findings.append(
            FlagFinding(
                "error", verdict.status, flag.name, message, "see 'pgle flags lint'"
            )
        )
    kept = [flag for flag in plan.flags if flag.text in known]
    text = " ".join(filter(None, (format_flags(kept), user.text.strip())))
    return replace(plan, flags=tuple(kept), xla_flags=text), tuple(findings)


def _conflicts(values: Mapping[str, str], mode: Mode) -> list[FlagFinding]:
    """What the environment does against the purpose of the run."""
    found: list[FlagFinding] = []
    level = values.get("TF_CPP_MIN_LOG_LEVEL", "0")
    if level != "0":
        message = f"TF_CPP_MIN_LOG_LEVEL={level} is yours and stays: XLA's lines about the profile are hidden"
        found.append(
            FlagFinding("warning", "log-level", "", message, "unset it, or set 0")
        )
    if as_bool(values.get("JAX_ENABLE_PGLE")):
        message = f"JAX_ENABLE_PGLE is on: AutoPGLE profiles and compiles by itself in the middle of this {mode} run"
        found.append(
            FlagFinding(
                "warning", "auto-pgle", "", message, "unset it, or use 'pgle auto'"
            )
        )
    return found


# (launcher, rank, size); the first whose variables are set counts. Variables that a user sets by
# hand come first. Slurm sets SLURM_PROCID and SLURM_NTASKS in the batch script too; only `srun`
# sets SLURM_STEP_NUM_TASKS.
LAUNCHERS: tuple[tuple[str, str, str], ...] = (
    ("pgle", "PGLE_RANK", "PGLE_RANKS"),
    ("jax", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("jax", "JAX_PROCESS_INDEX", "JAX_PROCESS_COUNT"),
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpich", "PMI_RANK", "PMI_SIZE"),
    ("pmix", "PMIX_RANK", "PMIX_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("jobset", "NODE_RANK", "NNODES"),
)

INDEXED_JOB = "JOB_COMPLETION_INDEX"
"""Set in an indexed Kubernetes job, as a JobSet starts; the size of the job is in no variable."""

UNKNOWN = 0  # size of a job that does not tell it


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job."""

    rank: int = 0  # 0 … size-1
    size: int = 1  # processes of the job; `UNKNOWN` where there may be others
    launcher: str = ""  # whose variables these are; empty for a single process

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1


def find_rank(env: Mapping[str, str] = os.environ) -> Rank:
    """The rank of this process; a single process where no launcher's variables make sense."""
    for launcher, rank, size in LAUNCHERS:
        number, count = _number(env, rank), _number(env, size)
        if (
            number is not None
            and count is not None
            and 0 <= number < count
            and count > 1
        ):
            return Rank(number, count, launcher)
    index = _number(env, INDEXED_JOB)
    return Rank() if index is None or index < 0 else Rank(index, UNKNOWN, "kubernetes")


def _number(env: Mapping[str, str], name: str) -> int | None:
    try:
        return int(env[name])
    except (KeyError, ValueError):
        return None


MEMORY_FRACTION = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Variables that say which part of a GPU's memory jax's allocator takes, the newer first."""
DEFAULT_FRACTION = 0.75


def memory_fraction(environment: Mapping[str, str]) -> float:
    """The part of a GPU's memory that jax's allocator has under these variables; 0 where it has no
    limit.
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
        raise UserError(
            "is no part of a memory",
            where=f"{name}={environment[name]}",
            remedy="0.75 is jax's own",
        )
    return fraction
