"""Pictures of a measured step, for pages: steps over time, what changed, waits of ranks, kernels
against the roofline, memory. A terminal shows the tables of the same sections instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

import numpy as np

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.differences import Differences, StepChange
from pgle.analyze.layers import MeasuredInstruction
from pgle.analyze.memory import Memory
from pgle.analyze.window import StepParts
from pgle.errors import cut, printable
from pgle.report import charts
from pgle.report.charts import Axis, Margins, Plot
from pgle.report.page import figures
from pgle.report.page.value import Chart, Page, Section
from pgle.run.analyze import Analysis
from pgle.steps.compare import Comparison
from pgle.steps.series import Side
from pgle.worth import is_worth
from pgle.xla.targets import Hardware

FEWEST = 3  # fewest steps of a chart over time
SLOW = 8  # slow steps that the chart's text names
MOST_COLUMNS = 40  # columns of the map of waits; longer runs are averaged
MOST_RANKS = 32  # rows of the map of waits: the ranks that the others wait for most
CHANGES = 8  # bars of a waterfall, plus one for all other changes
KERNELS = 10  # kernels in the roofline, the costliest
NAMED = 5  # kernels whose names are shown below the roofline
BUFFERS = 8  # bars of the buffers alive at the peak
STEPS_OF_COURSE = 200  # points of the line of memory over the schedule
#: smallest distance between labelled dots, in the chart's units; nearer dots share a label
LABEL_ROOM = 16
ROW = 20  # height of a row, in the chart's units
NAMES = 158  # width of the names left of rows
LONGEST = int((NAMES - 10) / charts.LETTER)  # letters of a name next to a row


def with_pictures(page: Page, found: Analysis) -> Page:
    """Return the page of an analysis, with a picture at the head of each section that has one."""
    pictures = dict(_pictures(found))
    sections = [_illustrated(item, pictures) for item in page.sections]
    waits = waits_chart(found.step)
    if waits is not None:
        is_large = is_worth(found.step.late.us, found.step.step_us)
        heading = "Which rank the others wait for"
        new = Section("waits", heading, (waits,), open=is_large)
        keys = [item.key for item in sections]
        place = keys.index("parts") + 1 if "parts" in keys else len(keys)
        sections.insert(place, new)
    return replace(page, sections=tuple(sections))


def _illustrated(section: Section, pictures: Mapping[str, Chart]) -> Section:
    if section.key not in pictures:
        return section
    is_open = section.open or section.key == "changes"
    return replace(section, parts=(pictures[section.key], *section.parts), open=is_open)


def _pictures(found: Analysis) -> Iterator[tuple[str, Chart]]:
    """The pictures by the key of their section."""
    step = found.step
    note = ", simulated" if step.trace.simulated else ""
    if found.against is not None and found.against.changes:
        yield "changes", waterfall(found.against)
    if len(step.parts.steps) >= FEWEST:
        yield "steps", steps_chart(step.parts, note)
    if step.hardware is not None:
        kernels = _heavy(step.compute)
        if kernels:
            yield "instructions", roofline(kernels, step.hardware, note)
    if step.memory is not None:
        yield "memory", memory_chart(step.memory)


# ---- steps over time


def steps_chart(parts: StepParts, note: str = "") -> Chart:
    """Plot each step at its place in the run. Rings mark slow steps, and a line marks a pattern.

    Args:
        note: end of the title: ``, simulated``.
    """
    numbers = [item.execution for item in parts.steps]
    us = parts.times_us
    title = f"{len(numbers)} steps over time{note}"
    plot = _over_time(title, [numbers], [us], "execution")
    for number, time_us in zip(numbers, us, strict=True):
        about = f"execution {number}: {figures.time(time_us)}"
        plot.dot("point", (number, time_us), about=about)
    median = figures.time(np.median(us))
    words = (
        f"{len(numbers)} steps, {_ends(us)}, median {median}",
        _draw_slow(plot, parts),
        _draw_pattern(plot, parts),
    )
    return charts.drawn([plot], "; ".join(filter(None, words)))


def _draw_slow(plot: Plot, parts: StepParts) -> str:
    """Ring the slow steps and label the first. Return a text with the numbers of the first few."""
    slow = [
        (item.execution, us)
        for item, us in zip(parts.steps, parts.times_us, strict=True)
        if item.is_slow
    ]
    if not slow:
        return ""
    for place in slow:
        plot.dot("slow", place, 6)
    plot.text("bad", slow[0], "slow", "start", dx=10)
    numbers = ", ".join(str(number) for number, _ in slow[:SLOW])
    return f"slow: {numbers}"


def _draw_pattern(plot: Plot, parts: StepParts) -> str:
    """Draw the clearest pattern of the steps as a line. Return its description, empty without
    one.
    """
    if not parts.patterns:
        return ""
    pattern = parts.patterns[0]
    numbers = [item.execution for item in parts.steps]
    level = np.exp(pattern.fitted)
    scale = float(np.median(parts.times_us / level))
    plot.path("mark", list(zip(numbers, (scale * level).tolist(), strict=True)))
    words = pattern.describe(numbers, "execution")
    plot.text("mark", (plot.x.low, plot.y.high), words, "start", dy=-8)
    return words


def sides_chart(found: Comparison) -> Chart | None:
    """The steady steps of both sides by their number, with their medians; None without steps."""
    base = [run for run in found.base.runs if len(run)]
    new = [run for run in found.new.runs if len(run)]
    if not base or not new:
        return None
    every = [*base, *new]
    title = "Steady steps of both sides"
    if any(run.series.simulated for run in every):
        title = f"{title}, simulated"
    numbers = [run.step.tolist() for run in every]
    us = [run.step_time_s * 1e6 for run in every]
    plot = _over_time(title, numbers, us, "step")
    _draw_side(plot, found.base, "first")
    _draw_side(plot, found.new, "point")
    key = (("first", _side_label(found.base)), ("point", _side_label(found.new)))
    plot.key(key)
    words = "; ".join(map(_side_words, (found.base, found.new)))
    return charts.drawn([plot], words)


def _draw_side(plot: Plot, side: Side, style: str) -> None:
    """Draw the steps of a side as dots, and their median as a line."""
    for run in side.runs:
        us = (run.step_time_s * 1e6).tolist()
        for point in zip(run.step.tolist(), us, strict=True):
            plot.dot(style, point, 2)
    median_us = side.median_s * 1e6
    plot.line("thin", (plot.x.low, median_us), (plot.x.high, median_us))


def _side_label(side: Side) -> str:
    return f"{cut(printable(side.label), 20)} {figures.time(side.median_s * 1e6)}"


def _side_words(side: Side) -> str:
    median = figures.time(side.median_s * 1e6)
    return f"{printable(side.label)}: {side.steps} steps, median {median}"


def _over_time(
    title: str, numbers: Sequence[Sequence[int]], us: Sequence[np.ndarray], what: str
) -> Plot:
    """Axes around steps. The vertical axis spans their differences, at least a fiftieth of the
    step.
    """
    low = min(map(min, us))
    high = max(map(max, us))
    room = max((high - low) * 0.15, high * 0.01)
    first = min(map(min, numbers))
    last = max(map(max, numbers))
    if last == first:
        first, last = first - 1, first + 1
    margin = (last - first) * 0.02
    across = charts.linear(last + margin, figures.count, low=first - margin, label=what)
    up = charts.times(max(low - room, 0.0), high + room)
    return Plot(title, _whole(across), up, margins=Margins(left=70))


def _whole(axis: Axis) -> Axis:
    """An axis of step numbers. Only whole numbers have ticks, and there are no grid lines."""
    ticks = tuple((value, text) for value, text in axis.ticks if value == round(value))
    return replace(axis, ticks=ticks, has_grid=False)


def _ends(us: np.ndarray) -> str:
    return figures.between(figures.time(us.min()), figures.time(us.max()))


# ---- what changed


@dataclass(frozen=True, slots=True)
class WaterfallBar:
    """One bar of a waterfall: from one length of the step to another."""

    name: str
    from_us: float
    to_us: float


def waterfall(found: Differences) -> Chart:
    """A waterfall from the step before to the step after: the largest changes, then the sum of all
    others.
    """
    bars: list[WaterfallBar] = []
    us = found.before.step_us
    for change in found.changes[:CHANGES]:
        bars.append(WaterfallBar(_change_name(change), us, us + change.delta_us))
        us += change.delta_us
    bars.append(WaterfallBar("all other changes", us, found.after.step_us))
    ends = [found.before.step_us, *(bar.to_us for bar in bars)]
    low = min(ends)
    high = max(ends)
    room = max((high - low) * 0.12, high * 1e-3)
    # drawn from zero, small changes of a long step would be invisible
    start = 0.0 if high - low > high / 4 else low - room
    names = ["before", *(_row_name(bar.name) for bar in bars), "after"]
    height = len(names) * ROW + 84
    label = "step" if start == 0 else "step; the axis does not begin at 0"
    across = charts.times(start, high + room, label=label, most=4)
    plot = Plot(
        "From the step before to the step after",
        across,
        charts.rows(names),
        height,
        Margins(left=NAMES, right=66),
    )
    whole = ((0, found.before.step_us), (len(names) - 1, found.after.step_us))
    for row, length in whole:
        _row_bar(plot, row, "compute", (start, length), figures.time(length))
    for row, bar in enumerate(bars, start=1):
        _waterfall_bar(plot, row, bar)
    parts = (f"{bar.name} {_change(bar)}" for bar in bars)
    before, after = map(figures.time, (found.before.step_us, found.after.step_us))
    words = f"before {before}; {'; '.join(parts)}; after {after}"
    return charts.drawn([plot], printable(words))


def _row_bar(
    plot: Plot, row: int, style: str, ends: tuple[float, float], text: str
) -> None:
    """A bar in a row, with its figure behind it."""
    start, end = ends
    plot.box(style, (start, row + 0.15), (end, row + 0.85))
    plot.text("name", (end, row + 0.5), text, "start", dx=5)


def _change_name(change: StepChange) -> str:
    """Name a change by its instruction, or by what happened if it has none."""
    return change.name or str(change.kind)


def _waterfall_bar(plot: Plot, row: int, bar: WaterfallBar) -> None:
    longer = bar.to_us > bar.from_us
    style = "exposed" if longer else "hidden"
    plot.box(style, (bar.from_us, row + 0.15), (bar.to_us, row + 0.85), about=bar.name)
    plot.line("thin", (bar.to_us, row + 0.85), (bar.to_us, row + 1.15))
    end = (max(bar.from_us, bar.to_us), row + 0.5)
    tone = "bad" if longer else "good"
    plot.text(tone, end, _change(bar), "start", dx=5)


def _change(bar: WaterfallBar) -> str:
    delta_us = bar.to_us - bar.from_us
    text = figures.time(delta_us)
    return f"+{text}" if delta_us > 0 and text != figures.NONE else text


def _row_name(name: str) -> str:
    return cut(printable(name), LONGEST)


# ---- waits of ranks


def waits_chart(step: MeasuredStep) -> Chart | None:
    """A row for each rank, a column for each step. Redder means that others wait longer for the
    rank. None if nobody waits.
    """
    waited_us = step.late.waited_us
    if waited_us is None or not waited_us.any() or waited_us.shape[1] < 2:
        return None
    mean_us = waited_us.mean(axis=0)
    order = np.sort(np.argsort(-mean_us, kind="stable")[:MOST_RANKS])
    steps = len(waited_us)
    columns = min(steps, MOST_COLUMNS)
    pieces = np.array_split(waited_us[:, order], columns)
    cells = np.array([piece.mean(axis=0) for piece in pieces])
    names = [_row_name(step.rank_name(step.windows[at].device)) for at in order]
    each = ""
    if columns < steps:
        each = f", {steps // columns} to {-(-steps // columns)} a column"
    ends = ((0.5, "first"), (columns - 0.5, "last")) if columns > 1 else ()
    across = Axis(0.0, columns, ends, f"{steps} steps{each}")
    plot = Plot(
        "How long the other ranks wait for each rank, mean at the right",
        across,
        charts.rows(names),
        len(names) * ROW + 84,
        Margins(left=NAMES, right=70),
    )
    most_us = float(cells.max())
    for row, at in enumerate(order):
        _waits_row(plot, row, cells[:, row], most_us)
        mean = (columns, row + 0.5)
        plot.text("name", mean, figures.time(mean_us[at]), "start", dx=6)
    waits = [
        f"{name}: {figures.time(mean_us[at])}"
        for name, at in zip(names, order, strict=True)
    ]
    words = f"The other ranks wait in a step for {'; '.join(waits)}"
    return charts.drawn([plot], words)


def _waits_row(plot: Plot, row: int, us: np.ndarray, most_us: float) -> None:
    for column, value in enumerate(us.tolist()):
        corners = (column + 0.04, row + 0.06), (column + 0.96, row + 0.94)
        plot.box("idle", *corners, strength=0.35)
        strength = min(value / most_us, 0.999)
        about = figures.time(value)
        plot.box("exposed", *corners, strength=strength, about=about)


# ---- kernels against the roofline


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A kernel in the roofline."""

    name: str
    intensity: float  # operations per byte moved
    tflops: float  # 10^12 operations per second
    limit_tflops: float  # limit of the GPU at this intensity
    us: float  # time per step

    @property
    def reached(self) -> float:
        """The kernel's speed as a share of the limit."""
        return self.tflops / self.limit_tflops


