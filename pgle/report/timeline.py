"""A step as pages draw it: its parts as tiles; and its timeline, of a prediction or of a trace, as
text too.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.other_work import OtherKind, kinds_of
from pgle.analyze.window import DeviceWindow, StepBreakdown, mean_breakdown
from pgle.errors import printable
from pgle.masking import kept_text
from pgle.report.page import figures, value
from pgle.report.page.value import Bar, Tile
from pgle.schedule.placements import ExposedGroup
from pgle.schedule.simulate import ORIGINS, Breakdown, Stream, Timeline
from pgle.trace.intervals import EMPTY, Intervals, covered, union, without
from pgle.xla.async_pairs import followers
from pgle.xla.collectives import is_sync
from pgle.xla.hlo.module import Module
from pgle.xla.instruction_kinds import kind_of
from pgle.xla.targets import Hardware
from pgle.xla.vendors import NVIDIA, maker_of

Color: TypeAlias = Literal["compute", "exposed", "copy", "other", "idle"]
PARTS: Mapping[Color, str] = {
    "compute": "compute",
    "exposed": "exposed communication",
    "copy": "exposed copies",
    "idle": "idle",
}
"""The parts of a step that add up to it, by the name of their colour."""
OTHER_WORK = "other GPU work"
# of the exposed time; so much of it the groups on the first screen explain, if `GROUPS` can
EXPLAINED = 0.95
GROUPS = 3


def times_of(found: Breakdown) -> tuple[float, ...]:
    """The `PARTS` of a step, in microseconds."""
    return (
        found.compute_us,
        found.exposed_communication_us,
        found.exposed_copy_us,
        found.idle_us,
    )


def colored_parts(found: Breakdown) -> list[tuple[Color, float]]:
    """The parts of a step that add up to it, in microseconds: of a measured one also work of no
    instruction.
    """
    parts: list[tuple[Color, float]] = list(zip(PARTS, times_of(found), strict=True))
    if isinstance(found, StepBreakdown) and found.other_us > 0:
        parts.insert(-1, ("other", found.other_us))
    return parts


def parts_of(found: Breakdown) -> list[tuple[str, float]]:
    """The parts of a step by name, in microseconds."""
    return [(PARTS.get(color, OTHER_WORK), us) for color, us in colored_parts(found)]


def tiles(sides: Sequence[tuple[str, Breakdown]], note: str = "") -> tuple[Tile, ...]:
    """Step, exposed and idle time as tiles: of two sides with the change, of one as shares of the
    step.

    Args:
        sides: one step, or one before and one after, each with its name.
        note: what holds for all figures: ``simulated``.
    """

    longest_us = max(1e-9, *(parts.step_us for _, parts in sides))

    def tile(label: str, color: Color, times: Sequence[float]) -> Tile:
        bars = (
            Bar(name, _of_step(us, parts), ((color, us / longest_us),))
            for (name, parts), us in zip(sides, times, strict=True)
        )
        return _tile(label, times, tuple(bars), note)

    steps = [parts.step_us for _, parts in sides]
    exposed = [
        parts.exposed_communication_us + parts.exposed_copy_us for _, parts in sides
    ]
    idle = [parts.idle_us for _, parts in sides]
    whole = (_step_bar(name, parts, longest_us) for name, parts in sides)
    return (
        _tile("step", steps, tuple(whole), note),
        tile("exposed: the GPU waits", "exposed", exposed),
        tile("idle: nothing runs on the GPU", "idle", idle),
    )


def _tile(label: str, times: Sequence[float], bars: tuple[Bar, ...], note: str) -> Tile:
    """A tile with its figure; of two sides with the change."""
    about = ""
    if len(times) > 1 and times[0] > 0:
        about = figures.change(times[1] / times[0] - 1)
    figure = " → ".join(dict.fromkeys(map(figures.time, times)))
    return Tile(label, figure, bars, ", ".join(filter(None, (about, note))))


def _step_bar(name: str, parts: Breakdown, longest_us: float) -> Bar:
    """A step as long as it is of the longest; in words the shares of its own time."""
    times = colored_parts(parts)
    shares = ((color, us / max(parts.step_us, 1e-9)) for color, us in times)
    words = ", ".join(
        f"{figures.share(share)} {color}" for color, share in shares if share > 5e-4
    )
    return Bar(name, words, tuple((color, us / longest_us) for color, us in times))


def _of_step(us: float, parts: Breakdown) -> str:
    return f"{figures.share(us / max(parts.step_us, 1e-9))} of the step"


def most_exposed(found: Sequence[ExposedGroup], least_us: float) -> list[ExposedGroup]:
    """The groups that explain most of the exposed time, three at most.

    Args:
        found: collectives in groups.
        least_us: exposed time that need not be explained.
    """
    total_us = left_us = sum(group.most_us for group in found)
    chosen: list[ExposedGroup] = []
    for group in sorted(found, key=lambda group: -group.most_us)[:GROUPS]:
        if left_us <= max((1 - EXPLAINED) * total_us, least_us) or group.most_us <= 0:
            break
        left_us -= group.most_us
        chosen.append(group)
    return chosen


class Style(IntEnum):
    """What a bar is, and so how it is drawn."""

    COMPUTE = 0
    MATMUL = 1
    COMMUNICATION = 2
    COPY = 3
    OTHER = 4


# bars that a page draws at most, some 4 MB; of longer traces the first steps are drawn
MOST_BARS = 400_000
MOST_OPEN = 2  # devices whose lanes are open at first
LONG = 200  # letters of a shape; tuples of combined collectives have thousands
_SHADES = " ░▒▓█"
_KINDS = {
    "compute": (Style.COMPUTE, Style.MATMUL),
    "communication": (Style.COMMUNICATION,),
    "copy": (Style.COPY,),
    "other work": (Style.OTHER,),
}
_STYLE_OF = {
    Stream.COMPUTE: Style.COMPUTE,
    Stream.COMMUNICATION: Style.COMMUNICATION,
    Stream.COPY: Style.COPY,
}


class BarLabel(NamedTuple):
    """One instruction, as bars of it are described."""

    style: Style  # how its bars are drawn
    sync: bool  # a collective that runs in turn with compute
    name: str  # of the instruction
    kind: str  # ``all-gather``, ``matmul`` or its opcode
    lhs_name: str  # its name when LHS ran, if that is another
    op_name: str  # the framework's name
    shape: str  # of its result
    source: str  # file and line of the program
    cost: str  # where its time comes from: ``measured``, ``estimated`` …
    follower: str  # of an asynchronous collective, the first instruction after its done


@dataclass(frozen=True)
class Lane:
    """Bars that do not overlap, in order of their start, n of them."""

    label: str  # ``communication``, ``stream 7``
    # start_us, duration_us: float64[n], from the start of the panel
    start_us: npt.NDArray[np.float64]
    duration_us: npt.NDArray[np.float64]
    named: npt.NDArray[np.int32]  # int32[n], index into the panel's names
    count: npt.NDArray[np.int64]  # int64[n], executions that a bar stands for

    @property
    def end_us(self) -> npt.NDArray[np.float64]:
        """float64[n], start + duration."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class Span:
    """A loop or a step, drawn above the lanes."""

    label: str  # ``while.38, 4 iterations``
    # start_us, end_us: of all of it
    start_us: float
    end_us: float
    depth: int = 0  # 0 for the outermost
    folded: int = (
        0  # iterations that are drawn as one, stretched over the time of all; 0: none
    )
    # folded_start_us, folded_end_us: the part that they take
    folded_start_us: float = 0.0
    folded_end_us: float = 0.0


