"""Pictures of a measured step, for pages: steps over time, what changed, waits of ranks, kernels
against the roofline, memory. A terminal shows the tables of the same sections instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

import numpy as np

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.differences import Differences
from pgle.analyze.layers import MeasuredInstruction
from pgle.analyze.memory import Memory
from pgle.analyze.window import StepParts
from pgle.errors import cut, printable
from pgle.report import charts
from pgle.report.charts import Axis, Margins, Plot, Point
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
    """Put a section's picture before its parts. What changed is open from the start."""
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
    steps = f"{len(numbers)} steps"
    plot = _over_time(f"{steps} over time{note}", [numbers], [us], "execution")
    for number, time_us in zip(numbers, us, strict=True):
        about = f"execution {number}: {figures.time(time_us)}"
        plot.dot("point", (number, time_us), about=about)
    ends = figures.between(figures.time(us.min()), figures.time(us.max()))
    median = figures.time(np.median(us))
    slow = _draw_slow(plot, parts)
    pattern = _draw_pattern(plot, parts)
    words = (f"{steps}, {ends}, median {median}", slow, pattern)
    return charts.drawn([plot], "; ".join(filter(None, words)))


def _draw_slow(plot: Plot, parts: StepParts) -> str:
    """Ring the slow steps and label the first. Return a text with the numbers of the first few."""
    slow: list[tuple[int, float]] = []
    for item, time_us in zip(parts.steps, parts.times_us, strict=True):
        if item.is_slow:
            place = (item.execution, time_us)
            slow.append(place)
            plot.dot("slow", place, 6)
    if not slow:
        return ""
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
    fitted_us = (scale * level).tolist()
    plot.path("mark", list(zip(numbers, fitted_us, strict=True)))
    words = pattern.describe(numbers, "execution")
    plot.text("mark", (plot.x.low, plot.y.high), words, "start", dy=-8)
    return words


def sides_chart(found: Comparison) -> Chart | None:
    """The steady steps of both sides by their number, with their medians; None without steps."""
    base = [run for run in found.base.runs if len(run)]
    new = [run for run in found.new.runs if len(run)]
    if not base or not new:
        return None
    runs = [*base, *new]
    title = "Steady steps of both sides"
    if any(run.series.simulated for run in runs):
        title = f"{title}, simulated"
    numbers = [run.step.tolist() for run in runs]
    us = [run.step_time_s * 1e6 for run in runs]
    plot = _over_time(title, numbers, us, "step")
    key: list[tuple[str, str]] = []
    words: list[str] = []
    for style, side in (("first", found.base), ("point", found.new)):
        _draw_side(plot, side, style)
        label = printable(side.label)
        median = figures.time(side.median_s * 1e6)
        key.append((style, f"{cut(label, 20)} {median}"))
        words.append(f"{label}: {side.steps} steps, median {median}")
    plot.key(key)
    return charts.drawn([plot], "; ".join(words))


def _draw_side(plot: Plot, side: Side, style: str) -> None:
    """Draw the steps of a side as dots, and their median as a line."""
    for run in side.runs:
        us = (run.step_time_s * 1e6).tolist()
        for point in zip(run.step.tolist(), us, strict=True):
            plot.dot(style, point, 2)
    median_us = side.median_s * 1e6
    plot.line("thin", (plot.x.low, median_us), (plot.x.high, median_us))


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


# ---- rows


def _plot_of_rows(title: str, across: Axis, names: Sequence[str], right: float) -> Plot:
    """A plot with a row for each name. Figures behind the rows have `right` units of room."""
    bottom = 42 if across.label else 30
    margins = Margins(left=NAMES, right=right, bottom=bottom)
    height = len(names) * ROW + margins.top + margins.bottom
    return Plot(title, across, charts.rows(names), height, margins)


def _row_bar(
    plot: Plot, row: int, style: str, ends: tuple[float, float], text: str
) -> None:
    """A bar in a row, with its figure behind it."""
    start, end = ends
    plot.box(style, (start, row + 0.15), (end, row + 0.85))
    plot.text("name", (end, row + 0.5), text, "start", dx=5)


def _row_name(name: str) -> str:
    """A name next to a row, cut to the room there."""
    return cut(printable(name), LONGEST)


# ---- what changed


@dataclass(frozen=True, slots=True)
class WaterfallBar:
    """One bar of a waterfall: from one length of the step to another."""

    name: str
    from_us: float
    to_us: float

    @property
    def change(self) -> str:
        """The difference of the two lengths, with its sign."""
        delta_us = self.to_us - self.from_us
        text = figures.time(delta_us)
        is_longer = delta_us > 0 and text != figures.NONE
        return f"+{text}" if is_longer else text


