"""A step as pages draw it: its parts as tiles, and its timeline, predicted or measured, also as
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.errors import printable
from pgle.masking import kept_text
from pgle.report.page import figures, value
from pgle.report.page.value import Bar, Tile
from pgle.report.scene import Scene, SceneLane, ScenePanel, SceneSpan, packed
from pgle.schedule.placements import ExposedGroup
from pgle.schedule.simulate import (
    ORIGINS,
    Breakdown,
    Loop,
    StepBreakdown,
    Stream,
    Timeline,
)
from pgle.trace.intervals import EMPTY, Intervals, covered, union, without
from pgle.xla.async_pairs import followers
from pgle.xla.hlo.module import Module

Color: TypeAlias = Literal["compute", "exposed", "copy", "other", "idle"]
PARTS: Mapping[Color, str] = {
    "compute": "compute",
    "exposed": "exposed communication",
    "copy": "exposed copies",
    "idle": "idle",
}
"""The parts of a step that add up to it, by the name of their colour."""
OTHER_WORK = "other GPU work"
# share of the exposed time that the first screen's groups should explain, if `GROUPS` suffice
EXPLAINED = 0.95
GROUPS = 3
OTHERS = "others"  # the row of groups that are not named


def times_of(found: Breakdown) -> tuple[float, ...]:
    """The `PARTS` of a step, in microseconds."""
    return (
        found.compute_us,
        found.exposed_communication_us,
        found.exposed_copy_us,
        found.idle_us,
    )


def colored_parts(found: Breakdown) -> list[tuple[Color, float]]:
    """The parts of a step that add up to it, in microseconds. A measured step also has work that
    belongs to no instruction.
    """
    parts: list[tuple[Color, float]] = list(zip(PARTS, times_of(found), strict=True))
    if isinstance(found, StepBreakdown) and found.other_us > 0:
        parts.insert(-1, ("other", found.other_us))
    return parts


def parts_of(found: Breakdown) -> list[tuple[str, float]]:
    """The parts of a step by name, in microseconds."""
    return [(PARTS.get(color, OTHER_WORK), us) for color, us in colored_parts(found)]


def part_names(*steps: Breakdown) -> list[str]:
    """The names of the parts that any of these steps has, in order."""
    names = list(PARTS.values())
    parts = chain.from_iterable(map(colored_parts, steps))
    if any(color == "other" for color, _ in parts):
        names.insert(-1, OTHER_WORK)
    return names


def tiles(sides: Sequence[tuple[str, Breakdown]], note: str = "") -> tuple[Tile, ...]:
    """Step, exposed and idle time as tiles. Two sides show the change, one side shows shares of the
    step.

    Args:
        sides: one step, or one before and one after, each with its name.
        note: a remark on all figures: ``simulated``.
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


def _tile(
    label: str, times_us: Sequence[float], bars: Sequence[Bar], note: str
) -> Tile:
    """Return a tile whose figure is the time of one side, or ``before → after`` of two sides. The
    change between both is a remark.
    """
    about = ""
    if len(times_us) > 1 and times_us[0] > 0:
        about = figures.change(times_us[1] / times_us[0] - 1)
    figure = " → ".join(dict.fromkeys(map(figures.time, times_us)))
    remarks = ", ".join(filter(None, (about, note)))
    return Tile(label, figure, tuple(bars), remarks)


def _step_bar(name: str, parts: Breakdown, longest_us: float) -> Bar:
    """A bar for a step, as long as its share of the longest step. Its text has the shares of its
    own time.
    """
    lengths: list[tuple[Color, float]] = []
    words: list[str] = []
    for color, us in colored_parts(parts):
        lengths.append((color, us / longest_us))
        share = us / max(parts.step_us, 1e-9)
        if share > 5e-4:
            words.append(f"{figures.share(share)} {color}")
    return Bar(name, ", ".join(words), tuple(lengths))


def _of_step(us: float, parts: Breakdown) -> str:
    """``28.0 % of the step``."""
    share = figures.share(us / max(parts.step_us, 1e-9))
    return f"{share} of the step"


