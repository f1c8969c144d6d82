"""Read what the latency-hiding scheduler assumed: the dumps of
``--xla_dump_latency_hiding_schedule``.

XLA writes ``MODULE.schedule.txt`` (``.schedule.pb`` with ``--xla_dump_hlo_as_proto``). It is a
`ScheduleProto` of `xla/xla.proto`: the module as LHS saw it, and when LHS placed each instruction.
If a second module has the same name, its dump overwrites the first. On GPU one cycle is one
microsecond. Up to jaxlib 0.5.0 the file is named after the entry computation. It then holds only
that schedule, before the module (`EntryScheduleProto`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes, read_head
from pgle.xla.async_pairs import AsyncPair, async_pairs
from pgle.xla.hlo.module import MAX_HLO_BYTES, Computation, Module
from pgle.xla.hlo.proto import module_from_proto
from pgle.xla.protos import schedule_pb2

_NAME = re.compile(r"(.+)\.schedule\.(txt|pb)(\.xz|\.gz)?$")
_ENTRY_TEXT = re.compile(rb"\s*(instructions|computation_id)\b")
# field 1 is a module, which begins with its own field 1, the name
_MODULE_FIRST = re.compile(rb"\x0a[\x80-\xff]*[\x00-\x7f]\x0a")
_NOISE = 1e-6  # cycles, because sums of floats are not exact
# smaller gaps are rounding: times are doubles from the start of the computation
_IDLE_CYCLES = 1e-3
_START_CYCLES = 1.5  # starts take one cycle; a longer one occupies its cost
_Proto = schedule_pb2.ScheduleProto | schedule_pb2.EntryScheduleProto
_HOW = "dump with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true'"

# Three quarters of a text dump are fields that pgle does not read. They are removed first, because
# protobuf's text parser is slow. Only XLA's own indented form is changed: one field per line, and a
# block closes at the indentation where it opened.
_UNUSED_BLOCK = re.compile(
    r"^( +)(?:layout|program_shape|host_program_shape|stack_frame_index|statistics_viz"
    r"|frontend_attributes|literal|window|input_output_alias|buffer_donor|spmd_\w+|sharding) \{\n"
    r"(?:\1 (?! *(?:memory_space|key|preds|[su]\d+s)).*\n)*\1\}\n",
    re.MULTILINE,
)
_UNUSED_LINE = re.compile(
    r"^ +(?:is_dynamic_dimension|stack_frame_id|operand_precision|dynamic_slice_sizes"
    r"|peak_memory_after): \S+\n",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of an instruction in LHS's schedule, in cycles from the start of its
    computation.
    """

    start_cycles: float
    end_cycles: float

    @property
    def cycles(self) -> float:
        """The cost that LHS assumed. Starts and dones occupy one cycle instead."""
        return self.end_cycles - self.start_cycles


@dataclass(frozen=True, slots=True)
class Statistics:
    """The sums of one computation's schedule, in cycles."""

    total_wasted_cycles: float  # cycles in which nothing ran
    total_cycles: float  # length of the computation


