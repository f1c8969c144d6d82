"""Collectives of a module and the names of its instructions: kinds, asynchronous pairs, names when
LHS ran, owners.

`guess_kind` is for profiles and traces without HLO, and every result from it is marked as a guess.
With HLO, the opcode and the called computation tell: names follow JAX primitives since jaxlib 0.8.0
(``psum.14`` may be a gather), and the generic ``async-start`` says nothing of what it wraps.

XLA looks costs up by the name an instruction had when the latency-hiding scheduler (LHS) ran.
Ordinary instructions keep it; collectives may not, and the one link back is
``metadata.scheduling_name``, which is there only if LHS ran in that compilation. It is used for
collectives only: elsewhere simplifications after LHS can leave a neighbour's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pgle.xla.hlo.module import (
    HOST_MEMORY_SPACE,
    Instruction,
    Module,
    Shape,
    backend_config,
)
from pgle.xla.hlo.trips import trip_count


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """Facts about one kind of collective."""

    name: str  # its opcode; a start, update or done adds a suffix
    primitives: tuple[str, ...] = ()  # what JAX calls it, and so its instructions
    # its name in ``--xla_gpu_disable_async_collectives``; empty if absent
    flag: str = ""
    # what nccl-tests count as its bytes: the ``result``, all ``operands``, or the ``first`` operand
    payload: str = "operands"
    # the measured table that it takes (`pgle.costs.estimate.communication`); empty: none
    measured: str = ""
    rounds: int = 1  # how often each byte goes around a ring
    ends_together: bool = True  # whether no rank can end before the last has begun
    # what a sharded training step moves with it, where XLA combines its kind by bytes
    moves: str = ""


KINDS: Mapping[str, CollectiveKind] = {
    kind.name: kind
    for kind in (
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
        CollectiveKind(
            "all-to-all", ("all_to_all",), "alltoall", measured="all-to-all"
        ),
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
}
"""Every kind of collective, by name."""

COLLECTIVES = tuple(KINDS)  # what `collective_kind` returns

ASYNC_FLAGS = tuple(kind.flag for kind in KINDS.values() if kind.flag)
"""What ``--xla_gpu_disable_async_collectives`` takes."""

# what passes append: numbers, and the copies made by loop unrolling (while-loop-unroller, double
# buffering) and remat
_SUFFIX = r"(\.\d+|\.double_buffer_clone|\.peeled_double_buffer|\.clone|\.remat\d*)*"
_NAMES = sorted(
    {name for kind in KINDS.values() for name in (kind.name, *kind.primitives)},
    key=len,
    reverse=True,
)
_COLLECTIVE = re.compile(rf"({'|'.join(_NAMES)})(-start|-done)?{_SUFFIX}")
_FROM_RANK_TO_RANK = re.compile(
    "|".join(
        name
        for kind in KINDS.values()
        if not kind.ends_together
        for name in (kind.name, *kind.primitives)
    )
)
_COPY = re.compile(
    rf"(copy-(start|done)|(dynamic-slice|dynamic-update-slice)-start){_SUFFIX}"
)
_LOOP = re.compile(rf"(while|conditional|call){_SUFFIX}")


def guess_kind(name: str) -> str:
    """``collective``, ``copy``, ``loop`` or ``compute``, from the usual names of XLA, JAX and
    NCCL.
    """
    if _COLLECTIVE.fullmatch(name) or name.startswith("ncclDevKernel"):
        return "collective"
    if _COPY.fullmatch(name):
        return "copy"
    return "loop" if _LOOP.fullmatch(name) else "compute"


def ends_together(name: str) -> bool:
    """Whether no rank can end a collective of this opcode, or of this name, before the last has
    begun.
    """
    return _FROM_RANK_TO_RANK.search(name) is None


_KINDS = {
    opcode: kind
    for kind in COLLECTIVES
    for opcode in (kind, f"{kind}-start", f"{kind}-done", f"{kind}-update")
}
_GENERIC = ("async-start", "async-update", "async-done")


def is_collective_opcode(opcode: str) -> bool:
    """Whether an opcode is a collective, or an asynchronous operation that may wrap one."""
    return opcode in _KINDS or opcode in _GENERIC


def collective_kind(module: Module, instruction: Instruction) -> str | None:
    """Which collective an instruction is, starts, to their dones: one of `COLLECTIVES`, or None.

    An ``async-start`` is what it wraps; a custom fusion that holds one collective (a slice fused
    into a reduce-scatter) is that collective. Transfers to and from the host are none.
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
            for inner in (
                module.computations[name].instructions
                if name in module.computations
                else ()
            ):
                if inner.opcode in _KINDS:
                    return _KINDS[inner.opcode]
    return None


