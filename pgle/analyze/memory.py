"""Device memory of the main module: its peak, what lives there, and how far the GPU's limit is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pgle.xla.hlo.buffers import Buffer, BufferPlan
from pgle.xla.hlo.module import HOST_MEMORY_SPACE, Computation, Instruction, Module, Shape

JAX_SHARE = 0.75
"""Of device memory that JAX takes when it starts, and all that programs get, unless ``XLA_PYTHON_CLIENT_MEM_FRACTION``
says otherwise (docs.jax.dev, "GPU memory allocation")."""

SHOWN = 20  # values at the peak that are kept

_VIEWS = frozenset(
    ("bitcast", "get-tuple-element", "tuple", "optimization-barrier", "opt-barrier", "while", "after-all")
)
"""What holds no memory of its own: views, and loops, whose state is their operand's."""

_Leaf: TypeAlias = tuple[str, int]  # an array: the instruction that made it, and which of the arrays of its result

_NOTHING: _Leaf = ("", -1)  # an argument or a constant, which live all the time

_Peak: TypeAlias = tuple[list[Buffer], str]


@dataclass(frozen=True, slots=True)
class LiveValue:
    """One value in memory at the peak."""

    name: str  # the instruction that makes it
    size_bytes: int  # of it
    shape: str  # as text
    # op_name, source: the framework's name, file and line; empty where unknown
    op_name: str
    source: str


@dataclass(frozen=True)
class Memory:
    """Device memory of one execution."""

    peak_bytes: int  # all it needs
    # arguments_bytes, outputs_bytes, constants_bytes, temporary_bytes: parts that add up to it
    arguments_bytes: int
    outputs_bytes: int
    constants_bytes: int
    temporary_bytes: int
    at: str  # instruction at which temporary values are most; empty where unknown
    at_op_name: str  # the framework's name of it
    live: tuple[LiveValue, ...]  # the largest temporary values there
    live_bytes: int  # all of them; what `temporary_bytes` exceeds it by is fragmentation
    device_bytes: int | None  # of the GPU; None where unknown
    # what a program can have: JAX's default share of it, or all where the program needs more than that
    limit_bytes: int | None
    origin: str  # where the figures come from

    @property
    def used_share(self) -> float | None:
        """Of the limit."""
        return None if not self.limit_bytes else self.peak_bytes / self.limit_bytes


def find_memory(module: Module, plan: BufferPlan | None, device_bytes: int | None) -> Memory:
    """What a scheduled module needs.

    Args:
        plan: XLA's own; without, sizes are taken from shapes and lifetimes from the order of the schedule.
    """
    plan = plan or estimated_plan(module)
    at = module.instructions.get(plan.peak_at)
    limit = None
    if device_bytes is not None:
        share = int(device_bytes * JAX_SHARE)
        limit = share if plan.peak_bytes <= share else device_bytes
    return Memory(
        peak_bytes=plan.peak_bytes,
        arguments_bytes=plan.arguments_bytes,
        outputs_bytes=plan.outputs_bytes,
        constants_bytes=plan.constants_bytes,
        temporary_bytes=plan.temporary_bytes,
        at=plan.peak_at,
        at_op_name="" if at is None else at.op_name,
        live=tuple(_live(module, item) for item in plan.live[:SHOWN]),
        live_bytes=plan.live_bytes,
        device_bytes=device_bytes,
        limit_bytes=limit,
        origin="estimated from shapes and the schedule" if plan.estimated else "XLA's buffer assignment",
    )


def _live(module: Module, item: Buffer) -> LiveValue:
    made = module.instructions.get(item.instruction)
    if made is None:
        return LiveValue(item.instruction, item.size_bytes, "", "", "")
    shape = made.shape
    for index in item.shape_index:
        shape = shape.elements[index] if index < len(shape.elements) else shape
    return LiveValue(item.instruction, item.size_bytes, str(shape), made.op_name, made.source)


def estimated_plan(module: Module) -> BufferPlan:
    """Lifetimes in the order of the schedule: from the instruction that makes a value to the last that uses it.

    Updates in place and results that take the place of an argument count once; what XLA's allocator wastes is missing.
    """
    entry = module.entry_computation
    arguments = sum(_bytes(item.shape) for item in entry.instructions if item.opcode == "parameter")
    constants = sum(_bytes(item.shape) for item in module.walk()
                    if item.opcode == "constant" and not module.computations[item.computation].is_fusion)  # fmt: skip
    live, at = _peak(module, entry, {})
    return BufferPlan(
        arguments_bytes=arguments,
        outputs_bytes=0,
        constants_bytes=constants,
        temporary_bytes=_sum(live),
        live=tuple(sorted(live, key=lambda item: (-item.size_bytes, item.instruction))),
        live_bytes=_sum(live),
        peak_at=at,
        estimated=True,
    )


