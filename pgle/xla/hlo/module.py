"""An HLO module as a value: computations, instructions, shapes, schedule.

Made by `pgle.xla.hlo.dumps` from protobuf dumps, text dumps or protos embedded in xplanes. Names
are the only identity used outside the reader: ids of HLO protos are opaque and 64 bit wide (since
jaxlib 0.8.0).
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
    """The architecture in the file name of a dump (``.sm_9.0_gpu_after_optimizations``).

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

MAX_HLO_BYTES = (
    2 << 30
)  # protocol buffers cannot be larger; a text dump of such a module would be unreadable anyway
NOT_HLO = (
    "pass an after_optimizations .hlo.pb or .txt of --xla_dump_to, or its directory"
)

DEEPEST = 100
"""Calls within calls, tuples within tuples; protocol buffers cannot nest deeper either, programs
seen so far 6.
"""

HOST_MEMORY_SPACE = 5  # layout memory space of arrays that live in host memory


@dataclass(frozen=True, slots=True)
class Shape:
    """An array, tuple, token or opaque shape."""

    dtype: str  # primitive type in lower case, ``tuple`` for tuples
    dimensions: tuple[int, ...] = ()  # sizes; empty for scalars and tuples
    elements: tuple[Shape, ...] = ()  # the shapes of a tuple
    memory_space: int = 0  # layout memory space; `HOST_MEMORY_SPACE` means host memory
    # dimensions from the one whose elements lie side by side to the slowest; empty: the last one
    # first
    minor_to_major: tuple[int, ...] = field(default=(), compare=False)

    @property
    def count(self) -> int:
        """Elements of an array."""
        return prod(self.dimensions)

    @property
    def arrays(self) -> tuple[Shape, ...]:
        """The shapes of a tuple; of anything else, itself."""
        return self.elements or (self,)

    @property
    def size_bytes(self) -> int:
        """Bytes of all array leaves, without tuple pointers; sub-byte types are packed."""
        if self.elements:
            return sum(element.size_bytes for element in self.elements)
        return (self.count * BITS.get(self.dtype, 0) + 7) // 8

    def __str__(self) -> str:
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.elements))})"
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"


MAPPED = frozenset(("broadcast", "concatenate", "iota", "reduce", "transpose"))
"""Opcodes whose ``dimensions`` say which element of an operand goes where, or is counted."""


