"""Step times from a profiler trace: how long each execution of the main module kept the devices busy."""

from __future__ import annotations

import numpy as np

from pgle.errors import UserError
from pgle.steps.series import Mark, Series, Step, make_series
from pgle.trace.column import distinct
from pgle.trace.table import Trace
from pgle.trace.windows import compute_ns, find_executions


def execution_series(trace: Trace, source: str) -> Series:
    """The executions of the main module, the one with most compute, as the series of one run.

    A step takes from the first start to the last end on the slowest device. Warm-up and truncated executions are marked
    as `pgle.trace.windows` finds them.

    Raises:
        UserError: the trace has no module executions.
    """
    known = trace.execution >= 0
    if not known.any():
        where = trace.sources[0].path if trace.sources else None
        raise UserError("trace without module executions", where=where, remedy="record a window of whole steps")
    main = int(np.argmax(compute_ns(trace)))
    found = find_executions(trace)
    here = found.module == main
    numbers = distinct(found.execution[here])
    spans = np.zeros(len(numbers), np.int64)
    np.maximum.at(spans, np.searchsorted(numbers, found.execution[here]), found.span_ns[here])
    steps = [
        Step(number, span / 1e9, mark=_mark(found.reasons.get((main, number), "")))
        for number, span in zip(numbers.tolist(), spans.tolist(), strict=True)
        if span > 0
    ]
    return make_series(source, "trace", steps, simulated=trace.simulated, warnings=trace.warnings)


def _mark(reason: str) -> Mark:
    if not reason:
        return Mark.NONE
    return Mark.TRUNCATED if reason.startswith("truncated") else Mark.WARM_UP
