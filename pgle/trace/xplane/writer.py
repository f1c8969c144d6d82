"""A Trace as the xplane file that the JAX profiler would have written for it on CUDA.

The layout follows XLA's CUPTI collector (`xla/backends/profiler/gpu/cupti_collector.cc`): a plane ``/device:GPU:N``
per device, a line ``Stream #N(Kernel)`` per stream, strings as references to stat metadata, launches and module
executions as scope ranges with their tree in ``/host:__ScopeRangeCallStack__``, HLO protos in ``/host:metadata``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.trace.table import ActivityKind, ModuleKey, Trace
from pgle.trace.xplane.planes import ENVIRONMENT_PLANE, METADATA_PLANE, PROFILE_START, SCOPE_PLANE
from pgle.xla.protos.xplane_pb2 import XEvent, XEventMetadata, XPlane, XSpace, XStat, XStatMetadata

_KIND_NAMES = {
    ActivityKind.KERNEL: "Kernel",
    ActivityKind.MEMCPY: "MemcpyD2D",
    ActivityKind.MEMSET: "Memset",
    ActivityKind.HOST: "Kernel",
}
_DETAILS = {ActivityKind.MEMCPY: "memcpy_details", ActivityKind.MEMSET: "memset_details"}


@dataclass(frozen=True)
class _Scopes:
    """Scope range ids: of each row, and parent by child; 0 is "no scope"."""

    of_row: npt.NDArray[np.int64]
    parents: Mapping[int, int]


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
    space = XSpace(hostnames=[host], warnings=trace.warnings)
    space.planes.append(_metadata_plane(trace.hlo if hlo is None else hlo, pid))
    stats = [XStat(metadata_id=child, int64_value=parent) for child, parent in scopes.parents.items()]
    space.planes.append(XPlane(name=SCOPE_PLANE, stats=stats))
    space.planes.extend(_device_plane(trace, index, scopes) for index in range(len(trace.devices)))
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
    return _Scopes(of_row, dict(zip(of_row[has_parent].tolist(), top[has_parent].tolist(), strict=True)))


def _metadata_plane(hlo: Mapping[ModuleKey, bytes], pid: str) -> XPlane:
    """``/host:metadata``: an event metadata per module with its HloProto."""
    plane = XPlane(name=METADATA_PLANE, stat_metadata={1: XStatMetadata(id=1, name="Hlo Proto")})
    free = max((key.program_id or 0 for key in hlo), default=0) + 1
    for number, (key, proto) in enumerate(hlo.items()):
        identity = free + number if key.program_id is None else key.program_id
        name = key.name if key.program_id is None else f"{key.name}({key.program_id})"
        stat = XStat(metadata_id=1, bytes_value=proto)
        plane.event_metadata[identity].CopyFrom(XEventMetadata(id=identity, name=name, stats=[stat]))
    if pid.isdigit():
        plane.stat_metadata[2].CopyFrom(XStatMetadata(id=2, name="process_id"))
        plane.stats.append(XStat(metadata_id=2, int64_value=int(pid)))
    return plane


def _device_plane(trace: Trace, index: int, scopes: _Scopes) -> XPlane:
    """``/device:GPU:N`` with a line per stream."""
    device = trace.devices[index]
    plane = XPlane(id=device.ordinal, name=f"/device:GPU:{device.ordinal}")
    names: dict[str, int] = {}  # stat metadata: an id per name, from 1

    def stat(name: str, **value: Any) -> XStat:
        return XStat(metadata_id=names.setdefault(name, len(names) + 1), **value)

    def text(name: str, value: str) -> XStat:
        return stat(name, ref_value=names.setdefault(value, len(names) + 1))

    @cache
    def unchanging(instruction: int, module: int, kind: int) -> XEvent:
        """What all events of an instruction have in common."""
        name, key = trace.instructions[instruction], trace.modules[module]
        plane.event_metadata[instruction + 1].CopyFrom(XEventMetadata(id=instruction + 1, name=name))
        stats = [text("tf_op", "XlaModule:"), text("hlo_op", name), text("hlo_module", key.name)]
        if kind in _DETAILS:
            stats.append(text(_DETAILS[ActivityKind(kind)], "kind:unknown"))
        if key.program_id is not None:
            stats.append(stat("program_id", int64_value=key.program_id))
        return XEvent(metadata_id=instruction + 1, stats=stats)

    correlation, scope_range = (stat(name).metadata_id for name in ("correlation_id", "scope_range_id"))
    rows = np.flatnonzero(trace.device == index)
    origin = int(trace.start_ns[rows].min()) if len(rows) else 0
    for stream in np.unique(trace.stream[rows]).tolist():
        mine = rows[trace.stream[rows] == stream]
        kinds = sorted({_KIND_NAMES[ActivityKind(each)] for each in np.unique(trace.kind[mine]).tolist()})
        line = plane.lines.add(id=stream, name=f"Stream #{stream}({','.join(kinds)})", timestamp_ns=origin)
        columns = (trace.start_ns, trace.duration_ns, trace.instruction, trace.module, trace.kind, scopes.of_row)
        for row, *values in zip(mine.tolist(), *(column[mine].tolist() for column in columns), strict=True):
            start, duration, instruction, module, kind, scope = values
            event = line.events.add()
            event.CopyFrom(unchanging(instruction, module, kind))
            event.offset_ps, event.duration_ps = (start - origin) * 1000, duration * 1000
            event.stats.add(metadata_id=correlation, uint64_value=row + 1)
            if scope:
                event.stats.add(metadata_id=scope_range, int64_value=scope)
    for name, identity in names.items():
        plane.stat_metadata[identity].CopyFrom(XStatMetadata(id=identity, name=name))
    return plane
