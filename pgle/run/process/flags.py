"""The XLA flags that a user gives: in XLA_FLAGS, in a file named there, or on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.run.process.efforts import efforts, variables, without_efforts
from pgle.xla.flags.text import (
    Flag,
    FlagFinding,
    FlagList,
    format_flags,
    parse_flags,
    typed_flag,
)

MAX_FLAG_FILE_BYTES = 1 << 20

OF_CPUS = ("xla_force_host_platform_device_count", "xla_backend_optimization_level")
"""Flags that affect only the captured program, which runs on CPUs, and not the GPU's module."""


def user_flags(environ: Mapping[str, str] = os.environ) -> FlagList:
    """Return the flags of XLA_FLAGS. If the variable names a file, return the flags in it, and a
    finding.
    """
    parsed = parse_flags(environ.get("XLA_FLAGS", ""))
    if not parsed.file:
        return parsed
    try:
        held = read_flag_file(parsed.file)
    except UserError as error:
        raise UserError(
            f"XLA_FLAGS does not begin with '-', so XLA reads it as a file: {error.what}",
            where=parsed.file[:80],
            remedy="write --flag=value, or mend the path",
        ) from None
    return replace(held, findings=(*parsed.findings, *held.findings))


def read_flag_file(path: str) -> FlagList:
    """Read the flags in a file as XLA does if XLA_FLAGS names that file."""
    data = read_bytes(Path(path), max_bytes=MAX_FLAG_FILE_BYTES)
    held = parse_flags(data.decode(errors="replace"))
    if held.file:  # XLA does not read a file named in a file, so its flags do not count
        message = f"{path} does not begin with '-', so XLA reads no flag from it"
        return FlagList(text="", findings=(FlagFinding("error", "file", "", message),))
    return held


def given_flags(
    environ: Mapping[str, str] = os.environ,
    more: Sequence[str] = (),
    *,
    own_dumps: bool = False,
) -> FlagList:
    """Return all XLA flags of a user: XLA_FLAGS, then `more` from the command line, which win.

    `own_dumps` leaves out the user's ``xla_dump_…``, since pgle needs the dumps in its own folder.
    """
    user = user_flags(environ)
    dropped: list[Flag] = []
    if own_dumps:
        dropped = [flag for flag in user.flags if flag.name.startswith("xla_dump_")]
    if not dropped and not more:
        return user
    kept = [flag for flag in user.flags if flag not in dropped]
    flags = (*kept, *without_efforts([typed_flag(word) for word in more]))
    what = "left out: pgle has XLA dump into a folder of its own"
    findings = [
        FlagFinding("warning", "own-dumps", flag.name, what)
        for flag in dict.fromkeys(dropped)
    ]
    text = " ".join(filter(None, (format_flags(flags), user.ignored)))
    return replace(user, flags=flags, text=text, findings=(*user.findings, *findings))


def flags_with(own: str) -> tuple[Flag, ...]:
    """Return the flags of a captured program: the user's, then `own`, which win. `own` is the
    XLA_FLAGS that the program set.
    """
    its_flags = user_flags({"XLA_FLAGS": own}).flags
    set_there = [flag for flag in its_flags if flag.name not in OF_CPUS]
    given = (*user_flags().flags, *efforts())
    return (*(flag for flag in given if flag not in set_there), *set_there)


def environment_with(own: str) -> dict[str, str]:
    """Return this process's environment, with the flags of `flags_with`."""
    flags = flags_with(own)
    text = format_flags(without_efforts(flags))
    return {**os.environ, "XLA_FLAGS": text, **variables(flags)}