def _heavy(compute: Sequence[MeasuredInstruction]) -> list[MeasuredInstruction]:
    """The costliest instructions whose operations and bytes are known."""
    known = [item for item in compute if _operations(item) and item.us > 0]
    return sorted(known, key=lambda item: -item.us)[:KERNELS]


def _operations(item: MeasuredInstruction) -> float:
    """Operations of one execution; 0 if they or the bytes are unknown."""
    if item.work is None or not item.work.bytes:
        return 0.0
    return item.work.flops + item.work.other_operations


def _point(item: MeasuredInstruction, hardware: Hardware) -> RooflinePoint:
    work = item.work
    assert work is not None
    operations = _operations(item)
    each_us = item.us / max(item.count, 1e-9)
    limit_us = max(work.roofline_us(hardware), 1e-9)
    return RooflinePoint(
        name=item.name,
        intensity=operations / work.bytes,
        tflops=operations / each_us / 1e6,
        limit_tflops=operations / limit_us / 1e6,
        us=item.us,
    )


def roofline(
    kernels: Sequence[MeasuredInstruction], hardware: Hardware, note: str = ""
) -> Chart:
    """Plot kernels by operations per byte and operations per second, below the GPU's two limits.

    Args:
        note: end of the title: ``, simulated``.
    """
    points = [_point(item, hardware) for item in kernels]
    roof = _roof(kernels, hardware)
    plot = _roofline_plot(points, roof, f"roofline of {hardware.name}{note}")
    _draw_roof(plot, roof, f"{hardware.memory_gb_s:,.0f} GB/s")
    _draw_points(plot, points)
    for line, point in enumerate(points[:NAMED]):
        name = cut(printable(point.name), 36)
        plot.caption(line, f"{line + 1}  {name}, {_reached(point)}")
    words = (
        f"{number}. {point.name}: {point.intensity:,.3g} operations for each byte, "
        f"{point.tflops:,.3g}·10¹² a second, {_reached(point)}"
        for number, point in enumerate(points, start=1)
    )
    return charts.drawn([plot], printable("; ".join(words)))


