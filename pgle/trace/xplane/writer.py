"""A Trace as the xplane file that the JAX profiler would have written for it on CUDA, encoded column by column.

Wire format: https://protobuf.dev/programming-guides/encoding/

The layout follows XLA's CUPTI collector (`xla/backends/profiler/gpu/cupti_collector.cc`): a plane ``/device:GPU:N``
per device, a line ``Stream #N(Kernel)`` per stream, strings as references to stat metadata, launches and module
executions as scope ranges with their tree in ``/host:__ScopeRangeCallStack__``, HLO protos in ``/host:metadata``.
Events are encoded column by column, so millions of them take seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.trace.table import Kind, ModuleKey, Trace
from pgle.trace.xplane.planes import ENVIRONMENT_PLANE, PROFILE_START
from pgle.xla.protos import xplane_pb2

_Mask: TypeAlias = npt.NDArray[np.bool_] | None
_Part: TypeAlias = tuple[bytes | npt.NDArray[np.uint64], npt.NDArray[np.int64], _Mask]


def varint(value: int) -> bytes:
    """One integer in base 128; negative ones as their 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def length_delimited(number: int, content: bytes) -> bytes:
    """A field of a message: bytes, a string or a nested message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint_sizes(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """int64[n], how many bytes each value takes."""
    sizes = np.ones(len(values), np.int64)
    largest = int(values.max(initial=0))
    for bits in range(7, 64, 7):
        if largest >> bits == 0:
            break
        sizes += values >= np.uint64(1 << bits)
    return sizes


class Records:
    """n messages of one layout, built field by field, then encoded together.

    Args:
        count: how many messages.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._sizes = np.zeros(count, np.int64)
        self._parts: list[_Part] = []

    def constant(self, content: bytes, where: _Mask = None) -> None:
        """Add the same bytes to every message that `where` selects (all by default)."""
        sizes = np.full(self.count, len(content)) if where is None else np.where(where, len(content), 0)
        self._append(content, sizes, where)

    def varint(self, tag: bytes, values: npt.NDArray[np.integer], where: _Mask = None) -> None:
        """A field `tag` with an integer of each message."""
        self.constant(tag, where)
        self._value(values.astype(np.int64).view(np.uint64), where)

    def message(self, tag: bytes, head: bytes, values: npt.NDArray[np.integer], where: _Mask = None) -> None:
        """A nested message `tag`: constant bytes `head` (under 110 of them), then an integer of each message."""
        unsigned = values.astype(np.int64).view(np.uint64)
        self.constant(tag, where)
        self._value((varint_sizes(unsigned) + len(head)).astype(np.uint64), where)
        self.constant(head, where)
        self._value(unsigned, where)

    def encode(self, tag: bytes) -> bytes:
        """The messages one after the other, each as a field `tag`."""
        body = self._sizes
        lengths = body.astype(np.uint64)
        ends = np.cumsum(len(tag) + varint_sizes(lengths) + body)
        out = np.empty(int(ends[-1]) if self.count else 0, np.uint8)
        position = ends - (len(tag) + varint_sizes(lengths) + body)
        head: list[_Part] = [(tag, np.full(self.count, len(tag)), None), (lengths, varint_sizes(lengths), None)]
        for content, sizes, where in head + self._parts:
            _scatter(out, position, content, sizes, where)
            position = position + sizes
        return out.tobytes()

    def _value(self, values: npt.NDArray[np.uint64], where: _Mask) -> None:
        sizes = varint_sizes(values)
        self._append(values, sizes if where is None else np.where(where, sizes, 0), where)

    def _append(self, content: bytes | npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64], where: _Mask) -> None:
        self._parts.append((content, sizes, where))
        self._sizes = self._sizes + sizes


def _scatter(
    out: npt.NDArray[np.uint8],
    position: npt.NDArray[np.int64],
    content: bytes | npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.int64],
    where: _Mask,
) -> None:
    """Write one part of every message at its position."""
    if where is not None:
        position, sizes = position[where], sizes[where]
        content = content if isinstance(content, bytes) else content[where]
    if isinstance(content, bytes):
        for k, byte in enumerate(content):
            out[position + k] = byte
        return
    for k in range(int(sizes.max(initial=0))):
        here = slice(None) if k == 0 else np.flatnonzero(sizes > k)
        more = np.where(sizes[here] > k + 1, np.uint64(0x80), np.uint64(0))
        out[position[here] + k] = (content[here] >> np.uint64(7 * k) & np.uint64(0x7F) | more).astype(np.uint8)


BLOCK_EVENTS = 1 << 16  # events encoded at a time: bounds the working memory

