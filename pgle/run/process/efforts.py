"""Effort settings, which jax passes to XLA as options of each compilation, not in XLA_FLAGS."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from pgle.errors import UserError
from pgle.xla.flags.text import Flag, FlagList, format_flags, parse_flags, typed_flag

_LEVEL = "UNKNOWN|O[0-3]"
_SHARE = r"-?(0|1)?(\.\d*)?"

EFFORTS: Mapping[str, str] = {
    "jax_optimization_level": _LEVEL,
    "jax_memory_fitting_level": _LEVEL,
    "jax_exec_time_optimization_effort": _SHARE,
    "jax_memory_fitting_effort": _SHARE,
}
"""Settings that change schedules, with the form of their values.

Level ``O1`` switches on the latency-hiding scheduler, pipelined collectives and two copies of loop
bodies. Lists of flags may contain them in the form of flags: ``--jax_optimization_level=O1``. A
program gets them as environment variables.
"""


def efforts(
    environ: Mapping[str, str] = os.environ, more: Sequence[str] = ()
) -> tuple[Flag, ...]:
    """Return the `EFFORTS` that environment variables or flags of the command line set. Flags
    win.
    """
    found: dict[str, Flag] = {}
    for name in EFFORTS:
        variable = name.upper()
        if value := environ.get(variable):
            found[name] = checked_effort(Flag(name, value), f"{variable}={value}")
    for flag in map(typed_flag, more):
        if flag.name in EFFORTS:
            found[flag.name] = checked_effort(flag, f"--flag {flag.word}")
    return tuple(found.values())


def checked_effort(flag: Flag, where: str) -> Flag:
    """Return one of `EFFORTS` if jax takes its value. Raise `UserError` if not."""
    if not re.fullmatch(EFFORTS[flag.name], flag.value or ""):
        raise UserError(
            "jax does not take this value",
            where=where,
            remedy="give a level from O0 to O3, or an effort from -1 to 1",
        )
    return flag


def without_efforts(flags: Sequence[Flag]) -> list[Flag]:
    """Keep only the flags of XLA, without settings of effort."""
    return [flag for flag in flags if flag.name not in EFFORTS]


def variables(flags: Sequence[Flag]) -> dict[str, str]:
    """Return the environment variables for the efforts among some flags."""
    return {
        flag.name.upper(): flag.value or "" for flag in flags if flag.name in EFFORTS
    }


def with_efforts(text: str, asked: Sequence[Flag]) -> FlagList:
    """XLA_FLAGS, followed by `EFFORTS`."""
    return parse_flags(" ".join(filter(None, (text, format_flags(asked)))))