@dataclass(frozen=True)
class Panel:
    """One device, or one schedule of one device."""

    label: str  # ``LHS, no profile``, ``GPU 3``
    note: str  # what its times are: ``measured``, ``predicted from estimated costs``
    parts: Breakdown  # of one step
    length_us: float  # of the drawn part
    names: tuple[BarLabel, ...]  # the instructions
    lanes: tuple[Lane, ...]  # compute first
    spans: tuple[Span, ...] = ()  # loops and steps
    opened: bool = True  # whether the page shows its lanes at first
    unit: str = "step"  # what `parts` are of

    @property
    def facts(self) -> tuple[str, ...]:
        """``step 6.482 ms``, ``exposed communication 539.2 µs``, ``idle 16 µs``."""
        named = [(self.unit, self.parts.step_us), *parts_of(self.parts)[1:]]
        return tuple(
            f"{name} {figures.time(us)}"
            for name, us in named
            if us > 0 or name != PARTS["copy"]
        )

    @cached_property
    def styles(self) -> npt.NDArray[np.uint8]:
        """uint8[names], their `Style`."""
        return np.array([item.style for item in self.names], dtype=np.uint8)

    def busy(self, *styles: Style) -> Intervals:
        """When bars of some styles run, in all lanes."""
        chosen = [
            (lane, np.isin(self.styles[lane.named], styles))
            for lane in self.lanes
            if len(lane.named)
        ]
        if not chosen:
            return EMPTY
        starts, ends = (
            [getattr(lane, of)[rows] for lane, rows in chosen]
            for of in ("start_us", "end_us")
        )
        return union(np.concatenate(starts), np.concatenate(ends))

    @cached_property
    def compute(self) -> Intervals:
        """When something computes."""
        return self.busy(Style.COMPUTE, Style.MATMUL)

    @cached_property
    def exposed(self) -> Intervals:
        """When collectives run and nothing computes."""
        return without(self.busy(Style.COMMUNICATION), self.compute)