def waterfall(found: Differences) -> Chart:
    """A waterfall from the step before to the step after: the largest changes, then the sum of all
    others.
    """
    before_us = found.before.step_us
    after_us = found.after.step_us
    bars = _waterfall_bars(found)
    across = _waterfall_axis([before_us, *(bar.to_us for bar in bars)])
    names = ["before", *(_row_name(bar.name) for bar in bars), "after"]
    plot = _plot_of_rows("From the step before to the step after", across, names, 66)
    before = figures.time(before_us)
    after = figures.time(after_us)
    _row_bar(plot, 0, "compute", (across.low, before_us), before)
    _row_bar(plot, len(bars) + 1, "compute", (across.low, after_us), after)
    for row, bar in enumerate(bars, start=1):
        _draw_change(plot, row, bar)
    changes = "; ".join(f"{bar.name} {bar.change}" for bar in bars)
    words = f"before {before}; {changes}; after {after}"
    return charts.drawn([plot], printable(words))


def _waterfall_bars(found: Differences) -> list[WaterfallBar]:
    """A bar for each of the largest changes, and one for all others. Each begins where the one
    above ends.
    """
    bars: list[WaterfallBar] = []
    us = found.before.step_us
    for change in found.changes[:CHANGES]:
        start_us = us
        us += change.delta_us
        name = change.name or str(change.kind)  # some kinds have no instruction
        bars.append(WaterfallBar(name, start_us, us))
    bars.append(WaterfallBar("all other changes", us, found.after.step_us))
    return bars


def _waterfall_axis(ends_us: Sequence[float]) -> Axis:
    """An axis around all lengths of the step. It begins at 0 only if they differ by more than a
    quarter, because small changes of a long step would be invisible.
    """
    low_us = min(ends_us)
    high_us = max(ends_us)
    room_us = max((high_us - low_us) * 0.12, high_us * 1e-3)
    start_us = low_us - room_us
    label = "step; the axis does not begin at 0"
    if high_us - low_us > high_us / 4:
        start_us = 0.0
        label = "step"
    return charts.times(start_us, high_us + room_us, label=label, most=4)


def _draw_change(plot: Plot, row: int, bar: WaterfallBar) -> None:
    """Draw the bar, a line down to the next one, and the figure behind it."""
    style, tone = ("hidden", "good")
    if bar.to_us > bar.from_us:
        style, tone = ("exposed", "bad")
    bottom = row + 0.85
    plot.box(style, (bar.from_us, row + 0.15), (bar.to_us, bottom), about=bar.name)
    plot.line("thin", (bar.to_us, bottom), (bar.to_us, row + 1.15))
    end = (max(bar.from_us, bar.to_us), row + 0.5)
    plot.text(tone, end, bar.change, "start", dx=5)


# ---- waits of ranks


def waits_chart(step: MeasuredStep) -> Chart | None:
    """A row for each rank, a column for each step. Redder means that others wait longer for the
    rank. None if nobody waits.
    """
    waited_us = step.late.waited_us
    if waited_us is None or not waited_us.any() or waited_us.shape[1] < 2:
        return None
    mean_us = waited_us.mean(axis=0)
    latest = np.argsort(-mean_us, kind="stable")[:MOST_RANKS]
    ranks = np.sort(latest)
    names = [_row_name(step.rank_name(step.windows[rank].device)) for rank in ranks]
    steps = len(waited_us)
    columns = min(steps, MOST_COLUMNS)
    title = "How long the other ranks wait for each rank, mean at the right"
    plot = _plot_of_rows(title, _columns_of_steps(steps, columns), names, 70)
    pieces = np.array_split(waited_us[:, ranks], columns)
    cells_us = np.array([piece.mean(axis=0) for piece in pieces])
    most_us = float(cells_us.max())
    waits: list[str] = []
    for row, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        _draw_waits(plot, row, cells_us[:, row], most_us)
        mean = figures.time(mean_us[rank])
        plot.text("name", (columns, row + 0.5), mean, "start", dx=6)
        waits.append(f"{name}: {mean}")
    words = f"The other ranks wait in a step for {'; '.join(waits)}"
    return charts.drawn([plot], words)