def most_exposed(found: Sequence[ExposedGroup], least_us: float) -> list[ExposedGroup]:
    """Return the groups that explain most of the exposed time, at most three, and all others as one
    group.

    Args:
        found: collectives in groups.
        least_us: exposed time that may stay unexplained.
    """
    left_us = sum(group.most_us for group in found)
    enough_us = max((1 - EXPLAINED) * left_us, least_us)
    largest = sorted(found, key=lambda group: -group.most_us)[:GROUPS]
    chosen: list[ExposedGroup] = []
    for group in largest:
        if left_us <= enough_us or group.most_us <= 0:
            break
        left_us -= group.most_us
        chosen.append(group)
    left = [group for group in found if group not in chosen and group.most_us > 0]
    return [*chosen, _together(left)] if chosen and left else chosen


def _together(left: Sequence[ExposedGroup]) -> ExposedGroup:
    """Merge the groups that are not named."""
    return ExposedGroup(
        OTHERS,
        "",
        left[0].name,
        count=sum(group.count for group in left),
        before_us=sum(group.before_us for group in left),
        after_us=sum(group.after_us for group in left),
    )


def group_label(group: ExposedGroup) -> str:
    """``all-gather ×72, synchronous``; ``others (5)`` for merged groups."""
    if group.kind == OTHERS:
        return f"{OTHERS} ({group.count:,})"
    kind, comma, sync = group.kind.partition(",")
    return f"{kind} ×{group.count:,}{comma}{sync}"


class Style(IntEnum):
    """The kind of a bar, which decides how it is drawn."""

    COMPUTE = 0
    MATMUL = 1
    COMMUNICATION = 2
    COPY = 3
    OTHER = 4


# most bars that a page draws, about 4 MB; of longer traces only the first steps are drawn
MOST_BARS = 400_000
MOST_OPEN = 2  # devices whose lanes are unfolded at first
MARGIN = 16  # columns left of a text timeline, for the kind of work
LONG = 200  # letters of a shape; tuples of combined collectives can have thousands
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
    """What a page shows about an instruction when the reader points at its bar."""

    style: Style  # how its bars are drawn
    sync: bool  # a collective that alternates with compute
    name: str  # of the instruction
    kind: str  # ``all-gather``, ``matmul`` or its opcode
    lhs_name: str = ""  # its name when LHS ran, if it differs
    op_name: str = ""  # the framework's name
    shape: str = ""  # shape of its result
    source: str = ""  # file and line of the program
    cost: str = ""  # origin of its time: ``measured``, ``estimated`` …
    # for an asynchronous collective, the first instruction after its done
    follower: str = ""


