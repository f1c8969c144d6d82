"""A program at other sizes, as a page and as ``pgle.scale/1``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from math import inf
from pathlib import Path
from typing import Literal

from pgle.costs.profile.value import costs_are
from pgle.errors import cut, many, printable, some
from pgle.report import charts, scale_account, scale_advice, scale_control
from pgle.report.account import AccountDocument
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Cell,
    Chart,
    Column,
    Page,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.scale_account import gpus
from pgle.report.scale_control import SIZE, size_of
from pgle.report.scale_control import named as _named
from pgle.report.text import Document, flat, live
from pgle.report.timeline import PARTS
from pgle.run.scale import OnRow, Scaling
from pgle.scale.answer import (
    BREAKS,
    Anchor,
    Exposed,
    Judged,
    ScaleAnswer,
    ScaleRow,
)

PAGE = "scale.html"
NOT_MODELLED = (
    "jitter between GPUs, the network's topology and congestion, failures, "
    "input pipelines, checkpoints"
)
#: characters of a refusal on the first screen; the section `refused` has the whole text
REASON = 140
MISSING = 3  # most sizes without a step that the verdict names
# a measured step that differs from the prediction by more than this factor probably did other work
DOUBTED = 2.0
# share of the computing time: if a profile's costs cover less, it was measured with other work
LITTLE_COVERED = 0.5
NARROW = 10  # most sizes for which one chart has room


@contextmanager
def making() -> Iterator[OnRow]:
    """Show a live line on the row in progress."""
    with live("capturing and compiling") as line:
        line.noun = "row"

        def on_row(row: object, done: int, total: int) -> None:
            line.done = done
            line.total = total

        yield on_row


def scale_page(found: Scaling, path: Path | None = None) -> Page:
    """The verdict, a row for each size and variant, what would help, and the limits.

    Args:
        found: the rows, judged.
        path: path of the written page, which the answer names.
    """
    named = (item.row.module for item in found.answer.rows)
    module = next(filter(None, named), "")
    content = _table(found) if found.answer.first else None
    notes = tuple(_all_notes(found, path))
    return Page(
        title=f"pgle scale: {module or 'no step'}",
        identity=_identity(found, module),
        verdict=_verdict(found),
        tone=_tone(found),
        table=content,
        notes=notes,
        actions=scale_advice.actions(found),
        sections=tuple(_sections(found)),
        way=scale_advice.next_way(found),
        warnings=_warnings(found.answer),
    )


def _identity(found: Scaling, module: str) -> tuple[str, ...]:
    """The module, the GPUs, their network, and the origin of the costs."""
    costs = costs_are(item.row.costs_are for item in found.answer.with_step)
    assumed = "" if found.request.names_network else " (assumed)"
    return (
        module,
        f"{found.hardware.name}, {found.hardware.devices_per_host} GPUs a host",
        f"network {found.hardware.nic_gb_s:g} GB/s{assumed}",
        f"predicted from {costs} costs" if costs else "",
    )


def _tone(found: Scaling) -> Tone:
    """The tone of the verdict: bad if nothing fits, a warning if something is lost or unsure."""
    if not found.answer.good:
        return "bad"
    depends = scale_control.depends_words(found)
    if found.answer.breaks is not None or _without(found) or depends:
        return "warn"
    return "good"


def _all_notes(found: Scaling, path: Path | None) -> Iterator[str]:
    """The largest levers, the notes, which step savings refer to, and the page."""
    yield from scale_account.lever_lines(found)
    yield from _notes(found)
    yield scale_account.base_line(found)
    if path is not None:
        yield f"Page: {path}"


def _warnings(answer: ScaleAnswer) -> tuple[str, ...]:
    """Each warning once. Warnings of several rows come first, then each warning of one row with
    its size.
    """
    there = [item.row for item in answer.with_step]
    warned: dict[str, list[ScaleRow]] = {}
    for row in there:
        for line in dict.fromkeys(row.warnings):
            warned.setdefault(line, []).append(row)
    several: list[str] = []
    single: list[str] = []
    for line, of_rows in warned.items():
        if len(of_rows) > 1 or len(there) == 1:
            several.append(line)
        else:
            single.append(f"{gpus(of_rows[0])}: {line}")
    return (*several, *single)


def _verdict(found: Scaling) -> str:
    """Say how far the program scales, and which sizes have no step, or no step that fits."""
    fact = scale_control.depends_words(found) or _largest_fact(found)
    lacks = _without(found) if found.answer.good else []
    return "; ".join((fact, *lacks))


def _without(found: Scaling) -> list[str]:
    """Name the sizes at which no variant has a step that fits, a line for each reason."""
    sizes = dict.fromkeys(item.row.devices for item in found.answer.rows)
    with_step = found.answer.with_step
    there = {item.row.devices for item in with_step}
    fitting = {item.row.devices for item in with_step if item.row.fits is not False}
    lacks: dict[str, list[str]] = {}
    for devices in sizes:
        if devices in fitting:
            continue
        what = "does not fit" if devices in there else "no step"
        lacks.setdefault(what, []).append(figures.count(devices))
    return [f"{some(sizes, MISSING)} GPUs: {what}" for what, sizes in lacks.items()]


def _largest_fact(found: Scaling) -> str:
    """How far the program scales; if it has no step that fits, why."""
    answer = found.answer
    if answer.first is None:
        return f"No step at any size: {_brief(answer.rows[0].row.failure)}"
    if answer.nearest is not None and not answer.good:
        return _too_large(answer.nearest.row)
    last = answer.best[-1]
    sizes = {item.row.devices for item in answer.best}
    if len(sizes) == 1:
        return _step_of_one_size(found, last)
    if answer.breaks is None:
        efficiency = figures.share(last.scaling, 0)
        return f"Scales to {gpus(last.row)} (efficiency {efficiency})"
    at = figures.count(answer.breaks.row.devices)
    return f"{_reach(answer)}; at {at} {_loss(answer, answer.breaks)}"


def _too_large(row: ScaleRow) -> str:
    """Say how much memory a step needs, and how much there is."""
    needs = figures.size(row.memory_bytes)
    limit = figures.size(row.limit_bytes)
    return f"Does not fit: {needs} on {gpus(row)}, where jax's allocator has {limit}"


def _step_of_one_size(found: Scaling, best: Judged) -> str:
    """The step of the best variant, and how far it leads."""
    variant = f"{_named(best.row)}: " if best.row.values else ""
    step = figures.time(best.step_us)
    ahead = _ahead(found, best)
    return f"{variant}{step} on {gpus(best.row)} ({_range(best)}){ahead}"


def _reach(answer: ScaleAnswer) -> str:
    """The largest size up to which the program scales."""
    first = answer.best[0].row
    if answer.scales_to == first.devices:
        return f"Does not scale beyond {gpus(first)}"
    return f"Scales to {figures.count(answer.scales_to)} GPUs"


def _loss(answer: ScaleAnswer, breaks: Judged) -> str:
    """Name what costs the step most at the size where scaling breaks."""
    culprit = answer.culprit
    if culprit is None or answer.grows != "exposed communication":
        efficiency = figures.share(breaks.scaling, 0)
        return f"efficiency is {efficiency}: {answer.grows} grows most"
    whose = "gradients' " if culprit.moves_gradients else ""
    share = figures.share(answer.culprit_share, 0)
    where = f"{culprit.kind} over {_links(culprit)}"
    return f"{whose}{where} is exposed for {share} of the step"


def _ahead(found: Scaling, best: Judged) -> str:
    """Say how far the best variant leads the next one, if their ranges overlap."""
    others = [item for item in scale_advice.fitting(found, best) if item is not best]
    behind = max(others, key=lambda item: item.efficiency or 0.0, default=None)
    if behind is None or behind.interval_us[0] > best.interval_us[1]:
        return ""
    ratio = (behind.efficiency or 0.0) / (best.efficiency or 1.0)
    lead = figures.share(1 - ratio)
    return f", ahead of {_named(behind.row)} by {lead}, but the ranges overlap"


def _table(found: Scaling) -> Table:
    """A row for each size, in the order given. The variants of a size are sorted, the best
    first.
    """
    rows: Sequence[Judged] = found.answer.rows
    values = chain.from_iterable(item.row.values for item in rows)
    names = list(dict.fromkeys(values))
    sizes = {item.row.devices for item in rows}
    if len(sizes) == 1:
        rows = sorted(rows, key=lambda item: -(item.efficiency or 0.0))
    refuses = any(item.row.fits is False for item in rows)
    unit, steps = _step_column(rows)
    heads: list[str | Column] = [
        Column("GPUs", Unit.COUNT),
        *names,
        f"step ({unit})",
        Column("efficiency", Unit.SHARE),
        Column("exposed", Unit.SHARE),
        "most of it",
        Column("memory", Unit.SIZE),
        "fits",
        Column("TFLOP/s", Unit.RATE),
    ]
    cells: list[tuple[Value, ...]] = []
    for item, step in zip(rows, steps, strict=True):
        cells.append(_row(item, names, step, refuses))
    return table(heads, cells)


def _step_column(rows: Sequence[Judged]) -> tuple[str, list[str]]:
    """The unit of all steps, and the text of each step with its range."""
    steps = [item.step_us or None for item in rows]
    times: list[float | None] = []
    for step_us, item in zip(steps, rows, strict=True):
        times += [step_us, *map(_finite, item.interval_us)]
    unit, texts = figures.column(Unit.TIME, times, steps)
    columns = zip(texts[::3], texts[1::3], texts[2::3], strict=True)
    return unit, [f"{step} ({_ends(low, high)})" for step, low, high in columns]


def _ends(low: str, high: str) -> str:
    """A range of steps; the upper end may be unknown."""
    is_open = high == figures.NONE != low
    return f"from {low}" if is_open else f"{low}–{high}"


def _finite(time_us: float) -> float | None:
    """A time; None if it is infinite, because a figure cannot show that."""
    return None if time_us == inf else time_us


_FITS: Mapping[bool | None, Cell] = {
    True: Cell("yes", "good"),
    False: Cell("no", "bad"),
}


def _row(
    item: Judged, names: Sequence[str], step: str, refuses: bool
) -> tuple[Value, ...]:
    """A row of the table. A size without a step has no figures."""
    row = item.row
    values = (printable(row.shown.get(name, "")) for name in names)
    head: tuple[Value, ...] = (row.devices, *values)
    if row.failure:
        return (*head, "", "", "", Cell("no step", "warn"), "", "", "")
    exposed = Cell(row.exposed_us / row.step_us, "exposed")
    fits = _FITS.get(row.fits) if refuses else None
    rate = row.tflops or None
    most = _most_exposed(row)
    return (*head, step, item.efficiency, exposed, most, row.memory_bytes, fits, rate)


def _most_exposed(row: ScaleRow) -> str | None:
    """The kind and links of the collectives with most exposed time; None if none is exposed."""
    most = row.most_exposed
    return None if most is None else f"{most.kind}, {_links(most)}"


def _refused(found: Scaling) -> Mapping[str, Sequence[ScaleRow]]:
    """Rows without a step, with a short reason."""
    reasons: dict[str, list[ScaleRow]] = {}
    for item in found.answer.rows:
        if item.row.failure:
            reasons.setdefault(_brief(item.row.failure), []).append(item.row)
    return reasons


_MULTIPLIES = re.compile(r"\{[^}]*\*")
_INDIVISIBLE = re.compile("^[^{].*(divisib|divid)", re.IGNORECASE)


def _is_indivisible(found: Scaling) -> bool:
    """Whether a size was refused because something cannot be divided, and no word of the command
    contains a product.
    """
    if found.are_files or any(map(_MULTIPLIES.search, found.request.words)):
        return False
    return any(_INDIVISIBLE.search(item.row.failure) for item in found.answer.rows)


_INNER_BRACKETS = re.compile(r"\s?\([^()]*\)")
_LINE_OF_PROGRAM = re.compile(r" \([^()]+, line \d+\)$")


def _brief(failure: str) -> str:
    """Shorten a reason, without its brackets, and add the program's line that raised it."""
    reason = printable(failure)
    place = _LINE_OF_PROGRAM.search(reason)
    while (shorter := _INNER_BRACKETS.sub("", reason)) != reason:
        reason = shorter
    sentence, _, _ = reason.partition(" (")
    words = cut(sentence.rstrip(":"), REASON)
    return words if place is None else f"{words}{place[0]}"


