"""Read HLO modules from protobufs: `HloProto` and `HloModuleProto` of `xla/service/hlo.proto`, with
device groups and memory plans.

The buffer assignment in a dump is the device memory that XLA planned. The trace of its heap
simulator lists when each temporary buffer is allocated and freed, in the order of the schedule.
Buffers that share memory form a group, which is freed with its last member.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import PurePath
from typing import Any

from google.protobuf.message import DecodeError

from pgle.errors import UserError
from pgle.next import Next
from pgle.xla.collectives import is_collective_opcode
from pgle.xla.hlo.check import checked, groups_in
from pgle.xla.hlo.frames import Frames
from pgle.xla.hlo.module import MAPPED, NOT_HLO, Computation, Instruction, Module, Shape
from pgle.xla.hlo.replica_groups import (
    SEND_ATTRIBUTE,
    WHOLE,
    Groups,
    Shards,
    SubAxis,
    along_axes,
    iota_groups,
    iota_ids,
    mesh_groups,
    tiled,
)
from pgle.xla.protos import hlo_pb2

_Event = hlo_pb2.HeapSimulatorTrace.Event


def groups_of(item: hlo_pb2.HloInstructionProto) -> Groups:
    """Return the replica groups of an instruction proto; empty if it states none.

    Raises:
        UserError: the groups are impossible.
    """
    try:
        return _stated_groups(item)
    except ValueError as error:
        raise UserError(str(error)) from None


def _stated_groups(item: hlo_pb2.HloInstructionProto) -> Groups:
    """Return the device groups of a collective, in whichever of the four fields they are."""
    if item.HasField("mesh_axes_replica_group_list"):
        stated = item.mesh_axes_replica_group_list
        sizes, ids = _mesh(stated.mesh)
        return mesh_groups(sizes, ids, _axes(stated.axes))
    if item.HasField("iota_collective_device_list"):
        return _iota(item.iota_collective_device_list)
    if item.HasField("collective_device_list"):
        devices = item.collective_device_list
        if devices.HasField("iota_replica_group_list"):
            return _iota(devices.iota_replica_group_list)
        return tuple(tuple(group.replica_ids) for group in devices.replica_groups)
    return tuple(tuple(group.replica_ids) for group in item.replica_groups)


def _mesh(mesh: hlo_pb2.MeshProto) -> tuple[Sequence[int], Sequence[int]]:
    """Return the sizes of a mesh's axes, and its devices in mesh order."""
    ids: Sequence[int] = mesh.device_ids
    if not ids and mesh.HasField("iota_transform"):
        iota = mesh.iota_transform
        ids = iota_ids(iota.reshape_dims, iota.transpose_perm)
    return [axis.size for axis in mesh.axes], ids


def _axes(
    stated: Iterable[hlo_pb2.AxisRefProto],
) -> list[tuple[int, SubAxis | None]]:
    """Return axes, or parts of axes, in the form of `mesh_groups`."""
    axes: list[tuple[int, SubAxis | None]] = []
    for axis in stated:
        info = axis.sub_axis_info
        part = (info.pre_size, info.size) if axis.HasField("sub_axis_info") else None
        axes.append((axis.mesh_axis_index, part))
    return axes


def _shards_of(sharding: hlo_pb2.OpSharding) -> Shards:
    """Return which device holds which part of an array; empty if unknown."""
    try:
        if sharding.HasField("named_sharding"):
            return _named_shards(sharding.named_sharding)
        return _tiled_shards(sharding)
    except ValueError:
        return ()


def _named_shards(sharding: hlo_pb2.NamedShardingProto) -> Shards:
    """Return the shards of a sharding along named axes of a mesh; empty for partial results."""
    used: list[tuple[int, SubAxis | None]] = []
    for dimension in sharding.dim_shardings:
        used += _axes(dimension.axes)
    if sharding.unreduced_axes:
        return ()
    sizes, ids = _mesh(sharding.mesh)
    return along_axes(sizes, ids, used) if used else WHOLE


def _tiled_shards(sharding: hlo_pb2.OpSharding) -> Shards:
    """Return the shards of a sharding in tiles; empty for other kinds."""
    kinds = hlo_pb2.OpSharding
    sizes = sharding.tile_assignment_dimensions
    if sharding.type == kinds.REPLICATED:
        return WHOLE
    copied = list(sharding.last_tile_dims)
    if sharding.replicate_on_last_tile_dim:
        copied = [kinds.REPLICATED]
    is_plain = all(kind == kinds.REPLICATED for kind in copied)
    if sharding.type != kinds.OTHER or not is_plain:
        return ()
    copies = prod(sizes[len(sizes) - len(copied) :])
    devices: Sequence[int] = sharding.tile_assignment_devices
    if not devices:
        devices = iota_ids(sharding.iota_reshape_dims, sharding.iota_transpose_perm)
    return tiled(devices, copies)