_KIND_NAMES = {Kind.KERNEL: "Kernel", Kind.MEMCPY: "MemcpyD2D", Kind.MEMSET: "Memset", Kind.HOST: "Kernel"}
_DETAILS = {Kind.MEMCPY: "memcpy_details", Kind.MEMSET: "memset_details"}
_UINT64, _INT64, _REF = 0x18, 0x20, 0x38  # tags of the value of an XStat


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
    head = xplane_pb2.XPlane(name="/host:__ScopeRangeCallStack__").SerializeToString()
    blocks = [head]
    for start in range(0, len(scopes.child), BLOCK_EVENTS):
        records = Records(len(scopes.child[start : start + BLOCK_EVENTS]))
        records.varint(b"\x08", scopes.child[start : start + BLOCK_EVENTS])
        records.varint(bytes([_INT64]), scopes.parent[start : start + BLOCK_EVENTS])
        blocks.append(records.encode(b"\x32"))
    return b"".join(blocks)


def _metadata_plane(hlo: Mapping[ModuleKey, bytes], pid: str) -> bytes:
    """``/host:metadata``: an event metadata per module with its HloProto."""
    plane = xplane_pb2.XPlane(name="/host:metadata")
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
    for name in ("correlation_id", "scope_range_id", "tf_op", "hlo_op", "hlo_module", "program_id", *_DETAILS.values()):
        names[name]
    rows = np.flatnonzero(trace.device == index)
    used = np.unique(trace.instruction[rows])
    op_ref = np.zeros(len(trace.instructions) + 1, np.int64)
    op_ref[used] = [names[trace.instructions[i]] for i in used.tolist()]
    module_ref = np.array([names[key.name] for key in trace.modules] or [0], dtype=np.int64)
    origin = int(trace.start_ns[rows].min()) if len(rows) else 0
    body = [b""]
    for stream in np.unique(trace.stream[rows]).tolist():
        of_stream = rows[trace.stream[rows] == stream]
        kinds = sorted({_KIND_NAMES[Kind(kind)] for kind in np.unique(trace.kind[of_stream]).tolist()})
        line = xplane_pb2.XLine(id=stream, name=f"Stream #{stream}({','.join(kinds)})", timestamp_ns=origin)
        parts = [line.SerializeToString()]
        for start in range(0, len(of_stream), BLOCK_EVENTS):
            block = of_stream[start : start + BLOCK_EVENTS]
            parts.append(_events(trace, block, scopes.of_row[block], origin, names, op_ref, module_ref))
        body.append(length_delimited(3, b"".join(parts)))
    plane = xplane_pb2.XPlane(id=device.ordinal, name=f"/device:GPU:{device.ordinal}")
    for i in used.tolist():
        plane.event_metadata[i + 1].CopyFrom(xplane_pb2.XEventMetadata(id=i + 1, name=trace.instructions[i]))
    for name, identity in names.ids.items():
        plane.stat_metadata[identity].CopyFrom(xplane_pb2.XStatMetadata(id=identity, name=name))
    body[0] = plane.SerializeToString(deterministic=True)
    return b"".join(body)


def _events(
    trace: Trace,
    rows: npt.NDArray[np.int64],
    scope: npt.NDArray[np.int64],
    origin: int,
    names: _Names,
    op_ref: npt.NDArray[np.int64],
    module_ref: npt.NDArray[np.int64],
) -> bytes:
    """The XEvents of `rows` as fields of an XLine."""
    kind, module = trace.kind[rows], trace.module[rows]
    records = Records(len(rows))
    records.varint(b"\x08", trace.instruction[rows].astype(np.int64) + 1)
    records.varint(b"\x10", (trace.start_ns[rows] - origin) * 1000)
    records.varint(b"\x18", trace.duration_ns[rows].astype(np.int64) * 1000)

    def stat(name: str, tag: int, values: npt.NDArray[np.int64], where: npt.NDArray[np.bool_] | None = None) -> None:
        records.message(b"\x22", b"\x08" + varint(names[name]) + bytes([tag]), values, where)

    stat("correlation_id", _UINT64, rows + 1)
    stat("scope_range_id", _INT64, scope, scope > 0)
    for details_kind, name in _DETAILS.items():
        here = kind == details_kind
        if here.any():
            stat(name, _REF, np.full(len(rows), names["kind:unknown"]), here)
    stat("tf_op", _REF, np.full(len(rows), names["XlaModule:"]))
    stat("hlo_op", _REF, op_ref[trace.instruction[rows]])
    stat("hlo_module", _REF, module_ref[module])
    program = np.array([-1 if key.program_id is None else key.program_id for key in trace.modules], dtype=np.int64)
    has_program = np.array([key.program_id is not None for key in trace.modules], dtype=bool)
    stat("program_id", _INT64, program[module], has_program[module])
    return records.encode(b"\x22")