def _range(item: Judged) -> str:
    """``654 µs … 1.13 ms``: the range of a step; its upper end may be unknown."""
    low_us, high_us = item.interval_us
    low = figures.time(low_us)
    if high_us == inf:
        return f"from {low}"
    return figures.between(low, figures.time(high_us))


def _links(item: Exposed) -> str:
    """``8 hosts``, or the GPU's own links within a host."""
    return many(item.hosts, "host") if item.hosts > 1 else item.fabric


def _notes(found: Scaling) -> Iterator[str]:
    yield from _efficiency_note(found)
    yield from _refused_notes(found)
    yield from _memory_notes(found)
    yield from _measured_notes(found)
    yield from _profile_notes(found)
    yield from _limit_notes(found)
    yield from scale_control.notes(found)


def _efficiency_note(found: Scaling) -> Iterator[str]:
    """Say how efficient each GPU is where scaling breaks, else at the largest size."""
    answer = found.answer
    item = answer.breaks
    if item is None and len(answer.best) > 1:
        item = answer.best[-1]
    if item is None or item.scaling is None or not item.efficiency:
        return
    factor = item.scaling / item.efficiency
    ends = figures.shares(end * factor for end in item.efficiency_range)
    at = f"{_named(item.row)}: at" if item.row.values else "At"
    keeps = f"{figures.share(item.scaling)} ({ends})"
    first = gpus(answer.best[0].row)
    yield f"{at} {gpus(item.row)} each does {keeps} of its work at {first}."