def is_start(instruction: Instruction) -> bool:
    """Whether it begins an asynchronous operation: ``…-start``, ``send`` or ``recv``."""
    return instruction.opcode.endswith("-start") or instruction.opcode in (
        "send",
        "recv",
    )


def is_done(instruction: Instruction) -> bool:
    """Whether it waits for an asynchronous operation."""
    return instruction.opcode.endswith("-done")


def is_sync(module: Module, instruction: Instruction) -> bool:
    """Whether a collective does not overlap anything: a plain one, or a start whose backend config
    says ``is_sync``.

    Through XLA of jaxlib 0.11.0 a synchronous collective stays a start and a done with that
    attribute; later it is rewritten to the plain operation, with a new name.
    """
    if not is_start(instruction):
        return True
    config = backend_config(instruction).get("collective_backend_config")
    return isinstance(config, dict) and config.get("is_sync") is True


def is_attention(instruction: Instruction) -> bool:
    """Whether it is a fused attention call: of cuDNN, Transformer Engine or a kernel that is called
    so.
    """
    target = instruction.custom_call_target.lower()
    return "fmha" in target or "attn" in target or "flash_attention" in target


def is_convolution(instruction: Instruction) -> bool:
    """Whether it is a convolution, cuDNN's too."""
    return (
        instruction.opcode == "convolution" or "$conv" in instruction.custom_call_target
    )


def is_gemm(instruction: Instruction) -> bool:
    """Whether it is a matrix product, or a call of a library for one."""
    if instruction.opcode != "custom-call":
        return instruction.opcode == "dot"
    return any(
        word in instruction.custom_call_target for word in ("cublas", "matmul", "gemm")
    )


def is_product(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction mostly multiplies matrices: dots, fused too, library calls,
    convolutions, attention.
    """
    opcode = instruction.opcode
    if opcode in ("fusion", "async-start", "call"):
        called = (
            module.computations[name]
            for name in instruction.called
            if name in module.computations
        )
        return any(
            is_product(module, item)
            for computation in called
            for item in computation.instructions
        )
    if opcode == "custom-call":
        return (
            is_gemm(instruction)
            or is_convolution(instruction)
            or is_attention(instruction)
        )
    return opcode in ("dot", "convolution")


def kind_of(module: Module, instruction: Instruction) -> str:
    """What to call an instruction in a picture: the collective, ``matmul``, or the opcode of what
    it runs.
    """
    kind = collective_kind(module, instruction)
    if kind is not None:
        return kind
    if is_product(module, instruction):
        return "matmul"
    return (module.wrapped(instruction) or instruction).opcode.removesuffix("-start")


@dataclass(frozen=True, slots=True)
class AsyncPair:
    """An asynchronous operation."""

    start: str  # name of the instruction that begins it
    done: str  # name of the one that waits for it
    computation: str  # that holds both
    # of a collective one of `COLLECTIVES`; ``copy`` of a copy-start; else the wrapped opcode,
    # ``fusion``
    kind: str
    is_collective: bool  # whether `kind` is one of `COLLECTIVES`


def async_pairs(module: Module) -> tuple[AsyncPair, ...]:
    """All asynchronous operations, computation by computation in the order of their dones.

    A done leads to its start through its operand and any updates. Where a loop carries the handle
    (pipelined send and receive) the start of the same channel in the same computation is taken.
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
                other = (
                    start.opcode.removesuffix("-start")
                    if wrapped is None
                    else wrapped.opcode
                )
                pairs.append(
                    AsyncPair(
                        start.name,
                        done.name,
                        computation.name,
                        kind or other,
                        bool(kind),
                    )
                )
    return tuple(pairs)


def followers(module: Module, traced: frozenset[str]) -> dict[str, str]:
    """By asynchronous start: the first of some instructions after its done in the same
    computation.
    """
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
        if is_start(item)
        and item.channel_id == done.channel_id
        and item.opcode.removesuffix("-start") == opcode
    ]
    return same[0] if len(same) == 1 else None


