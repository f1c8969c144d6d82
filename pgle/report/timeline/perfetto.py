"""Panels as data: for the script of a page, and as a trace that Perfetto, chrome://tracing and Speedscope open.

Format: Trace Event Format (Chrome), complete events (``X``), metadata (``M``) and flows (``s``, ``f``), times in µs.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.errors import printable
from pgle.report.timeline.scene import Lane, Named, Panel, Span


def encode(panels: Sequence[Panel], first_us: float = 0.0) -> str:
    """zlib and base64 of the scene. Names are made printable here, and only ever become text in the page.

    ``{"first": the part of time seen first, 0 for all, "texts": [...], "names":
    [[style, sync, name, kind, lhs name, op_name, shape, source, cost, follower]],
    "panels": [{"label", "note", "facts", "length", "open", "rows", "spans", "lanes": [{"label", "start", "duration",
    "name", "count"}]}]}``: times in ns, starts as differences, all texts but labels as indices.
    """
    pool = _Pool()
    found = [_panel(panel, pool) for panel in panels]
    scene = {"first": _ns(first_us), "texts": list(pool.texts), "names": list(pool.names.values()), "panels": found}
    data = json.dumps(scene, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")
    return base64.b64encode(zlib.compress(data, 9)).decode()


class _Pool:
    """Texts and instructions of all panels, each once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {"": 0}
        self.names: dict[Named, list[int]] = {}

    def text(self, text: str) -> int:
        return self.texts.setdefault(printable(text), len(self.texts))

    def add(self, names: Sequence[Named]) -> npt.NDArray[np.int64]:
        numbers = {item: number for number, item in enumerate(self.names)}
        mine = [numbers.setdefault(item, len(numbers)) for item in names]
        for item in names:
            if item not in self.names:
                texts = (item.name, item.kind, item.lhs_name, item.op_name, item.shape, item.source, item.cost)
                fields = [*map(self.text, texts), self.text(item.follower)]
                self.names[item] = [int(item.style), int(item.sync), *fields]
        return np.array(mine, dtype=np.int64)


def _panel(panel: Panel, pool: _Pool) -> dict[str, Any]:
    numbers = pool.add(panel.names)
    return {
        "label": printable(panel.label),
        "note": printable(panel.note),
        "facts": panel.facts,
        "length": _ns(panel.length_us),
        "open": panel.opened,
        "rows": int(sum(lane.count.sum() for lane in panel.lanes)),
        "spans": [_span(span) for span in panel.spans],
        "lanes": [_lane(lane, numbers) for lane in panel.lanes],
    }


def _span(span: Span) -> dict[str, Any]:
    whole = {"label": printable(span.label), "start": _ns(span.start_us), "end": _ns(span.end_us), "depth": span.depth}
    folded = {"foldedStart": _ns(span.folded_start_us), "foldedEnd": _ns(span.folded_end_us)}
    return {**whole, "folded": span.folded, **folded}


def _lane(lane: Lane, numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
    start = np.rint(lane.start_us * 1e3).astype(np.int64)
    end = np.maximum(np.rint(lane.end_us * 1e3).astype(np.int64), start)
    end[:-1] = np.minimum(end[:-1], np.maximum(start[1:], start[:-1]))  # rounding makes no overlap
    found: dict[str, Any] = {
        "label": printable(lane.label),
        "start": np.diff(start, prepend=0).tolist(),
        "duration": (end - start).tolist(),
        "name": numbers[lane.named].tolist() if len(lane.named) else [],
    }
    if bool((lane.count != 1).any()):
        found["count"] = lane.count.tolist()
    return found


def _ns(time_us: float) -> int:
    return round(time_us * 1e3)


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
            "kind": item.kind, "cost": item.cost, "shape": item.shape, "lhs_name": item.lhs_name,
            "op_name": item.op_name, "source": item.source, "waited for before": item.follower,
            "executions": count if count > 1 else 0, "synchronous": item.sync,
        }  # fmt: skip
        arguments: dict[str, Any] = {key: value for key, value in fields.items() if value}
        if item.style >= 2:
            arguments["exposed_us"] = round(exposed, 3)
        yield {
            "ph": "X", "pid": process, "tid": thread, "ts": round(start, 3), "dur": round(duration, 3),
            "name": item.name, "cat": item.kind, "args": arguments,
        }  # fmt: skip


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