def _refused_notes(found: Scaling) -> Iterator[str]:
    """Say which sizes have no step and why, and the remedy if a batch does not divide."""
    refused = _refused(found)
    if found.answer.first or len(refused) > 1:
        for reason, rows in refused.items():
            sizes = ", ".join(f"{gpus(row)} {_named(row)}".strip() for row in rows)
            yield f"No step at {sizes}: {reason}"
    if _is_indivisible(found):
        yield "If that is the batch, let it grow with the GPUs: --batch '{2*devices}'."


def _memory_notes(found: Scaling) -> Iterator[str]:
    """Say whether all sizes fit, and which values were tried until one fits."""
    rows = [item.row for item in found.answer.rows]
    limits = {row.limit_bytes for row in rows if row.limit_bytes}
    there = found.answer.with_step
    if limits and all(item.row.fits for item in there):
        words = _all_fit(len(there), len(rows))
        limit = figures.size(min(limits))
        yield f"{words}: jax's allocator has {limit}."
    for row in rows:
        if row.tried:
            yield f"{gpus(row)}, {found.request.fit} tried: {_tried(row)}"


def _all_fit(with_step: int, rows: int) -> str:
    if with_step <= 1:
        return "It fits"
    return "All fit" if with_step == rows else f"All {with_step} with a step fit"