def result_shape(module: Module, instruction: Instruction) -> Shape:
    """The shape of what an operation computes: of an asynchronous one the done's, whatever form the
    start has.

    A start's own shape is (operands, results, …). An ``all-reduce-start`` has the shape of the
    results only.
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
    """Devices in one replica group of a collective; all devices of the module where it states
    none.
    """
    wrapped = module.wrapped(instruction) or instruction
    groups = wrapped.replica_groups or instruction.replica_groups
    if groups:
        return max(len(group) for group in groups)
    pairs = wrapped.source_target_pairs or instruction.source_target_pairs
    return len({device for pair in pairs for device in pair}) or module.num_devices


def is_host_copy(module: Module, instruction: Instruction) -> bool:
    """Whether an operation moves data between device and host memory (offload)."""
    if instruction.opcode not in (
        "copy-start",
        "copy-done",
        "copy",
        *_GENERIC,
        "fusion",
        "dynamic-update-slice",
    ):
        return False
    inner = module.wrapped(instruction) or instruction
    if collective_kind(module, inner) is not None:
        return False
    return _on_host(inner.shape) or any(
        _on_host(module.instructions[name].shape)
        for name in inner.operands
        if name in module.instructions
    )


def _on_host(shape: Shape) -> bool:
    return shape.memory_space == HOST_MEMORY_SPACE or any(
        _on_host(element) for element in shape.elements
    )


def walk_collectives(module: Module) -> Iterator[tuple[Instruction, str]]:
    """Every collective with its kind, each once: starts and plain operations, not what an
    async-start wraps.
    """
    inside = {
        name
        for item in module.walk()
        if item.opcode in _GENERIC
        for name in item.called
    }
    for computation in module.computations.values():
        if computation.is_fusion or computation.name in inside:
            continue
        for item in computation.instructions:
            if is_done(item) or item.opcode == "async-update":
                continue
            kind = collective_kind(module, item)
            if kind is not None:
                yield item, kind


_CONTROL_FLOW = ("while", "conditional", "call")


def lhs_names(module: Module, lhs_module: Module | None = None) -> dict[str, str]:
    """The name when LHS ran for every name under which a collective may run.

    Args:
        module: the final (after optimizations) module.
        lhs_module: the module as LHS saw it, from a schedule dump of this or of another compilation
        of the program.

    Returns:
        Starts, plain collectives and wrapped operations → the start's name when LHS ran. A name
        that nothing is known of maps to itself.
    """
    names: dict[str, str] = {}
    unknown: list[Instruction] = []
    known = None if lhs_module is None else _starts(lhs_module)
    for item, _ in walk_collectives(module):
        wrapped = module.wrapped(item)
        name = item.scheduling_name or item.name
        if known is not None:
            key = _key(module, item)
            candidates = (
                known[other] for other in _candidates(item, wrapped) if other in known
            )
            found = next((start for start, of in candidates if of == key), "")
            if not found:
                unknown.append(item)
            name = found or name
        names[item.name] = name
        if wrapped is not None:
            names[wrapped.name] = name
    if lhs_module is not None and unknown:
        names |= _match(module, unknown, lhs_module, set(names.values()))
    return names


def _candidates(item: Instruction, wrapped: Instruction | None) -> list[str]:
    """What a collective may be called in the module that LHS saw; a plain one's own name is new and
    says nothing.
    """
    if item.scheduling_name:
        return [item.scheduling_name]
    if not is_start(item):
        return []
    return [item.name] if wrapped is None else [item.name, wrapped.name]


def _starts(module: Module) -> dict[str, tuple[str, Hashable]]:
    """The name of each collective of a module and what it is otherwise, by its own and by its
    wrapped name.
    """
    known: dict[str, tuple[str, Hashable]] = {}
    for item, _ in walk_collectives(module):
        wrapped = module.wrapped(item)
        if wrapped is not None:
            known.setdefault(wrapped.name, (item.name, _key(module, item)))
        known[item.name] = (item.name, _key(module, item))
    return known


def _match(
    module: Module, items: list[Instruction], lhs_module: Module, taken: set[str]
) -> dict[str, str]:
    """Pair collectives of two compilations by kind, channel and shape, in order; only where the
    counts agree.

    Channel ids are unique in programs that jit partitioned; inside `shard_map` all are 1, so shape,
    framework name and order decide too.
    """
    names: dict[str, str] = {}
    free = [item for item, _ in walk_collectives(lhs_module) if item.name not in taken]
    keys: tuple[Callable[[Module, Instruction], Hashable], ...] = (
        lambda of, item: (*_key(of, item), _channel(of, item), item.op_name),
        lambda of, item: (*_key(of, item), _channel(of, item)),
        _key,
    )
    for key in keys:
        ours, theirs = _grouped(module, items, key), _grouped(lhs_module, free, key)
        for value, group in ours.items():
            partners = theirs.get(value, [])
            for item, partner in (
                zip(group, partners, strict=True) if len(partners) == len(group) else ()
            ):
                names[item.name] = names[(module.wrapped(item) or item).name] = (
                    partner.name
                )
        items = [item for item in items if item.name not in names]
        free = [item for item in free if item.name not in names.values()]
    return names


def _key(
    module: Module, item: Instruction
) -> tuple[str, str, tuple[tuple[int, ...], ...]]:
    wrapped = module.wrapped(item) or item
    return (
        collective_kind(module, item) or "",
        str(result_shape(module, item)),
        wrapped.replica_groups,
    )


def _channel(module: Module, item: Instruction) -> int | None:
    wrapped = module.wrapped(item)
    return (
        item.channel_id
        if wrapped is None or item.channel_id is not None
        else wrapped.channel_id
    )


def _grouped(
    module: Module,
    items: Iterable[Instruction],
    key: Callable[[Module, Instruction], Hashable],
) -> dict[Hashable, list[Instruction]]:
    groups: dict[Hashable, list[Instruction]] = {}
    for item in items:
        groups.setdefault(key(module, item), []).append(item)
    return groups


def owner(module: Module, name: str) -> str | None:
    """The instruction whose time the time of `name` is.

    Itself, if the entry computation, a loop, a branch or a call holds it; the fusion, for one
    inside a fusion (its ``reduce.N`` can have a kernel of its own); the start, for one inside an
    async computation. None if the module has no such name.
    """
    instruction = module.instructions.get(name)
    while instruction is not None:
        callers = module.callers.get(instruction.computation, ())
        if not callers or any(caller.opcode in _CONTROL_FLOW for caller in callers):
            return instruction.name
        instruction = next(
            (caller for caller in callers if is_start(caller)), callers[0]
        )
    return None


def loops(module: Module, name: str) -> tuple[tuple[str, int | None], ...]:
    """The ``while`` instructions around an instruction, outermost first, each with its trip count
    (None: unknown).
    """
    found: list[tuple[str, int | None]] = []
    instruction = module.instructions.get(name)
    while instruction is not None and (
        callers := module.callers.get(instruction.computation)
    ):
        instruction = callers[0]
        if instruction.opcode == "while":
            found.append((instruction.name, trip_count(module, instruction)))
    return tuple(reversed(found))


FREE_TARGETS = frozenset(
    (
        "AllocateBuffer",
        "Sharding",
        "annotate_device_placement",
        "MoveToHost",
        "MoveToDevice",
    )
)
"""Custom calls that launch nothing."""
