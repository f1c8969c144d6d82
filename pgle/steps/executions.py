"""Step times from a profiler trace: how long each execution of the main module kept the devices busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError
from pgle.steps.series import Mark, Series, Step, make_series
from pgle.trace.table import ModuleKey, Trace
from pgle.trace.windows import find_executions
from pgle.xla.hlo.guess import guess_kind


@dataclass(frozen=True)
class Spans:
    """Executions of the main module, n of them, in order of their number.

    Attributes:
        module: the main module: the one with most GPU time in the window.
        execution: int64[n], running numbers.
        span_ns: int64[n], first start to last end on the slowest device.
        mark: uint8[n], `Mark.WARM_UP` and `Mark.TRUNCATED` as `pgle.trace.windows` finds them.
    """

    module: ModuleKey
    execution: npt.NDArray[np.int64]
    span_ns: npt.NDArray[np.int64]
    mark: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.execution)


def main_module_spans(trace: Trace) -> Spans:
    """The executions of the main module of a trace.

    Raises:
        UserError: the trace has no module executions.
    """
    known = trace.execution >= 0
    if not known.any():
        where = trace.sources[0].path if trace.sources else None
        raise UserError("trace without module executions", where=where, remedy="record a window of whole steps")
    time = np.bincount(trace.module[known], weights=trace.duration_ns[known], minlength=len(trace.modules))
    main = int(np.argmax(time))
    collective = np.array([guess_kind(name) == "collective" for name in trace.instructions], bool)
    found = find_executions(trace, collective)
    here = found.module == main
    numbers = np.unique(found.execution[here])
    spans = np.zeros(len(numbers), np.int64)
    np.maximum.at(spans, np.searchsorted(numbers, found.execution[here]), found.span_ns[here])
    reasons = {execution: reason for (module, execution), reason in found.reasons.items() if module == main}
    marks = [_mark(reasons.get(int(number), "")) for number in numbers]
    return Spans(trace.modules[main], numbers, spans, np.array(marks, np.uint8))


def execution_series(trace: Trace, source: str) -> Series:
    """The spans of the main module as the series of one run."""
    spans = main_module_spans(trace)
    columns = zip(spans.execution.tolist(), spans.span_ns.tolist(), spans.mark.tolist(), strict=True)
    steps = [Step(number, span / 1e9, mark=Mark(mark)) for number, span, mark in columns if span > 0]
    return make_series(source, "trace", steps, simulated=trace.simulated, warnings=trace.warnings)


def _mark(reason: str) -> Mark:
    if not reason:
        return Mark.NONE
    return Mark.TRUNCATED if reason.startswith("truncated") else Mark.WARM_UP
