"""HLO modules from protobuf dumps, text dumps, schedule dumps and protos embedded in traces.

Formats: `HloProto` and `HloModuleProto` of `xla/service/hlo.proto`; names of dump files as `--xla_dump_to` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes, sha256
from pgle.xla.collectives import is_collective_opcode
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.hlo.replica_groups import Groups, groups_of
from pgle.xla.protos import hlo_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HLO_BYTES = 2 << 30
"""Protocol buffers cannot be larger; a text dump of such a module would be unreadable anyway."""

_OPTIMIZED = re.compile(r"after_optimizations(\.hlo\.pb|\.txt)(\.xz|\.gz)?$")
_HLO_PROTO = re.compile(r"(\.hlo\.pb|\.hlo_proto\.pb)(\.xz|\.gz)?$")
_TEXT = re.compile(r"\.(txt|hlo)(\.xz|\.gz)?$")
_SCHEDULE = re.compile(r"\.schedule\.(txt|pb)(\.xz|\.gz)?$")
_NOT_HLO = "pass an after_optimizations .hlo.pb or .txt of --xla_dump_to, or its directory"

_DTYPES: Mapping[int, str] = {
    number: {"OPAQUE_TYPE": "opaque"}.get(name, name.lower()) for name, number in hlo_pb2.PrimitiveType.items()
}


def read_module(path: AnyPath) -> Module:
    """One HLO module from a file: ``.hlo.pb``, text (``.txt``, ``.hlo``) or a schedule dump; ``.xz``, ``.gz`` too.

    Raises:
        UserError: it is missing, damaged or not HLO.
    """
    if _SCHEDULE.search(path.name):
        from pgle.xla.hlo.schedule_dump import read_schedule_dump

        return read_schedule_dump(path).module
    return _module(read_bytes(path, max_bytes=MAX_HLO_BYTES), path)


def _module(data: bytes, path: AnyPath) -> Module:
    if not data:
        raise UserError("empty file", where=path, remedy="dump it again with --xla_dump_to")
    if _TEXT.search(path.name):
        from pgle.xla.hlo.text import module_from_text

        number = re.match(r"module_(\d+)\.", path.name)
        return module_from_text(data, str(path), program_id=None if number is None else int(number.group(1)))
    return module_from_bytes(data, str(path))


def read_modules(path: AnyPath) -> tuple[Module, ...]:
    """The HLO modules of a file or of dump directories.

    Args:
        path: a file as for `read_module`, or a directory. In a directory, at any depth, the after-optimizations
            modules are read, each once: the proto where there is text as well, and one of several processes that
            compiled the same (name, program id and fingerprint).

    Returns:
        The modules in the order of their paths, dumps numbered ``module_9`` before ``module_10``.

    Raises:
        UserError: nothing there is HLO, or a file of it is damaged.
    """
    if not path.is_dir():
        return (read_module(path),)
    chosen: dict[str, AnyPath] = {}
    for file in _files(path):
        stem = _TEXT.sub("", _HLO_PROTO.sub("", str(file)))
        if stem not in chosen or _HLO_PROTO.search(file.name):
            chosen[stem] = file
    if not chosen:
        raise UserError(
            "no HLO dump (*after_optimizations.hlo.pb or .txt) in this directory",
            where=path,
            remedy="run with XLA_FLAGS=--xla_dump_to=DIR --xla_dump_hlo_as_proto, or use 'pgle profile'",
        )
    modules: dict[tuple[str, int | None, str], Module] = {}
    seen: set[str] = set()
    for file in chosen.values():
        data = read_bytes(file, max_bytes=MAX_HLO_BYTES)
        digest = sha256(data)
        if digest in seen:
            continue
        seen.add(digest)
        module = _module(data, file)
        modules.setdefault((module.name, module.program_id, module.fingerprint or digest), module)
    return tuple(modules.values())


def _files(folder: AnyPath) -> Iterable[AnyPath]:
    """The HLO files of a folder: optimized modules, or where there are none any ``.hlo.pb``."""
    files: list[AnyPath] = [
        file for file in folder.rglob("*") if _HLO_PROTO.search(file.name) or _TEXT.search(file.name)
    ]
    optimized = [file for file in files if _OPTIMIZED.search(file.name)]
    others = [file for file in files if _HLO_PROTO.search(file.name) and ".before_" not in file.name]
    return sorted(optimized or others, key=_numbered)


def _numbered(path: AnyPath) -> tuple[str, list[tuple[int, str]]]:
    parts = re.split(r"(\d+)", path.name)
    return str(path.parent), [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def module_from_bytes(data: bytes, source: str) -> Module:
    """A module from a serialized `HloProto` or `HloModuleProto`.

    Args:
        data: the bytes, not compressed.
        source: what to call them in messages.

    Raises:
        UserError: they are neither, or cut short.
    """
    if data.lstrip()[:9] == b"HloModule":
        raise UserError("is HLO text, not a protocol buffer", where=source, remedy="name the file .txt")
    proto = hlo_pb2.HloProto()
    try:
        proto.ParseFromString(data)
        module = proto.hlo_module
    except DecodeError:
        module = hlo_pb2.HloModuleProto()
    if not module.computations:
        module = hlo_pb2.HloModuleProto()
        try:
            module.ParseFromString(data)
        except DecodeError:
            raise UserError("not an HLO protocol buffer, or cut short", where=source, remedy=_NOT_HLO) from None
    return module_from_proto(module, source)


def module_from_proto(proto: hlo_pb2.HloModuleProto, source: str) -> Module:
    """A module from a parsed `HloModuleProto`; references to things that are not there raise `UserError`."""
    if not proto.computations:
        raise UserError("holds no HLO computation", where=source, remedy=_NOT_HLO)
    names = {item.id: item.name for item in proto.computations}
    entry = names.get(proto.entry_computation_id, proto.entry_computation_name)
    try:
        computations = _Builder(proto, names).computations()
    except KeyError as error:
        raise UserError(f"refers to an unknown id {error}; the dump is cut short", where=source) from None
    except UserError as error:
        raise UserError(error.what, where=source, remedy="dump it again") from None
    if len(computations) < len(proto.computations):
        raise UserError("two computations have one name; the dump is damaged", where=source, remedy="dump it again")
    if entry not in computations:
        raise UserError("its entry computation is missing; the dump is cut short", where=source, remedy="copy it again")
    attributes = dict(proto.frontend_attributes.map)
    return Module(
        name=proto.name,
        program_id=proto.id,
        fingerprint=attributes.get("fingerprint_before_lhs", ""),
        entry=entry,
        computations=computations,
        is_scheduled=proto.entry_computation_id in proto.schedule.sequences,
        frontend_attributes=attributes,
        num_partitions=max(proto.device_assignment.computation_count, 1),
        num_replicas=max(proto.device_assignment.replica_count, 1),
        source=source,
    )


class _Builder:
    """Protos → values. Shapes and device groups repeat a lot and are made once each."""

    def __init__(self, proto: hlo_pb2.HloModuleProto, computation_names: Mapping[int, str]) -> None:
        self.proto = proto
        self.computation_names = computation_names
        self.shapes: dict[bytes, Shape] = {}
        self.groups: dict[bytes, Groups] = {}

    def computations(self) -> dict[str, Computation]:
        """All computations by name."""
        return {item.name: self.computation(item) for item in self.proto.computations}

    def computation(self, proto: hlo_pb2.HloComputationProto) -> Computation:
        """One computation, in schedule order where there is one."""
        ids = {item.id: item.name for item in proto.instructions}
        built = {item.id: self.instruction(item, proto.name, ids) for item in proto.instructions}
        order: Iterable[int] = built
        if proto.id in self.proto.schedule.sequences:
            order = self.proto.schedule.sequences[proto.id].instruction_ids
        return Computation(
            name=proto.name,
            instructions=tuple([built[id_] for id_ in order]),
            root=ids[proto.root_id],
            is_fusion=proto.is_fusion_computation,
            execution_thread=proto.execution_thread,
        )

    def instruction(self, item: hlo_pb2.HloInstructionProto, computation: str, ids: Mapping[int, str]) -> Instruction:
        """One instruction; positional, because this runs hundreds of thousands of times."""
        opcode = item.opcode
        metadata = item.metadata
        operands, called, before = item.operand_ids, item.called_computation_ids, item.control_predecessor_ids
        is_collective = bool(item.channel_id) or is_collective_opcode(opcode)
        return Instruction(
            item.name,
            opcode,
            self.shape(item.shape),
            computation,
            tuple([ids[id_] for id_ in operands]) if operands else (),
            tuple([self.computation_names[id_] for id_ in called]) if called else (),
            tuple([ids[id_] for id_ in before]) if before else (),
            metadata.scheduling_name,
            metadata.op_name,
            item.channel_id or None,
            self.replica_groups(item) if is_collective else (),
            tuple([(pair.source, pair.target) for pair in item.source_target_pairs]) if is_collective else (),
            item.custom_call_target if opcode == "custom-call" else "",
            item.fusion_kind,
            item.backend_config.decode("utf-8", "replace"),
            tuple(item.dot_dimension_numbers.lhs_contracting_dimensions) if opcode == "dot" else (),
            item.tuple_index if opcode == "get-tuple-element" else None,
            item.parameter_number if opcode == "parameter" else None,
            is_collective and item.is_host_transfer,
        )

    def shape(self, proto: hlo_pb2.ShapeProto) -> Shape:
        """A shape, the same object for the same proto."""
        key = proto.SerializeToString()
        found = self.shapes.get(key)
        if found is None:
            found = self.shapes[key] = Shape(
                _DTYPES.get(proto.element_type, "opaque"),
                tuple(proto.dimensions),
                tuple([self.shape(element) for element in proto.tuple_shapes]),
                proto.layout.memory_space,
            )
        return found

    def replica_groups(self, item: hlo_pb2.HloInstructionProto) -> Groups:
        """The device groups of a collective, the same object for the same fields."""
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
