"""An HLO module as a value: computations, instructions, shapes, schedule.

`pgle.xla.hlo.dumps` makes it from protobuf dumps, text dumps or protos embedded in xplanes. Outside
the readers only names identify instructions: ids of HLO protos are opaque, and 64 bits wide since
jaxlib 0.8.0.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeVar, dataclass_transform

from pgle.files import Json
from pgle.xla.hlo.replica_groups import Shards
from pgle.xla.vendors import Architecture, architecture_in


def architecture_in_name(source: str) -> Architecture | None:
    """Return the architecture in the file name of a dump (``.sm_9.0_gpu_after_optimizations``).

    None if the name has none.
    """
    return architecture_in(source.rpartition("/")[2])


_T = TypeVar("_T")

BITS: Mapping[str, int] = {
    "pred": 8,
    "s2": 2,
    "u2": 2,
    "s4": 4,
    "u4": 4,
    "s8": 8,
    "u8": 8,
    "s16": 16,
    "u16": 16,
    "s32": 32,
    "u32": 32,
    "s64": 64,
    "u64": 64,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "c128": 128,
    "f4e2m1fn": 4,
    "f8e3m4": 8,
    "f8e4m3": 8,
    "f8e4m3b11fnuz": 8,
    "f8e4m3fn": 8,
    "f8e4m3fnuz": 8,
    "f8e5m2": 8,
    "f8e5m2fnuz": 8,
    "f8e8m0fnu": 8,
    "token": 0,
    "opaque": 0,
    "tuple": 0,
}
"""Width in bits of one element of each primitive type (`xla/xla_data.proto`)."""

# protocol buffers cannot be larger; a text dump of such a module would be unreadable anyway
MAX_HLO_BYTES = 2 << 30
NOT_HLO = (
    "pass an after_optimizations .hlo.pb or .txt of --xla_dump_to, or its directory"
)

DEEPEST = 100
"""Most levels of calls or tuples. Protocol buffers cannot nest deeper either. Programs so far have
6.
"""

HOST_MEMORY_SPACE = 5  # layout memory space of arrays in host memory


@dataclass(frozen=True, slots=True)
class Shape:
    """An array, tuple, token or opaque shape."""

    dtype: str  # primitive type in lower case, ``tuple`` for tuples
    dimensions: tuple[int, ...] = ()  # sizes; empty for scalars and tuples
    elements: tuple[Shape, ...] = ()  # the shapes of a tuple
    memory_space: int = 0  # layout memory space; `HOST_MEMORY_SPACE` means host memory
    # dimensions from the fastest (its elements are adjacent) to the slowest; empty means that the
    # last one is the fastest
    minor_to_major: tuple[int, ...] = field(default=(), compare=False)

    @property
    def count(self) -> int:
        """Number of elements of an array."""
        return prod(self.dimensions)

    @property
    def arrays(self) -> tuple[Shape, ...]:
        """The shapes of a tuple; for any other shape, the shape itself."""
        return self.elements or (self,)

    @property
    def size_bytes(self) -> int:
        """Bytes of all array leaves, without tuple pointers. Types smaller than a byte are
        packed.
        """
        if self.elements:
            return sum(element.size_bytes for element in self.elements)
        return (self.count * BITS.get(self.dtype, 0) + 7) // 8

    def __str__(self) -> str:
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.elements))})"
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"


MAPPED = frozenset(("broadcast", "concatenate", "iota", "reduce", "transpose"))
"""Opcodes whose ``dimensions`` map elements of an operand to elements of the result, or name the
counted one.
"""


@dataclass_transform(frozen_default=True)
def value_of_many(cls: type[_T]) -> type[_T]:
    """Make a dataclass that the type checker treats as frozen. Creating one takes a tenth of the
    time.

    It is for values that exist by the million: a frozen dataclass sets each field through
    ``object.__setattr__``.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@value_of_many