@dataclass(frozen=True, slots=True)
class Roof:
    """The limits of a GPU: 10^12 operations per second by type, and 10^12 bytes per second."""

    peaks: Mapping[str, float]
    memory: float

    @property
    def highest(self) -> float:
        """The largest of the peaks."""
        return max(self.peaks.values())

    @property
    def ridge(self) -> float:
        """Operations per byte above which memory does not limit the largest peak."""
        return self.highest / self.memory


def _roof(kernels: Sequence[MeasuredInstruction], hardware: Hardware) -> Roof:
    """The limits for these kernels: the peaks of f32 and of each type that they multiply."""
    peaks = {"f32": hardware.tflops["f32"]}
    for item in kernels:
        if item.work is not None and item.work.flops:
            name = f"{item.work.dtype} products"
            peaks[name] = item.work.peak_tflops(hardware)
    return Roof(peaks, hardware.memory_gb_s / 1e3)


def _roofline_plot(points: Sequence[RooflinePoint], roof: Roof, of: str) -> Plot:
    """Logarithmic axes around points and roof, with room for the captions below."""
    intensities = [point.intensity for point in points]
    speeds = [point.tflops for point in points]
    left = min(*intensities, roof.ridge / 10) / 2
    right = max(*intensities, roof.ridge) * 4
    bottom = min(*speeds, roof.memory * left) / 5
    top = max(*speeds, roof.highest) * 2
    across = charts.logarithmic(left, right, _plain, label="operations for each byte")
    up = charts.logarithmic(bottom, top, _plain, label="10¹² operations a second")
    captions = 17 * min(len(points), NAMED)
    margins = Margins(left=52, top=60, bottom=60 + captions)
    title = f"{len(points)} costliest kernels, {of}"
    return Plot(title, across, up, 300 + captions, margins)


