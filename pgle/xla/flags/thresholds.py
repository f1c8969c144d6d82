"""Combine thresholds computed from a module: the weights a layer gathers, the gradients it scatters.

XLA joins collectives while their *results* together stay within the threshold. For reduce-scatter that is the shard
each device keeps, a group's share of the gradients. Measured with jaxlib 0.12.0.1 (deviceless, four devices): two
reduce-scatters of 4 MiB each were joined at 3 MiB, two all-gathers to 4 MiB each at 9 but not at 7 MiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pgle.errors import UserError
from pgle.next import REHEARSE
from pgle.xla.collectives import KINDS, result_shape, walk_collectives
from pgle.xla.flags.text import Flag
from pgle.xla.hlo.module import Instruction, Module, Shape

MOVED = {kind.name: kind.moves for kind in KINDS.values() if kind.moves}
"""The kinds XLA combines by bytes, and what a sharded training step moves with them."""
MIB = 1 << 20

REMARKS = (
    "setting a threshold changes the module's fingerprint and names: set it in the profile run too, or profile again",
    "setting a threshold turns off XLA's own choice, which combines synchronous and pipelined collectives as far as "
    "memory allows",
    "a combined collective needs a buffer of its size, and must be there before its first use: if overlap gets worse "
    f"('{REHEARSE}'), try half",
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """The threshold of one kind of collective."""

    kind: str  # ``all-gather``, ``reduce-scatter`` or ``all-reduce``
    what: str  # what a layer moves with it
    layer_bytes: int  # result bytes of a layer's collectives of this kind
    threshold_bytes: int  # `layer_bytes`, rounded up to whole MiB
    collectives: int  # how many instructions of this kind the module has
    total_bytes: int  # their result bytes, loop bodies once
    layers: int  # layers counted; 1 where a loop body is the layer, 0 where none was found and the whole module counts
    how: str  # how the layer was found, one clause

    @property
    def flag(self) -> Flag:
        """The flag that sets it."""
        return Flag(f"xla_gpu_{self.kind.replace('-', '_')}_combine_threshold_bytes", str(self.threshold_bytes))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of one module."""

    module: str  # its name
    thresholds: tuple[Threshold, ...]  # one for each kind that returns a MiB or more
    remarks: tuple[str, ...] = ()  # what follows from setting them, and which kinds are too small


def main_module(modules: Sequence[Module]) -> Module:
    """The module with most collectives, of equals that with most instructions."""
    return max(modules, key=lambda module: (sum(1 for _ in walk_collectives(module)), len(module.instructions)))


def combine_thresholds(module: Module) -> Thresholds:
    """The thresholds at which a layer's collectives of each kind become one.

    A layer is the body of a loop (``jax.lax.scan`` over layers), the one with most bytes where there are several.
    Without loops, shapes that occur equally often are taken for a layer: 32 all-gathers each of three shapes are 32
    layers of three. XLA compares the bytes of results, so these count.

    Raises:
        UserError: the module has no collective of these kinds.
    """
    by_kind: dict[str, list[Instruction]] = {kind: [] for kind in MOVED}
    for instruction, kind in walk_collectives(module):
        if kind in by_kind:
            by_kind[kind].append(instruction)
    found = [_threshold(module, kind, items) for kind, items in by_kind.items() if items]
    if not found:
        what, remedy = "has no all-gather, reduce-scatter or all-reduce", "give the training step of a sharded program"
        raise UserError(what, where=module.source or module.name, remedy=remedy)
    worth = tuple(item for item in found if item.total_bytes >= MIB)
    small = [f"{item.kind}s return only {item.total_bytes:,} bytes" for item in found if item.total_bytes < MIB]
    remarks = (f"{' and '.join(small)}: leave their threshold alone",) if small else ()
    return Thresholds(module.name, worth, remarks + REMARKS if worth else remarks)


def _threshold(module: Module, kind: str, items: list[Instruction]) -> Threshold:
    layer, layers, how = _loop_layer(module, items) or _repeated_layer(module, items) or _all(module, items)
    total = sum(result_shape(module, item).size_bytes for item in items)
    rounded = -(-layer // MIB) * MIB
    return Threshold(kind, MOVED[kind], layer, rounded, len(items), total, layers, how)


def _loop_layer(module: Module, items: list[Instruction]) -> tuple[int, int, str] | None:
    """The loop body that moves most bytes of this kind."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for item in items:
        callers = module.callers.get(item.computation, ())
        if any(caller.opcode == "while" for caller in callers):
            leaves = _leaves(result_shape(module, item))
            sizes[item.computation] += sum(leaf.size_bytes for leaf in leaves)
            counts[item.computation] += len(leaves)
    if not sizes:
        return None
    body, size = max(sizes.items(), key=lambda entry: (entry[1], entry[0]))
    return size, 1, f"{counts[body]} tensors in the loop body {body}"


def _repeated_layer(module: Module, items: list[Instruction]) -> tuple[int, int, str] | None:
    """Shapes that occur equally often, the number of occurrences that covers most bytes."""
    shapes = Counter(str(leaf) for item in items for leaf in _leaves(result_shape(module, item)))
    size = {str(leaf): leaf.size_bytes for item in items for leaf in _leaves(result_shape(module, item))}
    covered: Counter[int] = Counter()
    for shape, count in shapes.items():
        if count > 1:
            covered[count] += count * size[shape]
    if not covered:
        return None
    layers, _ = max(covered.items(), key=lambda entry: (entry[1], entry[0]))
    members = {shape: count for shape, count in shapes.items() if count >= layers and count % layers == 0}
    layer = sum(size[shape] * count // layers for shape, count in members.items())
    tensors = sum(count // layers for count in members.values())
    return layer, layers, f"{tensors} tensors, each shape {layers} times or a multiple of it"


def _all(module: Module, items: list[Instruction]) -> tuple[int, int, str]:
    leaves = [leaf for item in items for leaf in _leaves(result_shape(module, item))]
    how = f"no repeated layer found: all {len(leaves)} tensors of the module"
    return sum(leaf.size_bytes for leaf in leaves), 0, how


def _leaves(shape: Shape) -> list[Shape]:
    """The arrays of a shape: a combined collective returns a tuple."""
    return [leaf for element in shape.elements for leaf in _leaves(element)] if shape.elements else [shape]
