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
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.trace.columns import Ints
from pgle.trace.table import ActivityKind, ModuleKey, Trace
from pgle.trace.xplane.planes import (
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
_METADATA_ID, _OFFSET, _DURATION = (
    1,
    2,
    3,
)  # fields of an XEvent; the first is also a field of an XStat
_UINT64, _INT64 = 3, 4  # fields of an XStat
_EVENTS = _STATS = 4  # fields of an XLine and of an XEvent


@dataclass(frozen=True)
class _Scopes:
    """The scope range id of each row, and the parent of each id; 0 is "no scope"."""

    of_row: Ints
    child: Ints
    parent: Ints


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
    tree = space.planes.add(name=SCOPE_PLANE)
    tree.MergeFromString(
        _messages(
            6, _integers(_METADATA_ID, scopes.child), _integers(_INT64, scopes.parent)
        ).tobytes()
    )
    for index, device in enumerate(trace.devices):
        plane = space.planes.add(
            id=device.ordinal, name=f"/device:GPU:{device.ordinal}"
        )
        _fill_device_plane(plane, trace, index, scopes)
    recording = trace.recordings.get(process)
    if recording is not None and recording.utc_ns is not None:
        space.planes.append(
            XPlane(
                name=ENVIRONMENT_PLANE,
                stats=[XStat(metadata_id=1, uint64_value=recording.utc_ns)],
                stat_metadata={1: XStatMetadata(id=1, name=PROFILE_START)},
            )
        )
    serialized: bytes = space.SerializeToString(deterministic=True)
    return serialized


def _scopes(trace: Trace) -> _Scopes:
    """Number module executions and launches as scope ranges: executions first, then the launches
    inside them.
    """
    size = len(trace)
    devices = max(len(trace.devices), 1)
    runs = int(trace.execution.max(initial=-1)) + 2
    key = (
        (trace.module.astype(np.int64) * devices + trace.device) * runs
        + trace.execution
        + 1
    )
    _, run = np.unique(key, return_inverse=True)
    top = np.where(trace.execution >= 0, run + 1, 0).astype(np.int64)
    launch_key = (
        trace.device.astype(np.int64) * (int(trace.instance.max(initial=-1)) + 2)
        + trace.instance
        + 1
    )
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


def _fill_device_plane(
    plane: XPlane, trace: Trace, index: int, scopes: _Scopes
) -> None:
    """Fill the plane ``/device:GPU:N``, with a line per stream.

    The plane is already part of the space: a copy would double the time.
    """
    names: dict[str, int] = {}  # id of each stat metadata by name, from 1

    def stat(name: str, **value: Any) -> XStat:
        return XStat(metadata_id=names.setdefault(name, len(names) + 1), **value)

    def text(name: str, value: str) -> XStat:
        return stat(name, ref_value=names.setdefault(value, len(names) + 1))

    @cache
    def unchanging(instruction: int, module: int, kind: int) -> bytes:
        """Return the encoded part that all events of an instruction share."""
        name, key = trace.instructions[instruction], trace.modules[module]
        plane.event_metadata[instruction + 1].CopyFrom(
            XEventMetadata(id=instruction + 1, name=name)
        )
        stats = [
            text("tf_op", "XlaModule:"),
            text("hlo_op", name),
            text("hlo_module", key.name),
        ]
        if kind in _DETAILS:
            stats.append(text(_DETAILS[ActivityKind(kind)], "kind:unknown"))
        if key.program_id is not None:
            stats.append(stat("program_id", int64_value=key.program_id))
        serialized: bytes = XEvent(
            metadata_id=instruction + 1, stats=stats
        ).SerializeToString()
        return serialized

    correlation, scope_range = (
        stat(name).metadata_id for name in ("correlation_id", "scope_range_id")
    )
    rows = np.flatnonzero(trace.device == index)
    origin = int(trace.start_ns[rows].min()) if len(rows) else 0
    for stream in np.unique(trace.stream[rows]).tolist():
        mine = rows[trace.stream[rows] == stream]
        kinds = sorted(
            {
                ActivityKind(each).stream_word
                for each in np.unique(trace.kind[mine]).tolist()
            }
        )
        line = plane.lines.add(
            id=stream, name=f"Stream #{stream}({','.join(kinds)})", timestamp_ns=origin
        )
        times = _integers(_OFFSET, (trace.start_ns[mine] - origin) * 1000)
        durations = _integers(
            _DURATION, trace.duration_ns[mine].astype(np.int64) * 1000
        )
        ids = (
            _integers(_METADATA_ID, np.full(len(mine), number))
            for number in (correlation, scope_range)
        )
        launch = _messages(_STATS, next(ids), _integers(_UINT64, mine + 1))
        scope = _messages(_STATS, next(ids), _integers(_INT64, scopes.of_row[mine]))
        own = np.hstack([times, durations, launch, scope])
        data = own.tobytes()
        width = own.shape[1]
        without = own.shape[1] - scope.shape[1]
        columns = (trace.instruction, trace.module, trace.kind, scopes.of_row)
        events: list[bytes] = []
        for at, values in enumerate(
            zip(*(column[mine].tolist() for column in columns), strict=True)
        ):
            common = unchanging(*values[:3])
            size = len(common) + (width if values[3] else without)
            changing = data[at * width : at * width + size - len(common)]
            events += (
                bytes((_EVENTS << 3 | 2, size & 0x7F | 0x80, size >> 7)),
                common,
                changing,
            )
        line.MergeFromString(b"".join(events))
    for name, identity in names.items():
        plane.stat_metadata[identity].CopyFrom(XStatMetadata(id=identity, name=name))


def _integers(number: int, values: Ints) -> npt.NDArray[np.uint8]:
    """Return uint8[n, m]: a field (under 16) with one integer for each of n messages.

    All integers are encoded as wide as the largest one needs.
    """
    unsigned = values.view(np.uint64)
    width = max(-(-int(unsigned.max(initial=0)).bit_length() // 7), 1)
    out = np.empty((len(values), width + 1), np.uint8)
    out[:, 0] = number << 3
    for place in range(width):
        out[:, place + 1] = unsigned >> np.uint64(7 * place) & np.uint64(
            0x7F
        ) | np.uint64(0x80)
    out[:, -1] &= 0x7F
    return out


def _messages(number: int, *fields: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return uint8[n, m]: a field (under 16) with a message of under 128 bytes for each of n
    messages.
    """
    body = np.hstack(fields)
    return np.hstack(
        [
            np.broadcast_to(
                np.array([number << 3 | 2, body.shape[1]], np.uint8), (len(body), 2)
            ),
            body,
        ]
    )