def _draw_roof(plot: Plot, roof: Roof, speed: str) -> None:
    """Draw the slope of the memory bandwidth, and a level for each peak."""
    left, right = plot.x.low, plot.x.high
    plot.line("level", (left, roof.memory * left), (roof.ridge, roof.highest))
    middle = roof.ridge / 3
    plot.text("tick", (middle, roof.memory * middle), speed, "end", dx=-8, dy=-2)
    for name, peak in roof.peaks.items():
        plot.line("level", (peak / roof.memory, peak), (right, peak))
        plot.text("tick", (right, peak), f"{name} {peak:,.4g}", "end", dx=-2, dy=-5)


def _draw_points(plot: Plot, points: Sequence[RooflinePoint]) -> None:
    """Draw a dot for each kernel. Larger dots take more of the step. Close dots share a label."""
    groups: list[list[int]] = []
    places = [(point.intensity, point.tflops) for point in points]
    for number, place in enumerate(places):
        for group in groups:
            if plot.distance(places[group[0]], place) < LABEL_ROOM:
                group.append(number)
                break
        else:
            groups.append([number])
    for point, place in zip(points, places, strict=True):
        radius = 2 + 5 * (point.us / points[0].us) ** 0.5
        plot.dot("point kernel", place, radius, point.name)
    for group in groups:
        label = _numbers([number + 1 for number in group])
        plot.text("name", places[group[0]], label, dy=20)


