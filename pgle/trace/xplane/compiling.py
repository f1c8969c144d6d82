"""When XLA compiled while an xplane was recorded. The events of the host plane show it."""

from __future__ import annotations

import re

import numpy as np

from pgle.trace.columns import NO_ROWS, Ints
from pgle.trace.intervals import union
from pgle.trace.xplane.lines import Line
from pgle.trace.xplane.planes import HOST_PLANE, Plane, Space, read_events

COMPILES = re.compile(
    r"backend_compile(_and_load)?$|XlaCompile|\w+Compiler::Run|PjRt\w*::Compile|PJRT_Client_Compile"
)
"""Matches names of the events that run while XLA compiles. JAX's come from
`jax._src.compiler.backend_compile` with `profiler.annotate_function` (``_and_load`` since 0.7).
XLA's come from `gpu_compiler.cc` and `pjrt_stream_executor_client.cc`.
"""


def compile_times(space: Space, data: bytes) -> Ints:
    """Return int64[k, 2]: when XLA compiled, as disjoint ordered (start, end) in ns on the trace's
    clock.
    """
    starts = [NO_ROWS]
    ends = [NO_ROWS]
    for plane in space.planes:
        names = _names(plane)
        for span in plane.lines if names else ():
            line = Line(data, *span)
            for events in read_events(data, line.starts, line.ends, (), {}):
                rows = np.isin(events.metadata, names)
                start, duration = events.times_ns(line.timestamp_ns)
                starts.append(start[rows])
                ends.append(start[rows] + duration[rows])
    return union(np.concatenate(starts), np.concatenate(ends)).ns


def _names(plane: Plane) -> list[int]:
    """Return the ids of a host plane's events that show that XLA compiles."""
    if plane.name != HOST_PLANE:
        return []
    return [
        identity
        for identity, item in plane.rest.event_metadata.items()
        if COMPILES.match(item.name)
    ]