def _tried(row: ScaleRow) -> str:
    """List the tried values, with the memory that each needs."""
    sizes = (f"{value}: {figures.size(size)}" for value, size in row.tried.items())
    tried = printable(", ".join(sizes))
    is_open = row.fits and len(row.tried) == 1
    return f"{tried}; larger values may fit, too" if is_open else tried


def _measured_notes(found: Scaling) -> Iterator[str]:
    """Say how a measured step changes the prediction of all sizes."""
    anchor = found.answer.anchor
    measured_us = found.request.measured_us
    if anchor is None:
        if measured_us:
            measured = f"The step measured at {min(measured_us)} GPUs"
            yield f"{measured} moves nothing: no step is predicted there."
        return
    delta_us = anchor.measured_us - anchor.predicted_us
    apart = figures.time(abs(delta_us))
    how = "added" if delta_us >= 0 else "subtracted"
    measured = f"Measured {figures.time(anchor.measured_us)} at {anchor.devices} GPUs"
    yield (
        f"{measured}: every step is multiplied by {anchor.factor:.3f}. "
        f"The range also holds the {apart} {how} instead."
    )
    if not 1 / DOUBTED < anchor.factor < DOUBTED:
        yield (
            "That is far from the prediction: "
            "was it measured with this program, batch and GPU?"
        )


