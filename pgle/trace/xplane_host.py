"""The CPU backend's events of an xplane: thunks on host threads, as a stand-in for a GPU's kernels.

XLA:CPU records every thunk on ``/host:CPU``, on the line of the thread that ran it, with ``hlo_op``, ``hlo_module``,
``program_id``, ``device_ordinal`` and ``run_id``. A run id is one execution of a module, the same on all its devices.
A thunk that encloses others on its thread (``while``, ``call``) is left out: its time is theirs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pgle.trace.table import Device, Kind
from pgle.trace.xplane_columns import WANTED, Defaults, Gathered, Strings, integers
from pgle.trace.xplane_events import INTEGER, Events, read_events
from pgle.trace.xplane_planes import Plane
from pgle.trace.xplane_wire import Ints, repeated, signed

_POSITIVE = (1 << 62) - 1
_NO_DEFAULTS = Defaults({}, {}, {})


def add_host_plane(plane: Plane, data: bytes, process: str, gathered: Gathered) -> None:
    """Take the thunks of ``/host:CPU``; the line's running number is the stream."""
    strings = (Strings(plane, gathered.instructions), Strings(plane, gathered.names))
    ids = plane.stat_ids
    if "hlo_op" not in ids:
        return
    for stream, span in enumerate(plane.lines):
        starts, ends, others = repeated(data, *span, 4)
        origin = next((value for number, _, value, _, _ in others if number == 3), 0)
        origin = signed(origin)
        if len(starts):
            for events in read_events(data, starts, ends, WANTED, ids):
                _add(events, data, process, strings, stream, origin, gathered)


def _add(
    events: Events,
    data: bytes,
    process: str,
    strings: tuple[Strings, Strings],
    stream: int,
    origin_ns: int,
    gathered: Gathered,
) -> None:
    instruction = strings[0].codes_of(events.stats["hlo_op"], data)
    module = strings[1].codes_of(events.stats["hlo_module"], data)
    run = events.stats["run_id"]
    thunk = (instruction >= 0) & (module >= 0) & (run.form == INTEGER)
    if not thunk.any():
        return
    rows = np.flatnonzero(thunk)
    start, duration = events.offset_ps[rows], events.duration_ps[rows]
    encloses = enclosing(start, start + duration)
    keep = np.zeros(len(events), bool)
    keep[rows[~encloses]] = True
    ordinal = integers(events.stats["device_ordinal"], 0)
    device = np.zeros(len(events), np.int32)
    for number in np.unique(ordinal[keep]).tolist():
        device[ordinal == number] = gathered.devices.code(Device(process, number))
    _, _, program = _NO_DEFAULTS.fill(events, instruction, module)
    gathered.append(
        keep,
        start_ns=origin_ns + events.offset_ps // 1000,
        duration_ns=events.duration_ps // 1000,
        correlation=np.zeros(len(events)),
        scope=np.zeros(len(events)),
        top=(integers(run, 0) & _POSITIVE) + 1,
        module=gathered.module_codes(module, program),
        instruction=instruction,
        kernel=events.metadata,
        device=device,
        stream=np.full(len(events), stream),
        kind=np.full(len(events), Kind.HOST),
    )


def enclosing(start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
    """bool[n], True for intervals that hold another one; intervals of one thread nest or are apart."""
    order = np.lexsort((-end, start))
    sorted_start, sorted_end = start[order], end[order]
    holds = np.zeros(len(start), bool)
    # In this order the first one inside an interval comes right after it.
    holds[order[:-1]] = (sorted_start[1:] < sorted_end[:-1]) & (sorted_end[1:] <= sorted_end[:-1])
    return holds
