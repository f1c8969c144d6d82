"""A timeline as a trace for https://ui.perfetto.dev or chrome://tracing.

Format: "Trace Event Format" (JSON object form); complete events (``ph: X``), times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pgle.report.timeline_layout import View
from pgle.schedule.timeline import ORIGINS, Stream


def render_trace(views: Sequence[View]) -> str:
    """One process per view, one thread per stream. A folded loop is one iteration, stretched, with its count."""
    events = [event for number, view in enumerate(views, start=1) for event in _events(number, view)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":")) + "\n"


def _events(process: int, view: View) -> Iterator[dict[str, Any]]:
    timeline = view.timeline
    label = f"{view.label} (predicted{f' from {view.note} costs' if view.note else ''})"
    yield _name("process_name", process, 0, label)
    for stream in Stream:
        yield _name("thread_name", process, stream + 1, stream.name.lower())
    for row in range(len(timeline)):
        code = int(timeline.instruction[row])
        arguments: dict[str, Any] = {"cost": ORIGINS[int(timeline.origin[row])].value}
        if timeline.count[row] > 1:
            arguments["executions"] = int(timeline.count[row])
        if timeline.sync[row]:
            arguments["synchronous"] = True
        yield {
            "ph": "X",
            "pid": process,
            "tid": int(timeline.stream[row]) + 1,
            "ts": round(float(timeline.start_us[row]), 3),
            "dur": round(float(timeline.duration_us[row]), 3),
            "name": timeline.names[code],
            "cat": timeline.kinds[code] if timeline.kinds else "",
            "args": arguments,
        }


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}
