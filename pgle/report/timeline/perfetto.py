"""Panels as a trace that ui.perfetto.dev, chrome://tracing and Speedscope open.

Format: Trace Event Format (Chrome), complete events (``X``), metadata (``M``) and flows (``s``, ``f``), times in µs.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from pgle.report.timeline.scene import Lane, Panel


def render_trace(panels: Sequence[Panel]) -> str:
    """One process per panel, one thread per lane; an arrow from each transfer to what waits for it.

    The arguments of an event say what else is known: exposed time, kind, shape, name when LHS ran, op_name, source
    line, where its time comes from. A folded loop is one iteration, stretched, with its count.
    """
    events: list[dict[str, Any]] = []
    for process, panel in enumerate(panels, start=1):
        events.append(_name("process_name", process, 0, f"{panel.label} ({panel.note})"))
        for thread, lane in enumerate(panel.lanes, start=1):
            events.append(_name("thread_name", process, thread, lane.label or "…"))
            events += _bars(process, thread, panel, lane)
        events += _flows(process, panel)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":")) + "\n"


def _bars(process: int, thread: int, panel: Panel, lane: Lane) -> Iterator[dict[str, Any]]:
    columns = (lane.start_us, lane.duration_us, lane.named, lane.count, panel.exposed_us(lane))
    for start, duration, code, count, exposed in zip(*(column.tolist() for column in columns), strict=True):
        item = panel.names[code]
        fields = {
            "kind": item.kind,
            "cost": item.cost,
            "shape": item.shape,
            "lhs_name": item.lhs_name,
            "op_name": item.op_name,
            "source": item.source,
            "waited for before": item.follower,
            "executions": count if count > 1 else 0,
            "synchronous": item.sync,
        }
        arguments: dict[str, Any] = {key: value for key, value in fields.items() if value}
        if item.style >= 2:
            arguments["exposed_us"] = round(exposed, 3)
        yield {
            "ph": "X",
            "pid": process,
            "tid": thread,
            "ts": round(start, 3),
            "dur": round(duration, 3),
            "name": item.name,
            "cat": item.kind,
            "args": arguments,
        }


def _flows(process: int, panel: Panel) -> Iterator[dict[str, Any]]:
    """From the end of each transfer to the next run of the instruction that follows its done."""
    wanted = {item.follower for item in panel.names if item.follower}
    runs: dict[str, list[tuple[float, int]]] = {name: [] for name in wanted}
    for thread, lane in enumerate(panel.lanes, start=1):
        for start, code in zip(lane.start_us.tolist(), lane.named.tolist(), strict=True):
            if (name := panel.names[code].name) in wanted:
                runs[name].append((start, thread))
    for found in runs.values():
        found.sort()
    number = process * 10_000_000
    for thread, lane in enumerate(panel.lanes, start=1):
        for start, end, code in zip(lane.start_us.tolist(), lane.end_us.tolist(), lane.named.tolist(), strict=True):
            later = runs.get(panel.names[code].follower, [])
            at = bisect_left(later, (start, 0))
            if at < len(later):
                number += 1
                ends = ((end, thread, "s"), (max(later[at][0], end), later[at][1], "f"))
                for time, of, phase in ends:
                    yield {"ph": phase, "pid": process, "tid": of, "ts": round(time, 3), "id": number,
                           "name": "start → done", "cat": "flow", **({"bp": "e"} if phase == "f" else {})}  # fmt: skip


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}
