"""Why a rehearsal's child process ended without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pgle.errors import UserError
from pgle.xla.log.wordings import FATAL, flag_refusal

TAIL = 200_000
"""Characters at the end of the log that are searched."""


def crash(code: int, log: Path, flags: Sequence[str]) -> UserError:
    """The error for a child that ended without an answer: XLA's own line where it left one.

    Args:
        code: what the child returned; negative for a signal.
        log: its output.
        flags: XLA flags that the user gave.
    """
    text = log.read_text(errors="replace")[-TAIL:]
    if (refused := flag_refusal(text)) is not None:
        said = refused[1] if "Flag parsing failed" not in refused[1] else f"a value of one of {' '.join(flags)}"
        return UserError(f"this XLA refuses a flag: {said}", remedy="leave it out, or see: pgle flags lint")
    fatal = FATAL.search(text)
    line = next((group for group in fatal.groups() if group), "") if fatal else ""
    if code == -9:
        return UserError("the compiler was killed, most likely for memory", where=log)
    last = line or next((row for row in reversed(text.splitlines()) if row.strip()), "no output")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return UserError(f"the compiler crashed ({how}): {last.strip()[:300]}", remedy=f"the whole log: {log}")
