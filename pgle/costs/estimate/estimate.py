"""Estimate what an instruction costs on a given GPU without measuring it, and the least time that
it can take.

Collectives (`communication`) and matrix products (`products`) come from XLA's measured tables. They
are scaled for a GPU or network that has no table. All other estimates are rooflines of shapes.
Every result is `Origin.ESTIMATED`. docs/evidence/rehearse.md and `benchmarks/estimate.py` compare
them with two real jobs.

The least time is a bound, not an estimate. It leaves out everything that a cache or another
algorithm may save: bytes of device memory, convolutions (Winograd), attention (masks), and
transfers whose size depends on data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, prod

from pgle.costs.estimate.attention import call_us
from pgle.costs.estimate.coalescing import L2_BYTES, L2_SPEED, reads_of
from pgle.costs.estimate.communication import (
    LAUNCH_US,
    collective_us,
    group_of,
    payload_bytes,
)
from pgle.costs.estimate.linear_algebra import least_algebra_us
from pgle.costs.estimate.passes import device_bytes_of_passes, has_workspace
from pgle.costs.estimate.products import (
    attention_work,
    first_array,
    least_product_us,
    matmul_us,
    matmuls,
    operand_shape,
)
from pgle.costs.estimate.scatters import even_us
from pgle.xla.async_pairs import result_shape
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import (
    HOST_MEMORY_SPACE,
    Computation,
    Instruction,
    Module,
    Shape,
)
from pgle.xla.host_copies import crosses_host_link
from pgle.xla.instruction_kinds import FREE_TARGETS
from pgle.xla.matrix_products import is_convolution
from pgle.xla.targets import (
    HOST_LINK_EFFICIENCY,
    KERNEL_US,
    Hardware,
    by_architecture,
)


def least_us(
    module: Module, instruction: Instruction, hardware: Hardware, *, hosts: bool = True
) -> float:
    """Return the shortest possible time of an instruction in µs; 0 if nothing is known.

    Args:
        instruction: of any kind; for an asynchronous operation, its start.
        hosts: True if bytes between hosts take the network; False if they take NVLink.
    """
    if instruction.latency_ns is not None:  # the program states its cost
        return 0.0
    kind = collective_kind(module, instruction)
    inner = module.operation(instruction)
    if kind is not None:
        return _transfer_us(module, kind, inner, hardware, hosts=hosts)
    if crosses_host_link(module, instruction):
        return transferred_bytes(module, instruction) / (hardware.host_gb_s * 1e3)
    if is_convolution(inner):
        return 0.0
    algebra = least_algebra_us(module, inner, hardware)
    if algebra or (
        inner.opcode == "custom-call" and "__cublas" not in inner.custom_call_target
    ):
        return algebra
    return sum(
        least_product_us(item, hardware) for item in matmuls(module, instruction)
    )


def _transfer_us(
    module: Module, kind: str, inner: Instruction, hardware: Hardware, *, hosts: bool
) -> float:
    """Return the least transfer time in µs: the bytes that must enter a device or a host, at the
    links' peak.

    A switch may reduce and copy on the way.
    """
    if kind == "ragged-all-to-all":
        return 0.0
    nvlink = hardware.nvlink_gb_s * hardware.library.over_assumed * 1e3
    if kind in ("send", "recv"):
        return result_shape(module, inner).size_bytes / nvlink
    size = payload_bytes(module, kind, inner)
    if kind == "collective-permute":
        return (
            size / nvlink
            if any(source != target for source, target in inner.source_target_pairs)
            else 0.0
        )
    group = group_of(module, inner, hardware)
    inside = size * (1 - 1 / group.size) / nvlink
    if not hosts or group.hosts <= 1:
        return inside
    # In an all-to-all, each device has its own bytes for the other hosts. In other collectives, a
    # host needs each byte once.
    senders = group.per_host if kind == "all-to-all" else 1
    return max(
        inside,
        size
        * senders
        * (1 - 1 / group.hosts)
        / (hardware.nic_gb_s * group.per_host * 1e3),
    )


def hardware_of(module: Module) -> Hardware:
    """Return the GPU that a module was compiled for, by the file name of its dump; an H100 if the
    name does not tell.
    """
    return by_architecture(module.architecture)


def estimator(module: Module, hardware: Hardware) -> Callable[[Instruction], float]:
    """Return a function from an instruction of `module` to its µs per execution on `hardware`."""
    # by name, because an answer asks two or three times for each instruction
    known: dict[str, float] = {}

    def estimate(instruction: Instruction) -> float:
        """Return the estimated cost of an instruction; it is computed once."""
        name = instruction.name
        if name not in known:
            known[name] = _estimated_us(module, instruction, hardware)
        return known[name]

    return estimate


def _estimated_us(
    module: Module, instruction: Instruction, hardware: Hardware
) -> float:
    """Return the estimated cost of any instruction: free, stated, a collective, a copy to the host,
    or compute.
    """
    if instruction.custom_call_target in FREE_TARGETS:
        return 0.0
    if instruction.latency_ns is not None:
        return instruction.latency_ns / 1e3
    wrapped = module.wrapped(instruction)
    kind = collective_kind(module, instruction)
    if kind is not None:
        return collective_us(module, kind, wrapped or instruction, hardware)
    if crosses_host_link(module, instruction):
        size = transferred_bytes(module, instruction)
        return LAUNCH_US + size / (hardware.host_gb_s * HOST_LINK_EFFICIENCY * 1e3)
    return compute_us(module, wrapped or instruction, hardware)


def transferred_bytes(module: Module, instruction: Instruction) -> int:
    """Return the bytes that a copy between device and host memory moves; for an update in place,
    the bytes of the update.
    """
    inner = module.operation(instruction)
    computation = module.fused(inner)
    root = inner if computation is None else module.instructions[computation.root]
    if root.opcode == "dynamic-update-slice":
        return module.instructions[root.operands[1]].shape.size_bytes
    return result_shape(module, instruction).size_bytes


_SLICES = ("dynamic-slice", "slice", "gather")
_WHOLE = (
    "dot",
    "convolution",
    "fusion",
    "custom-call",
    "sort",
    "scatter",
    "reduce-window",
)
_MOVES = frozenset(
    (
        "parameter",
        "constant",
        "broadcast",
        "bitcast",
        "reshape",
        "transpose",
        "copy",
        "tuple",
        "get-tuple-element",
        "iota",
        "slice",
        "dynamic-slice",
        "dynamic-update-slice",
        "concatenate",
        "pad",
        "gather",
        "dot",
        "convolution",
        "fusion",
    )
)


def compute_us(module: Module, instruction: Instruction, hardware: Hardware) -> float:
    """Return the µs of one execution of a compute instruction: the larger of arithmetic and memory
    time.

    Memory time hides the computation of addresses: a thread of an update in place, a gather or a
    transposition has 27 to 55 instructions for one element or four (PTX of jaxlib 0.10.2).
    """
    products = sum(matmul_us(item, hardware) for item in matmuls(module, instruction))
    attention = attention_work(module, instruction)
    if attention is not None and attention.operations:
        products += call_us(hardware, attention).likely
    pointwise = pointwise_operations(module, instruction) / (
        hardware.tflops["f32"] / 2 * 1e6
    )
    needed = _needed(module, instruction)
    device, host = _bytes(module, instruction, needed)
    moved = device_bytes_of_passes(module, instruction, device)
    moved += uncoalesced_bytes(module, instruction).likely
    memory = hardware.memory_us(moved)
    link = host / (hardware.host_gb_s * HOST_LINK_EFFICIENCY * 1e3)
    waits = _waits_us(module, instruction)
    return max(products + pointwise, KERNEL_US + max(pointwise, memory, link, waits))


def _waits_us(module: Module, instruction: Instruction) -> float:
    """Return the µs that the scatters of a kernel wait if they write to all places equally
    often.
    """
    scatters = (item for item in module.parts(instruction) if item.opcode == "scatter")
    return max((even_us(module, item) for item in scatters), default=0.0)


def pointwise_operations(module: Module, instruction: Instruction) -> int:
    """Return the number of elements that the operations of a fusion compute one by one.

    Each counts as one operation, even a transcendental one.
    """
    fused = module.fused(instruction)
    if fused is None:
        return 0
    computing = (item for item in fused.instructions if item.opcode not in _MOVES)
    return sum(prod(_widest(module, item)) for item in computing)


def _widest(module: Module, item: Instruction) -> tuple[int, ...]:
    """Return the dimensions that an operation loops over; for a reduction, those of its operand."""
    shape = (
        operand_shape(module, item, 0)
        if item.opcode in ("reduce", "reduce-window")
        else None
    )
    return (shape or item.shape).dimensions


def bytes_accessed(module: Module, instruction: Instruction) -> tuple[int, int]:
    """Return the bytes that an instruction must move, as (device memory, host memory).

    Each operand counts once. If only slices of an operand are read, the slices count. For an update
    in place, the update counts.
    """
    return _bytes(module, instruction, _needed(module, instruction))


@dataclass(frozen=True, slots=True)
class Extra:
    """Bytes of device memory that a kernel moves beyond those that it needs, because it uses only
    parts of sectors.
    """

    least: float = 0.0
    likely: float = 0.0
    most: float = 0.0


def uncoalesced_bytes(module: Module, instruction: Instruction) -> Extra:
    """Return the extra bytes that a kernel's reads fetch.

    Reads that the second-level cache answers are converted to bytes of device memory by its speed.
    """
    found = reads_of(module, instruction)
    if not found:
        return Extra()
    needed = _needed(module, instruction)
    least = likely = most = 0.0
    for number, reads in found.items():
        operand = operand_shape(module, instruction, number)
        if operand is None or operand.memory_space == HOST_MEMORY_SPACE:
            continue
        whole = operand.size_bytes
        if needed is None:
            read = min(whole, instruction.shape.size_bytes)
        else:
            read = needed.read_bytes(number, whole)
        cached = (reads.sectors - 1) * read / L2_SPEED
        if whole <= L2_BYTES:
            likely += cached
            most += (reads.fetches - 1) * read
            continue
        least += cached
        likely += (reads.fetches - 1) * read
        most += (reads.lines - 1) * read
    return Extra(least, likely, most)


def _bytes(
    module: Module, instruction: Instruction, needed: _Needed | None
) -> tuple[int, int]:
    sizes: list[tuple[int, Shape]] = []
    if instruction.opcode in _SLICES:
        sizes += [(2 * instruction.shape.size_bytes, instruction.shape)]
    elif instruction.opcode == "dynamic-update-slice":
        update = operand_shape(module, instruction, 1)
        sizes += (
            [(2 * update.size_bytes, instruction.shape)] if update is not None else []
        )
    else:
        written = _result_bytes(instruction) if needed is None else needed.written_bytes
        sizes += [(written, first_array(instruction.shape) or instruction.shape)]
        read: dict[str, int] = {}
        for index, name in enumerate(instruction.operands):
            operand = module.instructions.get(name)
            if operand is not None and operand.shape.dtype not in ("token", "tuple"):
                whole = operand.shape.size_bytes
                part = whole if needed is None else needed.read_bytes(index, whole)
                read[name] = min(read.get(name, 0) + part, whole)
        sizes += [
            (size, module.instructions[name].shape) for name, size in read.items()
        ]
    device = sum(
        size for size, shape in sizes if shape.memory_space != HOST_MEMORY_SPACE
    )
    host = sum(size for size, shape in sizes if shape.memory_space == HOST_MEMORY_SPACE)
    return device, host


def _result_bytes(instruction: Instruction) -> int:
    """Return the bytes of a result, without the workspace that a library call returns last."""
    workspace = (
        instruction.shape.elements[-1].size_bytes if has_workspace(instruction) else 0
    )
    return instruction.shape.size_bytes - workspace


def _needed(module: Module, instruction: Instruction) -> _Needed | None:
    """Return what a fusion needs of its operands; None for anything else."""
    fused = module.fused(instruction)
    return None if fused is None else _Needed(module, fused)


class _Needed:
    """The number of elements of each fused instruction that the fusion's results need.

    Only the slices of a sliced operand count.
    """

    def __init__(self, module: Module, fused: Computation) -> None:
        self.module = module
        self.items = {item.name: item for item in fused.instructions}
        self.numbers = {item.parameter_number: item.name for item in fused.parameters}
        self.elements = dict.fromkeys(self.items, 0)
        root = self.items.get(fused.root)
        self.roots: tuple[str, ...] = ()
        if root is not None:
            self.roots = root.operands if root.opcode == "tuple" else (root.name,)
        for name in self.roots:
            self._need(name, self._written(name).count)
        for item in reversed(fused.instructions):
            if self.elements[item.name] and item.operands and item.opcode != "tuple":
                self._operands(item, self.elements[item.name])

    @property
    def written_bytes(self) -> int:
        """Bytes of the results; for an update in place, only the update."""
        return sum(self._written(name).size_bytes for name in self.roots)

    def _written(self, root: str) -> Shape:
        """Return the shape that a result writes: of an update in place, only the update."""
        return (self.update_of(root) or self.items[root]).shape

    def _count(self, name: str) -> int:
        """Return the number of elements of an instruction; 0 if it is outside the fusion."""
        return self.items[name].shape.count if name in self.items else 0

    def read_bytes(self, number: int, whole: int) -> int:
        """Return the bytes read of a parameter.

        Args:
            number: the parameter's number.
            whole: the parameter's size in bytes.
        """
        name = self.numbers.get(number, "")
        total = self._count(name)
        return ceil(whole * self.elements[name] / total) if total else 0

    def update_of(self, name: str) -> Instruction | None:
        """Return the instruction that a root writes into an operand in place; None for any other
        root.
        """
        item = self.items[name]
        while (
            item.opcode == "bitcast"
            and item.operands
            and item.operands[0] in self.items
        ):
            item = self.items[item.operands[0]]
        if item.opcode != "dynamic-update-slice" or len(item.operands) < 2:
            return None
        return self.items.get(item.operands[1])

    def _need(self, name: str, count: float) -> None:
        """Note that some more elements of an instruction are needed, at most all."""
        if name in self.items:
            needed = self.elements[name] + count
            self.elements[name] = ceil(min(needed, self._count(name)))

    def _operands(self, item: Instruction, count: int) -> None:
        """Record the elements of the operands that `count` elements of the result need."""
        rest = item.operands[1:]
        share = count / max(item.shape.count, 1)
        nested = _needed(self.module, item)
        counts: list[float] = [count] * len(item.operands)
        if item.opcode in _SLICES:
            counts = [count, *[inf] * len(rest)]
        elif item.opcode == "dynamic-update-slice":
            update = self._count(rest[0]) if rest else 0
            counts[0] = max(count - update, 0)
        elif nested is not None:
            names = map(nested.numbers.get, range(len(counts)))
            counts = [nested.elements.get(name or "", inf) for name in names]
        elif item.opcode in _WHOLE:
            counts = [inf] * len(counts)
        elif item.opcode in ("reduce", "concatenate"):
            counts = [share * self._count(name) for name in item.operands]
        for name, needed in zip(item.operands, counts, strict=True):
            self._need(name, needed)