class Instruction:
    """One HLO instruction."""

    name: str  # as in the dump, without ``%``; unique in the module
    # as in the proto (``async-start`` even if the text dump prints ``all-gather-start``)
    opcode: str
    shape: Shape  # shape of the result
    computation: str  # name of the computation that holds it
    operands: tuple[str, ...] = ()  # names, in order, all in the same computation
    called: tuple[str, ...] = ()  # names of the called computations
    # names of instructions that must run before it
    control_predecessors: tuple[str, ...] = ()
    # the name when LHS ran (``metadata.scheduling_name``); empty if absent. Reliable only for
    # collectives.
    scheduling_name: str = ""
    op_name: str = ""  # ``metadata.op_name``, the framework's name
    channel_id: int | None = None  # channel of a collective; None if absent
    # device groups of a collective; empty if absent or "all devices"
    replica_groups: tuple[tuple[int, ...], ...] = ()
    # pairs of a collective-permute
    source_target_pairs: tuple[tuple[int, int], ...] = ()
    custom_call_target: str = ""  # target of a custom call
    fusion_kind: str = ""  # ``kLoop``, ``kInput``, ``kOutput``, ``kCustom`` or empty
    backend_config: str = ""  # JSON text, or empty
    # contracting dimensions of the left operand of a dot
    dot_lhs_contracting: tuple[int, ...] = ()
    tuple_index: int | None = None  # index of a get-tuple-element; None otherwise
    parameter_number: int | None = None  # number of a parameter; None otherwise
    # True for a send or receive that exchanges data with the host
    is_host_transfer: bool = False
    # file and line that made it, ``/src/model.py:12``; empty if absent
    source: str = ""
    # if `source` is in a library, the line of the program that leads to it; empty if absent
    called_from: str = ""
    # the time that the program states (frontend attribute ``latency_metadata``); None if absent.
    # XLA's speed-of-light model uses it for any instruction, its table of constants for custom
    # calls.
    latency_ns: int | None = None
    # value of a scalar integer constant; None for anything else
    constant: int | None = None
    # values of a constant row of 32-bit integers; empty for anything else
    row: tuple[int, ...] = ()
    # direction of a compare: ``EQ``, ``NE``, ``LT``, ``LE``, ``GT`` or ``GE``
    direction: str = ""
    # precision of a product: ``high``, ``highest``, or the algorithm that the program requests
    # (``dot_bf16_bf16_f32_x3``); empty means XLA's default
    precision: str = ""
    fft_length: tuple[int, ...] = ()  # lengths of the last dimensions of an FFT
    dimensions: tuple[int, ...] = ()  # attribute ``dimensions`` of opcodes in `MAPPED`
    # start, limit and stride of a slice, by dimension
    slices: tuple[tuple[int, int, int], ...] = ()
    # size and stride of the windows of a reduce-window, by dimension
    windows: tuple[tuple[int, int], ...] = ()

    @property
    def line(self) -> str:
        """The line of the program that leads to it, else the line that made it; may be empty."""
        return self.called_from or self.source


