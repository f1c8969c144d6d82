"""Why a rehearsal's child process ended without an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pgle.errors import UserError

TAIL = 200_000
"""Characters at the end of the log that are searched."""

_FATAL = re.compile(r"^F\d{4} .*?\] (.*)$|^[-\d]+ [\d:.]+: F .*?\] (.*)$", re.MULTILINE)


def crash(code: int, log: Path, flags: Sequence[str]) -> UserError:
    """The error for a child that ended without an answer: XLA's own line where it left one.

    Args:
        code: what the child returned; negative for a signal.
        log: its output.
        flags: XLA flags that the user gave.
    """
    text = log.read_text(errors="replace")[-200_000:]
    fatal = _FATAL.search(text)
    line = next((group for group in fatal.groups() if group), "") if fatal else ""
    if "Unknown flag" in line:
        return UserError(f"this XLA refuses a flag: {line.strip()}", remedy="leave it out, or see: pgle flags lint")
    bad = re.search(r"Couldn't interpret value .* for flag .*", text)
    if bad:
        return UserError(f"this XLA refuses a flag: {bad[0].strip()}", remedy="see: pgle flags explain FLAG")
    if "Flag parsing failed" in line:
        given = " ".join(flags)
        return UserError(f"this XLA refuses the value of a flag, one of {given}", remedy="see: pgle flags lint")
    if code == -9:
        return UserError("the compiler was killed, most likely for memory", where=log)
    last = line or next((row for row in reversed(text.splitlines()) if row.strip()), "no output")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return UserError(f"the compiler crashed ({how}): {last.strip()[:300]}", remedy=f"the whole log: {log}")
