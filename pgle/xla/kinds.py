"""Kinds of collectives, and what an instruction does by its name alone.

`guess_kind` is for profiles and traces without HLO, and every result from it is marked as a guess; with HLO,
`pgle.xla.collectives` knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of one kind of collective."""

    name: str  # its opcode; a start, update or done adds a suffix
    primitives: tuple[str, ...] = ()  # what JAX calls it, and so its instructions
    flag: str = ""  # its name in ``--xla_gpu_disable_async_collectives``; empty where there is none
    # what nccl-tests count as its bytes: the ``result``, all ``operands``, or the ``first`` operand
    payload: str = "operands"
    measured: str = ""  # the measured table that it takes (`pgle.costs.estimate.perf_tables`); empty: none
    rounds: int = 1  # how often each byte goes around a ring
    ends_together: bool = True  # whether no rank can end before the last has begun
    moves: str = ""  # what a sharded training step moves with it, where XLA combines its kind by bytes


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("all-reduce", ("all_reduce", "psum", "psum_invariant", "pmax", "pmin"), "allreduce",
             measured="all-reduce", rounds=2, moves="gradients"),
        Kind("all-gather", ("all_gather",), "allgather", "result", "all-gather", moves="weights"),
        Kind("reduce-scatter", ("reduce_scatter", "psum_scatter"), "reducescatter",
             measured="reduce-scatter", moves="gradients"),
        Kind("all-to-all", ("all_to_all",), "alltoall", measured="all-to-all"),
        Kind("ragged-all-to-all", ("ragged_all_to_all",), payload="first", measured="all-to-all"),
        Kind("collective-broadcast", ("collective_broadcast", "pbroadcast"), "collectivebroadcast"),
        Kind("collective-permute", ("collective_permute", "ppermute"), "collectivepermute", ends_together=False),
        Kind("send", ends_together=False),
        Kind("recv", ends_together=False),
    )
}  # fmt: skip
"""Every kind of collective, by name."""

COLLECTIVES = tuple(KINDS)  # what `collective_kind` returns

ASYNC_FLAGS = tuple(kind.flag for kind in KINDS.values() if kind.flag)
"""What ``--xla_gpu_disable_async_collectives`` takes."""

# what passes append: numbers, and the copies made by loop unrolling (while-loop-unroller, double buffering) and remat
_SUFFIX = r"(\.\d+|\.double_buffer_clone|\.peeled_double_buffer|\.clone|\.remat\d*)*"
_ANY_SUFFIX = re.compile(rf"{_SUFFIX}\Z")
_NAMES = sorted({name for kind in KINDS.values() for name in (kind.name, *kind.primitives)}, key=len, reverse=True)
_COLLECTIVE = re.compile(rf"({'|'.join(_NAMES)})(-start|-done)?{_SUFFIX}")
_FROM_RANK_TO_RANK = re.compile(
    "|".join(name for kind in KINDS.values() if not kind.ends_together for name in (kind.name, *kind.primitives))
)
_COPY = re.compile(rf"(copy-(start|done)|(dynamic-slice|dynamic-update-slice)-start){_SUFFIX}")
_LOOP = re.compile(rf"(while|conditional|call){_SUFFIX}")


def guess_kind(name: str) -> str:
    """``collective``, ``copy``, ``loop`` or ``compute``, from the usual names of XLA, JAX and NCCL."""
    if _COLLECTIVE.fullmatch(name) or name.startswith("ncclDevKernel"):
        return "collective"
    if _COPY.fullmatch(name):
        return "copy"
    return "loop" if _LOOP.fullmatch(name) else "compute"


def ends_together(name: str) -> bool:
    """Whether no rank can end a collective of this opcode, or of this name, before the last has begun."""
    return _FROM_RANK_TO_RANK.search(name) is None


def stem(name: str) -> str:
    """The name without what passes append."""
    return _ANY_SUFFIX.sub("", name)
