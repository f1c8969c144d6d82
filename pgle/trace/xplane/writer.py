"""A Trace as the xplane file that the JAX profiler would have written for it on CUDA.

The layout follows XLA's CUPTI collector (`xla/backends/profiler/gpu/cupti_collector.cc`): a plane ``/device:GPU:N``
per device, a line ``Stream #N(Kernel)`` per stream, strings as references to stat metadata, launches and module
executions as scope ranges with their tree in ``/host:__ScopeRangeCallStack__``, HLO protos in ``/host:metadata``.

Events are encoded as rows of bytes of one width, so millions of them take seconds: protocol buffers allow an integer
more bytes than it needs (https://protobuf.dev/programming-guides/encoding/). What an event lacks is a stat of another
name, which nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgle.trace.table import Kind, ModuleKey, Trace
from pgle.trace.xplane.planes import ENVIRONMENT_PLANE, METADATA_PLANE, PROFILE_START, SCOPE_PLANE
from pgle.xla.protos import xplane_pb2

_Values = npt.NDArray[np.integer]
_Bytes = npt.NDArray[np.uint8]


def varint(value: int) -> bytes:
    """One whole number in base 128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def length_delimited(number: int, content: bytes) -> bytes:
    """A field of a message: bytes, a string or a nested message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def integers(tag: int, values: _Values) -> _Bytes:
    """uint8[n, m], a field with an integer of each message, in as many bytes as the largest needs."""
    unsigned = values.astype(np.int64).view(np.uint64)
    width = max(-(-int(unsigned.max(initial=0)).bit_length() // 7), 1)
    out = np.empty((len(values), width + 1), np.uint8)
    out[:, 0] = tag
    for place in range(width):
        out[:, place + 1] = unsigned >> np.uint64(7 * place) & np.uint64(0x7F) | np.uint64(0x80)
    out[:, width] &= 0x7F
    return out


def messages(number: int, fields: Sequence[_Bytes]) -> _Bytes:
    """uint8[n, m], n messages as fields `number`, each with a row of all of its fields."""
    body = np.concatenate(fields, axis=1)
    head = np.frombuffer(varint(number << 3 | 2) + varint(body.shape[1]), np.uint8)
    return np.concatenate([np.broadcast_to(head, (len(body), len(head))), body], axis=1)


_KIND_NAMES = {Kind.KERNEL: "Kernel", Kind.MEMCPY: "MemcpyD2D", Kind.MEMSET: "Memset", Kind.HOST: "Kernel"}
_DETAILS = {Kind.MEMCPY: "memcpy_details", Kind.MEMSET: "memset_details"}
_METADATA_ID, _OFFSET, _DURATION = 0x08, 0x10, 0x18  # tags of an XEvent; the first of an XStat, too
_UINT64, _INT64, _REF = 0x18, 0x20, 0x38  # tags of the value of an XStat
_ABSENT = "absent"  # the name of a stat that an event does not have


@dataclass
class _Names:
    """Stat metadata of one plane: an id per name, from 1."""

    ids: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids) + 1)


@dataclass(frozen=True)
class _Scopes:
    """Scope range ids: of each row, and parent by child; 0 is "no scope"."""

    of_row: npt.NDArray[np.int64]
    child: npt.NDArray[np.int64]
    parent: npt.NDArray[np.int64]


def write_xplane(trace: Trace, *, hlo: Mapping[ModuleKey, bytes] | None = None) -> bytes:
    """A trace of one process as a serialized XSpace; `read_xplane` gives the same rows back.

    Executions and launches that are known (not -1) are kept; the reader derives unknown ones. Work of
    the CPU backend is written as kernels.

    Args:
        trace: n GPU activities of one process.
        hlo: HloProtos to embed; `trace.hlo` where None.

    Raises:
        ValueError: the devices belong to several processes: write one file for each.
    """
    processes = {device.process for device in trace.devices}
    if len(processes) > 1:
        raise ValueError(f"one xplane file holds one process, not {len(processes)}")
    process = processes.pop() if processes else "localhost"
    host, _, pid = process.rpartition(":") if ":" in process else (process, "", "")
    scopes = _scopes(trace)
    out = [length_delimited(1, _metadata_plane(trace.hlo if hlo is None else hlo, pid))]
    out.append(length_delimited(1, _scope_plane(scopes)))
    out.extend(length_delimited(1, _device_plane(trace, index, scopes)) for index in range(len(trace.devices)))
    recording = trace.recordings.get(process)
    if recording is not None and recording.utc_ns is not None:
        out.append(length_delimited(1, _environment_plane(recording.utc_ns)))
    out.extend(length_delimited(3, warning.encode()) for warning in trace.warnings)
    out.append(length_delimited(4, host.encode()))
    return b"".join(out)


def _scopes(trace: Trace) -> _Scopes:
    """Number module executions and launches as scope ranges: executions first, then the launches inside them."""
    size = len(trace)
    devices = max(len(trace.devices), 1)
    runs = int(trace.execution.max(initial=-1)) + 2
    key = (trace.module.astype(np.int64) * devices + trace.device) * runs + trace.execution + 1
    _, run = np.unique(key, return_inverse=True)
    top = np.where(trace.execution >= 0, run + 1, 0).astype(np.int64)
    launch_key = trace.device.astype(np.int64) * (int(trace.instance.max(initial=-1)) + 2) + trace.instance + 1
    _, launch = np.unique(launch_key, return_inverse=True)
    launches = int(launch.max(initial=-1)) + 1
    # A row whose launch is unknown is a launch of its own.
    launch = np.where(trace.instance >= 0, launch, launches + np.arange(size))
    first_id = int(top.max(initial=0)) + 1
    known = (trace.instance >= 0) | (trace.execution >= 0)
    of_row = np.where(known, launch + first_id, 0).astype(np.int64)
    has_parent = known & (top > 0)
    child, first = np.unique(of_row[has_parent], return_index=True)
    return _Scopes(of_row, child, top[has_parent][first])


def _scope_plane(scopes: _Scopes) -> bytes:
    """``/host:__ScopeRangeCallStack__``: a stat per scope range, its id as the metadata id, its parent as the value."""
    stats = messages(6, [integers(_METADATA_ID, scopes.child), integers(_INT64, scopes.parent)])
    serialized: bytes = xplane_pb2.XPlane(name=SCOPE_PLANE).SerializeToString()
    return serialized + stats.tobytes()


def _metadata_plane(hlo: Mapping[ModuleKey, bytes], pid: str) -> bytes:
    """``/host:metadata``: an event metadata per module with its HloProto."""
    plane = xplane_pb2.XPlane(name=METADATA_PLANE)
    plane.stat_metadata[1].CopyFrom(xplane_pb2.XStatMetadata(id=1, name="Hlo Proto"))
    free = max((key.program_id or 0 for key in hlo), default=0) + 1
    for number, (key, proto) in enumerate(hlo.items()):
        identity = free + number if key.program_id is None else key.program_id
        name = key.name if key.program_id is None else f"{key.name}({key.program_id})"
        stat = xplane_pb2.XStat(metadata_id=1, bytes_value=proto)
        plane.event_metadata[identity].CopyFrom(xplane_pb2.XEventMetadata(id=identity, name=name, stats=[stat]))
    if pid.isdigit():
        plane.stat_metadata[2].CopyFrom(xplane_pb2.XStatMetadata(id=2, name="process_id"))
        plane.stats.append(xplane_pb2.XStat(metadata_id=2, int64_value=int(pid)))
    serialized: bytes = plane.SerializeToString(deterministic=True)
    return serialized


def _environment_plane(utc_ns: int) -> bytes:
    """``Task Environment``: when the recording began."""
    plane = xplane_pb2.XPlane(name=ENVIRONMENT_PLANE)
    plane.stat_metadata[1].CopyFrom(xplane_pb2.XStatMetadata(id=1, name=PROFILE_START))
    plane.stats.append(xplane_pb2.XStat(metadata_id=1, uint64_value=utc_ns))
    serialized: bytes = plane.SerializeToString(deterministic=True)
    return serialized


def _device_plane(trace: Trace, index: int, scopes: _Scopes) -> bytes:
    """``/device:GPU:N`` with a line per stream."""
    device = trace.devices[index]
    names = _Names()
    rows = np.flatnonzero(trace.device == index)
    used = np.unique(trace.instruction[rows])
    op_ref = np.zeros(len(trace.instructions) + 1, np.int64)
    op_ref[used] = [names[trace.instructions[i]] for i in used.tolist()]
    module_ref = np.array([names[key.name] for key in trace.modules] or [0], dtype=np.int64)
    origin = int(trace.start_ns[rows].min()) if len(rows) else 0
    program = np.array([key.program_id or 0 for key in trace.modules] or [0], np.int64)
    has_program = np.array([key.program_id is not None for key in trace.modules] or [False])
    lines = []
    for stream in np.unique(trace.stream[rows]).tolist():
        mine = rows[trace.stream[rows] == stream]
        kind, module, scope = trace.kind[mine], trace.module[mine], scopes.of_row[mine]
        details = np.full(len(mine), names[_ABSENT])
        for of_kind, name in _DETAILS.items():
            details[kind == of_kind] = names[name]
        stats = (
            (names["correlation_id"], _UINT64, mine + 1),
            (np.where(scope > 0, names["scope_range_id"], names[_ABSENT]), _INT64, scope),
            (details, _REF, np.full(len(mine), names["kind:unknown"])),
            (names["tf_op"], _REF, np.full(len(mine), names["XlaModule:"])),
            (names["hlo_op"], _REF, op_ref[trace.instruction[mine]]),
            (names["hlo_module"], _REF, module_ref[module]),
            (np.where(has_program[module], names["program_id"], names[_ABSENT]), _INT64, program[module]),
        )
        events = [
            integers(_METADATA_ID, trace.instruction[mine].astype(np.int64) + 1),
            integers(_OFFSET, (trace.start_ns[mine] - origin) * 1000),
            integers(_DURATION, trace.duration_ns[mine].astype(np.int64) * 1000),
        ]
        for identity, tag, values in stats:
            ids = integers(_METADATA_ID, np.broadcast_to(identity, len(mine)))
            events.append(messages(4, [ids, integers(tag, values)]))
        kinds = sorted({_KIND_NAMES[Kind(each)] for each in np.unique(kind).tolist()})
        line = xplane_pb2.XLine(id=stream, name=f"Stream #{stream}({','.join(kinds)})", timestamp_ns=origin)
        lines.append(length_delimited(3, line.SerializeToString() + messages(4, events).tobytes()))
    plane = xplane_pb2.XPlane(id=device.ordinal, name=f"/device:GPU:{device.ordinal}")
    for i in used.tolist():
        plane.event_metadata[i + 1].CopyFrom(xplane_pb2.XEventMetadata(id=i + 1, name=trace.instructions[i]))
    for name, identity in names.ids.items():
        plane.stat_metadata[identity].CopyFrom(xplane_pb2.XStatMetadata(id=identity, name=name))
    serialized: bytes = plane.SerializeToString(deterministic=True)
    return serialized + b"".join(lines)
