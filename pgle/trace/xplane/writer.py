"""A Trace as the xplane file that the JAX profiler would have written for it on CUDA.

The layout follows XLA's CUPTI collector (`xla/backends/profiler/gpu/cupti_collector.cc`): a plane
``/device:GPU:N`` per device, a line ``Stream #N(Kernel)`` per stream, strings as references to stat
metadata, launches and module executions as scope ranges with their tree in
``/host:__ScopeRangeCallStack__``, HLO protos in ``/host:metadata``.

A trace has millions of events, so this file encodes them itself. The part that all events of an
instruction share is encoded once. The integers of all events of a stream are encoded at once
(https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.trace.columns import Codes, Ints
from pgle.trace.table import ActivityKind, ModuleKey, Trace
from pgle.trace.xplane.planes import (
    BYTES,
    ENVIRONMENT_PLANE,
    METADATA_PLANE,
    PROFILE_START,
    SCOPE_PLANE,
)
from pgle.xla.protos.xplane_pb2 import (
    XEvent,
    XEventMetadata,
    XPlane,
    XSpace,
    XStat,
    XStatMetadata,
)

_DETAILS = {
    ActivityKind.MEMCPY: "memcpy_details",
    ActivityKind.MEMSET: "memset_details",
}
_METADATA_ID = 1  # field of an XEvent and of an XStat
_OFFSET = 2  # field of an XEvent
_DURATION = 3  # field of an XEvent
_STATS = 4  # field of an XEvent
_UINT64 = 3  # field of an XStat
_INT64 = 4  # field of an XStat
_EVENTS = 4  # field of an XLine
_PLANE_STATS = 6  # field of an XPlane


# uint8[n, m], m bytes for each of n messages
Encoded: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Scopes:
    """The scope ranges of a trace. The id 0 is "no scope"."""

    of_row: Ints  # int64[n], the id of each row's scope
    child: Ints  # int64[m], the ids of the scopes that lie in another one
    parent: Ints  # int64[m], the id of the scope around each


def write_xplane(
    trace: Trace, *, hlo: Mapping[ModuleKey, bytes] | None = None
) -> bytes:
    """Serialize a trace of one process as an XSpace. `read_xplane` gives the same rows back.

    Known executions and launches (not -1) are kept, and the reader derives the others. Work of the
    CPU backend is written as kernels.

    Args:
        trace: n GPU activities of one process.
        hlo: HloProtos to embed; if None, `trace.hlo`.

    Raises:
        ValueError: the devices belong to several processes: write one file for each.
    """
    processes = {device.process for device in trace.devices}
    if len(processes) > 1:
        raise ValueError(f"one xplane file holds one process, not {len(processes)}")
    process = processes.pop() if processes else "localhost"
    host, _, pid = process.rpartition(":") if ":" in process else (process, "", "")
    scopes = _scopes(trace)
    space = XSpace(hostnames=[host], warnings=trace.warnings)
    space.planes.append(_metadata_plane(trace.hlo if hlo is None else hlo, pid))
    children = _integers(_METADATA_ID, scopes.child)
    parents = _integers(_INT64, scopes.parent)
    tree = _messages(_PLANE_STATS, children, parents)
    space.planes.add(name=SCOPE_PLANE).MergeFromString(tree.tobytes())
    for index, device in enumerate(trace.devices):
        name = f"/device:GPU:{device.ordinal}"
        plane = space.planes.add(id=device.ordinal, name=name)
        _DevicePlane(plane, trace, scopes).fill(index)
    recording = trace.recordings.get(process)
    if recording is not None and recording.utc_ns is not None:
        began = XStat(metadata_id=1, uint64_value=recording.utc_ns)
        known = {1: XStatMetadata(id=1, name=PROFILE_START)}
        space.planes.add(name=ENVIRONMENT_PLANE, stats=[began], stat_metadata=known)
    serialized: bytes = space.SerializeToString(deterministic=True)
    return serialized


def _scopes(trace: Trace) -> _Scopes:
    """Number module executions and launches as scope ranges: executions first, then the launches
    inside them.
    """
    has_run = trace.execution >= 0
    has_launch = trace.instance >= 0
    of_device = trace.module.astype(np.int64) * max(len(trace.devices), 1)
    run = _ranks(of_device + trace.device, trace.execution)
    top = np.where(has_run, run + 1, 0)
    launch = _ranks(trace.device.astype(np.int64), trace.instance)
    # A row whose launch is unknown is a launch of its own.
    own = int(launch.max(initial=-1)) + 1 + np.arange(len(trace))
    launch = np.where(has_launch, launch, own)
    first_id = int(top.max(initial=0)) + 1
    of_row = np.where(has_launch | has_run, launch + first_id, 0)
    # only rows of a known execution have a scope around theirs
    child, first = np.unique(of_row[has_run], return_index=True)
    return _Scopes(of_row, child, top[has_run][first])


def _ranks(group: Ints, number: Codes) -> Ints:
    """Return int64[n]: the rank of each (group, number) among the distinct ones, from 0."""
    width = int(number.max(initial=-1)) + 2  # the least number is -1
    keys = group * width + number + 1
    ranks: Ints = np.unique(keys, return_inverse=True)[1]
    return ranks


def _metadata_plane(hlo: Mapping[ModuleKey, bytes], pid: str) -> XPlane:
    """Make ``/host:metadata``: an event metadata per module with its HloProto."""
    plane = XPlane(
        name=METADATA_PLANE, stat_metadata={1: XStatMetadata(id=1, name="Hlo Proto")}
    )
    free = max((key.program_id or 0 for key in hlo), default=0) + 1
    for number, (key, proto) in enumerate(hlo.items()):
        identity = free + number if key.program_id is None else key.program_id
        name = key.name if key.program_id is None else f"{key.name}({key.program_id})"
        stat = XStat(metadata_id=1, bytes_value=proto)
        plane.event_metadata[identity].CopyFrom(
            XEventMetadata(id=identity, name=name, stats=[stat])
        )
    if pid.isdigit():
        plane.stat_metadata[2].CopyFrom(XStatMetadata(id=2, name="process_id"))
        plane.stats.append(XStat(metadata_id=2, int64_value=int(pid)))
    return plane


class _DevicePlane:
    """Fills the plane ``/device:GPU:N``, with a line per stream.

    The plane is already part of the space: a copy would double the time.
    """

    def __init__(self, plane: XPlane, trace: Trace, scopes: _Scopes) -> None:
        self._plane = plane
        self._trace = trace
        self._scopes = scopes
        self._names: dict[str, int] = {}  # id of each stat metadata by name, from 1
        self._shared = cache(self._encode_shared)

    def fill(self, index: int) -> None:
        """Write the activities of one device, given as an index into the trace's devices."""
        correlation_id = self._number("correlation_id")
        scope_id = self._number("scope_range_id")
        trace = self._trace
        rows = np.flatnonzero(trace.device == index)
        origin_ns = int(trace.start_ns[rows].min()) if len(rows) else 0
        for stream in np.unique(trace.stream[rows]).tolist():
            mine = rows[trace.stream[rows] == stream]
            kinds = map(ActivityKind, np.unique(trace.kind[mine]).tolist())
            words = sorted({kind.stream_word for kind in kinds})
            name = f"Stream #{stream}({','.join(words)})"
            offset_ps = (trace.start_ns[mine] - origin_ns) * 1000
            duration_ps = trace.duration_ns[mine].astype(np.int64) * 1000
            launch = _stats(correlation_id, _UINT64, mine + 1)
            scope = _stats(scope_id, _INT64, self._scopes.of_row[mine])
            times = (_integers(_OFFSET, offset_ps), _integers(_DURATION, duration_ps))
            changing = np.hstack([*times, launch, scope])
            line = self._plane.lines.add(id=stream, name=name, timestamp_ns=origin_ns)
            line.MergeFromString(self._events(mine, changing, scope.shape[1]))
        for name, identity in self._names.items():
            known = XStatMetadata(id=identity, name=name)
            self._plane.stat_metadata[identity].CopyFrom(known)

    def _events(self, rows: Ints, changing: Encoded, scope_bytes: int) -> bytes:
        """Encode the events of one stream.

        Args:
            rows: int64[n], the rows of the trace.
            changing: the part of each event that its instruction does not decide.
            scope_bytes: how many of its last bytes an event without a scope leaves out.
        """
        trace = self._trace
        data = changing.tobytes()
        width = changing.shape[1]
        columns = (trace.instruction, trace.module, trace.kind, self._scopes.of_row)
        values = (column[rows].tolist() for column in columns)
        events: list[bytes] = []
        for at, (*shared, scope) in enumerate(zip(*values, strict=True)):
            common = self._shared(*shared)
            first = at * width
            end = first + width
            if not scope:
                end -= scope_bytes
            size = len(common) + end - first
            head = bytes((_EVENTS << 3 | BYTES, size & 0x7F | 0x80, size >> 7))
            events += (head, common, data[first:end])
        return b"".join(events)

    def _encode_shared(self, instruction: int, module: int, kind: int) -> bytes:
        """Return the encoded part that all events of an instruction share."""
        name = self._trace.instructions[instruction]
        key = self._trace.modules[module]
        identity = instruction + 1
        known = XEventMetadata(id=identity, name=name)
        self._plane.event_metadata[identity].CopyFrom(known)
        stats = [
            self._text("tf_op", "XlaModule:"),
            self._text("hlo_op", name),
            self._text("hlo_module", key.name),
        ]
        if kind in _DETAILS:
            stats.append(self._text(_DETAILS[ActivityKind(kind)], "kind:unknown"))
        if key.program_id is not None:
            program = self._number("program_id")
            stats.append(XStat(metadata_id=program, int64_value=key.program_id))
        event = XEvent(metadata_id=identity, stats=stats)
        serialized: bytes = event.SerializeToString()
        return serialized

    def _number(self, name: str) -> int:
        """Return the id of a stat metadata; a new name gets the next number."""
        return self._names.setdefault(name, len(self._names) + 1)

    def _text(self, name: str, value: str) -> XStat:
        """Return a stat whose value is the name of a stat metadata."""
        reference = self._number(value)
        return XStat(metadata_id=self._number(name), ref_value=reference)


def _stats(identity: int, number: int, values: Ints) -> Encoded:
    """Return a stat for each of n events: its metadata id, and a field with an integer."""
    identities = _integers(_METADATA_ID, np.full(len(values), identity))
    return _messages(_STATS, identities, _integers(number, values))


def _integers(number: int, values: Ints) -> Encoded:
    """Return a field (under 16) with one integer for each of n messages.

    All integers are encoded as wide as the largest one needs.
    """
    unsigned = values.view(np.uint64)
    bits = int(unsigned.max(initial=0)).bit_length()
    width = max(-(-bits // 7), 1)
    out = np.empty((len(values), width + 1), np.uint8)
    out[:, 0] = number << 3
    for place in range(width):
        shifted = unsigned >> np.uint64(7 * place)
        out[:, place + 1] = shifted & np.uint64(0x7F) | np.uint64(0x80)
    out[:, -1] &= 0x7F
    return out


def _messages(number: int, *fields: Encoded) -> Encoded:
    """Return a field (under 16) with a message of under 128 bytes for each of n messages."""
    body = np.hstack(fields)
    head = np.array([number << 3 | BYTES, body.shape[1]], np.uint8)
    heads = np.broadcast_to(head, (len(body), 2))
    return np.hstack([heads, body])
