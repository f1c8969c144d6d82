"""Records without a time stamp: how much of a step is unknown because of them.

Such a record is left out, so its work looks idle. pgle assumes that it took as long as the same
instruction takes elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgle.analyze.window import DeviceWindow
from pgle.trace.columns import Floats, median
from pgle.trace.steady import untimed
from pgle.trace.table import Trace


def untold_us(
    trace: Trace, windows: Sequence[DeviceWindow], main: int
) -> dict[str, float]:
    """Microseconds of a mean step whose records have no time stamps, by instruction, the longest
    first. Empty if executions differ in their instructions.
    """
    known = untimed(trace)
    if not known:
        return {}
    counts = _counts(trace, windows, main)
    missing = (counts.max(axis=0) - counts).sum(axis=0)
    if float(missing.sum()) > known:  # executions differ in what they run
        return {}
    rows = np.concatenate([window.rows for window in windows])
    rows = rows[trace.module[rows] == main]
    found = {}
    for code in np.flatnonzero(missing).tolist():
        same = rows[trace.instruction[rows] == code]
        each_us = median(trace.duration_ns[same]) / 1e3
        found[trace.instructions[code]] = float(missing[code]) * each_us / len(counts)
    return dict(sorted(found.items(), key=lambda row: -row[1]))


def _counts(trace: Trace, windows: Sequence[DeviceWindow], main: int) -> Floats:
    """float64[steps of all devices, instructions], number of launches."""
    found = []
    for window in windows:
        ours = window.rows[trace.module[window.rows] == main]
        step = np.searchsorted(window.numbers, trace.execution[ours])
        table = np.zeros((window.steps, len(trace.instructions)))
        np.add.at(table, (step, trace.instruction[ours]), 1)
        found.append(table)
    return np.concatenate(found)