def _iota(proto: hlo_pb2.IotaReplicaGroupListProto) -> Groups:
    """Return the groups of an iota list."""
    return iota_groups(
        proto.num_replica_groups,
        proto.num_devices_per_group,
        proto.iota_reshape_dims,
        proto.iota_transpose_perm,
    )


_STABLEHLO = re.compile(rb"ML\xefR|(?:\s|//[^\n]*\n|#[^\n]*\n)*module\b[^\n]*\{")
"""MLIR bytecode, or the head of a module in text after its comments, aliases and locations."""

_DTYPES: Mapping[int, str] = {
    number: {"OPAQUE_TYPE": "opaque"}.get(name, name.lower())
    for name, number in hlo_pb2.PrimitiveType.items()
}


def module_from_bytes(data: bytes, source: str) -> Module:
    """Return a module from a serialized `HloProto` or `HloModuleProto`.

    Raises:
        UserError: the bytes are something else, or cut short.
    """
    if data.lstrip()[:9] == b"HloModule":
        raise UserError(
            "is HLO text, not a protocol buffer",
            where=source,
            remedy="name the file .txt",
        )
    if re.match(rb"\s*costs\s*\{", data):
        raise UserError("a cost profile, not HLO", where=source, remedy=NOT_HLO)
    if _STABLEHLO.match(data):
        raise UserError(
            "StableHLO, not yet scheduled",
            where=source,
            remedy=Next.of("rehearse", PurePath(source)),
        )
    try:
        module = hlo_pb2.HloProto.FromString(data).hlo_module
    except DecodeError:
        module = hlo_pb2.HloModuleProto()
    if not module.computations:
        try:
            module = hlo_pb2.HloModuleProto.FromString(data)
        except DecodeError:
            raise UserError(
                "not an HLO protocol buffer, or cut short", where=source, remedy=NOT_HLO
            ) from None
    return module_from_proto(module, source)


def module_from_proto(proto: hlo_pb2.HloModuleProto, source: str) -> Module:
    """Return a module from a parsed `HloModuleProto`.

    Raises:
        UserError: parts are missing or impossible (`checked`).
    """
    if not proto.computations:
        raise UserError("holds no HLO computation", where=source, remedy=NOT_HLO)
    names = {item.id: item.name for item in proto.computations}
    entry = names.get(proto.entry_computation_id, proto.entry_computation_name)
    try:
        computations = _Builder(proto, names).computations()
    except KeyError as error:
        raise UserError(
            f"refers to an unknown id {error}; the dump is cut short", where=source
        ) from None
    except UserError as error:
        raise UserError(error.what, where=source, remedy="dump it again") from None
    if len(computations) < len(proto.computations):
        raise UserError(
            "two computations have one name; the dump is damaged",
            where=source,
            remedy="dump it again",
        )
    if entry not in computations:
        raise UserError(
            "its entry computation is missing; the dump is cut short",
            where=source,
            remedy="copy it again",
        )
    fingerprint = proto.frontend_attributes.map.get("fingerprint_before_lhs", "")
    aliases = proto.input_output_alias.entries
    donated = frozenset(alias.parameter_number for alias in aliases)
    module = Module(
        name=proto.name,
        program_id=proto.id,
        fingerprint=fingerprint,
        entry=entry,
        computations=computations,
        is_scheduled=proto.entry_computation_id in proto.schedule.sequences,
        num_partitions=max(proto.device_assignment.computation_count, 1),
        num_replicas=max(proto.device_assignment.replica_count, 1),
        source=source,
        donated=donated,
        shards=tuple(map(_shards_of, proto.spmd_parameters_shardings)),
    )
    return checked(module)


def _frames(index: hlo_pb2.StackFrameIndexProto) -> Frames:
    """Return the stack frames of a module. The numbers in the table count from 1."""
    files = index.file_names
    places = index.file_locations
    found = Frames()
    for number, frame in enumerate(index.stack_frames, start=1):
        if not 0 < frame.file_location_id <= len(places):
            continue
        place = places[frame.file_location_id - 1]
        if 0 < place.file_name_id <= len(files):
            where = f"{files[place.file_name_id - 1]}:{place.line}"
            found.add(number, where, frame.parent_frame_id)
    return found