def _peak(module: Module, computation: Computation, known: dict[str, _Peak]) -> _Peak:
    """The values that live at the peak of a computation, of called loops and branches too, and where it is."""
    if computation.name in known:
        return known[computation.name]
    known[computation.name] = ([], "")  # a damaged module may call in circles
    made, used = _leaves(computation)
    last: dict[_Leaf, int] = {}
    for number, item in enumerate(computation.instructions):
        last |= dict.fromkeys((leaf for name in item.operands for leaf in used.get(name, ())), number)
    last |= dict.fromkeys(used.get(computation.root, ()), len(computation.instructions))
    ends: dict[int, list[_Leaf]] = defaultdict(list)
    held: dict[_Leaf, Buffer] = {}
    now = peak = 0
    best: _Peak = ([], "")
    for number, item in enumerate(computation.instructions):
        for leaf, size in made.get(item.name, {}).items():
            held[leaf] = Buffer(item.name, (leaf[1],) if item.shape.elements else (), size)
            ends[last.get(leaf, number)].append(leaf)
            now += size
        within = [_peak(module, called, known) for called in _run_by(module, item)]
        inner, at = max(within, key=lambda found: _sum(found[0]), default=([], item.name))
        if now + _sum(inner) > peak:
            peak, best = now + _sum(inner), ([*held.values(), *inner], at)
        for leaf in ends.pop(number, ()):
            now -= held.pop(leaf).size_bytes
    known[computation.name] = best
    return best


def _sum(buffers: Iterable[Buffer]) -> int:
    return sum(item.size_bytes for item in buffers)


def _run_by(module: Module, item: Instruction) -> Iterator[Computation]:
    if item.opcode in ("while", "conditional", "call"):
        yield from (module.computations[name] for name in item.called if name in module.computations)


def _leaves(computation: Computation) -> tuple[dict[str, dict[_Leaf, int]], dict[str, tuple[_Leaf, ...]]]:
    """What memory each instruction takes, by array of its result, and which memory each array of its result is in."""
    made: dict[str, dict[_Leaf, int]] = {}
    used: dict[str, tuple[_Leaf, ...]] = {}
    shapes = {item.name: item.shape for item in computation.instructions}
    for item in computation.instructions:
        operands = [leaf for name in item.operands for leaf in used.get(name, ())]
        sizes = [_bytes(shape) for shape in _arrays(item.shape)]
        if item.opcode in ("parameter", "constant"):
            used[item.name] = (_NOTHING,) * len(sizes)
        elif item.opcode == "get-tuple-element" and item.operands:
            used[item.name] = _element(shapes[item.operands[0]], used[item.operands[0]], item.tuple_index or 0)
        elif item.opcode.endswith(("-done", "-update")) and len(operands) > len(sizes):
            used[item.name] = _element(shapes[item.operands[0]], used[item.operands[0]], 1)[: len(sizes)]
        elif item.opcode in _VIEWS or item.opcode.endswith(("-done", "-update")):
            used[item.name] = tuple(operands)
        else:
            place = operands if item.opcode.endswith("-start") and len(item.shape.elements) > 1 else []
            place = place or _updated(item, shapes, used)
            own = {(item.name, index): size for index, size in enumerate(sizes) if index >= len(place)}
            made[item.name] = {leaf: size for leaf, size in own.items() if size}
            used[item.name] = (*place, *own)
    return made, used


def _updated(item: Instruction, shapes: Mapping[str, Shape], used: Mapping[str, tuple[_Leaf, ...]]) -> list[_Leaf]:
    """The array that an update of a slice, fused or not, writes into: the first operand as large as the result."""
    if item.shape.elements or "dynamic-update-slice" not in f"{item.opcode} {item.name}".replace("_", "-"):
        return []
    return [used[name][0] for name in item.operands if shapes[name].size_bytes == item.shape.size_bytes][:1]


def _element(shape: Shape, leaves: tuple[_Leaf, ...], index: int) -> tuple[_Leaf, ...]:
    """The arrays of one element of a tuple."""
    before = sum(len(_arrays(element)) for element in shape.elements[:index])
    return leaves[before : before + len(_arrays(shape.elements[index]))] if index < len(shape.elements) else leaves


def _arrays(shape: Shape) -> list[Shape]:
    return [array for element in shape.elements for array in _arrays(element)] if shape.elements else [shape]


def _bytes(shape: Shape) -> int:
    """Of device memory."""
    return sum(item.size_bytes for item in _arrays(shape) if item.memory_space != HOST_MEMORY_SPACE)
