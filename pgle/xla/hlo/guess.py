"""What an instruction probably is, judged by its name alone.

Names are no evidence (a gather can be called ``psum.14``): this is for profiles and traces that come without HLO, and
whatever stands on it is marked as a guess.
"""

from __future__ import annotations

import re

from pgle.xla.collectives import KINDS

# what passes append: numbers, and the copies made by loop unrolling (while-loop-unroller, double buffering) and remat
_SUFFIX = r"(\.\d+|\.double_buffer_clone|\.peeled_double_buffer|\.clone|\.remat\d*)*"
_ANY_SUFFIX = re.compile(rf"{_SUFFIX}\Z")
_NAMES = sorted({name for kind in KINDS.values() for name in (kind.name, *kind.primitives)}, key=len, reverse=True)
_COLLECTIVE = re.compile(rf"({'|'.join(_NAMES)})(-start|-done)?{_SUFFIX}")
_COPY = re.compile(rf"(copy-(start|done)|(dynamic-slice|dynamic-update-slice)-start){_SUFFIX}")
_LOOP = re.compile(rf"(while|conditional|call){_SUFFIX}")


def guess_kind(name: str) -> str:
    """``collective``, ``copy``, ``loop`` or ``compute``, from the usual names of XLA and JAX."""
    if _COLLECTIVE.fullmatch(name):
        return "collective"
    if _COPY.fullmatch(name):
        return "copy"
    return "loop" if _LOOP.fullmatch(name) else "compute"


def stem(name: str) -> str:
    """The name without what passes append."""
    return _ANY_SUFFIX.sub("", name)
