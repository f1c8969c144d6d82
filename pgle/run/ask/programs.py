"""Run other programs, and read what they print."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from os import PathLike
from typing import Any


def ran(
    words: Sequence[str | PathLike[str]], **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with any exit code. Return its output as text. `how` has further
    arguments of `subprocess.run`.
    """
    return subprocess.run(
        words, capture_output=True, text=True, errors="replace", check=False, **how
    )


def last_line(text: str, default: str) -> str:
    """The last line of a text that is not blank; `default` if all are."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else default