@dataclass(frozen=True)
class Lane:
    """Bars that do not overlap, in order of their start, n of them."""

    label: str  # ``communication``, ``stream 7``
    # start_us, duration_us: float64[n], from the start of the panel
    start_us: npt.NDArray[np.float64]
    duration_us: npt.NDArray[np.float64]
    named: npt.NDArray[np.int32]  # int32[n], index into the panel's names
    count: npt.NDArray[np.int64]  # int64[n], executions that a bar represents

    @property
    def end_us(self) -> npt.NDArray[np.float64]:
        """float64[n], start + duration."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class Span:
    """A loop or a step, drawn above the lanes."""

    label: str  # ``while.38, 4 iterations``
    # start_us, end_us: of the whole loop or step
    start_us: float
    end_us: float
    depth: int = 0  # 0 for the outermost
    # iterations drawn as one, stretched over the time of all; 0: none
    folded: int = 0
    # folded_start_us, folded_end_us: the folded iterations
    folded_start_us: float = 0.0
    folded_end_us: float = 0.0


@dataclass(frozen=True)
class Panel:
    """One device, or one schedule of one device."""

    label: str  # ``LHS, no profile``, ``GPU 3``
    note: str  # origin of its times: ``measured``, ``predicted from estimated costs``
    parts: Breakdown  # of one step
    length_us: float  # length of the drawn part
    names: tuple[BarLabel, ...]  # the instructions
    lanes: tuple[Lane, ...]  # compute first
    spans: tuple[Span, ...] = ()  # loops and steps
    opened: bool = True  # whether the page shows its lanes at first
    unit: str = "step"  # what `parts` describes

    @property
    def facts(self) -> tuple[str, ...]:
        """``step 6.482 ms``, ``exposed communication 539.2 µs``, ``idle 16 µs``."""
        named = [(self.unit, self.parts.step_us), *parts_of(self.parts)[1:]]
        shown = [(name, us) for name, us in named if us > 0 or name != PARTS["copy"]]
        return tuple(f"{name} {figures.time(us)}" for name, us in shown)

    @cached_property
    def styles(self) -> npt.NDArray[np.uint8]:
        """uint8[names], the `Style` of each."""
        return np.array([item.style for item in self.names], dtype=np.uint8)

    def busy(self, *styles: Style) -> Intervals:
        """The intervals in which bars of some styles run, in all lanes."""
        starts: list[npt.NDArray[np.float64]] = []
        ends: list[npt.NDArray[np.float64]] = []
        for lane in self.lanes:
            if len(lane.named):
                rows = np.isin(self.styles[lane.named], styles)
                starts.append(lane.start_us[rows])
                ends.append(lane.end_us[rows])
        if not starts:
            return EMPTY
        return union(np.concatenate(starts), np.concatenate(ends))

    @cached_property
    def compute(self) -> Intervals:
        """The intervals in which something computes."""
        return self.busy(Style.COMPUTE, Style.MATMUL)

    @cached_property
    def exposed(self) -> Intervals:
        """The intervals in which collectives run and nothing computes."""
        return without(self.busy(Style.COMMUNICATION), self.compute)


def panel_of(
    label: str, timeline: Timeline, note: str = "", module: Module | None = None
) -> Panel:
    """A predicted step as a panel.

    Args:
        note: origin of its costs: ``measured``, ``simulated``, ``estimated`` …
        module: the scheduled module, for shapes, names of the framework and what waits for a
            collective.
    """
    codes = timeline.instruction.astype(np.int32)
    every = Lane("", timeline.start_us, timeline.duration_us, codes, timeline.count)
    lanes: list[Lane] = []
    for stream in Stream:
        rows = np.flatnonzero(timeline.stream == stream)
        if len(rows) or stream is not Stream.COPY:
            bars = replace(chosen(every, rows), label=stream.name.lower())
            lanes += disjoint(bars)
    return Panel(
        label=label,
        note=f"predicted from {note} costs" if note else "predicted",
        parts=timeline.breakdown,
        length_us=timeline.step_us,
        names=tuple(_predicted_labels(timeline, module)),
        lanes=tuple(lanes),
        spans=tuple(_loop_span(loop) for loop in timeline.loops if loop.trips > 1),
    )


def _loop_span(loop: Loop) -> Span:
    """A loop as a span. Its folded iterations are drawn as one."""
    return Span(
        label=f"{printable(loop.name)}, {loop.trips} iterations",
        start_us=loop.start_us,
        end_us=loop.end_us,
        depth=loop.depth,
        folded=loop.folded if loop.folded > 1 else 0,
        folded_start_us=loop.folded_start_us,
        folded_end_us=loop.folded_end_us,
    )


def disjoint(bars: Lane) -> list[Lane]:
    """Split bars into lanes without overlaps: as many as run at once, at least one. The first lane
    has a label.
    """
    bars = chosen(bars, np.argsort(bars.start_us, kind="stable"))
    end = bars.end_us
    if bool((bars.start_us[1:] >= end[:-1] - 1e-6).all()):
        return [bars]
    ends: list[float] = []  # end of the last bar of each lane
    place = np.empty(len(end), dtype=np.int32)
    times = zip(bars.start_us.tolist(), end.tolist(), strict=True)
    for row, (first, last) in enumerate(times):
        free = (lane for lane, until in enumerate(ends) if until <= first + 1e-6)
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [last]
        place[row] = lane
    lanes = [chosen(bars, np.flatnonzero(place == lane)) for lane in range(len(ends))]
    return [lanes[0], *(replace(lane, label="") for lane in lanes[1:])]


def chosen(lane: Lane, rows: npt.NDArray[np.intp]) -> Lane:
    """Select bars of a lane."""
    return Lane(
        lane.label,
        lane.start_us[rows],
        lane.duration_us[rows],
        lane.named[rows],
        lane.count[rows],
    )


def _predicted_labels(timeline: Timeline, module: Module | None) -> Iterator[BarLabel]:
    """A label for each instruction of a timeline, in the order of its names."""
    waits = followers_of(module, timeline.names)
    rows = _first_rows(timeline)
    for code, name in enumerate(timeline.names):
        stream = Stream.COMPUTE
        origin = ORIGINS[0]
        sync = False
        if len(timeline):
            row = int(rows[code])
            stream = Stream(int(timeline.stream[row]))
            origin = ORIGINS[int(timeline.origin[row])]
            sync = bool(timeline.sync[row])
        label = BarLabel(
            style=style_of(stream, timeline.kinds[code]),
            sync=sync,
            name=name,
            kind=timeline.kinds[code],
            lhs_name=other_name(timeline.lhs_names[code], name),
            cost=origin.value,
            follower=waits.get(name, ""),
        )
        yield described(label, module)


def _first_rows(timeline: Timeline) -> npt.NDArray[np.int64]:
    """int64[names], the first row with each name."""
    first = np.zeros(len(timeline.names), dtype=np.int64)
    backwards = np.arange(len(timeline))[::-1]
    first[timeline.instruction[::-1]] = backwards
    return first


def followers_of(module: Module | None, names: Iterable[str]) -> Mapping[str, str]:
    """The first instruction after the done of each collective, by the name of its start."""
    return {} if module is None else followers(module, frozenset(names))


def style_of(stream: Stream, kind: str) -> Style:
    """Choose the style of an instruction's bars."""
    if stream is Stream.COMPUTE and kind == "matmul":
        return Style.MATMUL
    return _STYLE_OF[stream]


