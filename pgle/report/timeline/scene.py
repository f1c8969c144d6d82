"""What a timeline shows: panels of lanes of bars, of a predicted step or (`measured.py`) a trace; and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from pgle.errors import printable
from pgle.masking import kept_text
from pgle.report.page import figures
from pgle.schedule.program import ORIGINS, Breakdown, Loop, Stream, Timeline
from pgle.trace.intervals import EMPTY, Intervals, covered, join, union, without
from pgle.xla.collectives import followers
from pgle.xla.hlo.module import Module


class Style(IntEnum):
    """What a bar is, and so how it is drawn."""

    COMPUTE = 0
    MATMUL = 1
    COMMUNICATION = 2
    COPY = 3


LONG = 200  # letters of a shape; tuples of combined collectives have thousands
_SHADES = " ░▒▓█"
_KINDS = {"compute": (Style.COMPUTE, Style.MATMUL), "communication": (Style.COMMUNICATION,), "copy": (Style.COPY,)}
_STYLE_OF = {Stream.COMPUTE: Style.COMPUTE, Stream.COMMUNICATION: Style.COMMUNICATION, Stream.COPY: Style.COPY}


@dataclass(frozen=True, slots=True)
class Named:
    """One instruction, as bars of it are described."""

    name: str  # of the instruction
    style: Style  # how its bars are drawn
    kind: str = ""  # ``all-gather``, ``matmul`` or its opcode
    lhs_name: str = ""  # its name when LHS ran, if that is another
    op_name: str = ""  # the framework's name
    shape: str = ""  # of its result
    source: str = ""  # file and line of the program
    cost: str = ""  # where its time comes from: ``measured``, ``estimated`` …
    sync: bool = False  # a collective that runs in turn with compute
    follower: str = ""  # of an asynchronous one, the first instruction after its done


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
    folded: int = 0  # iterations that are drawn as one, stretched over the time of all; 0: none
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
    names: tuple[Named, ...]  # the instructions
    lanes: tuple[Lane, ...]  # compute first
    spans: tuple[Span, ...] = ()  # loops and steps
    opened: bool = True  # whether the page shows its lanes at first
    unit: str = "step"  # what `parts` are of

    @property
    def facts(self) -> str:
        """``step 6.482 ms · exposed communication 539.2 µs · idle 16 µs``."""
        parts = self.parts
        copies = f" · exposed copies {figures.time(parts.exposed_copy_us)}" if parts.exposed_copy_us > 0 else ""
        return (
            f"{self.unit} {figures.time(parts.step_us)} · exposed communication "
            f"{figures.time(parts.exposed_communication_us)}{copies} · idle {figures.time(parts.idle_us)}"
        )

    @cached_property
    def styles(self) -> npt.NDArray[np.uint8]:
        """uint8[names], their `Style`."""
        return np.array([item.style for item in self.names], dtype=np.uint8)

    def busy(self, *styles: Style) -> Intervals:
        """When bars of some styles run, in all lanes."""
        chosen = [(lane, np.isin(self.styles[lane.named], styles)) for lane in self.lanes if len(lane.named)]
        if not chosen:
            return EMPTY
        starts, ends = ([getattr(lane, of)[rows] for lane, rows in chosen] for of in ("start_us", "end_us"))
        return union(np.concatenate(starts), np.concatenate(ends))

    @cached_property
    def compute(self) -> Intervals:
        """When something computes."""
        return self.busy(Style.COMPUTE, Style.MATMUL)

    @cached_property
    def exposed(self) -> Intervals:
        """When collectives run and nothing computes."""
        return without(self.busy(Style.COMMUNICATION), self.compute)

    @cached_property
    def exposed_copies(self) -> Intervals:
        """When only copies run."""
        return without(self.busy(Style.COPY), join(self.compute, self.busy(Style.COMMUNICATION)))

    def exposed_us(self, lane: Lane) -> npt.NDArray[np.float64]:
        """float64[n]: of each bar the time during which nothing computes; of compute nothing."""
        hidden = covered(self.compute, lane.start_us, lane.end_us)
        computes = np.isin(self.styles[lane.named], (Style.COMPUTE, Style.MATMUL))
        return np.where(computes, 0.0, np.maximum(lane.duration_us - hidden, 0.0))


def panel_of(label: str, timeline: Timeline, note: str = "", module: Module | None = None) -> Panel:
    """A predicted step as a panel.

    Args:
        note: where its costs come from: ``measured``, ``estimated``, ``mixed``.
        module: the scheduled module, for shapes, names of the framework and what waits for a collective.
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
        spans=tuple(_span(loop) for loop in timeline.loops if loop.trips > 1),
    )