@dataclass(frozen=True, slots=True)
class Computation:
    """One computation. Its instructions are in schedule order if the module is scheduled, else in
    dump order.
    """

    name: str
    instructions: tuple[Instruction, ...]
    root: str
    is_fusion: bool = False

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters, in the order of its instructions."""
        return tuple([item for item in self.instructions if item.opcode == "parameter"])


@dataclass(frozen=True)
class Module:
    """One HLO module."""

    name: str  # ``jit_train_step``
    # HloModuleProto.id, the program id in traces; None if unknown
    program_id: int | None
    # ``fingerprint_before_lhs``, 32 hexadecimal digits; empty if absent
    fingerprint: str
    entry: str  # name of the entry computation
    computations: Mapping[str, Computation]  # by name
    is_scheduled: bool  # True if the order of instructions is the schedule
    num_partitions: int = 1  # SPMD partitions; 1 if unknown
    num_replicas: int = 1  # replicas; 1 if unknown
    source: str = ""  # the file that it was read from
    # numbers of donated parameters whose memory a result takes
    donated: frozenset[int] = frozenset()
    # by parameter number, which device holds which part of it; empty if unknown
    shards: tuple[Shards, ...] = ()

    @cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        """Every instruction of every computation, by name."""
        return {item.name: item for item in self.walk()}

    @property
    def num_devices(self) -> int:
        """Number of devices that run it together."""
        return self.num_partitions * self.num_replicas

    @property
    def architecture(self) -> Architecture | None:
        """Architecture of the GPU that it was compiled for, from the dump's file name
        (``.sm_9.0_gpu_after_optimizations``); None if unknown.
        """
        return architecture_in_name(self.source)

    @property
    def entry_computation(self) -> Computation:
        """The entry computation."""
        return self.computations[self.entry]

    @cached_property
    def callers(self) -> Mapping[str, tuple[Instruction, ...]]:
        """The instructions that call each computation, by computation name."""
        callers: dict[str, list[Instruction]] = {}
        for instruction in self.instructions.values():
            for called in instruction.called:
                callers.setdefault(called, []).append(instruction)
        return {name: tuple(found) for name, found in callers.items()}

    @cached_property
    def scheduled(self) -> tuple[str, ...]:
        """The computations that LHS schedules, in module order: the entry, and those that only
        loops call.

        They include command buffers: up to jaxlib 0.6, XLA moves scheduled instructions into a call
        of ``command_buffer.N`` after LHS. The instructions keep their names (openxla/xla
        `command_buffer_scheduling.cc`).
        """
        found = {self.entry}
        for name, callers in self.callers.items():
            ways = {"while", "call"} if name.startswith("command_buffer") else {"while"}
            if callers and {caller.opcode for caller in callers} <= ways:
                found.add(name)
        return tuple(name for name in self.computations if name in found)

    def wrapped(self, instruction: Instruction) -> Instruction | None:
        """Return the instruction that a generic ``async-start/-update/-done`` wraps, else None.

        It is the root of the called computation.
        """
        seen: set[str] = set()
        item: Instruction | None = instruction
        while item is not None and item.opcode in (
            "async-start",
            "async-update",
            "async-done",
        ):
            for name in item.called:
                computation = self.computations.get(name)
                if computation is not None:
                    return self.instructions.get(computation.root)
            # -update and -done may leave the computation to their start
            seen.add(item.name)
            before = item.operands[0] if item.operands else ""
            item = None if before in seen else self.instructions.get(before)
        return None

    def operation(self, instruction: Instruction) -> Instruction:
        """Return the wrapped instruction of a generic asynchronous one, else the instruction
        itself.
        """
        return self.wrapped(instruction) or instruction

    def called_instructions(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the instructions of the computations that an instruction calls, if they exist."""
        for name in instruction.called:
            if name in self.computations:
                yield from self.computations[name].instructions

    def fused(self, instruction: Instruction) -> Computation | None:
        """Return the computation of a fusion; None for any other instruction."""
        called = instruction.called[:1] if instruction.opcode == "fusion" else ()
        return next(map(self.computations.get, called), None)

    def parts(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """Return the instructions inside a fusion; any other instruction is its own only part."""
        fused = self.fused(instruction)
        return (instruction,) if fused is None else fused.instructions

    def operand_shapes(self, instruction: Instruction) -> list[Shape]:
        """Return the shapes of the operands that the module holds."""
        found = map(self.instructions.get, instruction.operands)
        return [item.shape for item in found if item is not None]

    def work(self, instruction: Instruction) -> Hashable:
        """Return a key that is equal for instructions that do the same work.

        It holds opcode, shapes of result and operands, and the opcodes of fused operations.
        """
        inner = self.operation(instruction)
        opcodes = Counter(part.opcode for part in self.parts(inner))
        return (
            inner.opcode,
            str(inner.shape),
            tuple(map(str, self.operand_shapes(inner))),
            inner.fusion_kind,
            inner.custom_call_target,
            frozenset(opcodes.items()),
        )

    def walk(self) -> Iterator[Instruction]:
        """Yield every instruction, computation by computation."""
        for computation in self.computations.values():
            yield from computation.instructions


def backend_config(instruction: Instruction) -> Json:
    """Return the backend config as a dictionary; empty if it is not a JSON object, such as a custom
    call's text.
    """
    if not instruction.backend_config.startswith("{"):
        return {}
    try:
        config = json.loads(instruction.backend_config)
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def fusion_kind(fusion: Instruction) -> str:
    """Return the kind of a fusion, ``kLoop``, or XLA's own name, such as ``__triton_gemm`` or
    ``__dynamic_memcpy``.
    """
    config = backend_config(fusion).get("fusion_backend_config")
    named = config.get("kind") if isinstance(config, dict) else None
    return str(named) if named else fusion.fusion_kind


def known_trip_count(instruction: Instruction) -> int | None:
    """Return how often the body of a ``while`` runs if XLA states it (``known_trip_count``), else
    None.

    `pgle.xla.hlo.trips` can then read it from the module's constants.
    """
    count = backend_config(instruction).get("known_trip_count")
    try:
        trips = int(count["n"]) if isinstance(count, dict) else None
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return trips if trips is not None and 0 <= trips < 1 << 63 else None
