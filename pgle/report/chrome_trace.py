"""A page's timeline as a Chrome trace, which Perfetto and chrome://tracing open.

The format: "Trace Event Format", Google,
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A device or a
schedule is a process, and a stream is a thread. All opportunities share one more process.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from pgle import __version__
from pgle.errors import UserError, printable
from pgle.report.page.value import Advice, Page, TimelineData
from pgle.report.scene import Scene, SceneLane, ScenePanel, read_scene
from pgle.report.timeline import OTHER_WORK, PARTS, BarLabel, Style, other_name
from pgle.trace.intervals import Intervals, complement, covered, join, union, without

CATEGORIES = {
    Style.COMPUTE: "compute",
    Style.MATMUL: "matmul",
    Style.COMMUNICATION: "communication",
    Style.COPY: "copy",
    Style.OTHER: "other",
}
OPPORTUNITIES = "what would shorten the step"  # name of the process of opportunities

Event: TypeAlias = "dict[str, Any]"


def _arguments(label: BarLabel) -> Event:
    """Return the known facts of an instruction by name, without empty ones."""
    found = {
        "kind": label.kind,
        "op_name": label.op_name,
        "source": label.source,
        "shape": label.shape,
        "name when scheduled": other_name(label.lhs_name, label.name),
        "time is": label.cost,
        "next needs it": label.follower,
        "synchronous": "yes" if label.sync else "",
    }
    return {name: text for name, text in found.items() if text}


@dataclass(frozen=True, slots=True)
class Track:
    """A thread of a process, by their numbers."""

    process: int
    thread: int

    def slice(
        self,
        name: str,
        category: str,
        times: tuple[int, int],
        arguments: Event | None = None,
    ) -> Event:
        """Make a complete event. Times are (start, end) in nanoseconds."""
        start, end = times
        found: Event = {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": self.process,
            "tid": self.thread,
            "ts": _us(start),
            "dur": _us(end - start),
        }
        if arguments:
            found["args"] = arguments
        return found

    def named(self, name: str, place: int) -> Iterator[Event]:
        """Name the thread, and set its place in the process."""
        named = {"name": name}
        yield _metadata("thread_name", self.process, named, self.thread)
        placed = {"sort_index": place}
        yield _metadata("thread_sort_index", self.process, placed, self.thread)


def chrome_trace(page: Page) -> str:
    """The page's timeline and what would shorten its step, as JSON. The same page gives the same
    text.

    Raises:
        UserError: the page has no timeline.
    """
    drawn = page.timeline
    if drawn is None:
        raise UserError(
            "there is no timeline to write as a trace",
            remedy="give a trace, scheduled HLO, a run directory or a rehearsal",
        )
    about = {
        "program": printable(page.title),
        "about": " · ".join(map(printable, page.identity)),
        "verdict": printable(page.verdict),
        "writer": f"pgle {__version__}",
    }
    found = {
        "displayTimeUnit": "ms",
        "otherData": about,
        "traceEvents": list(_events(page, drawn)),
    }
    # Perfetto shows an escaped letter as its escape
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False) + "\n"


def packed_chrome_trace(page: Page) -> bytes:
    """Return the trace compressed by gzip, without a date in the file."""
    return gzip.compress(chrome_trace(page).encode(), mtime=0)


def _events(page: Page, drawn: TimelineData) -> Iterator[Event]:
    """The events of all panels, then the opportunities."""
    scene = read_scene(drawn.data)
    names = tuple(_name(scene, record) for record in scene.names)
    # Processes and threads share one series of numbers. A thread whose number equals its process's
    # would count as the main thread. Perfetto identifies threads by number alone.
    numbers = count(1)
    for place, panel in enumerate(scene.panels, start=1):
        yield from _panel_events(panel, names, place, numbers)
    yield from _opportunities(page.actions, scene, names, numbers)


def _name(scene: Scene, record: Sequence[int]) -> BarLabel:
    """Decode a label from the scene's numbers: its style, whether it is synchronous, its texts."""
    style, sync, *texts = record
    words = (scene.texts[index] for index in texts)
    return BarLabel(Style(style), bool(sync), *words)


def _panel_events(
    panel: ScenePanel, names: Sequence[BarLabel], place: int, numbers: Iterator[int]
) -> Iterator[Event]:
    """Make the process of a panel: steps and loops, parts of the time, streams."""
    process = next(numbers)
    about = " · ".join(filter(None, (panel.note, panel.facts)))
    yield from _process(process, panel.label, about, place)
    places = count()
    if panel.spans:
        track = Track(process, next(numbers))
        yield from track.named("steps and loops", next(places))
        for span in panel.spans:
            yield track.slice(span.label, "span", (span.start, span.end))
    track = Track(process, next(numbers))
    parts = _parts(panel, names)
    yield from track.named("parts of the step", next(places))
    yield from _part_events(track, parts)
    label = ""
    for lane in panel.lanes:
        label = lane.label or label
        track = Track(process, next(numbers))
        yield from track.named(label, next(places))
        yield from _lane_events(track, lane, names, parts[PARTS["compute"]])