def _profile_notes(found: Scaling) -> Iterator[str]:
    """Say how much of the computing time the profile's costs cover."""
    known = (item.row.covered_share for item in found.answer.rows)
    shares = [share for share in known if share is not None]
    if not shares:
        return
    covered = f"The profile's costs cover {figures.shares(shares)}"
    yield f"{covered} of the computing time; the rest is estimated."
    if max(shares) < LITTLE_COVERED:
        yield (
            "The profile is of another batch, program or jax: "
            "profile the same work per GPU."
        )


def _limit_notes(found: Scaling) -> Iterator[str]:
    """Explain the words of the table, and name what no figure includes."""
    if found.answer.first is None:
        return
    words = "Exposed: the GPU waits, nothing computes."
    if len(found.answer.with_step) > 1:
        scales = f"a program scales if it keeps {figures.share(BREAKS, 0)}"
        efficiency = "Efficiency: work per second and GPU against the first row"
        words = f"{efficiency}; {scales}. {words}"
    yield words
    yield f"Not modelled: {NOT_MODELLED}."


def _sections(found: Scaling) -> Iterator[Section]:
    """The charts, then a section for each kind of figures, and what is not known."""
    answer = found.answer
    rows = answer.with_step
    if len(answer.best) > 1:
        heading = "Step and efficiency over GPUs"
        yield Section("charts", heading, _charts(answer.best), open=True)
    if rows:
        yield _ratio_section(rows)
        yield _collective_section(rows)
        yield _memory_section(rows)
        yield Section("control", "Both compilations", scale_control.section(found))
    yield scale_account.section(found, rows)
    yield _refused_section(found)
    yield LIMITS


LIMITS = Section(
    "limits",
    "What is not known",
    (
        Prose(
            f"Not modelled: {NOT_MODELLED}. What published programs show of them "
            "widens the ranges with size."
        ),
        Prose(
            "Steps of the table are scheduled by the latency-hiding scheduler without "
            "a profile, and a second time with other kernels for matrix products."
        ),
    ),
)


def _ratio_section(rows: Sequence[Judged]) -> Section:
    """Compare every step with the first row."""
    heads = (
        *SIZE,
        Column("step / first", Unit.FACTOR),
        Column("flat", Unit.FACTOR),
        Column("efficiency", Unit.SHARE),
        "from … to",
        "costs",
    )
    cells: list[tuple[Value, ...]] = []
    for item in rows:
        row = item.row
        ends = figures.shares(item.efficiency_range)
        ratios = (item.flat, 1.0, item.efficiency, ends)
        cells.append((*size_of(row), *ratios, row.costs_are))
    flat = Prose(
        "flat: what a program that loses nothing would have, with the same work on each GPU.",
        tone="soft",
    )
    return Section("ratios", "Against the first row", (table(heads, cells), flat))


def _collective_section(rows: Sequence[Judged]) -> Section:
    """List the collectives of every row by kind and links."""
    heads = (
        *SIZE,
        "collective",
        "links",
        Column("group", Unit.COUNT),
        Column("a step", Unit.COUNT),
        Column("time", Unit.TIME),
        Column("exposed", Unit.TIME),
        Column("of the step", Unit.SHARE),
    )
    cells: list[tuple[Value, ...]] = []
    for item in rows:
        size = size_of(item.row)
        step_us = item.row.step_us
        for one in item.row.by_collective:
            what = (one.kind, _network_links(one), one.group, one.count)
            times = (one.time_us, one.exposed_us, one.exposed_us / step_us)
            cells.append((*size, *what, *times))
    heading = "Collectives by kind and links"
    return Section("collectives", heading, (table(heads, cells),))


def _network_links(item: Exposed) -> str:
    """``NVLink``, or ``8 hosts, network`` between hosts."""
    return f"{_links(item)}, network" if item.hosts > 1 else item.fabric


def _memory_section(rows: Sequence[Judged]) -> Section:
    """The device memory of every row, as XLA reports it."""
    heads = (
        *SIZE,
        Column("arguments", Unit.SIZE),
        Column("temporaries", Unit.SIZE),
        Column("in all", Unit.SIZE),
        Column("jax's allocator has", Unit.SIZE),
    )
    cells: list[tuple[Value, ...]] = []
    for item in rows:
        row = item.row
        planned = (row.argument_bytes, row.temp_bytes, row.memory_bytes)
        cells.append((*size_of(row), *planned, row.limit_bytes))
    heading = "Device memory by XLA's report"
    return Section("memory", heading, (table(heads, cells),))


