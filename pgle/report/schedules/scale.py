"""What a program does at other sizes, as a page and as ``pgle.scale/1``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from pathlib import Path

from pgle.errors import cut, many, printable
from pgle.files import write_files
from pgle.masking import kept_argv
from pgle.next import typed
from pgle.report import text
from pgle.report.page import figures, html, stored
from pgle.report.page.figures import Unit
from pgle.report.page.html import render
from pgle.report.page.value import Action, Cell, Chart, Column, Page, Part, Prose, Section, Table, Value
from pgle.report.progress import live
from pgle.run.inputs.folder import STORED
from pgle.run.scale.scale import OnRow, Scaling
from pgle.scale.advice import Advice, Kind, advice
from pgle.scale.answer import BREAKS, Judged
from pgle.scale.plan import Trial, filled
from pgle.scale.row import Exposed, Row

PAGE = "scale.html"
NOT_MODELLED = "jitter between GPUs, the network's topology and congestion, failures, input pipelines, checkpoints"
REASON = 140  # characters of a refusal on the first screen; the section `refused` has it whole
NARROW = 10  # sizes that one chart has room for

_PARTS: tuple[tuple[str, str, str], ...] = (
    ("compute", "compute", "compute_us"),
    ("exposed", "exposed communication", "exposed_us"),
    ("copy", "exposed copies", "copy_us"),
    ("idle", "idle", "idle_us"),
)


@contextmanager
def making(sizes: int) -> Iterator[OnRow]:
    """A live line on the rows that are being made."""
    with live("capturing and compiling") as line:
        line.noun = "row"

        def on_row(row: object, done: int, total: int) -> None:
            line.done, line.total = done, total

        yield on_row


def write_page(found: Scaling) -> Path:
    """Write the page, and the same as JSON for `pgle report`; the page's path is returned."""
    page = scale_page(found)
    out = found.request.out
    write_files({out / PAGE: render(page), out / STORED: stored.as_json(page)}, force=True)
    return out / PAGE


def scale_page(found: Scaling, path: Path | None = None) -> Page:
    """The verdict, a row for each size and variant, what would help, and what is not known.

    Args:
        found: the rows, judged.
        path: of the page that was written; it is named in the answer.
    """
    request, answer = found.request, found.answer
    rows = [item.row for item in answer.rows]
    names = list(dict.fromkeys(row.module for row in rows if row.module))
    costs = sorted({row.costs_are for row in rows if not row.failure})
    return Page(
        title=f"pgle scale: {names[0] if names else 'no step'}",
        identity=(
            *names[:1],
            f"{found.hardware.name}, {found.hardware.devices_per_host} GPUs a host",
            f"network {found.hardware.nic_gb_s:g} GB/s{'' if request.network_gb_s else ' (assumed)'}",
            f"predicted from {' and '.join(costs)} costs" if costs else "",
        ),
        verdict=_verdict(found),
        tone="bad" if not answer.good else "warn" if answer.breaks is not None else "good",
        table=_table(found),
        notes=(*_notes(found), *([f"Page: {path}"] if path else [])),
        actions=tuple(_action(item, found) for item in advice(answer)),
        sections=tuple(_sections(found)),
        next=(_next(found),),
        warnings=_warnings(rows),
    )