def _latency_ns(item: hlo_pb2.HloInstructionProto) -> int | None:
    """Return the latency that the program states for an instruction; None without one."""
    text = item.frontend_attributes.map.get("latency_metadata", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


_WORD = {"s8": (1, True), "u8": (1, False), "s16": (2, True), "u16": (2, False)}
"""By type: bytes of a value, and whether it is signed. `LiteralProto` packs values of a few
bytes.
"""


def _constant(item: hlo_pb2.HloInstructionProto) -> int | None:
    """Return the value of a constant that is one integer; None for any other constant."""
    literal, shape = item.literal, item.shape
    dtype = _DTYPES.get(shape.element_type, "opaque")
    if shape.dimensions or not item.HasField("literal"):
        return None
    if dtype in _WORD:
        size, signed = _WORD[dtype]
        packed: bytes = getattr(literal, f"{dtype}s")
        return (
            int.from_bytes(packed, "little", signed=signed)
            if len(packed) == size
            else None
        )
    values = {
        "pred": literal.preds,
        "s32": literal.s32s,
        "s64": literal.s64s,
        "u32": literal.u32s,
        "u64": literal.u64s,
    }.get(dtype)
    return int(values[0]) if values is not None and len(values) == 1 else None


def _row(item: hlo_pb2.HloInstructionProto) -> tuple[int, ...]:
    """Return the values of a constant row of 32-bit integers; empty for any other constant."""
    if len(item.shape.dimensions) != 1:
        return ()
    return (*item.literal.s32s, *item.literal.u32s)


def _precision(config: hlo_pb2.PrecisionConfig) -> str:
    """Return the algorithm that a product requests, else the highest precision of its operands;
    empty for the default.
    """
    names = hlo_pb2.PrecisionConfig.Algorithm
    if config.algorithm and config.algorithm in names.values():
        name: str = names.Name(config.algorithm)
        return name.removeprefix("ALG_").lower()
    highest = max(config.operand_precision, default=0)
    if highest in (hlo_pb2.PrecisionConfig.HIGH, hlo_pb2.PrecisionConfig.HIGHEST):
        word: str = hlo_pb2.PrecisionConfig.Precision.Name(highest)
        return word.lower()
    return ""


def _windows(window: hlo_pb2.Window) -> tuple[tuple[int, int], ...]:
    """Return size and stride of a window in each dimension."""
    return tuple([(one.size, one.stride) for one in window.dimensions])


def _particulars(item: hlo_pb2.HloInstructionProto) -> dict[str, Any]:
    """Return the fields that only few instructions have."""
    read = _READ_OF_OPCODE.get(item.opcode)
    fields = {} if read is None else read(item)
    if item.backend_config:
        fields["backend_config"] = item.backend_config.decode("utf-8", "replace")
    if item.comparison_direction:
        fields["direction"] = item.comparison_direction
    if item.HasField("frontend_attributes"):
        fields["latency_ns"] = _latency_ns(item)
    if item.HasField("precision_config"):
        fields["precision"] = _precision(item.precision_config)
    if item.slice_dimensions:
        slices = [(one.start, one.limit, one.stride) for one in item.slice_dimensions]
        fields["slices"] = tuple(slices)
    return fields


_READ_OF_OPCODE: Mapping[
    str, Callable[[hlo_pb2.HloInstructionProto], dict[str, Any]]
] = {
    "get-tuple-element": lambda item: {"tuple_index": item.tuple_index},
    "parameter": lambda item: {"parameter_number": item.parameter_number},
    "constant": lambda item: {"constant": _constant(item), "row": _row(item)},
    "custom-call": lambda item: {"custom_call_target": item.custom_call_target},
    "dot": lambda item: {
        "dot_lhs_contracting": tuple(
            item.dot_dimension_numbers.lhs_contracting_dimensions
        )
    },
    "fft": lambda item: {"fft_length": tuple(item.fft_length)},
    "reduce-window": lambda item: {"windows": _windows(item.window)},
    **{
        opcode: lambda item: {"dimensions": tuple(item.dimensions)} for opcode in MAPPED
    },
}
"""Functions that read the fields of one opcode."""


class _Builder:
    """Turns protos into values. Equal shapes and device groups are made once."""

    def __init__(
        self, proto: hlo_pb2.HloModuleProto, computation_names: Mapping[int, str]
    ) -> None:
        self.proto = proto
        self.computation_names = computation_names
        self.shapes: dict[bytes, Shape] = {}
        self.groups: dict[bytes, Groups] = {}
        self.frames = _frames(proto.stack_frame_index)

    def computations(self) -> dict[str, Computation]:
        """Return all computations by name."""
        return {item.name: self.computation(item) for item in self.proto.computations}

    def computation(self, proto: hlo_pb2.HloComputationProto) -> Computation:
        """Return a computation, its instructions in the order of the schedule if there is one."""
        ids = {item.id: item.name for item in proto.instructions}
        built = {
            item.id: self.instruction(item, proto.name, ids)
            for item in proto.instructions
        }
        order: Iterable[int] = built
        if proto.id in self.proto.schedule.sequences:
            order = self.proto.schedule.sequences[proto.id].instruction_ids
        return Computation(
            name=proto.name,
            instructions=tuple([built[id_] for id_ in order]),
            root=ids[proto.root_id],
            is_fusion=proto.is_fusion_computation,
        )

    def instruction(
        self,
        item: hlo_pb2.HloInstructionProto,
        computation: str,
        ids: Mapping[int, str],
    ) -> Instruction:
        """Return one instruction."""
        metadata = item.metadata
        return Instruction(
            name=item.name,
            opcode=item.opcode,
            shape=self.shape(item.shape),
            computation=computation,
            **self.links(item, ids),
            **self.collective(item),
            **_particulars(item),
            scheduling_name=metadata.scheduling_name,
            op_name=metadata.op_name,
            fusion_kind=item.fusion_kind,
            **(self.sources(metadata) if metadata.op_name else {}),
        )

    def links(
        self, item: hlo_pb2.HloInstructionProto, ids: Mapping[int, str]
    ) -> dict[str, Any]:
        """Return the fields that name other instructions and computations."""
        fields: dict[str, Any] = {}
        if item.operand_ids:
            fields["operands"] = tuple([ids[id_] for id_ in item.operand_ids])
        if item.called_computation_ids:
            called = [
                self.computation_names[id_] for id_ in item.called_computation_ids
            ]
            fields["called"] = tuple(called)
        if item.control_predecessor_ids:
            before = [ids[id_] for id_ in item.control_predecessor_ids]
            fields["control_predecessors"] = tuple(before)
        return fields

    def collective(self, item: hlo_pb2.HloInstructionProto) -> dict[str, Any]:
        """Return the fields that only collectives have."""
        if not item.channel_id and not is_collective_opcode(item.opcode):
            return {}
        pairs: Groups = tuple(
            (pair.source, pair.target) for pair in item.source_target_pairs
        )
        if not pairs and item.HasField("frontend_attributes"):
            pairs = groups_in(item.frontend_attributes.map.get(SEND_ATTRIBUTE, ""))
        return {
            "channel_id": item.channel_id or None,
            "replica_groups": self.replica_groups(item),
            "source_target_pairs": pairs,
            "is_host_transfer": item.is_host_transfer,
        }

    def sources(self, metadata: hlo_pb2.OpMetadata) -> dict[str, Any]:
        """Return the file and line of an instruction.

        Older releases store them in its metadata, newer ones in the module's table of stack frames.
        """
        number = metadata.stack_frame_id
        if metadata.source_file:
            source = f"{metadata.source_file}:{metadata.source_line}"
        else:
            source = self.frames.place(number)
        return {"source": source, "called_from": self.frames.called_from(number)}

    def shape(self, proto: hlo_pb2.ShapeProto) -> Shape:
        """Return a shape; the same object for equal protos."""
        key = proto.SerializeToString()
        found = self.shapes.get(key)
        if found is None:
            found = self.shapes[key] = Shape(
                _DTYPES.get(proto.element_type, "opaque"),
                tuple(proto.dimensions),
                tuple([self.shape(element) for element in proto.tuple_shapes]),
                proto.layout.memory_space,
                tuple(proto.layout.minor_to_major),
            )
        return found

    def replica_groups(self, item: hlo_pb2.HloInstructionProto) -> Groups:
        """Return the device groups of a collective; the same object for equal fields."""
        key = b"|".join(
            [
                item.mesh_axes_replica_group_list.SerializeToString(),
                item.iota_collective_device_list.SerializeToString(),
                item.collective_device_list.SerializeToString(),
                *[group.SerializeToString() for group in item.replica_groups],
            ]
        )
        if key not in self.groups:
            self.groups[key] = groups_of(item)
        return self.groups[key]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One value in memory."""

    instruction: str  # the instruction that makes it
    # the element of its result; empty for the whole result
    shape_index: tuple[int, ...]
    size_bytes: int  # bytes in memory


@dataclass(frozen=True)
class BufferPlan:
    """Device memory of one execution of a module. The four sizes add up to its total."""

    arguments_bytes: int  # parameters, with results that take their place (donation)
    outputs_bytes: int  # other results
    constants_bytes: int  # constants
    temporary_bytes: int  # the rest, including fragmentation
    live: tuple[Buffer, ...]  # temporary buffers at the peak, the largest first
    # instruction at which the temporary buffers are largest; empty if unknown
    peak_at: str
    # bytes of temporary buffers after each event of the plan, in the order of the schedule; empty
    # if unknown
    course_bytes: tuple[int, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """All memory, in bytes."""
        return (
            self.arguments_bytes
            + self.outputs_bytes
            + self.constants_bytes
            + self.temporary_bytes
        )


def buffers_from_bytes(data: bytes) -> BufferPlan | None:
    """Return the plan in a serialized `HloProto`; None if it is something else or has no plan."""
    try:
        proto = hlo_pb2.HloBuffersProto.FromString(data)
    except DecodeError:
        return None
    plan = proto.buffer_assignment
    if not plan.buffer_allocations:
        return None
    sizes = dict.fromkeys(
        ("arguments_bytes", "outputs_bytes", "constants_bytes", "temporary_bytes"), 0
    )
    for item in plan.buffer_allocations:
        # other colours mean other memories
        if not item.is_thread_local and item.color == 0:
            sizes[_field_of(item)] += item.size
    names: dict[int, str] = {}
    for computation in proto.hlo_module.computations:
        names.update((item.id, item.name) for item in computation.instructions)
    buffers = {
        item.id: Buffer(
            names.get(item.defined_at.instruction_id, ""),
            tuple(item.defined_at.shape_index),
            item.size,
        )
        for item in plan.logical_buffers
    }
    peaks = [_peak(trace, buffers) for trace in reversed(plan.heap_simulator_traces)]
    live, at, course = max(peaks, key=_held_bytes, default=([], "", ()))
    live.sort(key=lambda item: (-item.size_bytes, item.instruction))
    return BufferPlan(**sizes, live=tuple(live), peak_at=at, course_bytes=course)


_Peak = tuple[list[Buffer], str, tuple[int, ...]]  # the result of `_peak`


def _held_bytes(peak: _Peak) -> int:
    """Return the bytes of the buffers at a peak."""
    return sum(buffer.size_bytes for buffer in peak[0])


def _field_of(allocation: hlo_pb2.BufferAllocationProto) -> str:
    """Return the field of `BufferPlan` that counts an allocation."""
    if allocation.is_entry_computation_parameter:
        return "arguments_bytes"
    if allocation.is_constant:
        return "constants_bytes"
    return "outputs_bytes" if allocation.maybe_live_out else "temporary_bytes"


def _peak(trace: hlo_pb2.HeapSimulatorTrace, buffers: Mapping[int, Buffer]) -> _Peak:
    """Return the buffers at the peak, the instruction there, and the bytes held after each event.

    Of the buffers that share memory, one is returned.
    """
    events = [event for event in trace.events if event.buffer_id in buffers]
    _, course = _played(events, buffers)
    if not events:
        return [], "", ()
    peak_at = course.index(max(course))
    held, _ = _played(events[: peak_at + 1], buffers)
    live = [buffers[key] for key in held]
    return live, events[peak_at].instruction_name, tuple(course)


def _played(
    events: Sequence[_Event], buffers: Mapping[int, Buffer]
) -> tuple[list[int], list[int]]:
    """Return the buffers held after some events, one per group, and the bytes held after each
    event.
    """
    group: dict[int, int] = {}
    members: Counter[int] = Counter()
    now = 0
    course: list[int] = []
    for event in events:
        if event.kind == _Event.FREE:
            root = group.get(event.buffer_id, event.buffer_id)
            members[root] -= 1
            now -= buffers[root].size_bytes if members[root] == 0 else 0
        else:
            other = (
                event.share_with_canonical_id
                if event.kind == _Event.SHARE_WITH
                else event.buffer_id
            )
            root = group.get(other, other if other in buffers else event.buffer_id)
            group[event.buffer_id] = root
            members[root] += 1
            now += buffers[root].size_bytes if members[root] == 1 else 0
        course.append(now)
    return [root for root, count in members.items() if count > 0], course