def _refused_section(found: Scaling) -> Section:
    """Every size without a step, with the whole reason."""
    refused = (item.row for item in found.answer.rows if item.row.failure)
    cells = ((*size_of(row), printable(row.failure)) for row in refused)
    content = table((*SIZE, "why"), cells)
    return Section("refused", "Sizes without a step", (content,))


def _charts(rows: Sequence[Judged]) -> tuple[Chart, Chart]:
    """Two charts over the sizes of the judged variant: the step by part, and efficiency with its
    range.
    """
    rows = rows[-NARROW:]
    return _step_chart([item.row for item in rows]), _efficiency_chart(rows)


def _step_chart(rows: Sequence[ScaleRow]) -> Chart:
    """A column for each size, stacked of the parts of its step."""
    most_us = max(row.step_us for row in rows)
    names = [figures.count(row.devices) for row in rows]
    up = charts.times(0.0, most_us * 1.15)
    plot = charts.Plot("Step, predicted", charts.columns(names, "GPUs"), up)
    steps = [_parts_of(row) for row in rows]
    shown = [part for part in PARTS if any(parts[part] for parts in steps)]
    plot.key((part, PARTS[part]) for part in shown)
    words: list[str] = []
    for column, (row, parts) in enumerate(zip(rows, steps, strict=True)):
        plot.stack(column, parts)
        step = figures.time(row.step_us)
        plot.text("name", (column + 0.5, row.step_us), step, dy=-4)
        exposed = figures.time(row.exposed_us)
        words.append(f"{gpus(row)} {step}, of which {exposed} exposed communication")
    return charts.drawn([plot], "; ".join(words))


def _parts_of(row: ScaleRow) -> dict[str, float]:
    """Return the parts of a step in microseconds, by colour."""
    return {
        "compute": row.compute_us,
        "exposed": row.exposed_us,
        "copy": row.copy_us,
        "idle": row.idle_us,
    }


def _efficiency_chart(rows: Sequence[Judged]) -> Chart:
    """Efficiency with its range over the number of GPUs, on a logarithmic axis."""
    points: list[tuple[int, float]] = []
    low: list[tuple[int, float]] = []
    high: list[tuple[int, float]] = []
    words: list[str] = []
    for item in rows:
        size = item.row.devices
        least, most = item.efficiency_range
        points.append((size, item.efficiency or 0.0))
        low.append((size, least))
        high.append((size, most))
        efficiency = _percent(item.efficiency)
        ends = figures.shares(item.efficiency_range)
        words.append(f"{gpus(item.row)} efficiency {efficiency} ({ends})")
    highest = max(1.0, *(most for _, most in high))
    up = charts.linear(highest * 1.1, _percent)
    across = _axis_of_sizes([size for size, _ in points])
    plot = charts.Plot("Efficiency against the first row", across, up)
    plot.area("range", [*low, *reversed(high)])
    _draw_level(plot, "ideal", 1.0, "ideal", dy=-5)
    _draw_level(plot, "mark", BREAKS, "breaks", dy=13)
    plot.path("level", points)
    for size, efficient in points:
        about = f"{size:,} GPUs: {_percent(efficient)}"
        plot.dot("range", (size, efficient), about=about)
    plot.text("name", low[-1], "range", "end", dy=14)
    return charts.drawn([plot], ", ".join(words))


def _percent(share: float | None) -> str:
    return figures.share(share, 0)


def _axis_of_sizes(sizes: Sequence[int]) -> charts.Axis:
    """A logarithmic axis with a tick at each size."""
    low = min(sizes) / 1.3
    high = max(sizes) * 1.3
    ticks = tuple((size, figures.count(size)) for size in dict.fromkeys(sizes))
    return charts.Axis(low, high, ticks, "GPUs, logarithmic", is_log=True)


