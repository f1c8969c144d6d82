"""Guess the kind of an instruction by its name alone, for profiles and traces without HLO.

Each result that uses this guess is marked as guessed.
"""

from __future__ import annotations

import re

from pgle.xla.collective_kinds import KINDS, names_of
from pgle.xla.vendors import VENDORS

# suffixes that passes append: numbers, and marks of copies made by loop unrolling
# (while-loop-unroller, double buffering) and remat
_SUFFIX = r"(\.\d+|\.double_buffer_clone|\.peeled_double_buffer|\.clone|\.remat\d*)*"


def _collective_names() -> list[str]:
    """Return all names of collectives, longest first, because a pattern takes the first match."""
    names: set[str] = set()
    for kind in KINDS.values():
        names.update(names_of(kind))
    return sorted(names, key=len, reverse=True)


_NAMES = "|".join(_collective_names())
_COLLECTIVE = re.compile(rf"({_NAMES})(-start|-done)?{_SUFFIX}")
_COPY = re.compile(
    rf"(copy-(start|done)|(dynamic-slice|dynamic-update-slice)-start){_SUFFIX}"
)
_LOOP = re.compile(rf"(while|conditional|call){_SUFFIX}")


def _collective_kernels() -> tuple[str, ...]:
    found: list[str] = []
    for vendor in VENDORS.values():
        found += vendor.library.kernels
    return tuple(found)


_COLLECTIVE_KERNELS = _collective_kernels()


def guess_kind(name: str) -> str:
    """Return ``collective``, ``copy``, ``loop`` or ``compute``, by usual names of XLA, JAX and
    NCCL.
    """
    if _COLLECTIVE.fullmatch(name) or name.startswith(_COLLECTIVE_KERNELS):
        return "collective"
    if _COPY.fullmatch(name):
        return "copy"
    return "loop" if _LOOP.fullmatch(name) else "compute"
