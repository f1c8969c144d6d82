"""The kinds of collectives: opcodes, JAX primitives, flags, and what each kind moves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """Facts about one kind of collective."""

    name: str  # its opcode; a start, update or done adds a suffix
    # the names of the JAX primitives, which are also instruction names
    primitives: tuple[str, ...] = ()
    # its name in ``--xla_gpu_disable_async_collectives``; empty if absent
    flag: str = ""
    # the bytes that nccl-tests count: the ``result``, all ``operands``, or the ``first`` operand
    payload: str = "operands"
    # the measured table for this kind (`pgle.costs.estimate.communication`); empty if there is none
    measured: str = ""
    rounds: int = 1  # how many times each byte travels around a ring
    ends_together: bool = True  # whether no rank can end before the last has begun
    # what this kind carries in a sharded training step, if XLA combines this kind by bytes
    moves: str = ""


_ROWS = (
    CollectiveKind(
        "all-reduce",
        ("all_reduce", "psum", "psum_invariant", "pmax", "pmin"),
        "allreduce",
        measured="all-reduce",
        rounds=2,
        moves="gradients",
    ),
    CollectiveKind(
        "all-gather",
        ("all_gather",),
        "allgather",
        "result",
        "all-gather",
        moves="weights",
    ),
    CollectiveKind(
        "reduce-scatter",
        ("reduce_scatter", "psum_scatter"),
        "reducescatter",
        measured="reduce-scatter",
        moves="gradients",
    ),
    CollectiveKind("all-to-all", ("all_to_all",), "alltoall", measured="all-to-all"),
    CollectiveKind(
        "ragged-all-to-all",
        ("ragged_all_to_all",),
        payload="first",
        measured="all-to-all",
    ),
    CollectiveKind(
        "collective-broadcast",
        ("collective_broadcast", "pbroadcast"),
        "collectivebroadcast",
    ),
    CollectiveKind(
        "collective-permute",
        ("collective_permute", "ppermute"),
        "collectivepermute",
        ends_together=False,
    ),
    CollectiveKind("send", ends_together=False),
    CollectiveKind("recv", ends_together=False),
)

KINDS: Mapping[str, CollectiveKind] = {kind.name: kind for kind in _ROWS}
"""Every kind of collective, by name."""

COLLECTIVES = tuple(KINDS)  # the values of `collective_kind`

ASYNC_FLAGS = tuple(kind.flag for kind in KINDS.values() if kind.flag)
"""The values that ``--xla_gpu_disable_async_collectives`` accepts."""


def names_of(kind: CollectiveKind) -> tuple[str, ...]:
    """Return the instruction names of a kind: its opcode and the JAX primitives."""
    return (kind.name, *kind.primitives)


def _from_rank_to_rank() -> re.Pattern[str]:
    names: list[str] = []
    for kind in KINDS.values():
        if not kind.ends_together:
            names += names_of(kind)
    return re.compile("|".join(names))


_FROM_RANK_TO_RANK = _from_rank_to_rank()


def ends_together(name: str) -> bool:
    """Whether no rank can end a collective of this opcode or name before the last has begun."""
    return _FROM_RANK_TO_RANK.search(name) is None


_FORMS = ("", "-start", "-update", "-done")


def _kinds_by_opcode() -> dict[str, str]:
    found = {}
    for kind in COLLECTIVES:
        for form in _FORMS:
            found[kind + form] = kind
    return found


KIND_OF_OPCODE: Mapping[str, str] = _kinds_by_opcode()
"""The kind of collective by opcode, asynchronous forms included."""
