"""The executions of a trace's main module as the step times of one run."""

from __future__ import annotations

import numpy as np

from pgle.errors import UserError
from pgle.steps.series import Mark, Series, Step, make_series
from pgle.trace.columns import distinct
from pgle.trace.steady import compute_ns, find_executions
from pgle.trace.table import Trace


def execution_series(trace: Trace, source: str) -> Series:
    """The executions of the main module (the one with most compute) as the series of one run.

    The time of a step is from its first start to its last end, on the slowest device.
    `pgle.trace.steady` finds the warm-up and truncated executions, which are marked.

    Raises:
        UserError: the trace has no executions of modules.
    """
    known = trace.execution >= 0
    if not known.any():
        where = trace.sources[0].path if trace.sources else None
        raise UserError(
            "trace without module executions",
            where=where,
            remedy="record a window of whole steps",
        )
    main = int(np.argmax(compute_ns(trace)))
    found = find_executions(trace)
    here = found.module == main
    numbers = distinct(found.execution[here])
    spans = np.zeros(len(numbers), np.int64)
    np.maximum.at(
        spans, np.searchsorted(numbers, found.execution[here]), found.span_ns[here]
    )
    marks = {}
    for (module, number), why in found.reasons.items():
        if module == main and why:
            is_truncated = why.startswith("truncated")
            marks[number] = Mark.TRUNCATED if is_truncated else Mark.WARM_UP
    steps = [
        Step(number, span / 1e9, mark=marks.get(number, Mark.NONE))
        for number, span in zip(numbers.tolist(), spans.tolist(), strict=True)
        if span > 0
    ]
    about = {"module": trace.modules[main].name}
    return make_series(
        source,
        "trace",
        steps,
        simulated=trace.simulated,
        warnings=trace.warnings,
        about=about,
    )
