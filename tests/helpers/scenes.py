"""Small timelines to draw."""

from __future__ import annotations

import numpy as np

from pgle.schedule.simulate import Loop, Stream, Timeline

Row = tuple[str, str, Stream, float, float]


def timeline(
    *rows: Row, loops: tuple[Loop, ...] = (), counts: tuple[int, ...] = ()
) -> Timeline:
    """One step: a row is (instruction, kind, stream, start, end), times in microseconds."""
    n, names = len(rows), tuple(dict.fromkeys(row[0] for row in rows))
    kinds = {row[0]: row[1] for row in rows}
    return Timeline(
        names=names,
        kinds=tuple(kinds[name] for name in names),
        lhs_names=names,
        instruction=np.array([names.index(row[0]) for row in rows], dtype=np.int32),
        stream=np.array([row[2] for row in rows], dtype=np.uint8),
        sync=np.zeros(n, dtype=bool),
        start_us=np.array([row[3] for row in rows]),
        duration_us=np.array([row[4] - row[3] for row in rows]),
        count=np.array(counts or (1,) * n, dtype=np.int64),
        origin=np.zeros(n, dtype=np.uint8),
        step_us=max(row[4] for row in rows),
        loops=loops,
    )


HALF_EXPOSED = timeline(
    ("ag-start", "all-gather", Stream.COMMUNICATION, 0, 40),
    ("dot", "matmul", Stream.COMPUTE, 0, 20),
    ("x<&>y", "fusion", Stream.COMPUTE, 40, 100),
)
"""An all-gather of 40 µs, of which the second half is exposed."""

FOLDED = timeline(
    ("gather", "all-gather", Stream.COMMUNICATION, 10, 50),
    ("dot", "matmul", Stream.COMPUTE, 10, 90),
    ("end", "fusion", Stream.COMPUTE, 100, 110),
    loops=(Loop("while.3", 4, 10, 100, 0, 10, 90, 4),),
    counts=(4, 4, 1),
)
"""Four iterations of 20 µs, drawn as one: each gathers for 10 µs while it computes."""