def _warnings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Each once; what not all rows say with the size of the first that does."""
    there = [row for row in rows if not row.failure]
    lines: dict[str, list[Row]] = {}
    for row in there:
        for line in dict.fromkeys(row.warnings):
            lines.setdefault(line, []).append(row)
    several = [line for line, of in lines.items() if len(of) == len(there) or len(of) > 1]
    return (*several, *(f"{_gpus(of[0])}: {line}" for line, of in lines.items() if line not in several))


def _verdict(found: Scaling) -> str:
    answer = found.answer
    if answer.first is None:
        return f"No size has a step: {_brief(answer.rows[0].row.failure)}"
    if not answer.good:
        return "It fits at no size"
    last = answer.best[-1]
    if len({item.row.devices for item in answer.best}) == 1:
        variant = f"{_named(last.row)}: " if last.row.values else ""
        return f"{variant}{figures.time(last.step_us)} on {_gpus(last.row)} ({_range(last)})"
    if answer.breaks is None:
        return f"Scales to {_gpus(last.row)} (efficiency {figures.share(last.scaling, 0)})"
    at = figures.count(answer.breaks.row.devices)
    to = answer.scales_to
    head = f"Scales to {figures.count(to)} GPUs" if to and answer.breaks.row is not answer.best[0].row else "Breaks"
    if answer.culprit is None:
        return f"{head}; at {at} efficiency is {figures.share(answer.breaks.scaling, 0)}"
    return f"{head}; at {at} {_where(answer.culprit)} costs {figures.share(answer.culprit_share, 0)}"


def _gpus(row: Row) -> str:
    return f"{figures.count(row.devices)} GPU{'s' * (row.devices > 1)}"


def _named(row: Row) -> str:
    return ", ".join(f"{name}={printable(value)}" for name, value in row.shown.items())


def _varied(found: Scaling) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for item in found.answer.rows for name in item.row.values))


def _ordered(found: Scaling) -> Sequence[Judged]:
    """As they were asked for; variants of one size the best first."""
    rows = found.answer.rows
    if len({item.row.devices for item in rows}) > 1:
        return rows
    return sorted(rows, key=lambda item: -(item.efficiency or 0.0))


def _table(found: Scaling) -> Table:
    names, rows = _varied(found), _ordered(found)
    refuses = any(item.row.fits is False for item in rows)
    found_ends = [None if end == inf else end for item in rows for end in item.interval_us]
    unit, ends = figures.column(Unit.TIME, [*found_ends, *(item.step_us or None for item in rows)])
    columns = (
        Column("GPUs", Unit.COUNT), *map(Column, names), Column(f"step ({unit})"),
        Column("efficiency", Unit.SHARE), Column("exposed", Unit.SHARE), Column("most of it"),
        Column("memory", Unit.SIZE), Column("fits"), Column("TFLOP/s", Unit.RATE),
    )  # fmt: skip
    count = len(rows)
    lows, highs, likely = ends[: 2 * count : 2], ends[1 : 2 * count : 2], ends[2 * count :]
    steps = (f"{step} ({low}–{high})" for step, low, high in zip(likely, lows, highs, strict=True))
    return Table(columns, tuple(_row(item, names, step, refuses) for item, step in zip(rows, steps, strict=True)))


def _row(item: Judged, names: Sequence[str], step: str, refuses: bool) -> tuple[Value, ...]:
    row = item.row
    head: tuple[Value, ...] = (row.devices, *(printable(row.shown.get(name, "")) for name in names))
    if row.failure:
        return (*head, "", "", "", Cell("no step", "warn"), "", "", "")
    fits = {None: None, True: Cell("yes", "good"), False: Cell("no", "bad")}[row.fits] if refuses else None
    worst = row.by_collective[0] if row.by_collective and row.by_collective[0].exposed_us else None
    return (
        *head, step, item.efficiency, Cell(row.exposed_us / row.step_us, "exposed"),
        f"{worst.kind}, {_links(worst)}" if worst else None, row.memory_bytes, fits, row.tflops or None,
    )  # fmt: skip


def _refused(found: Scaling) -> Mapping[str, Sequence[Row]]:
    """Rows without a step, by the reason in brief."""
    reasons: dict[str, list[Row]] = {}
    for item in found.answer.rows:
        if item.row.failure:
            reasons.setdefault(_brief(item.row.failure), []).append(item.row)
    return reasons


def _brief(failure: str) -> str:
    """A reason without what stands in brackets, cut short."""
    inner, text = re.compile(r"\s?\([^()]*\)"), printable(failure)
    while (shorter := inner.sub("", text)) != text:
        text = shorter
    return cut(text.partition(" (")[0].rstrip(":"), REASON)


def _range(item: Judged) -> str:
    low, high = item.interval_us
    return f"from {figures.time(low)}" if high == inf else figures.between(figures.time(low), figures.time(high))


def _links(item: Exposed) -> str:
    return many(item.hosts, "host") if item.hosts > 1 else item.fabric


def _where(item: Exposed) -> str:
    kind = f"gradients' {item.kind}" if item.moves_gradients else item.kind
    return f"{kind} over {_links(item)}"


def _notes(found: Scaling) -> Iterator[str]:
    answer = found.answer
    for item in (answer.breaks or (answer.best[-1] if len(answer.best) > 1 else None),):
        if item is not None and item.scaling is not None and item.efficiency:
            ends = figures.shares(end * item.scaling / item.efficiency for end in item.efficiency_range)
            variant = f"{_named(item.row)}: at " if item.row.values else "At "
            first = _gpus(answer.best[0].row)
            yield f"{variant}{_gpus(item.row)} each does {figures.share(item.scaling)} ({ends}) of its work at {first}."
    for reason, rows in _refused(found).items():
        named = ", ".join(f"{_gpus(row)} {_named(row)}".strip() for row in rows)
        yield f"No step at {named}: {reason}"
    limits = {item.row.limit_bytes for item in answer.rows if item.row.limit_bytes}
    if limits and all(item.row.fits for item in answer.rows if not item.row.failure):
        yield f"All fit: jax's allocator has {figures.size(min(limits))}."
    for row in (item.row for item in answer.rows if item.row.tried):
        tried = ", ".join(f"{value}: {figures.size(size)}" for value, size in row.tried.items())
        yield f"{_gpus(row)}, {found.request.fit} tried: {printable(tried)}"
    if answer.anchor is not None:
        anchor = answer.anchor
        apart = figures.time(abs(anchor.measured_us - anchor.predicted_us))
        yield (
            f"Measured {figures.time(anchor.measured_us)} at {anchor.devices} GPUs: every step is multiplied by "
            f"{anchor.factor:.3f}. The range also holds the {apart} "
            f"{'added' if anchor.measured_us >= anchor.predicted_us else 'subtracted'} instead."
        )
    shares = [item.row.covered_share for item in answer.rows if item.row.covered_share is not None]
    if shares:
        yield f"The profile's costs cover {figures.shares(shares)} of the computing time; the rest is estimated."
    if answer.first is not None:
        yield (
            f"Efficiency: work per second and GPU against the first row; it scales from {figures.share(BREAKS, 0)} on. "
            "Exposed: the GPU waits, nothing computes."
        )
    yield f"Not modelled: {NOT_MODELLED}."


def _action(item: Advice, found: Scaling) -> Action:
    at = _gpus(item.at.row)
    fit = found.request.fit or "batch"
    match item.kind:
        case Kind.VARIANT:
            named = ", ".join(f"{name}={printable(value)}" for name, value in item.values.items())
            return Action(f"Take {named} at {at}", item.saves)
        case Kind.BATCH:
            row, words = item.at.row, "weights and gradients cross the links once a step, whatever its work"
            more = item.more_bytes or 0
            if (row.memory_bytes or 0) + more > (row.limit_bytes or inf):
                return Action(f"Accumulate gradients at {at}", item.saves, f"{words}; a larger batch may not fit")
            why = f"{words}; temporaries may double, {figures.size(more)} more" if more else words
            return Action(f"Give each of {at} more work, or accumulate gradients", item.saves, why)
        case Kind.TUNE:
            return Action(f"Look for XLA flags at {at}", item.saves, command=_next(found))
        case Kind.VARY:
            return Action("Try other meshes", None, "give --vary mesh=A,B and {mesh} in the command")
        case Kind.FIT:
            row = item.at.row
            lacks = figures.size((row.memory_bytes or 0) - (row.limit_bytes or 0))
            why = f"{lacks} are missing; write {{{fit}}} in the command, and --fit {fit} finds the largest that fits"
            return Action(f"Make it fit at {at}", None, why)


def _sections(found: Scaling) -> Iterator[Section]:
    rows = [item for item in found.answer.rows if not item.row.failure]
    if found.answer.best and len(found.answer.best) > 1:
        yield Section("charts", "Step and efficiency over GPUs", (_charts(found.answer.best),), open=True)
    if rows:
        yield Section("ratios", "Against the first row", (_ratios(rows), Prose(_RATIOS, tone="soft")))
        yield Section("collectives", "Collectives by kind and links", (_collectives(rows),))
        yield Section("memory", "Device memory by XLA's report", (_memory(rows),))
    if refused := [item.row for item in found.answer.rows if item.row.failure]:
        heads = (Column("GPUs", Unit.COUNT), Column("variant"), Column("why"))
        table = Table(heads, tuple((row.devices, _named(row), printable(row.failure)) for row in refused))
        yield Section("refused", "Sizes without a step", (table,))
    limits: tuple[Part, ...] = (
        Prose(f"Not modelled: {NOT_MODELLED}. What published programs show of them widens the ranges with size."),
        Prose("Every size is compiled once, with the latency-hiding scheduler and without a profile."),
    )
    yield Section("limits", "What is not known", limits)


_RATIOS = "flat: what a program that loses nothing would have, with the same work on each GPU."


def _ratios(rows: Sequence[Judged]) -> Table:
    columns = (
        Column("GPUs", Unit.COUNT), Column("variant"), Column("step / first", Unit.FACTOR), Column("flat", Unit.FACTOR),
        Column("efficiency", Unit.SHARE), Column("from … to"), Column("costs"),
    )  # fmt: skip
    return Table(
        columns,
        tuple(
            (
                item.row.devices, _named(item.row), item.flat, 1.0, item.efficiency,
                figures.shares(item.efficiency_range), item.row.costs_are,
            )
            for item in rows
        ),
    )  # fmt: skip


def _collectives(rows: Sequence[Judged]) -> Table:
    columns = (
        Column("GPUs", Unit.COUNT), Column("variant"), Column("collective"), Column("links"),
        Column("group", Unit.COUNT), Column("a step", Unit.COUNT), Column("time", Unit.TIME),
        Column("exposed", Unit.TIME), Column("of the step", Unit.SHARE),
    )  # fmt: skip
    return Table(
        columns,
        tuple(
            (
                item.row.devices, _named(item.row), one.kind,
                f"{many(one.hosts, 'host')}, network" if one.hosts > 1 else one.fabric, one.group, one.count,
                one.time_us, one.exposed_us, one.exposed_us / item.row.step_us,
            )
            for item in rows
            for one in item.row.by_collective
        ),
    )  # fmt: skip


def _memory(rows: Sequence[Judged]) -> Table:
    names = ("argument", "temp", "memory", "limit")
    columns = (
        Column("GPUs", Unit.COUNT), Column("variant"), Column("arguments", Unit.SIZE), Column("temporaries", Unit.SIZE),
        Column("in all", Unit.SIZE), Column("jax's allocator has", Unit.SIZE),
    )  # fmt: skip
    return Table(
        columns,
        tuple(
            (item.row.devices, _named(item.row), *(getattr(item.row, f"{name}_bytes") for name in names))
            for item in rows
        ),
    )


def _charts(rows: Sequence[Judged]) -> Chart:
    """The step by part, and efficiency with its range, over the sizes of the variant that is judged."""
    rows = rows[-NARROW:]
    count, most = len(rows), max(item.row.step_us for item in rows) / 1e6
    axis = {"at": [place + 0.5 for place in range(count)]}
    names = {place + 0.5: figures.count(item.row.devices) for place, item in enumerate(rows)}
    steps = html.Panel(
        "Step, predicted: compute, exposed communication, idle", (0, count), (0, most * 1.05), x_label="GPUs"
    )
    steps.axis_y(html.seconds(0.0, most))
    for place, item in enumerate(rows):
        floor, sides = 0.0, (place + 0.2, place + 0.8)
        for style, _, name in _PARTS:
            top = floor + getattr(item.row, name) / 1e6
            corners = [(sides[0], floor), (sides[1], floor), (sides[1], top), (sides[0], top)]
            if top > floor:
                steps.area(f"stack {style}", corners)
            floor = top
    steps.axis_x(names.__getitem__, axis["at"])
    best = max(1.0, *(item.efficiency_range[1] for item in rows))
    share = html.Panel("Efficiency against the first row, with its range", (0, count), (0, best * 1.05), x_label="GPUs")
    share.axis_y(lambda value: f"{value:.0%}".replace("%", " %"))
    share.line("mark", (0, BREAKS), (count, BREAKS))
    points = [(place + 0.5, item.efficiency or 0.0) for place, item in enumerate(rows)]
    low = [(place + 0.5, item.efficiency_range[0]) for place, item in enumerate(rows)]
    high = [(place + 0.5, item.efficiency_range[1]) for place, item in enumerate(rows)]
    share.area("base", [*low, *reversed(high)])
    for one, other in pairwise(points):
        share.line("level", one, other)
    share.dots("base", points, 3)
    share.axis_x(names.__getitem__, axis["at"])
    said = ", ".join(
        f"{_gpus(item.row)} {figures.time(item.row.step_us)}, efficiency {figures.share(item.efficiency, 0)} "
        f"({figures.shares(item.efficiency_range)})"
        for item in rows
    )
    return Chart(html.svg([steps, share], said, style=False), said)


def _next(found: Scaling) -> str:
    """The search for flags at the size where it breaks, else at the largest."""
    request, answer = found.request, found.answer
    item = answer.breaks or (answer.best[-1] if answer.best else None)
    network = ("--network", f"{request.network_gb_s:g}") if request.network_gb_s else ()
    if item is None or request.are_files:
        return typed("pgle", "scale", "--help")
    if not answer.good:
        fit = request.fit or "batch"
        sizes = ",".join(str(size) for size in request.devices)
        words = ("--devices", sizes, "--vary", f"{fit}=1,2,4,8", "--fit", fit, "--", *kept_argv(request.words))
        return typed("pgle", "scale", *words)
    trial = Trial(item.row.devices, found.hardware.devices_per_host, tuple(item.row.values.items()))
    words = kept_argv(filled(request.words, trial))
    options = ("--target", request.target, "--topology", trial.topology, *network)
    return typed("pgle", "tune", *options, "-o", "tuned", "--", *words)


def show_json(found: Scaling, page: Path) -> None:
    """``pgle.scale/1`` on stdout."""
    text.show("pgle.scale/1", document(found, page))


def document(found: Scaling, page: Path) -> dict[str, object]:
    """``pgle.scale/1`` without its name."""
    answer = found.answer
    return {
        "verdict": _verdict(found),
        "target": found.hardware.name,
        "devices_per_host": found.hardware.devices_per_host,
        "network_gb_s": found.hardware.nic_gb_s,
        "network_is": "assumed" if found.request.network_gb_s is None else "given",
        "rows": [_plain(item) for item in answer.rows],
        "scales_to": answer.scales_to,
        "breaks_at": None if answer.breaks is None else answer.breaks.row.devices,
        "breaks_by": answer.culprit,
        "anchor": None if answer.anchor is None else text.whole(answer.anchor, "factor"),
        "not_modelled": NOT_MODELLED,
        "resumed": found.resumed,
        "page": str(page),
        "next": _next(found),
        "warnings": _warnings([item.row for item in answer.rows]),
    }


def _plain(item: Judged) -> Mapping[str, object]:
    row = item.row
    head = {"devices": row.devices, "hosts": row.hosts, "values": row.values, "failure": row.failure or None}
    if row.failure:
        return head
    names = (
        "module exposed_us compute_us copy_us idle_us ceiling_us by_collective argument_bytes temp_bytes memory_bytes "
        "limit_bytes fits tflops costs_are covered_share tried wall_s"
    )
    return {
        **head,
        **text.picked(item, "step_us interval_us efficiency efficiency_range"),
        "predicted_us": row.step_us,
        "against_first": item.flat,
        **text.picked(row, names),
    }