def other_name(lhs_name: str, name: str) -> str:
    """The name when LHS ran; empty if it does not differ."""
    return "" if lhs_name == name else lhs_name


def described(label: BarLabel, module: Module | None) -> BarLabel:
    """Add to a label the shape, the framework's name and the source from the module."""
    known = None if module is None else module.instructions.get(label.name)
    if known is None:
        return label
    shape = str(known.shape)
    if len(shape) > LONG:
        shape = f"{shape[:LONG]}…"
    source = _kept(known.source)
    return label._replace(op_name=known.op_name, shape=shape, source=source)


_kept = lru_cache(maxsize=1 << 14)(kept_text)


def text_timeline(
    panels: Sequence[Panel], width: int = 100, until_us: float = 0.0
) -> str:
    """Draw each panel as a block of lines, `width` columns wide, up to `until_us` (0: all)."""
    longest_us = max((panel.length_us for panel in panels), default=0.0)
    end_us = until_us or longest_us
    cells = width - MARGIN
    edges = np.linspace(0.0, max(end_us, 1e-9), cells + 1)
    lines: list[str] = []
    for panel in panels:
        lines += _panel_lines(panel, edges)
    lines.append(f"{'':{MARGIN}}0{figures.time(end_us):>{cells - 1}}")
    return "\n".join(lines) + "\n"


def _panel_lines(panel: Panel, edges: npt.NDArray[np.float64]) -> Iterator[str]:
    """The facts of a panel, a shaded line for each kind of work, and where the GPU waits.

    Args:
        edges: float64[columns + 1], the start of each column and the end of the last.
    """
    step, *others = panel.facts
    facts = ", ".join([f"{step}{_costs_words(panel.note)}", *others])
    yield printable(f"{panel.label}: {facts}")
    for kind, styles in _KINDS.items():
        busy = panel.busy(*styles)
        if len(busy):
            yield f"{kind:>14}  {_shades(_shares(busy, edges))}"
    marks = "".join(map(_mark, _shares(panel.exposed, edges))).rstrip()
    if marks:
        yield f"{'exposed':>14}  {marks}"