def panel_of(
    label: str, timeline: Timeline, note: str = "", module: Module | None = None
) -> Panel:
    """A predicted step as a panel.

    Args:
        note: where its costs come from: ``measured``, ``estimated``, ``mixed``.
        module: the scheduled module, for shapes, names of the framework and what waits for a
            collective.
    """
    codes, names = _names(timeline, module)
    every = Lane("", timeline.start_us, timeline.duration_us, codes, timeline.count)
    lanes: list[Lane] = []
    for stream in Stream:
        rows = np.flatnonzero(timeline.stream == stream)
        if len(rows) or stream is not Stream.COPY:
            lanes += disjoint(replace(chosen(every, rows), label=stream.name.lower()))
    return Panel(
        label=label,
        note=f"predicted from {note} costs" if note else "predicted",
        parts=timeline.breakdown,
        length_us=timeline.step_us,
        names=names,
        lanes=tuple(lanes),
        spans=tuple(
            Span(
                f"{printable(loop.name)}, {loop.trips} iterations",
                loop.start_us,
                loop.end_us,
                loop.depth,
                loop.folded if loop.folded > 1 else 0,
                loop.folded_start_us,
                loop.folded_end_us,
            )
            for loop in timeline.loops
            if loop.trips > 1
        ),
    )


def disjoint(bars: Lane) -> list[Lane]:
    """Bars as lanes in which none overlaps another: as many as run at once, one at least; the first
    has a label.
    """
    bars = chosen(bars, np.argsort(bars.start_us, kind="stable"))
    end = bars.end_us
    if bool((bars.start_us[1:] >= end[:-1] - 1e-6).all()):
        return [bars]
    ends: list[float] = []
    place = np.empty(len(end), dtype=np.int32)
    for row, (first, last) in enumerate(
        zip(bars.start_us.tolist(), end.tolist(), strict=True)
    ):
        free = next(
            (lane for lane, until in enumerate(ends) if until <= first + 1e-6),
            len(ends),
        )
        ends[free : free + 1] = [last]
        place[row] = free
    lanes = [chosen(bars, np.flatnonzero(place == lane)) for lane in range(len(ends))]
    return [lanes[0], *(replace(lane, label="") for lane in lanes[1:])]


def chosen(lane: Lane, rows: npt.NDArray[np.intp]) -> Lane:
    """Some bars of a lane."""
    return Lane(
        lane.label,
        lane.start_us[rows],
        lane.duration_us[rows],
        lane.named[rows],
        lane.count[rows],
    )


def _names(
    timeline: Timeline, module: Module | None
) -> tuple[npt.NDArray[np.int32], tuple[BarLabel, ...]]:
    """The number of each row's entry, and the entries: one per instruction."""
    entry = np.zeros(len(timeline.names), dtype=np.int64)
    entry[timeline.instruction[::-1]] = np.arange(len(timeline))[
        ::-1
    ]  # the first row of each name
    follower = (
        followers(module, frozenset(timeline.names)) if module is not None else {}
    )
    found = []
    for code, name in enumerate(timeline.names):
        row, stream, origin, sync = int(entry[code]), Stream.COMPUTE, ORIGINS[0], False
        if len(timeline):
            stream, sync = Stream(int(timeline.stream[row])), bool(timeline.sync[row])
            origin = ORIGINS[int(timeline.origin[row])]
        kind, lhs_name = timeline.kinds[code], timeline.lhs_names[code]
        found.append(
            bar_label(
                name,
                stream,
                module,
                kind,
                lhs_name,
                origin.value,
                sync,
                follower.get(name, ""),
            )
        )
    return timeline.instruction.astype(np.int32), tuple(found)