def _columns_of_steps(steps: int, columns: int) -> Axis:
    """An axis with a column for each step, or for several steps if there are fewer columns."""
    label = f"{steps} steps"
    if columns < steps:
        fewest = steps // columns
        most = -(-steps // columns)
        label = f"{label}, {fewest} to {most} a column"
    ends = ((0.5, "first"), (columns - 0.5, "last")) if columns > 1 else ()
    return Axis(0.0, columns, ends, label)


def _draw_waits(plot: Plot, row: int, us: np.ndarray, most_us: float) -> None:
    """Draw the waits of one rank, a box for each column. The longest wait of all is the reddest."""
    for column, wait_us in enumerate(us.tolist()):
        start = (column + 0.04, row + 0.06)
        end = (column + 0.96, row + 0.94)
        plot.box("idle", start, end, strength=0.35)
        strength = min(wait_us / most_us, 0.999)
        plot.box("exposed", start, end, strength=strength, about=figures.time(wait_us))


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
    """The place of a kernel in the roofline: one execution, against the GPU's limit."""
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
    words: list[str] = []
    for number, point in enumerate(points, start=1):
        reached = f"{figures.share(point.reached, 0)} of its limit"
        if number <= NAMED:
            name = cut(printable(point.name), 36)
            plot.caption(number - 1, f"{number}  {name}, {reached}")
        words.append(
            f"{number}. {point.name}: {point.intensity:,.3g} operations for each byte, "
            f"{point.tflops:,.3g}·10¹² a second, {reached}"
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
    labels: dict[Point, list[int]] = {}  # the kernels' numbers by place
    for number, point in enumerate(points, start=1):
        place = (point.intensity, point.tflops)
        share = point.us / points[0].us
        plot.dot("point kernel", place, 2 + 5 * share**0.5, point.name)
        near = (at for at in labels if plot.distance(at, place) < LABEL_ROOM)
        labels.setdefault(next(near, place), []).append(number)
    for place, numbers in labels.items():
        plot.text("name", place, _numbers(numbers), dy=20)


def _numbers(found: Sequence[int]) -> str:
    """Ascending numbers, of which some follow each other: ``1, 2, 4–6``."""
    return ", ".join(starmap(_run, figures.runs(found)))


def _run(first: int, last: int) -> str:
    if last - first < 2:
        return ", ".join(map(str, range(first, last + 1)))
    return f"{first}–{last}"


def _plain(value: float) -> str:
    """A number of an axis: whole ones with thousands, shares with their digits."""
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
    held = [(name, size) for name, size in kinds if size]
    temporary = memory.live[:BUFFERS]
    rows = [*held, *((printable(item.name), item.size_bytes) for item in temporary)]
    rest = plan.temporary_bytes - sum(item.size_bytes for item in temporary)
    if rest > 0:
        rows.append(("other temporary memory", rest))
    most = max(size for _, size in rows)
    across = charts.sizes(most * 1.02, most=3)
    names = [_row_name(name) for name, _ in rows]
    title = f"What lives at the peak of {figures.size(plan.peak_bytes)}"
    plot = _plot_of_rows(title, across, names, 76)
    words: list[str] = []
    for row, (name, size) in enumerate(rows):
        style = "other" if row < len(held) else "compute"
        text = figures.size(size)
        _row_bar(plot, row, style, (0, size), text)
        words.append(f"{name} {text}")
    at_peak = f"At the peak: {'; '.join(words)}"
    if not plan.course_bytes:
        return charts.drawn([plot], at_peak)
    course, said = _course(memory)
    return charts.drawn([course, plot], f"{said} {at_peak}")


def _course(memory: Memory) -> tuple[Plot, str]:
    """Draw memory over the schedule, and describe it."""
    plan = memory.plan
    held = plan.peak_bytes - plan.temporary_bytes
    course = np.array(plan.course_bytes)
    pieces = np.array_split(course, min(len(course), STEPS_OF_COURSE))
    sizes = [held + int(piece.max()) for piece in pieces]
    number = len(sizes)
    limit = memory.limit_bytes
    if limit is not None and limit > 2.5 * plan.peak_bytes:
        limit = None  # too far up for this chart
    across = Axis(0, number, label="instructions in the order of the schedule")
    high = max(plan.peak_bytes, limit or 0, *sizes)
    up = charts.sizes(high * 1.08)
    title = "Memory over the step, by XLA's plan"
    plot = Plot(title, across, up, margins=Margins(left=76))
    first = 0.5
    last = number - 0.5
    points = [(first + place, float(size)) for place, size in enumerate(sizes)]
    plot.area("compute", [(first, 0.0), *points, (last, 0.0)])
    plot.box("other", (first, 0), (last, held))
    if limit is not None:
        plot.line("mark", (0, limit), (number, limit))
        label = f"limit {figures.size(limit)}"
        plot.text("mark", (0, limit), label, "start", dx=4, dy=-5)
    at = int(np.argmax(sizes))
    peak = f"peak {figures.size(plan.peak_bytes)}"
    anchor = "start" if at < number / 2 else "end"
    plot.text("name", points[at], peak, anchor, dy=-5)
    starts, ends = (figures.size(size) for size in (sizes[0], sizes[-1]))
    share = figures.share(at / number, 0)
    said = f"Memory begins at {starts}, ends at {ends}, and peaks after {share} of the schedule."
    return plot, said
