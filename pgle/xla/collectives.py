"""Kinds of collectives; the collectives and asynchronous pairs of a module, by opcode and called computation.

`guess_kind` is for profiles and traces without HLO, and every result from it is marked as a guess; with HLO,
`pgle.xla.collectives` knows.

Names follow JAX primitives since jaxlib 0.8.0 (``psum.14`` may be a gather); the generic ``async-start`` says nothing
of what it wraps. What names alone say is in `pgle.xla.collectives`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pgle.xla.hlo.module import HOST_MEMORY_SPACE, Instruction, Module, Shape, backend_config


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """Facts about one kind of collective."""

    name: str  # its opcode; a start, update or done adds a suffix
    primitives: tuple[str, ...] = ()  # what JAX calls it, and so its instructions
    flag: str = ""  # its name in ``--xla_gpu_disable_async_collectives``; empty if absent
    # what nccl-tests count as its bytes: the ``result``, all ``operands``, or the ``first`` operand
    payload: str = "operands"
    measured: str = ""  # the measured table that it takes (`pgle.costs.estimate.communication`); empty: none
    rounds: int = 1  # how often each byte goes around a ring
    ends_together: bool = True  # whether no rank can end before the last has begun
    moves: str = ""  # what a sharded training step moves with it, where XLA combines its kind by bytes


KINDS: Mapping[str, CollectiveKind] = {
    kind.name: kind
    for kind in (
        CollectiveKind("all-reduce", ("all_reduce", "psum", "psum_invariant", "pmax", "pmin"), "allreduce",
             measured="all-reduce", rounds=2, moves="gradients"),
        CollectiveKind("all-gather", ("all_gather",), "allgather", "result", "all-gather", moves="weights"),
        CollectiveKind("reduce-scatter", ("reduce_scatter", "psum_scatter"), "reducescatter",
             measured="reduce-scatter", moves="gradients"),
        CollectiveKind("all-to-all", ("all_to_all",), "alltoall", measured="all-to-all"),
        CollectiveKind("ragged-all-to-all", ("ragged_all_to_all",), payload="first", measured="all-to-all"),
        CollectiveKind("collective-broadcast", ("collective_broadcast", "pbroadcast"), "collectivebroadcast"),
        CollectiveKind("collective-permute", ("collective_permute", "ppermute"), "collectivepermute",
             ends_together=False),
        CollectiveKind("send", ends_together=False),
        CollectiveKind("recv", ends_together=False),
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


_KINDS = {opcode: kind for kind in COLLECTIVES for opcode in (kind, f"{kind}-start", f"{kind}-done", f"{kind}-update")}
_GENERIC = ("async-start", "async-update", "async-done")


def is_collective_opcode(opcode: str) -> bool:
    """Whether an opcode is a collective, or an asynchronous operation that may wrap one."""
    return opcode in _KINDS or opcode in _GENERIC


def collective_kind(module: Module, instruction: Instruction) -> str | None:
    """Which collective an instruction is, starts, to their dones: one of `COLLECTIVES`, or None.

    An ``async-start`` is what it wraps; a custom fusion that holds one collective (a slice fused into a
    reduce-scatter) is that collective. Transfers to and from the host are none.
    """
    if instruction.is_host_transfer:
        return None
    kind = _KINDS.get(instruction.opcode)
    if kind is not None:
        return kind
    if instruction.opcode in _GENERIC:
        wrapped = module.wrapped(instruction)
        return None if wrapped is None else collective_kind(module, wrapped)
    if instruction.opcode == "fusion" and instruction.fusion_kind == "kCustom":
        for name in instruction.called:
            for inner in module.computations[name].instructions if name in module.computations else ():
                if inner.opcode in _KINDS:
                    return _KINDS[inner.opcode]
    return None


def is_start(instruction: Instruction) -> bool:
    """Whether it begins an asynchronous operation: ``…-start``, ``send`` or ``recv``."""
    return instruction.opcode.endswith("-start") or instruction.opcode in ("send", "recv")


def is_done(instruction: Instruction) -> bool:
    """Whether it waits for an asynchronous operation."""
    return instruction.opcode.endswith("-done")


def is_sync(module: Module, instruction: Instruction) -> bool:
    """Whether a collective does not overlap anything: a plain one, or a start whose backend config says ``is_sync``.

    Through XLA of jaxlib 0.11.0 a synchronous collective stays a start and a done with that attribute; later it is
    rewritten to the plain operation, with a new name.
    """
    if not is_start(instruction):
        return True
    config = backend_config(instruction).get("collective_backend_config")
    return isinstance(config, dict) and config.get("is_sync") is True


@dataclass(frozen=True, slots=True)
class AsyncPair:
    """An asynchronous operation."""

    start: str  # name of the instruction that begins it
    done: str  # name of the one that waits for it
    computation: str  # that holds both
    kind: str  # of a collective one of `COLLECTIVES`; ``copy`` of a copy-start; else the wrapped opcode, ``fusion``
    is_collective: bool  # whether `kind` is one of `COLLECTIVES`


def async_pairs(module: Module) -> tuple[AsyncPair, ...]:
    """All asynchronous operations, computation by computation in the order of their dones.

    A done leads to its start through its operand and any updates. Where a loop carries the handle (pipelined send and
    receive) the start of the same channel in the same computation is taken.
    """
    pairs = []
    for computation in module.computations.values():
        if computation.is_fusion:
            continue
        for done in computation.instructions:
            if not is_done(done):
                continue
            start = start_of(module, done)
            if start is not None:
                wrapped, kind = module.wrapped(start), collective_kind(module, start)
                other = start.opcode.removesuffix("-start") if wrapped is None else wrapped.opcode
                pairs.append(AsyncPair(start.name, done.name, computation.name, kind or other, bool(kind)))
    return tuple(pairs)


def followers(module: Module, traced: frozenset[str]) -> dict[str, str]:
    """By asynchronous start: the first of some instructions after its done in the same computation."""
    after: dict[str, str] = {}
    pairs = async_pairs(module)
    for name in dict.fromkeys(pair.computation for pair in pairs):
        later = ""
        for instruction in reversed(module.computations[name].instructions):
            after[instruction.name] = later
            if instruction.name in traced:
                later = instruction.name
    return {pair.start: after[pair.done] for pair in reversed(pairs)}


def start_of(module: Module, done: Instruction) -> Instruction | None:
    """The start that a done waits for; None if unknown."""
    current, seen = done, {done.name}
    while current.operands and (before := current.operands[0]) not in seen:
        current = module.instructions[before]
        if is_start(current):
            return current
        if not current.opcode.endswith("-update"):
            break
        seen.add(before)  # a damaged dump may lead in a circle
    if done.channel_id is None:
        return None
    opcode = done.opcode.removesuffix("-done")
    same = [
        item
        for item in module.computations[done.computation].instructions
        if is_start(item) and item.channel_id == done.channel_id and item.opcode.removesuffix("-start") == opcode
    ]
    return same[0] if len(same) == 1 else None


def result_shape(module: Module, instruction: Instruction) -> Shape:
    """The shape of what an operation computes: of an asynchronous one the done's, whatever form the start has.

    A start's own shape is (operands, results, …). An ``all-reduce-start`` has the shape of the results only.
    """
    wrapped = module.wrapped(instruction)
    if wrapped is not None:
        return wrapped.shape
    elements = instruction.shape.elements
    if len(elements) < 2 or not is_start(instruction):
        return instruction.shape
    if instruction.opcode in ("copy-start", "send", "recv"):
        return elements[0]
    if instruction.opcode == "all-reduce-start" and elements[0].dtype != "tuple":
        return instruction.shape
    return elements[1]


def group_size(module: Module, instruction: Instruction) -> int:
    """Devices in one replica group of a collective; all devices of the module where it states none."""
    wrapped = module.wrapped(instruction) or instruction
    groups = wrapped.replica_groups or instruction.replica_groups
    if groups:
        return max(len(group) for group in groups)
    pairs = wrapped.source_target_pairs or instruction.source_target_pairs
    return len({device for pair in pairs for device in pair}) or module.num_devices


def is_host_copy(module: Module, instruction: Instruction) -> bool:
    """Whether an operation moves data between device and host memory (offload)."""
    if instruction.opcode not in ("copy-start", "copy-done", "copy", *_GENERIC, "fusion", "dynamic-update-slice"):
        return False
    inner = module.wrapped(instruction) or instruction
    if collective_kind(module, inner) is not None:
        return False
    return _on_host(inner.shape) or any(
        _on_host(module.instructions[name].shape) for name in inner.operands if name in module.instructions
    )


def _on_host(shape: Shape) -> bool:
    return shape.memory_space == HOST_MEMORY_SPACE or any(_on_host(element) for element in shape.elements)


def walk_collectives(module: Module) -> Iterator[tuple[Instruction, str]]:
    """Every collective with its kind, each once: starts and plain operations, not what an async-start wraps."""
    inside = {name for item in module.walk() if item.opcode in _GENERIC for name in item.called}
    for computation in module.computations.values():
        if computation.is_fusion or computation.name in inside:
            continue
        for item in computation.instructions:
            if is_done(item) or item.opcode == "async-update":
                continue
            kind = collective_kind(module, item)
            if kind is not None:
                yield item, kind