def _numbers(found: Sequence[int]) -> str:
    """Ascending numbers, of which some follow each other: ``1, 2, 4–6``."""
    return ", ".join(starmap(_run, figures.runs(found)))


def _run(first: int, last: int) -> str:
    if last - first < 2:
        return ", ".join(map(str, range(first, last + 1)))
    return f"{first}–{last}"


def _reached(point: RooflinePoint) -> str:
    return f"{figures.share(point.reached, 0)} of its limit"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


# ---- memory


def memory_chart(memory: Memory) -> Chart:
    """Show the buffers alive at the peak. Above them, if known, show memory over the schedule."""
    plan = memory.plan
    kinds = (
        ("arguments", plan.arguments_bytes),
        ("results", plan.outputs_bytes),
        ("constants", plan.constants_bytes),
    )
    bars = [(name, size) for name, size in kinds if size]
    live = [(printable(item.name), item.size_bytes) for item in memory.live]
    rest = plan.temporary_bytes - sum(size for _, size in live[:BUFFERS])
    values = live[:BUFFERS]
    if rest > 0:
        values.append(("other temporary memory", rest))
    rows = [*bars, *values]
    names = [_row_name(name) for name, _ in rows]
    most = max(size for _, size in rows)
    across = charts.sizes(most * 1.02, most=3)
    plot = Plot(
        f"What lives at the peak of {figures.size(plan.peak_bytes)}",
        across,
        charts.rows(names),
        len(rows) * ROW + 72,
        Margins(left=NAMES, right=76, bottom=30),
    )
    for row, (_, size) in enumerate(rows):
        style = "other" if row < len(bars) else "compute"
        _row_bar(plot, row, style, (0, size), figures.size(size))
    words = "; ".join(f"{name} {figures.size(size)}" for name, size in rows)
    if not plan.course_bytes:
        return charts.drawn([plot], f"At the peak: {words}")
    course, said = _course(memory)
    return charts.drawn([course, plot], f"{said} At the peak: {words}")


def _course(memory: Memory) -> tuple[Plot, str]:
    """Draw memory over the schedule, and describe it."""
    plan = memory.plan
    held = plan.peak_bytes - plan.temporary_bytes
    course = np.array(plan.course_bytes)
    pieces = np.array_split(course, min(len(course), STEPS_OF_COURSE))
    sizes = [held + int(piece.max()) for piece in pieces]
    limit = memory.limit_bytes
    is_near = limit is not None and limit <= 2.5 * plan.peak_bytes
    tops = [plan.peak_bytes, *sizes]
    if limit is not None and is_near:
        tops.append(limit)
    across = Axis(0, len(sizes), label="instructions in the order of the schedule")
    high = charts.sizes(max(tops) * 1.08)
    plot = Plot(
        "Memory over the step, by XLA's plan", across, high, margins=Margins(left=76)
    )
    points = [(place + 0.5, float(size)) for place, size in enumerate(sizes)]
    outline = [(0.5, 0.0), *points, (len(sizes) - 0.5, 0.0)]
    plot.area("compute", outline)
    plot.box("other", (0.5, 0), (len(sizes) - 0.5, held))
    if limit is not None and is_near:
        plot.line("mark", (0, limit), (len(sizes), limit))
        label = f"limit {figures.size(limit)}"
        plot.text("mark", (0, limit), label, "start", dx=4, dy=-5)
    at = int(np.argmax(sizes))
    label = figures.size(plan.peak_bytes)
    place = (at + 0.5, float(sizes[at]))
    anchor = "start" if at < len(sizes) / 2 else "end"
    plot.text("name", place, f"peak {label}", anchor, dy=-5)
    said = (
        f"Memory begins at {figures.size(sizes[0])}, ends at {figures.size(sizes[-1])}, and peaks "
        f"after {figures.share(at / len(sizes), 0)} of the schedule."
    )
    return plot, said