def disjoint(bars: Lane) -> list[Lane]:
    """Bars as lanes in which none overlaps another: as many as run at once, one at least; the first has a label."""
    bars = chosen(bars, np.argsort(bars.start_us, kind="stable"))
    end = bars.end_us
    if bool((bars.start_us[1:] >= end[:-1] - 1e-6).all()):
        return [bars]
    ends: list[float] = []
    place = np.empty(len(end), dtype=np.int32)
    for row, (first, last) in enumerate(zip(bars.start_us.tolist(), end.tolist(), strict=True)):
        free = next((lane for lane, until in enumerate(ends) if until <= first + 1e-6), len(ends))
        ends[free : free + 1] = [last]
        place[row] = free
    lanes = [chosen(bars, np.flatnonzero(place == lane)) for lane in range(len(ends))]
    return [lanes[0], *(replace(lane, label="") for lane in lanes[1:])]


def chosen(lane: Lane, rows: npt.NDArray[np.intp]) -> Lane:
    """Some bars of a lane."""
    columns = (lane.start_us[rows], lane.duration_us[rows], lane.named[rows], lane.count[rows])
    return Lane(lane.label, *columns)


def _span(loop: Loop) -> Span:
    return Span(
        f"{printable(loop.name)}, {loop.trips} iterations",
        loop.start_us,
        loop.end_us,
        loop.depth,
        loop.folded if loop.folded > 1 else 0,
        loop.folded_start_us,
        loop.folded_end_us,
    )


def _names(timeline: Timeline, module: Module | None) -> tuple[npt.NDArray[np.int32], tuple[Named, ...]]:
    """The number of each row's entry, and the entries: one per instruction."""
    entry = np.zeros(len(timeline.names), dtype=np.int64)
    entry[timeline.instruction[::-1]] = np.arange(len(timeline))[::-1]  # the first row of each name
    follower = followers(module, frozenset(timeline.names)) if module is not None else {}
    found = []
    for code, name in enumerate(timeline.names):
        row, stream = int(entry[code]), Stream.COMPUTE
        origin, sync = ORIGINS[0], False
        if len(timeline):
            stream, sync = Stream(int(timeline.stream[row])), bool(timeline.sync[row])
            origin = ORIGINS[int(timeline.origin[row])]
        kind = timeline.kinds[code] if timeline.kinds else ""
        lhs_name = timeline.lhs_names[code] if timeline.lhs_names else name
        found.append(named(name, stream, module, kind, lhs_name, origin.value, sync, follower.get(name, "")))
    return timeline.instruction.astype(np.int32), tuple(found)


def named(
    name: str, stream: Stream, module: Module | None, kind: str, lhs_name: str, cost: str, sync: bool, follower: str
) -> Named:
    """An instruction on a stream with what its module says of it; the others as in `Named`."""
    style = Style.MATMUL if stream is Stream.COMPUTE and kind == "matmul" else _STYLE_OF[stream]
    lhs_name = "" if lhs_name == name else lhs_name
    known = module.instructions.get(name) if module is not None else None
    shape, op_name, source = ("", "", "") if known is None else (str(known.shape), known.op_name, known.source)
    shape = shape if len(shape) <= LONG else f"{shape[:LONG]}…"
    return Named(name, style, kind, lhs_name, op_name, shape, _kept(source), cost, sync, follower)


@lru_cache(maxsize=1 << 14)
def _kept(source: str) -> str:
    return kept_text(source)


def shown(panels: Sequence[Panel]) -> float:
    """The longest panel in microseconds."""
    return max((panel.length_us for panel in panels), default=0.0)


def text_timeline(panels: Sequence[Panel], width: int = 100, until_us: float = 0.0) -> str:
    """A block of lines per panel, `width` columns wide; up to a time, or all if it is 0."""
    longest, cells = until_us or shown(panels), width - 16
    edges = np.linspace(0.0, max(longest, 1e-9), cells + 1)

    def share(busy: Intervals) -> np.ndarray:
        return covered(busy, edges[:-1], edges[1:]) / np.diff(edges)

    lines: list[str] = []
    for panel in panels:
        costs = panel.note.removeprefix("predicted from ") if panel.note != "predicted from measured costs" else ""
        label = f" ({costs})" if costs not in ("", "predicted", "measured") else ""
        facts = panel.facts.split(" · ")
        lines.append(f"{panel.label}: {', '.join([facts[0] + label, *facts[1:]])}")
        for kind, styles in _KINDS.items():
            busy = panel.busy(*styles)
            if len(busy):
                shades = np.ceil(share(busy) * (len(_SHADES) - 1) - 1e-9).astype(int)
                lines.append(f"{kind:>14}  {''.join(_SHADES[shade] for shade in shades).rstrip()}")
        marks = "".join("^" if part > 0.5 else "'" if part > 0.05 else " " for part in share(panel.exposed))
        if marks.strip():
            lines.append(f"{'exposed':>14}  {marks.rstrip()}")
    lines.append(f"{'':16}0{figures.time(longest):>{cells - 1}}")
    return "\n".join(lines) + "\n"
