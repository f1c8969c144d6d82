"""Compute of a trace whose edits only the program's HLO can price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pgle.account.value import LARGE, Place, UnreadWork
from pgle.analyze.findings import ROWS, total_us
from pgle.analyze.layers import MeasuredInstruction

NAMED: Mapping[str, str] = {
    "scatter": "scatters",
    "softmax": "softmax kernels (attention that is not fused, or the loss)",
}
"""Work that an edit may shorten, by a word in XLA's names of instructions."""


def find_unread(
    compute: Sequence[MeasuredInstruction], step_us: float
) -> UnreadWork | None:
    """The costliest work that names identify, if it is large; else all compute. None without
    compute.

    Args:
        compute: the compute instructions of a step, the costliest first.
        step_us: length of the step in microseconds.
    """
    groups = [_named(word, what, compute) for word, what in NAMED.items()]
    most = max(groups, key=lambda item: item.us)
    if most.us >= LARGE * step_us > 0:
        return most
    us = total_us(compute)
    return UnreadWork("compute", us, is_named=False) if us > 0 else None


def _named(word: str, what: str, compute: Sequence[MeasuredInstruction]) -> UnreadWork:
    """The work of the instructions with a word in their names."""
    ours = [item for item in compute if word in item.name]
    where = tuple(Place(item.name, item.us) for item in ours[:ROWS])
    return UnreadWork(what, total_us(ours), is_named=True, where=where)