def _costs_words(note: str) -> str:
    """`` (estimated costs)``; empty if the times are measured, or come from measured costs."""
    costs = note.removeprefix("predicted from ")
    if costs in ("", "predicted", "measured", "measured costs"):
        return ""
    return f" ({costs})"


def _shares(busy: Intervals, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """float64[columns], the busy share of each column's time."""
    return covered(busy, edges[:-1], edges[1:]) / np.diff(edges)


def _shades(shares: npt.NDArray[np.float64]) -> str:
    """A character for each column, the darker the busier."""
    levels = np.ceil(shares * (len(_SHADES) - 1) - 1e-9).astype(int)
    return "".join(_SHADES[level] for level in levels).rstrip()


def _mark(share: float) -> str:
    """A mark below a column in which the GPU waits."""
    if share > 0.5:
        return "^"
    return "'" if share > 0.05 else " "


def timeline(panels: Sequence[Panel], first_us: float = 0.0) -> value.TimelineData:
    """Make a timeline of panels.

    Args:
        panels: schedules or devices, one above the other.
        first_us: length of the part shown first; 0: one step, or all without steps.
    """
    data = encode(panels, first_us)
    return value.TimelineData(data, text_timeline(panels, until_us=first_us))


def encode(panels: Sequence[Panel], first_us: float = 0.0) -> str:
    """Pack the scene of some panels. This makes names printable."""
    texts = {"": 0}
    numbers: dict[BarLabel, int] = {}
    records: list[Any] = []
    found: list[ScenePanel] = []
    for panel in panels:
        for item in panel.names:
            if item not in numbers:
                numbers[item] = len(numbers)
                records.append(_record(item, texts))
        places = np.array([numbers[item] for item in panel.names], dtype=np.int64)
        found.append(_panel_data(panel, places))
    scene = Scene(_ns(first_us), tuple(texts), tuple(records), tuple(found))
    return packed(scene)


def _record(item: BarLabel, texts: dict[str, int]) -> list[int]:
    """Encode a label as numbers. New texts are added to `texts`."""
    style, sync, *words = item
    numbers = [texts.setdefault(printable(word), len(texts)) for word in words]
    return [int(style), int(sync), *numbers]


def _panel_data(panel: Panel, places: npt.NDArray[np.int64]) -> ScenePanel:
    """Encode a panel. `places` maps its names to their index among the names of all panels."""
    lanes = [_lane_data(lane, places) for lane in panel.lanes]
    rows = sum(lane.count.sum() for lane in panel.lanes)
    return ScenePanel(
        label=printable(panel.label),
        note=printable(panel.note),
        facts=" · ".join(panel.facts),
        length=_ns(panel.length_us),
        open=panel.opened,
        rows=int(rows),
        spans=tuple(map(_span_data, panel.spans)),
        lanes=tuple(lanes),
    )


def _span_data(span: Span) -> SceneSpan:
    """Encode a span, with its times in ns."""
    return SceneSpan(
        label=printable(span.label),
        start=_ns(span.start_us),
        end=_ns(span.end_us),
        depth=span.depth,
        folded=span.folded,
        folded_start=_ns(span.folded_start_us),
        folded_end=_ns(span.folded_end_us),
    )


def _lane_data(lane: Lane, places: npt.NDArray[np.int64]) -> SceneLane:
    """Encode bars in ns. Rounding does not make bars overlap."""
    start = np.rint(lane.start_us * 1e3).astype(np.int64)
    end = np.maximum(np.rint(lane.end_us * 1e3).astype(np.int64), start)
    next_start = np.maximum(start[1:], start[:-1])
    end[:-1] = np.minimum(end[:-1], next_start)
    has_several = bool((lane.count != 1).any())
    return SceneLane(
        label=printable(lane.label),
        start=tuple(np.diff(start, prepend=0).tolist()),
        duration=tuple((end - start).tolist()),
        name=tuple(places[lane.named].tolist()),
        count=tuple(lane.count.tolist()) if has_several else (),
    )


def _ns(time_us: float) -> int:
    """Microseconds as whole nanoseconds."""
    return round(time_us * 1e3)