def _parts(panel: ScenePanel, names: Sequence[BarLabel]) -> dict[str, Intervals]:
    """Return the time intervals of each part of the step, in nanoseconds. They do not overlap, and
    fill the panel.
    """
    compute = _busy(panel, names, Style.COMPUTE, Style.MATMUL)
    communication = _busy(panel, names, Style.COMMUNICATION)
    copies = _busy(panel, names, Style.COPY)
    other = _busy(panel, names, Style.OTHER)
    either = join(compute, communication)
    known = join(either, copies)
    return {
        PARTS["compute"]: compute,
        PARTS["exposed"]: without(communication, compute),
        PARTS["copy"]: without(copies, either),
        OTHER_WORK: without(other, known),
        PARTS["idle"]: complement(join(known, other), 0.0, panel.length),
    }


def _busy(panel: ScenePanel, names: Sequence[BarLabel], *styles: Style) -> Intervals:
    """Return the intervals in which bars of some styles run."""
    starts: list[int] = []
    ends: list[int] = []
    for lane in panel.lanes:
        bars = zip(lane.starts, lane.duration, lane.name, strict=True)
        for start, duration, name in bars:
            if names[name].style in styles:
                starts.append(start)
                ends.append(start + duration)
    return union(starts, ends)


def _part_events(track: Track, parts: dict[str, Intervals]) -> Iterator[Event]:
    """A slice for each interval of each part of the step."""
    for name, times in parts.items():
        starts = times.start.tolist()
        ends = times.end.tolist()
        for start, end in zip(starts, ends, strict=True):
            yield track.slice(name, "part", (round(start), round(end)))


def _lane_events(
    track: Track,
    lane: SceneLane,
    names: Sequence[BarLabel],
    compute: Intervals,
) -> Iterator[Event]:
    """Make a slice for each bar. Slices of communication and copies carry their exposed time."""
    starts = np.array(lane.starts, np.float64)
    ends = starts + np.array(lane.duration, np.float64)
    hidden = covered(compute, starts, ends)
    for row, number in enumerate(lane.name):
        found = names[number]
        start = lane.starts[row]
        duration = lane.duration[row]
        arguments = _arguments(found)
        if lane.count and lane.count[row] > 1:
            arguments["executions"] = lane.count[row]
        if found.style in (Style.COMMUNICATION, Style.COPY):
            arguments["exposed_us"] = _us(duration - round(hidden[row]))
        category = CATEGORIES[found.style]
        times = (start, start + duration)
        yield track.slice(found.name, category, times, arguments)


def _opportunities(
    actions: Sequence[Advice],
    scene: Scene,
    names: Sequence[BarLabel],
    numbers: Iterator[int],
) -> Iterator[Event]:
    """Make a process with a track for each opportunity. It is drawn at its instruction, or over the
    first step.
    """
    if not actions or not scene.panels:
        return
    process = next(numbers)
    about = "savings are shares of the step"
    yield from _process(process, OPPORTUNITIES, about, 0)
    for place, item in enumerate(actions, start=1):
        track = Track(process, next(numbers))
        title = f"{place}. {printable(item.title)}"
        yield from track.named(title, place)
        times = _place_of(item, scene, names)
        yield track.slice(title, "opportunity", times, _saving(item))


def _place_of(item: Advice, scene: Scene, names: Sequence[BarLabel]) -> tuple[int, int]:
    """Return where to draw an opportunity, in nanoseconds: at its longest bar, else over the first
    step.
    """
    if item.span_us is not None:
        start_us, end_us = item.span_us
        return round(start_us * 1e3), round(end_us * 1e3)
    first = scene.panels[0]
    longest = 0
    place = (0, first.length)
    for lane in first.lanes:
        bars = zip(lane.starts, lane.duration, lane.name, strict=True)
        for start, duration, number in bars:
            if duration > longest and _is_found(names[number], item.find):
                longest = duration
                place = (start, start + duration)
    if longest:
        return place
    steps = (span for span in first.spans if span.label.startswith("step "))
    step = next(steps, None)
    return place if step is None else (step.start, step.end)


def _is_found(label: BarLabel, name: str) -> bool:
    """Whether a bar is of the instruction with a name. Nothing has an empty name."""
    return bool(name) and name in (label.name, label.lhs_name)


def _saving(item: Advice) -> Event:
    """Return the saving of an opportunity, its reason, and the command to type."""
    found: Event = {}
    saves = item.saves
    if saves is not None:
        found["saves"] = str(saves)
        found["expected share"] = saves.expected
        found["least share"] = saves.least
        found["most share"] = saves.most
    found["instruction"] = printable(item.find)
    found["why"] = printable(item.why)
    found["command"] = printable(item.command)
    return {name: value for name, value in found.items() if value not in ("", None)}


def _process(number: int, name: str, about: str, place: int) -> Iterator[Event]:
    """Name a process, and set its place among the others."""
    yield _metadata("process_name", number, {"name": name})
    yield _metadata("process_labels", number, {"labels": about})
    yield _metadata("process_sort_index", number, {"sort_index": place})


def _metadata(name: str, process: int, arguments: Event, thread: int = 0) -> Event:
    """An event that says something about a process, or about one of its threads."""
    found: Event = {"ph": "M", "name": name, "pid": process, "args": arguments}
    if thread:
        found["tid"] = thread
    return found


def _us(ns: int) -> float:
    """Nanoseconds in microseconds, the unit of the format."""
    return ns / 1e3