def bar_label(
    name: str,
    stream: Stream,
    module: Module | None,
    kind: str,
    lhs_name: str,
    cost: str,
    sync: bool,
    follower: str,
) -> BarLabel:
    """An instruction on a stream with what its module says of it; the others as in `BarLabel`."""
    style = (
        Style.MATMUL
        if stream is Stream.COMPUTE and kind == "matmul"
        else _STYLE_OF[stream]
    )
    lhs_name = "" if lhs_name == name else lhs_name
    known = module.instructions.get(name) if module is not None else None
    shape, op_name, source = (
        ("", "", "")
        if known is None
        else (str(known.shape), known.op_name, known.source)
    )
    shape = shape if len(shape) <= LONG else f"{shape[:LONG]}…"
    return BarLabel(
        style, sync, name, kind, lhs_name, op_name, shape, _kept(source), cost, follower
    )


_kept = lru_cache(maxsize=1 << 14)(kept_text)


def text_timeline(
    panels: Sequence[Panel], width: int = 100, until_us: float = 0.0
) -> str:
    """A block of lines per panel, `width` columns wide; up to a time, or all if it is 0."""
    longest, cells = (
        until_us or max((panel.length_us for panel in panels), default=0.0),
        width - 16,
    )
    edges = np.linspace(0.0, max(longest, 1e-9), cells + 1)

    def share(busy: Intervals) -> np.ndarray:
        return covered(busy, edges[:-1], edges[1:]) / np.diff(edges)

    lines: list[str] = []
    for panel in panels:
        costs = (
            panel.note.removeprefix("predicted from ")
            if panel.note != "predicted from measured costs"
            else ""
        )
        label = f" ({costs})" if costs not in ("", "predicted", "measured") else ""
        step, *others = panel.facts
        lines.append(printable(f"{panel.label}: {', '.join([step + label, *others])}"))
        for kind, styles in _KINDS.items():
            busy = panel.busy(*styles)
            if len(busy):
                shades = np.ceil(share(busy) * (len(_SHADES) - 1) - 1e-9).astype(int)
                lines.append(
                    f"{kind:>14}  {''.join(_SHADES[shade] for shade in shades).rstrip()}"
                )
        marks = "".join(
            "^" if part > 0.5 else "'" if part > 0.05 else " "
            for part in share(panel.exposed)
        )
        if marks.strip():
            lines.append(f"{'exposed':>14}  {marks.rstrip()}")
    lines.append(f"{'':16}0{figures.time(longest):>{cells - 1}}")
    return "\n".join(lines) + "\n"