def _draw_level(
    plot: charts.Plot, style: str, efficiency: float, name: str, *, dy: float
) -> None:
    """Draw a line at an efficiency, and its name at the right, shifted by `dy` units."""
    end = (plot.x.high, efficiency)
    plot.line(style, (plot.x.low, efficiency), end)
    plot.text("tick", end, f"{name}: {_percent(efficiency)}", "end", dy=dy)


class ScaleHead(Document):
    """The verdict of ``pgle.scale/1``, and the GPUs and network that it assumes."""

    verdict: str
    target: str
    devices_per_host: int
    network_gb_s: float
    network_is: Literal["given", "assumed"]


class AnchorDocument(Document):
    """A measured step, and the factor that it applies to the predicted steps."""

    anchor: Anchor = flat()
    factor: float


class SizeDocument(Document):
    """The size and variant of a row. A row without a step has nothing else."""

    devices: int
    hosts: int
    values: Mapping[str, str]
    failure: str | None


class StepDocument(Document):
    """The step of a row, and its efficiency against the first row."""

    step_us: float
    interval_us: tuple[float, float]
    efficiency: float | None
    efficiency_range: tuple[float, float]
    predicted_us: float
    against_first: float | None
    module: str


class PartsDocument(Document):
    """The parts of a row's step."""

    exposed_us: float
    compute_us: float
    copy_us: float
    idle_us: float
    ceiling_us: float
    by_collective: tuple[Exposed, ...]


class MemoryDocument(Document):
    """The device memory of a row as XLA reports it, and whether it fits."""

    argument_bytes: int | None
    temp_bytes: int | None
    memory_bytes: int | None
    limit_bytes: int | None
    fits: bool | None


class RunDocument(Document):
    """The speed of a row, the origin of its costs, and how it was made."""

    tflops: float
    costs_are: str
    covered_share: float | None
    tried: Mapping[str, int | None]
    wall_s: float


class RowOfStep(Document):
    """The additional fields of a row with a step."""

    step: StepDocument = flat()
    parts: PartsDocument = flat()
    memory: MemoryDocument = flat()
    run: RunDocument = flat()
    control: scale_control.RowControlDocument | None
    account: AccountDocument | None


class RowDocument(Document):
    """A row: its size and variant, and its step if it has one."""

    size: SizeDocument = flat()
    step: RowOfStep | None = flat()


class ScaleDocument(Document):
    """``pgle.scale/1``."""

    head: ScaleHead = flat()
    rows: tuple[RowDocument, ...]
    control: scale_control.ScaleControlDocument | None
    scales_to: int | None
    breaks_at: int | None
    breaks_by: Exposed | None  # the collectives due to which scaling breaks
    anchor: AnchorDocument | None
    not_modelled: str
    resumed: int
    page: Path
    warnings: tuple[str, ...]


def document(found: Scaling, page: Path) -> ScaleDocument:
    """All rows, and the size where scaling breaks."""
    answer = found.answer
    anchor = answer.anchor
    rows = tuple(_row_document(item, found) for item in answer.rows)
    head = ScaleHead(
        verdict=_verdict(found),
        target=found.hardware.name,
        devices_per_host=found.hardware.devices_per_host,
        network_gb_s=found.hardware.nic_gb_s,
        network_is="given" if found.request.names_network else "assumed",
    )
    return ScaleDocument.of_value(
        found,
        answer,
        head=head,
        rows=rows,
        control=scale_control.document(found),
        breaks_by=answer.culprit,
        anchor=None if anchor is None else AnchorDocument(anchor, anchor.factor),
        not_modelled=NOT_MODELLED,
        page=page,
        warnings=_warnings(answer),
    )


def _row_document(item: Judged, found: Scaling) -> RowDocument:
    """A row in JSON. Without a step it has its size and the reason."""
    row = item.row
    size = SizeDocument.of_value(row, failure=row.failure or None)
    if row.failure:
        return RowDocument(size, None)
    judged = StepDocument.of_value(
        item,
        predicted_us=row.step_us,
        against_first=item.flat,
        module=row.module,
    )
    step = RowOfStep(
        step=judged,
        parts=PartsDocument.of_value(row),
        memory=MemoryDocument.of_value(row),
        run=RunDocument.of_value(row),
        control=scale_control.row_document(item, found),
        account=scale_account.document(found, row),
    )
    return RowDocument(size, step)