@dataclass(frozen=True)
class ComputationSchedule:
    """The schedule of one computation; the body of a loop counts once.

    Sums come from the slots. The dump's own ``scheduler_statistics`` are for the order before LHS.
    Observed with jaxlib 0.10.2 and 0.12.0.1: gathers of a Llama-70B loop count as exposed although
    compute overlaps them.
    """

    slots: Mapping[str, Slot]  # by instruction name, in schedule order

    @cached_property
    def statistics(self) -> Statistics:
        """The sums of the schedule."""
        wasted = busy_until = 0.0
        for slot in self.slots.values():
            if slot.start_cycles > busy_until + _NOISE:
                wasted += slot.start_cycles - busy_until
            busy_until = max(busy_until, slot.end_cycles)
        return Statistics(
            wasted, max((slot.end_cycles for slot in self.slots.values()), default=0.0)
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """What LHS assumed for an asynchronous operation."""

    pair: AsyncPair  # the operation
    # cycles from the start's beginning to the done's beginning. The assumed latency is at most
    # this, and exactly this if nothing hid it.
    span_cycles: float


@dataclass(frozen=True)
class LhsSchedule:
    """One schedule dump."""

    # the module as LHS saw it, in the order that LHS chose; its names are those that XLA looks up
    # in a profile
    module: Module
    # schedules by computation name. Computations without asynchronous operations have none.
    computations: Mapping[str, ComputationSchedule]
    latencies: Mapping[str, Latency]  # asynchronous operations, by the start's name
    source: str = ""  # the file that it was read from

    @cached_property
    def assumed_us(self) -> Mapping[str, float | None]:
        """The time in µs that LHS assumed for each instruction that takes time; None if the
        schedule does not show it.

        An ordinary instruction occupies exactly its cost. Starts and dones occupy one cycle,
        whatever they cost. The latency shows only if the done had to wait for it. The start of an
        asynchronous fusion with a collective also occupies its cost, before its latency (jaxlib
        0.12.0.1).
        """
        slots = _all_slots(self.computations)
        starts = {
            name
            for name in self.latencies
            if name not in slots or slots[name].cycles <= _START_CYCLES
        }
        start_of = {latency.pair.done: name for name, latency in self.latencies.items()}
        assumed: dict[str, float | None] = dict.fromkeys(starts)
        for computation in self.computations.values():
            free = 0.0
            for name, slot in computation.slots.items():
                start = start_of.get(name)
                if start in starts and slot.start_cycles > free + _IDLE_CYCLES:
                    assumed[start] = self.latencies[start].span_cycles
                # a cost may be NaN, which is not <= 0
                elif start is None and name not in starts and not slot.cycles <= 0:
                    assumed[name] = slot.cycles
                free = max(free, slot.end_cycles)
        return assumed


def _all_slots(computations: Mapping[str, ComputationSchedule]) -> dict[str, Slot]:
    """Return the slots of all computations by instruction name."""
    slots: dict[str, Slot] = {}
    for schedule in computations.values():
        slots |= schedule.slots
    return slots


def find_schedule_dumps(path: AnyPath) -> dict[str, AnyPath]:
    """Return schedule dumps by module name.

    Args:
        path: a dump file, or a directory, which is searched at any depth. If several processes
            wrote dumps of one name, the first in path order is taken.
    """
    files = sorted(path.rglob("*.schedule.*")) if path.is_dir() else [path]
    found: dict[str, AnyPath] = {}
    for file in files:
        match = _NAME.fullmatch(file.name)
        if match is not None:
            found.setdefault(_module_name(file) or match.group(1), file)
    return found


def _module_name(file: AnyPath) -> str:
    """Return the module's name from the head of a dump; empty if the head does not show it.

    File names may lack a trailing ``_``.
    """
    head = read_head(file, 4096)
    if ".schedule.txt" in file.name:
        text = read_bytes(file) if _ENTRY_TEXT.match(head) else head
        found = re.search(rb'^hlo_module \{\s+name: "([^"]*)"', text, re.MULTILINE)
        return "" if found is None else found.group(1).decode("utf-8", "replace")
    module_first = _MODULE_FIRST.match(head)
    if module_first is None:
        return _parse_binary(
            read_bytes(file, max_bytes=MAX_HLO_BYTES), file
        ).hlo_module.name
    length, *name = head[module_first.end() :] or b"\x80"
    if length >= 0x80:
        return ""
    return bytes(name[:length]).decode("utf-8", "replace")


def read_schedule_dump(path: AnyPath) -> LhsSchedule:
    """Read a ``.schedule.txt`` or ``.schedule.pb``, also ``.xz`` and ``.gz``.

    Raises:
        UserError: the file is not a schedule dump, or cut short.
    """
    data = read_bytes(path, max_bytes=MAX_HLO_BYTES)
    if not data.strip():
        raise UserError("empty schedule dump", where=path, remedy=_HOW)
    proto = (
        _parse_text(data, path)
        if re.search(r"\.txt(\.xz|\.gz)?$", path.name)
        else _parse_binary(data, path)
    )
    if not proto.hlo_module.computations:
        raise UserError(
            "not a schedule dump: it holds no HLO module", where=path, remedy=_HOW
        )
    return _schedule(proto, str(path))


def _parse_text(data: bytes, path: AnyPath) -> _Proto:
    """Parse a schedule dump in text form, without the parts that pgle does not read."""
    proto = (
        schedule_pb2.EntryScheduleProto()
        if _ENTRY_TEXT.match(data)
        else schedule_pb2.ScheduleProto()
    )
    text = _UNUSED_LINE.sub("", _UNUSED_BLOCK.sub("", data.decode("utf-8", "replace")))
    try:
        return text_format.Parse(text, proto, allow_unknown_field=True)
    except RecursionError:
        raise UserError(
            "not a schedule dump (messages within messages, too deep)",
            where=path,
            remedy=_HOW,
        ) from None
    except (text_format.ParseError, ValueError) as error:
        what = f"not a schedule dump, or cut short ({str(error).splitlines()[0]})"
        raise UserError(what, where=path, remedy=_HOW) from None


def _parse_binary(data: bytes, path: AnyPath) -> _Proto:
    """Parse a schedule dump in binary form."""
    kind = (
        schedule_pb2.ScheduleProto
        if _MODULE_FIRST.match(data)
        else schedule_pb2.EntryScheduleProto
    )
    try:
        proto: _Proto = kind.FromString(data)
    except DecodeError:
        raise UserError(
            "not a binary schedule dump, or cut short", where=path, remedy=_HOW
        ) from None
    return proto


def _schedule(proto: _Proto, source: str) -> LhsSchedule:
    """Return the schedules of a dump, with names in place of ids."""
    module = module_from_proto(proto.hlo_module, source)
    names: dict[int, str] = {}
    computation_names: dict[int, str] = {}
    for computation in proto.hlo_module.computations:
        computation_names[computation.id] = computation.name
        names.update((item.id, item.name) for item in computation.instructions)
    dumped = (
        [proto]
        if isinstance(proto, schedule_pb2.EntryScheduleProto)
        else proto.computation_schedules
    )
    computations: dict[str, ComputationSchedule] = {}
    try:
        for schedule in dumped:
            slots: dict[str, Slot] = {}
            for item in schedule.instructions:
                slot = Slot(item.start_timestamp_cycles, item.end_timestamp_cycles)
                slots[names[item.id]] = slot
            name = computation_names[schedule.computation_id]
            computations[name] = ComputationSchedule(slots)
    except KeyError as error:
        raise UserError(
            f"refers to an unknown id {error}; the dump is cut short",
            where=source,
            remedy=_HOW,
        ) from None
    return LhsSchedule(
        module=replace(module, computations=_in_slot_order(module, computations)),
        computations=computations,
        latencies=_latencies(module, _all_slots(computations)),
        source=source,
    )


def _latencies(module: Module, slots: Mapping[str, Slot]) -> dict[str, Latency]:
    """Return what LHS assumed for each asynchronous operation that it placed, by the start's
    name.
    """
    found: dict[str, Latency] = {}
    for pair in async_pairs(module):
        if pair.start in slots and pair.done in slots:
            span = slots[pair.done].start_cycles - slots[pair.start].start_cycles
            found[pair.start] = Latency(pair, span)
    return found


def _in_slot_order(
    module: Module, schedules: Mapping[str, ComputationSchedule]
) -> dict[str, Computation]:
    """Return the computations in the order that LHS chose. The module in a dump still has the order
    before LHS.
    """
    ordered = dict(module.computations)
    for name, schedule in schedules.items():
        if schedule.slots.keys() == {item.name for item in ordered[name].instructions}:
            items = tuple(module.instructions[item] for item in schedule.slots)
            ordered[name] = replace(ordered[name], instructions=items)
    return ordered