def measured_panels(
    step: MeasuredStep, label: str = ""
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The devices that ran a step, in order, and the rows that are not drawn, a line each.

    Devices of one process lie on one clock if its trace shows that they have one; else each begins
    at 0.

    Args:
        label: put before the names of the ranks: ``before``.
    """
    measured = "measured on CPU devices" if step.trace.on_host else "measured"
    kind = "simulated, no GPU ran this" if step.trace.simulated else measured
    late = _late_us(step)
    bars = sum(len(window.rows) + len(window.other) for window in step.windows)
    share = min(MOST_BARS / bars, 1.0)
    names, numbers = _entries(step)
    names += tuple(map(_other_label, OtherKind))
    panels: list[Panel] = []
    for window in step.windows:
        panel = _panel(
            step,
            window,
            names,
            numbers,
            max(int(len(window.spans) * share), 1),
            late[window.device],
            kind,
        )
        name = f"{label}: {panel.label}" if label else panel.label
        panels.append(replace(panel, label=name, opened=len(panels) < MOST_OPEN))
    most = max(len(window.spans) for window in step.windows)
    drawn = max(len(panel.spans) for panel in panels)
    notes = [
        f"the timeline shows the first {drawn} of {most} steady steps: a page holds no more bars"
    ] * (drawn < most)
    return tuple(panels), tuple(notes)


def _late_us(step: MeasuredStep) -> dict[int, float]:
    """By how much each device begins after the first one of its process.

    Collectives hold the devices of a job within a step of each other: if they are further apart,
    the clocks are.
    """
    begins: dict[str, dict[int, int]] = {}
    for window in step.windows:
        begins.setdefault(step.trace.devices[window.device].process, {})[
            window.device
        ] = window.begin_ns
    late: dict[int, float] = {}
    for of_process in begins.values():
        first = min(of_process.values())
        one_clock = max(of_process.values()) - first < step.step_us * 1e3
        late |= {
            device: (begin - first) / 1e3 if one_clock else 0.0
            for device, begin in of_process.items()
        }
    return late


def _contents(hardware: Hardware | None) -> dict[Stream, str]:
    """What streams hold, in the words of the GPU's vendor."""
    vendor = NVIDIA if hardware is None else maker_of(hardware)
    return {
        Stream.COMPUTE: "compute",
        Stream.COMMUNICATION: vendor.library.name,
        Stream.COPY: "copies",
    }


def _panel(
    step: MeasuredStep,
    window: DeviceWindow,
    names: tuple[BarLabel, ...],
    numbers: npt.NDArray[np.int32],
    steps: int,
    shift_us: float,
    kind: str,
) -> Panel:
    trace = step.trace
    end = (
        float(window.spans.end[steps - 1])
        if steps < len(window.spans)
        else window.length
    )
    rows = np.flatnonzero(window.start < end)
    of_trace = window.rows[rows]
    codes = numbers[trace.instruction[of_trace], window.stream[rows]]
    start, stop = (
        window.start[rows] / 1e3 + shift_us,
        np.minimum(window.end[rows], end) / 1e3 + shift_us,
    )
    every = Lane("", start, stop - start, codes, np.ones(len(rows), np.int64))
    lanes: list[Lane] = []
    streams, what = trace.stream[of_trace], window.stream[rows]
    of_stream = {
        stream: np.flatnonzero(streams == stream)
        for stream in np.unique(streams).tolist()
    }
    # the streams with most compute first
    for stream, mine in sorted(
        of_stream.items(),
        key=lambda row: (-int((what[row[1]] == Stream.COMPUTE).sum()), row[0]),
    ):
        most = Stream(int(np.bincount(what[mine], minlength=len(Stream)).argmax()))
        contents = _contents(step.hardware)[most]
        lanes += disjoint(
            replace(chosen(every, mine), label=f"{contents} (stream {stream})")
        )
    lanes += _other_lanes(window, end, shift_us, len(names) - len(OtherKind))
    spans = zip(
        window.spans.start[:steps].tolist(),
        window.spans.end[:steps].tolist(),
        strict=True,
    )
    return Panel(
        label=step.rank_name(window.device),
        note=kind,
        parts=mean_breakdown([window]),
        length_us=end / 1e3 + shift_us,
        names=names,
        lanes=tuple(lanes),
        spans=tuple(
            Span(f"step {number}", first / 1e3 + shift_us, last / 1e3 + shift_us)
            for number, (first, last) in enumerate(spans, start=1)
        ),
        unit=f"step (mean of {window.steps})",
    )


def _other_label(kind: OtherKind) -> BarLabel:
    """Work of no instruction, as its bars are described."""
    return BarLabel(
        style=Style.OTHER,
        sync=False,
        name=str(kind),
        kind=OTHER_WORK,
        lhs_name="",
        op_name="",
        shape="",
        source="",
        cost="measured",
        follower="",
    )


def _other_lanes(
    window: DeviceWindow, end_ns: float, shift_us: float, first: int
) -> list[Lane]:
    """What a device ran of no instruction, until a time; bars of one kind that touch are one.

    Args:
        first: index of the first `OtherKind` among the panel's names.
    """
    lanes: list[Lane] = []
    kinds = list(OtherKind)
    for kind, rows in kinds_of(window.other):
        begin = window.other.start_ns[rows]
        busy = union(begin, np.minimum(begin + window.other.duration_ns[rows], end_ns))
        count = len(busy)
        if not count:
            continue
        bars = Lane(
            label=str(kind),
            start_us=busy.start / 1e3 + shift_us,
            duration_us=busy.lengths / 1e3,
            named=np.full(count, first + kinds.index(kind), np.int32),
            count=np.ones(count, np.int64),
        )
        lanes.append(bars)
    return lanes


def _entries(step: MeasuredStep) -> tuple[tuple[BarLabel, ...], npt.NDArray[np.int32]]:
    """An entry for each instruction on each kind of stream that runs it; int32[instructions,
    streams], its number.
    """
    module, trace = step.module, step.trace
    numbers = np.full((len(trace.instructions), len(Stream)), -1, dtype=np.int32)
    for window in step.windows:
        numbers[trace.instruction[window.rows], window.stream] = 0
    seen = np.argwhere(numbers == 0)
    numbers[tuple(seen.T)] = np.arange(len(seen))
    lhs = {cost.traced: cost.name for cost in step.costs.costs}
    waits = (
        followers(module, frozenset(trace.instructions)) if module is not None else {}
    )
    found: list[BarLabel] = []
    for instruction, role in seen.tolist():
        name, stream = trace.instructions[instruction], Stream(role)
        known = module.instructions.get(name) if module is not None else None
        kind, sync = stream.name.lower(), False
        if module is not None and known is not None:
            kind = kind_of(module, known) or kind
            sync = stream is Stream.COMMUNICATION and is_sync(module, known)
        cost = "simulated" if trace.simulated else "measured"
        found.append(
            bar_label(
                name,
                stream,
                module,
                kind,
                lhs.get(name, name),
                cost,
                sync,
                waits.get(name, ""),
            )
        )
    return tuple(found), numbers


def timeline(panels: Sequence[Panel], first_us: float = 0.0) -> value.TimelineData:
    """A timeline of panels.

    Args:
        panels: schedules or devices, one above the other.
        first_us: the part of time that is seen first, from 0; 0: one step, or all if there are no
            steps.
    """
    return value.TimelineData(
        encode(panels, first_us), text_timeline(panels, until_us=first_us)
    )


def encode(panels: Sequence[Panel], first_us: float = 0.0) -> str:
    """zlib and base64 of the scene. Names are made printable here, and only ever become text in the
    page.

    ``{"first": the part of time seen first, 0 for all, "texts": [...], "names": [[style, sync,
    name, kind, lhs name, op_name, shape, source, cost, follower]], "panels": [{"label", "note",
    "facts", "length", "open", "rows", "spans", "lanes": [{"label", "start", "duration", "name",
    "count"}]}]}``: times in ns, starts as differences, all texts but labels as indices.
    """
    texts, names, found = {"": 0}, dict[BarLabel, int](), list[dict[str, Any]]()
    records = []
    for panel in panels:
        for item in panel.names:
            if item not in names:
                names[item] = len(names)
                style, sync, *words = item
                numbers = [
                    texts.setdefault(printable(word), len(texts)) for word in words
                ]
                records.append([int(style), int(sync), *numbers])
        places = np.array([names[item] for item in panel.names], dtype=np.int64)
        found.append(_panel_data(panel, places))
    scene = {
        "first": _ns(first_us),
        "texts": list(texts),
        "names": records,
        "panels": found,
    }
    data = json.dumps(scene, separators=(",", ":"), ensure_ascii=False).encode(
        errors="backslashreplace"
    )
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _panel_data(panel: Panel, places: npt.NDArray[np.int64]) -> dict[str, Any]:
    """A panel; `places` are those of its names among the names of all panels."""
    return {
        "label": printable(panel.label),
        "note": printable(panel.note),
        "facts": " · ".join(panel.facts),
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
        "lanes": [_lane_data(lane, places) for lane in panel.lanes],
    }


def _lane_data(lane: Lane, places: npt.NDArray[np.int64]) -> dict[str, Any]:
    start = np.rint(lane.start_us * 1e3).astype(np.int64)
    end = np.maximum(np.rint(lane.end_us * 1e3).astype(np.int64), start)
    end[:-1] = np.minimum(
        end[:-1], np.maximum(start[1:], start[:-1])
    )  # rounding makes no overlap
    counts = {"count": lane.count.tolist()} if bool((lane.count != 1).any()) else {}
    return {
        "label": printable(lane.label),
        "start": np.diff(start, prepend=0).tolist(),
        "duration": (end - start).tolist(),
        "name": places[lane.named].tolist() if len(lane.named) else [],
        **counts,
    }


def _ns(time_us: float) -> int:
    return round(time_us * 1e3)
