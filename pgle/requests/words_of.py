"""Read single words of a command line: sizes, values, measured steps.

All readers raise `UserError` for a word of another form, except `step_range`.
"""

from __future__ import annotations

import re

from pgle.checks import Rule, check_numbers
from pgle.errors import UserError

MOST_DIGITS = 9  # a size has at most so many digits
DEVICES = Rule(1, 1 << 20, whole=True)
MEASURED_US = Rule(0, 1e12, above=True)
UNITS_US = {"s": 1e6, "ms": 1e3, "us": 1.0}


def sizes(text: str) -> tuple[int, ...]:
    """Read sizes: ``8,64,512``."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= MOST_DIGITS for part in parts):
        raise UserError(
            "is not a list of sizes", where=f"--devices {text}", remedy="write 8,64,512"
        )
    found = tuple(map(int, parts))
    check_numbers("devices", found, DEVICES)
    return found


def releases(text: str) -> tuple[str, ...]:
    """Read releases of jax or Python interpreters: ``0.10.2,0.12.0.1``. A part with a slash is the
    path of an interpreter.
    """
    if not text:
        return ()
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if "/" not in part and not re.fullmatch(r"\d+(\.\d+)+((a|b|rc)\d+)?", part):
            raise UserError(
                "is not a list of releases",
                where=f"--jax {text}",
                remedy="write --jax 0.10.2,0.12.0.1",
            )
    return found


def varied(text: str) -> tuple[str, list[str]]:
    """Read ``NAME=A,B``. Return the name and the values."""
    name, equals, values = text.partition("=")
    if not (equals and values and re.fullmatch(r"[A-Za-z_]\w*", name)):
        raise UserError(
            "is not a name with values",
            where=f"--vary {text}",
            remedy="write --vary mesh=fsdp8,fsdp4tp2",
        )
    return name, values.split(",")


def measured(text: str) -> dict[int, float]:
    """Read a measured step: ``8=1.56s``. Return its microseconds by size."""
    found = re.fullmatch(r"\s*(\d{1,7})\s*=\s*(\d*\.?\d+)\s*(s|ms|us)\s*", text)
    if found is None:
        raise UserError(
            "is not a measured step",
            where=f"--measured {text}",
            remedy="write 8=1.56s or 8=320ms",
        )
    step_us = float(found[2]) * UNITS_US[found[3]]
    check_numbers("measured_us", step_us, MEASURED_US)
    return {int(found[1]): step_us}


def step_range(text: str) -> tuple[int | None, int | None]:
    """Read ``FIRST:LAST``. Each may be empty, and is None then.

    Raises:
        ValueError: the text has another form.
    """
    first, colon, last = text.partition(":")
    if not colon or not all(part == "" or part.isdigit() for part in (first, last)):
        raise ValueError("write FIRST:LAST, such as 20:79")
    return int(first) if first else None, int(last) if last else None