@dataclass_transform(frozen_default=True)
def value_of_many(cls: type[_T]) -> type[_T]:
    """A dataclass that the type checker takes for frozen; making one takes a tenth of the time.

    For values that exist by the million: a frozen dataclass sets each field through
    ``object.__setattr__``.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@value_of_many
class Instruction:
    """One HLO instruction."""

    name: str  # as in the dump, without ``%``; unique in the module
    # as in the proto (``async-start`` even where the text dump prints ``all-gather-start``)
    opcode: str
    shape: Shape  # of the result
    computation: str  # name of the computation that holds it
    operands: tuple[str, ...] = ()  # names, in order; all in the same computation
    called: tuple[str, ...] = ()  # names of the called computations
    # names of instructions that must run before it
    control_predecessors: tuple[str, ...] = ()
    # the name it had when LHS ran (``metadata.scheduling_name``); empty where absent. To be trusted
    # for collectives only.
    scheduling_name: str = ""
    op_name: str = ""  # ``metadata.op_name``, the framework's name
    channel_id: int | None = None  # of a collective; None where absent
    # device groups of a collective; empty where absent or "all devices"
    replica_groups: tuple[tuple[int, ...], ...] = ()
    source_target_pairs: tuple[tuple[int, int], ...] = ()  # of a collective-permute
    custom_call_target: str = ""  # of a custom call
    fusion_kind: str = ""  # ``kLoop``, ``kInput``, ``kOutput``, ``kCustom`` or empty
    backend_config: str = ""  # JSON text, or empty
    # contracting dimensions of the left operand of a dot
    dot_lhs_contracting: tuple[int, ...] = ()
    tuple_index: int | None = None  # of a get-tuple-element; None otherwise
    parameter_number: int | None = None  # of a parameter; None otherwise
    is_host_transfer: bool = False  # of a send or receive that talks to the host
    # file and line that made it, ``/src/model.py:12``; empty where absent
    source: str = ""
    # if that is a library's: the line of the program that leads to it; empty where absent
    called_from: str = ""
    # what the program states that it takes (frontend attribute ``latency_metadata``); None where
    # absent. XLA's speed-of-light model takes it for any instruction, its table of constants for
    # custom calls.
    latency_ns: int | None = None
    # value of a scalar integer constant; None of anything else
    constant: int | None = None
    # values of a constant that is a row of 32-bit integers; empty of anything else
    row: tuple[int, ...] = ()
    # of a compare: ``EQ``, ``NE``, ``LT``, ``LE``, ``GT`` or ``GE``
    direction: str = ""
    # of products: ``high``, ``highest``, or the algorithm that the program asks for
    # (``dot_bf16_bf16_f32_x3``); empty: XLA's default
    precision: str = ""
    fft_length: tuple[int, ...] = ()  # of an FFT: lengths of the last dimensions
    dimensions: tuple[int, ...] = ()  # of what `MAPPED` names: attribute ``dimensions``
    # of a slice: start, limit and stride by dimension
    slices: tuple[tuple[int, int, int], ...] = ()

    @property
    def line(self) -> str:
        """The line of the program that leads to it, else the one that made it; may be empty."""
        return self.called_from or self.source


@dataclass(frozen=True, slots=True)
class Computation:
    """One computation: its instructions in schedule order where the module is scheduled, else in
    dump order.
    """

    name: str
    instructions: tuple[Instruction, ...]
    root: str
    is_fusion: bool = False


@dataclass(frozen=True)
class Module:
    """One HLO module."""

    name: str  # ``jit_train_step``
    # HloModuleProto.id, the program id in traces; None where unknown
    program_id: int | None
    # ``fingerprint_before_lhs``, 32 hexadecimal digits; empty where absent
    fingerprint: str
    entry: str  # name of the entry computation
    computations: Mapping[str, Computation]  # by name
    is_scheduled: bool  # True where instruction order is the schedule
    num_partitions: int = 1  # SPMD partitions; 1 where unknown
    num_replicas: int = 1  # replicas; 1 where unknown
    source: str = ""  # where it was read from
    # numbers of the parameters whose memory a result takes (donated and used so)
    donated: frozenset[int] = frozenset()
    # by number of a parameter, which device holds which part of it; empty: unknown
    shards: tuple[Shards, ...] = ()

    @cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        """Every instruction of every computation by name."""
        return {item.name: item for item in self.walk()}

    @property
    def num_devices(self) -> int:
        """Devices that run it together."""
        return self.num_partitions * self.num_replicas

    @property
    def architecture(self) -> Architecture | None:
        """Of the GPU that it was compiled for, from its dump's file name
        (``.sm_9.0_gpu_after_optimizations``).
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
        """The computations that LHS schedules, in module order: the entry and computations that
        only loops call.

        Command buffers belong to them. Up to jaxlib 0.6 XLA moves scheduled instructions into a
        call of ``command_buffer.N`` after LHS, under their names (openxla/xla
        `command_buffer_scheduling.cc`).
        """
        found = {self.entry}
        for name, callers in self.callers.items():
            ways = {"while", "call"} if name.startswith("command_buffer") else {"while"}
            if callers and {caller.opcode for caller in callers} <= ways:
                found.add(name)
        return tuple(name for name in self.computations if name in found)

    def wrapped(self, instruction: Instruction) -> Instruction | None:
        """The instruction that a generic ``async-start/-update/-done`` wraps: the root of its
        called computation.
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
            seen.add(
                item.name
            )  # -update and -done may leave the computation to their start
            before = item.operands[0] if item.operands else ""
            item = None if before in seen else self.instructions.get(before)
        return None

    def operation(self, instruction: Instruction) -> Instruction:
        """What it wraps if it is asynchronous and generic, else itself."""
        return self.wrapped(instruction) or instruction

    def called_instructions(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instructions of the computations that an instruction calls, if they exist."""
        for name in instruction.called:
            if name in self.computations:
                yield from self.computations[name].instructions

    def fused(self, instruction: Instruction) -> Computation | None:
        """What a fusion computes; None of any other instruction."""
        called = instruction.called[:1] if instruction.opcode == "fusion" else ()
        return next(map(self.computations.get, called), None)

    def parts(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """What a fusion holds; any other instruction is its own only part."""
        fused = self.fused(instruction)
        return (instruction,) if fused is None else fused.instructions

    def operand_shapes(self, instruction: Instruction) -> list[Shape]:
        """The shapes of its operands, as far as the module has them."""
        found = map(self.instructions.get, instruction.operands)
        return [item.shape for item in found if item is not None]

    def work(self, instruction: Instruction) -> Hashable:
        """Equal for two instructions that do the same work: shapes of result and operands, the
        called computations.
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
        """Every instruction, computation by computation."""
        for computation in self.computations.values():
            yield from computation.instructions


def backend_config(instruction: Instruction) -> Json:
    """The backend config as a dictionary; empty where it is no JSON object (custom calls may hold
    any text).
    """
    if not instruction.backend_config.startswith("{"):
        return {}
    try:
        config = json.loads(instruction.backend_config)
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def fusion_kind(fusion: Instruction) -> str:
    """``kLoop``; what XLA names itself, such as ``__triton_gemm`` and ``__dynamic_memcpy``."""
    config = backend_config(fusion).get("fusion_backend_config")
    named = config.get("kind") if isinstance(config, dict) else None
    return str(named) if named else fusion.fusion_kind


def known_trip_count(instruction: Instruction) -> int | None:
    """How often the body of a ``while`` runs, if XLA states it (``known_trip_count``); else None.

    `pgle.xla.hlo.trips` reads it from the module's constants where XLA does not.
    """
    count = backend_config(instruction).get("known_trip_count")
    try:
        trips = int(count["n"]) if isinstance(count, dict) else None
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return trips if trips is not None and 0 <= trips < 1 << 63 else None
