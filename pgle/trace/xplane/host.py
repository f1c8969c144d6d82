"""The CPU backend's events of an xplane: thunks on host threads, as a stand-in for a GPU's kernels.

XLA:CPU records every thunk on ``/host:CPU``, on the line of the thread that ran it, with ``hlo_op``, ``hlo_module``,
``program_id``, ``device_ordinal`` and ``run_id`` (seen in jaxlib 0.10.2 and 0.12.0.1). A run id is one execution of a
module, the same on all its devices. A thunk that encloses others on its thread (``while``, ``call``) is left out: its
time is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.trace.column import distinct
from pgle.trace.table import Device, Kind
from pgle.trace.xplane.columns import WANTED, Defaults, Gathered, Strings, integers
from pgle.trace.xplane.events import INTEGER, Events, read_events
from pgle.trace.xplane.planes import Plane
from pgle.trace.xplane.wire import Ints, repeated, signed

_LINE_EVENTS, _LINE_TIMESTAMP = 4, 3
_POSITIVE = (1 << 62) - 1
_NO_DEFAULTS = Defaults({}, {}, {})


def add_host_plane(plane: Plane, data: bytes, process: str, gathered: Gathered) -> None:
    """Take the thunks of ``/host:CPU``; the line's running number is the stream."""
    if "hlo_op" not in plane.stat_ids:
        return
    strings = (Strings(plane, gathered.instructions), Strings(plane, gathered.names))
    for stream, span in enumerate(plane.lines):
        starts, ends, others = repeated(data, *span, _LINE_EVENTS)
        origin_ns = next((signed(value) for number, _, value, _, _ in others if number == _LINE_TIMESTAMP), 0)
        blocks = read_events(data, starts, ends, WANTED, plane.stat_ids)
        thunks = [_thunks(events, data, strings, gathered, origin_ns) for events in blocks]
        if thunks:
            _append(_Thunks.joined(thunks), process, stream, gathered)


@dataclass(frozen=True)
class _Thunks:
    """Thunks of one thread, n rows; picoseconds tell which encloses which."""

    start_ns: Ints
    duration_ns: Ints
    start_ps: Ints
    end_ps: Ints
    instruction: npt.NDArray[np.int32]
    module: Ints
    kernel: Ints
    device: Ints
    run: Ints

    @staticmethod
    def joined(parts: list[_Thunks]) -> _Thunks:
        columns: dict[str, npt.NDArray[Any]] = {}
        for name in _Thunks.__dataclass_fields__:
            columns[name] = np.concatenate([getattr(part, name) for part in parts])
        return _Thunks(**columns)


def _thunks(
    events: Events, data: bytes, strings: tuple[Strings, Strings], gathered: Gathered, origin_ns: int
) -> _Thunks:
    instruction = strings[0].codes_of(events.stats["hlo_op"], data)
    name = strings[1].codes_of(events.stats["hlo_module"], data)
    run = events.stats["run_id"]
    keep = (instruction >= 0) & (name >= 0) & (run.form == INTEGER)
    instruction, name, program = _NO_DEFAULTS.fill(events, instruction, name)
    start_ns, duration_ns = events.times_ns(origin_ns)
    start, end = events.offset_ps, events.offset_ps + events.duration_ps
    module = gathered.module_codes(np.where(keep, name, -1).astype(np.int32), program)
    device = integers(events.stats["device_ordinal"], 0)
    columns = (start_ns, duration_ns, start, end, instruction, module, events.metadata, device, run.value)
    return _Thunks(*(column[keep] for column in columns))


def _append(thunks: _Thunks, process: str, stream: int, gathered: Gathered) -> None:
    keep = ~enclosing(thunks.start_ps, thunks.end_ps)
    if not keep.any():
        return
    device = np.zeros(len(keep), np.int32)
    for ordinal in distinct(thunks.device[keep]).tolist():
        device[thunks.device == ordinal] = gathered.devices.code(Device(process, ordinal))
    gathered.append(
        keep,
        start_ns=thunks.start_ns,
        duration_ns=thunks.duration_ns,
        correlation=np.zeros(len(keep)),
        scope=np.zeros(len(keep)),
        top=(thunks.run & _POSITIVE) + 1,
        module=thunks.module,
        instruction=thunks.instruction,
        kernel=thunks.kernel,
        device=device,
        stream=np.full(len(keep), stream),
        kind=np.full(len(keep), Kind.HOST),
    )


def enclosing(start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
    """bool[n], True for intervals that hold another one; intervals of one thread nest or are apart."""
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    holds = np.zeros(len(start), bool)
    # In this order the first one inside an interval comes right after it.
    holds[order[:-1]] = (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
    return holds
