"""The environment of a child: the user's variables, pgle's additions, and the reasons."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.run.ask.jaxlib import Probe, installed, probe
from pgle.run.process.efforts import efforts, variables, with_efforts
from pgle.run.process.flags import given_flags
from pgle.xla.flags.presets import Mode, flags_for
from pgle.xla.flags.text import (
    Flag,
    FlagFinding,
    FlagList,
    FlagPlan,
    as_bool,
    format_flags,
    to_be_extended,
)


@dataclass(frozen=True, slots=True)
class ChildEnvironment:
    """The environment of a child."""

    values: Mapping[str, str]  # the whole environment, for `subprocess`
    plan: FlagPlan  # the flags, with reasons
    # what pgle changed or removed, and what will fail
    warnings: tuple[FlagFinding, ...]

    @property
    def flags(self) -> FlagList:
        """All settings for XLA: XLA_FLAGS, and jax's settings of effort."""
        return with_efforts(self.plan.xla_flags, efforts(self.values))


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
        python: the interpreter of the user's program, whose jaxlib says which flags it knows;
            default: ours.
        dump_to: absolute directory for XLA's dumps; empty: no dumps.
        stablehlo_to: the same for the StableHLO of every compiled function.
        profile: absolute path of the cost profile, for mode ``perf``.
        cache: folder of JAX's compilation cache. None turns the cache off. A cached executable
            writes no log lines and no dumps, and the cache ignores a changed profile with the same
            path.
        more_flags: flags of the command line; they win over XLA_FLAGS in `environ`.
        own_dumps: as in `given_flags`.
    """
    base = dict(environ)
    user = given_flags(base, more_flags, own_dumps=own_dumps)
    jaxlib = installed(python).jaxlib or None
    plan = flags_for(mode, jaxlib, user, dump_to=dump_to, profile=profile)
    plan, unknown = _leave_out_unknown(plan, user, python)
    wanted = dict(plan.environment)
    if stablehlo_to:
        # the program before XLA changes it, for rehearsals
        wanted["JAX_DUMP_IR_TO"] = stablehlo_to
    asked = variables(efforts(base, more_flags))
    xla_flags = to_be_extended(plan.xla_flags)
    values = {**wanted, **base, "XLA_FLAGS": xla_flags, **asked}
    if cache is None:
        values["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    else:
        values["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    warnings = (*plan.warnings, *unknown, *_conflicts(values, mode))
    return ChildEnvironment(values, plan, warnings)


def _leave_out_unknown(
    plan: FlagPlan, user: FlagList, python: str | None
) -> tuple[FlagPlan, tuple[FlagFinding, ...]]:
    """Remove our flags that the installed jaxlib rejects, with a finding for each. The user's
    rejected flags stay, with a finding, too.
    """
    asked = probe([*plan.flags, *user.flags], python)
    kept = [flag for flag in plan.flags if _is_known(flag, asked)]
    ours = _unknown(plan.flags, asked)
    theirs = _unknown(dict.fromkeys(user.flags), asked)
    findings = (
        *(_left_out(flag, asked) for flag in ours),
        *(_fatal(flag, asked) for flag in theirs),
    )
    text = " ".join(filter(None, (format_flags(kept), user.text.strip())))
    return replace(plan, flags=tuple(kept), xla_flags=text), findings


def _is_known(flag: Flag, asked: Probe) -> bool:
    return asked.verdicts[flag.text].status == "known"


def _unknown(flags: Iterable[Flag], asked: Probe) -> list[Flag]:
    return [flag for flag in flags if not _is_known(flag, asked)]


def _left_out(flag: Flag, asked: Probe) -> FlagFinding:
    said = asked.verdicts[flag.text].message
    message = f"left out: jaxlib {asked.jaxlib} says '{said}'"
    return FlagFinding("warning", "left-out", flag.name, message)


def _fatal(flag: Flag, asked: Probe) -> FlagFinding:
    said = asked.verdicts[flag.text]
    message = (
        f"yours, and jaxlib {asked.jaxlib} ends your program over it: '{said.message}'"
    )
    remedy = "see 'pgle flags lint'"
    return FlagFinding("error", said.status, flag.name, message, remedy)


def _conflicts(values: Mapping[str, str], mode: Mode) -> list[FlagFinding]:
    """Find environment variables that defeat the purpose of the run."""
    found: list[FlagFinding] = []
    level = values.get("TF_CPP_MIN_LOG_LEVEL", "0")
    if level != "0":
        message = (
            f"TF_CPP_MIN_LOG_LEVEL={level} is yours and stays: "
            "XLA's lines about the profile are hidden"
        )
        remedy = "unset it, or set 0"
        found.append(FlagFinding("warning", "log-level", "", message, remedy))
    if as_bool(values.get("JAX_ENABLE_PGLE")):
        message = (
            "JAX_ENABLE_PGLE is on: AutoPGLE profiles and compiles by itself "
            f"in the middle of this {mode} run"
        )
        remedy = "unset it, or use 'pgle auto'"
        found.append(FlagFinding("warning", "auto-pgle", "", message, remedy))
    return found
