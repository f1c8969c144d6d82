"""What an instruction probably is, judged by its name alone.

Names are no evidence (a gather can be called ``psum.14``): this is for profiles and traces that come without HLO, and
whatever stands on it is marked as a guess.
"""

from __future__ import annotations

import re

_COLLECTIVE = re.compile(
    r"(all[-_]gather|all[-_]reduce|reduce[-_]scatter|all[-_]to[-_]all|collective[-_](permute|broadcast)"
    r"|ragged[-_]all[-_]to[-_]all|ppermute|pbroadcast|psum(_scatter|_invariant)?|pmax|pmin|send|recv)"
    r"(-start|-done)?(\.\d+)*"
)
_COPY = re.compile(r"copy-(start|done)(\.\d+)*|(dynamic-slice|dynamic-update-slice)-start(\.\d+)*")
_LOOP = re.compile(r"(while|conditional|call)(\.\d+)*")


def guess_kind(name: str) -> str:
    """``collective``, ``copy``, ``loop`` or ``compute``, from the usual names of XLA and JAX."""
    if _COLLECTIVE.fullmatch(name):
        return "collective"
    if _COPY.fullmatch(name):
        return "copy"
    return "loop" if _LOOP.fullmatch(name) else "compute"
