"""A scene as the data of `timeline.js`: one JSON object, compressed, in letters that need no escaping."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.errors import printable
from pgle.report.timeline.scene import Lane, Named, Panel


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
        "spans": [
            {
                "label": printable(span.label),
                "start": _ns(span.start_us),
                "end": _ns(span.end_us),
                "depth": span.depth,
                "folded": span.folded,
                "foldedStart": _ns(span.folded_start_us),
                "foldedEnd": _ns(span.folded_end_us),
            }
            for span in panel.spans
        ],
        "lanes": [_lane(lane, numbers) for lane in panel.lanes],
    }


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
