"""What a program does at other sizes, as a page and as ``pgle.scale/1``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path

from pgle.account.way import Known, Move, next_move
from pgle.errors import cut, many, printable, some
from pgle.next import Way, to_way
from pgle.report import account, charts, scale_account, scale_control, text
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Advice,
    Cell,
    Chart,
    Page,
    Prose,
    Saving,
    Section,
    Table,
    Value,
    table,
)
from pgle.report.scale_account import gpus
from pgle.report.scale_control import named as _named
from pgle.report.text import live
from pgle.report.timeline import PARTS
from pgle.run.scale import OnRow, Scaling
from pgle.scale.answer import BREAKS, Exposed, Judged, ScaleRow
from pgle.xla.targets import load_target

PAGE = "scale.html"
NOT_MODELLED = "jitter between GPUs, the network's topology and congestion, failures, input pipelines, checkpoints"
REASON = 140  # characters of a refusal on the first screen; the section `refused` has it whole
MISSING = 3  # sizes without a step, in the verdict
LEAST_SAVED = 0.02  # of the step: advice that saves less is not given
# a measured step so many times shorter or longer than predicted is of something else, most likely
DOUBTED = 2.0
# of the GPU's, for jax's allocator: as published 70B jobs have it (NVIDIA/dgxc-benchmarking)
MOST_MEMORY = 0.94
LITTLE_COVERED = (
    0.5  # of the computing time: less is of a profile that was measured with other work
)
NARROW = 10  # sizes that one chart has room for
VARY = "--vary mesh=A,B and {mesh} in the command"
MORE_MEMORY = f"XLA_PYTHON_CLIENT_MEM_FRACTION={MOST_MEMORY}"


@contextmanager
def making() -> Iterator[OnRow]:
    """A live line on the rows that are being made."""
    with live("capturing and compiling") as line:
        line.noun = "row"

        def on_row(row: object, done: int, total: int) -> None:
            line.done, line.total = done, total

        yield on_row


def scale_page(found: Scaling, path: Path | None = None) -> Page:
    """The verdict, a row for each size and variant, what would help, and the limits.

    Args:
        found: the rows, judged.
        path: of the page that was written; it is named in the answer.
    """
    answer = found.answer
    assumed = "" if found.request.names_network else " (assumed)"
    rows = [item.row for item in answer.rows]
    names = list(dict.fromkeys(row.module for row in rows if row.module))
    costs = sorted({row.costs_are for row in rows if not row.failure})
    return Page(
        title=f"pgle scale: {names[0] if names else 'no step'}",
        identity=(
            *names[:1],
            f"{found.hardware.name}, {found.hardware.devices_per_host} GPUs a host",
            f"network {found.hardware.nic_gb_s:g} GB/s{assumed}",
            f"predicted from {' and '.join(costs)} costs" if costs else "",
        ),
        verdict=_verdict(found),
        tone="bad"
        if not answer.good
        else "warn"
        if answer.breaks is not None or _without(found) or _depends(found)
        else "good",
        table=_table(found) if answer.first else None,
        notes=(
            *scale_account.lever_lines(found),
            *_notes(found),
            scale_account.base_line(found),
            *([f"Page: {path}"] if path else []),
        ),
        actions=_actions(found),
        sections=tuple(_sections(found)),
        way=_next(found),
        warnings=_warnings(rows),
    )


def _warnings(rows: Sequence[ScaleRow]) -> tuple[str, ...]:
    """Each once; what one of several rows says with its size, after the others."""
    there = [row for row in rows if not row.failure]
    lines: dict[str, list[ScaleRow]] = {}
    for row in there:
        for line in dict.fromkeys(row.warnings):
            lines.setdefault(line, []).append(row)
    several = [line for line, of in lines.items() if len(of) > 1 or len(there) == 1]
    return (
        *several,
        *(
            f"{gpus(of[0])}: {line}"
            for line, of in lines.items()
            if line not in several
        ),
    )


def _verdict(found: Scaling) -> str:
    """How far it scales, and which of the sizes that were asked for have no step, or none that
    fits.
    """
    fact = scale_control.depends_words(found) or _largest_fact(found)
    return "; ".join((fact, *(_without(found) if found.answer.good else ())))


def _without(found: Scaling) -> list[str]:
    """Of each size at which no variant has a step that fits, the reason."""
    sizes: dict[int, list[ScaleRow]] = {}  # with the rows that have a step
    for row in (item.row for item in found.answer.rows):
        sizes.setdefault(row.devices, []).extend([row] if not row.failure else [])
    lacks: dict[str, list[str]] = {}
    for devices, there in sizes.items():
        if not any(row.fits is not False for row in there):
            lacks.setdefault("does not fit" if there else "no step", []).append(
                figures.count(devices)
            )
    return [f"{some(named, MISSING)} GPUs: {what}" for what, named in lacks.items()]


def _depends(found: Scaling) -> bool:
    """Whether the verdict hangs on the kernels of matrix products."""
    return found.control is not None and found.control.depends


def _largest_fact(found: Scaling) -> str:
    answer = found.answer
    if answer.first is None:
        return f"No step at any size: {_brief(answer.rows[0].row.failure)}"
    if answer.nearest is not None and not answer.good:
        row = answer.nearest.row
        limit = figures.size(row.limit_bytes)
        return f"Does not fit: {figures.size(row.memory_bytes)} on {gpus(row)}, where jax's allocator has {limit}"
    last = answer.best[-1]
    if len({item.row.devices for item in answer.best}) == 1:
        variant = f"{_named(last.row)}: " if last.row.values else ""
        return f"{variant}{figures.time(last.step_us)} on {gpus(last.row)} ({_range(last)}){_ahead(found, last)}"
    if answer.breaks is None:
        return (
            f"Scales to {gpus(last.row)} (efficiency {figures.share(last.scaling, 0)})"
        )
    at = figures.count(answer.breaks.row.devices)
    if answer.scales_to == answer.best[0].row.devices:
        head = f"Does not scale beyond {gpus(answer.best[0].row)}"
    else:
        head = f"Scales to {figures.count(answer.scales_to)} GPUs"
    if (item := answer.culprit) is None or answer.grows != "exposed communication":
        return f"{head}; at {at} efficiency is {figures.share(answer.breaks.scaling, 0)}: {answer.grows} grows most"
    whose = "gradients' " * item.moves_gradients
    where = f"{whose}{item.kind} over {_links(item)}"
    return f"{head}; at {at} {where} is exposed for {figures.share(answer.culprit_share, 0)} of the step"


def _ahead(found: Scaling, best: Judged) -> str:
    """By how much the best variant leads the next one, if their ranges overlap."""
    alike = [item for item in found.answer.rows if item.row.devices == best.row.devices]
    others = [item for item in alike if item.efficiency and item.row.fits is not False]
    behind = max(
        (item for item in others if item is not best),
        key=lambda item: item.efficiency or 0.0,
        default=None,
    )
    if behind is None or behind.interval_us[0] > best.interval_us[1]:
        return ""
    lead = 1 - (behind.efficiency or 0.0) / (best.efficiency or 1.0)
    return f", ahead of {_named(behind.row)} by {figures.share(lead)}, but the ranges overlap"


def _table(found: Scaling) -> Table:
    """A row each, as they were asked for; variants of one size the best first."""
    rows: Sequence[Judged] = found.answer.rows
    names = list(dict.fromkeys(name for item in rows for name in item.row.values))
    if len({item.row.devices for item in rows}) == 1:
        rows = sorted(rows, key=lambda item: -(item.efficiency or 0.0))
    refuses = any(item.row.fits is False for item in rows)
    times = [
        [
            item.step_us or None,
            *(None if end == inf else end for end in item.interval_us),
        ]
        for item in rows
    ]
    unit, ends = figures.column(
        Unit.TIME, [time for row in times for time in row], [row[0] for row in times]
    )
    steps = (
        f"{ends[at]} ({ends[at + 1]}–{ends[at + 2]})" for at in range(0, len(ends), 3)
    )
    heads = [
        "GPUs (count)",
        *names,
        f"step ({unit})",
        "efficiency (share)",
        "exposed (share)",
        "most of it",
        "memory (size)",
        "fits",
        "TFLOP/s (rate)",
    ]
    return table(
        heads,
        (
            _row(item, names, step, refuses)
            for item, step in zip(rows, steps, strict=True)
        ),
    )


def _row(
    item: Judged, names: Sequence[str], step: str, refuses: bool
) -> tuple[Value, ...]:
    row = item.row
    head: tuple[Value, ...] = (
        row.devices,
        *(printable(row.shown.get(name, "")) for name in names),
    )
    if row.failure:
        return (*head, "", "", "", Cell("no step", "warn"), "", "", "")
    fits = (
        {None: None, True: Cell("yes", "good"), False: Cell("no", "bad")}[row.fits]
        if refuses
        else None
    )
    most = [
        f"{one.kind}, {_links(one)}" for one in row.by_collective[:1] if one.exposed_us
    ]
    exposed = Cell(row.exposed_us / row.step_us, "exposed")
    return (
        *head,
        step,
        item.efficiency,
        exposed,
        most[0] if most else None,
        row.memory_bytes,
        fits,
        row.tflops or None,
    )


def _refused(found: Scaling) -> Mapping[str, Sequence[ScaleRow]]:
    """Rows without a step, by the reason in brief."""
    reasons: dict[str, list[ScaleRow]] = {}
    for item in found.answer.rows:
        if item.row.failure:
            reasons.setdefault(_brief(item.row.failure), []).append(item.row)
    return reasons


def _is_indivisible(found: Scaling) -> bool:
    """Whether a size was refused because something cannot be divided, and no word of the command
    multiplies.
    """
    fixed = not found.are_files and not any(
        re.search(r"\{[^}]*\*", word) for word in found.request.words
    )
    return fixed and any(
        re.search("^[^{].*(divisib|divid)", item.row.failure, re.I)
        for item in found.answer.rows
    )


def _brief(failure: str) -> str:
    """A reason without its brackets, cut short, and the line of the program that raised it."""
    inner, text = re.compile(r"\s?\([^()]*\)"), printable(failure)
    place = re.search(r" \([^()]+, line \d+\)$", text)
    while (shorter := inner.sub("", text)) != text:
        text = shorter
    return cut(text.partition(" (")[0].rstrip(":"), REASON) + (
        place[0] if place else ""
    )


def _range(item: Judged) -> str:
    low, high = item.interval_us
    return (
        f"from {figures.time(low)}"
        if high == inf
        else figures.between(figures.time(low), figures.time(high))
    )


def _links(item: Exposed) -> str:
    return many(item.hosts, "host") if item.hosts > 1 else item.fabric


def _notes(found: Scaling) -> Iterator[str]:
    answer = found.answer
    item = answer.breaks or (answer.best[-1] if len(answer.best) > 1 else None)
    if item is not None and item.scaling is not None and item.efficiency:
        ends = figures.shares(
            end * item.scaling / item.efficiency for end in item.efficiency_range
        )
        variant = f"{_named(item.row)}: at " if item.row.values else "At "
        first = gpus(answer.best[0].row)
        yield f"{variant}{gpus(item.row)} each does {figures.share(item.scaling)} ({ends}) of its work at {first}."
    refused = _refused(found)
    for reason, rows in refused.items() if answer.first or len(refused) > 1 else ():
        named = ", ".join(f"{gpus(row)} {_named(row)}".strip() for row in rows)
        yield f"No step at {named}: {reason}"
    if _is_indivisible(found):
        yield "If that is the batch, let it grow with the GPUs: --batch '{2*devices}'."
    limits = {item.row.limit_bytes for item in answer.rows if item.row.limit_bytes}
    there = [item.row for item in answer.rows if not item.row.failure]
    if limits and all(row.fits for row in there):
        of = (
            "All fit"
            if len(there) == len(answer.rows)
            else f"All {len(there)} with a step fit"
        )
        yield f"{of if len(there) > 1 else 'It fits'}: jax's allocator has {figures.size(min(limits))}."
    for row in (item.row for item in answer.rows if item.row.tried):
        tried = ", ".join(
            f"{value}: {figures.size(size)}" for value, size in row.tried.items()
        )
        more = (
            "; larger values may fit, too" if row.fits and len(row.tried) == 1 else ""
        )
        yield f"{gpus(row)}, {found.request.fit} tried: {printable(tried)}{more}"
    anchor = answer.anchor
    if anchor is None and found.request.measured_us:
        yield f"The step measured at {min(found.request.measured_us)} GPUs moves nothing: no step is predicted there."
    if anchor is not None:
        apart = figures.time(abs(anchor.measured_us - anchor.predicted_us))
        instead = f"{apart} {'added' if anchor.measured_us >= anchor.predicted_us else 'subtracted'} instead"
        yield (
            f"Measured {figures.time(anchor.measured_us)} at {anchor.devices} GPUs: every step is multiplied by "
            f"{anchor.factor:.3f}. The range also holds the {instead}."
        )
        if not 1 / DOUBTED < anchor.factor < DOUBTED:
            yield "That is far from the prediction: was it measured with this program, batch and GPU?"
    shares = [
        item.row.covered_share
        for item in answer.rows
        if item.row.covered_share is not None
    ]
    if shares:
        yield f"The profile's costs cover {figures.shares(shares)} of the computing time; the rest is estimated."
        if max(shares) < LITTLE_COVERED:
            yield "The profile is of another batch, program or jax: profile the same work per GPU."
    if answer.first is not None:
        scales = f"a program scales if it keeps {figures.share(BREAKS, 0)}"
        what = (
            f"Efficiency: work per second and GPU against the first row; {scales}. "
            if len(there) > 1
            else ""
        )
        yield f"{what}Exposed: the GPU waits, nothing computes."
        yield f"Not modelled: {NOT_MODELLED}."
    yield from scale_control.notes(found)


def _actions(found: Scaling) -> tuple[Advice, ...]:
    """What to do where the program breaks, else at the largest size; what saves most first."""
    answer = found.answer
    if not answer.best:
        return ()
    item = answer.breaks or answer.best[-1]
    row, at, given = item.row, gpus(item.row), list[Advice]()
    others = [
        other
        for other in answer.rows
        if other.row.devices == row.devices and other.efficiency
    ]
    fitting = (other for other in others if other.row.fits is not False)
    better = max(fitting, key=lambda other: other.efficiency or 0.0, default=item)
    saves = 1 - (item.efficiency or 0.0) / max(better.efficiency or 0.0, 1e-9)
    if better.row.variant != row.variant and saves > LEAST_SAVED:
        given.append(Advice(f"Take {_named(better.row)} at {at}", _saving(saves)))
    # Weights are gathered and gradients reduced once, whatever the batch: with twice the work in a
    # step, half of their time remains for each part of it.
    moved = sum(one.weights_us for one in row.by_collective) / row.step_us / 2
    if moved > LEAST_SAVED:
        given.append(_more_work(row, moved))
    if (known := scale_account.account_of(found, row)) is not None:
        given.extend(account.actions(known))
    given.sort(key=_expected, reverse=True)
    culprit = answer.culprit
    if (
        answer.breaks is not None
        and culprit is not None
        and culprit.hosts > 1
        and len(others) == 1
    ):
        why = "" if found.are_files else f"give {VARY}"
        if culprit.moves_weights:
            given.append(Advice("Try other meshes", None, why))
        else:
            why = f"it moves activations in every layer{'; ' * bool(why)}{why}"
            given.insert(
                0,
                Advice(
                    f"Keep the mesh axis of the {culprit.kind} inside a host", None, why
                ),
            )
    if answer.nearest is not None and not answer.nearest.row.tried:
        given.insert(0, _to_fit(found, answer.nearest.row))
    return tuple(given)


def _saving(share: float) -> Saving:
    return Saving(share, share, share)


def _expected(action: Advice) -> float:
    if action.saves is None or action.saves.expected is None:
        return 0.0
    return action.saves.expected


def _more_work(row: ScaleRow, saves: float) -> Advice:
    more, at = row.temp_bytes or 0, gpus(row)
    why = "weights and gradients cross the links once a step, whatever its work"
    if (row.memory_bytes or 0) + more > (row.limit_bytes or inf):
        return Advice(
            f"Accumulate gradients at {at}",
            _saving(saves),
            f"{why}; a larger batch may not fit",
        )
    why += f"; temporaries may double, {figures.size(more)} more" if more else ""
    return Advice(
        f"Give each of {at} more work, or accumulate gradients", _saving(saves), why
    )


def _to_fit(found: Scaling, row: ScaleRow) -> Advice:
    fit = found.request.fit or "batch"
    largest = (
        f"write {{{fit}}} in the command, and --fit {fit} finds the largest that fits"
    )
    what = f"set {MORE_MEMORY}" if _fits_with_more(found, row) else largest
    lacks = figures.size((row.memory_bytes or 0) - (row.limit_bytes or 0))
    return Advice(f"Make it fit at {gpus(row)}", None, f"{lacks} are missing; {what}")


def _sections(found: Scaling) -> Iterator[Section]:
    rows = [item for item in found.answer.rows if not item.row.failure]
    head = "GPUs (count) | variant"
    if len(found.answer.best) > 1:
        yield Section(
            "charts",
            "Step and efficiency over GPUs",
            _charts(found.answer.best),
            open=True,
        )
    if rows:
        ratios = table(
            f"{head} | step / first (factor) | flat (factor) | efficiency (share) | from … to | costs",
            (
                (
                    item.row.devices,
                    _named(item.row),
                    item.flat,
                    1.0,
                    item.efficiency,
                    figures.shares(item.efficiency_range),
                    item.row.costs_are,
                )
                for item in rows
            ),
        )
        flat = Prose(
            "flat: what a program that loses nothing would have, with the same work on each GPU.",
            tone="soft",
        )
        yield Section("ratios", "Against the first row", (ratios, flat))
        heads = f"{head} | collective | links | group (count) | a step (count) | time (time) | exposed (time)"
        collectives = table(
            f"{heads} | of the step (share)",
            (
                (
                    item.row.devices,
                    _named(item.row),
                    one.kind,
                    f"{many(one.hosts, 'host')}, network"
                    if one.hosts > 1
                    else one.fabric,
                    one.group,
                    one.count,
                    one.time_us,
                    one.exposed_us,
                    one.exposed_us / item.row.step_us,
                )
                for item in rows
                for one in item.row.by_collective
            ),
        )
        yield Section("collectives", "Collectives by kind and links", (collectives,))
        sizes = ("argument_bytes", "temp_bytes", "memory_bytes", "limit_bytes")
        memory = table(
            f"{head} | arguments (size) | temporaries (size) | in all (size) | jax's allocator has (size)",
            (
                (
                    item.row.devices,
                    _named(item.row),
                    *(getattr(item.row, size) for size in sizes),
                )
                for item in rows
            ),
        )
        yield Section("memory", "Device memory by XLA's report", (memory,))
        yield Section("control", "Both compilations", scale_control.section(found))
    yield scale_account.section(found, rows)
    refused = (item.row for item in found.answer.rows if item.row.failure)
    reasons = ((row.devices, _named(row), printable(row.failure)) for row in refused)
    yield Section("refused", "Sizes without a step", (table(f"{head} | why", reasons),))
    yield Section(
        "limits",
        "What is not known",
        (
            Prose(
                f"Not modelled: {NOT_MODELLED}. What published programs show of them widens the ranges with size."
            ),
            Prose(
                "Steps of the table are scheduled by the latency-hiding scheduler without a profile, and a second time with "
                "other kernels for matrix products."
            ),
        ),
    )


def _charts(rows: Sequence[Judged]) -> tuple[Chart, Chart]:
    """The step by part, and efficiency with its range, over the sizes of the variant that is
    judged.
    """
    rows = rows[-NARROW:]
    return _step_chart([item.row for item in rows]), _efficiency_chart(rows)


def _step_chart(rows: Sequence[ScaleRow]) -> Chart:
    most_us = max(row.step_us for row in rows)
    names = [figures.count(row.devices) for row in rows]
    up = charts.times(0.0, most_us * 1.15)
    plot = charts.Plot("Step, predicted", charts.columns(names, "GPUs"), up)
    shown = [part for part in PARTS if any(getattr(row, f"{part}_us") for row in rows)]
    plot.key((part, PARTS[part]) for part in shown)
    for place, row in enumerate(rows):
        plot.stack(place, {part: getattr(row, f"{part}_us") for part in PARTS})
        top = (place + 0.5, row.step_us)
        plot.text("name", top, figures.time(row.step_us), dy=-4)
    words = (
        f"{gpus(row)} {figures.time(row.step_us)}, of which "
        f"{figures.time(row.exposed_us)} exposed communication"
        for row in rows
    )
    return charts.drawn([plot], "; ".join(words))


def _efficiency_chart(rows: Sequence[Judged]) -> Chart:
    """Efficiency over the number of GPUs, on a logarithmic axis."""
    sizes = [item.row.devices for item in rows]
    best = max(1.0, *(item.efficiency_range[1] for item in rows))
    ticks = tuple((size, figures.count(size)) for size in dict.fromkeys(sizes))
    across = charts.Axis(
        min(sizes) / 1.3, max(sizes) * 1.3, ticks, "GPUs, logarithmic", is_log=True
    )
    write = partial(figures.share, decimals=0)
    title = "Efficiency against the first row"
    plot = charts.Plot(title, across, charts.linear(best * 1.1, write))
    low = [(item.row.devices, item.efficiency_range[0]) for item in rows]
    high = [(item.row.devices, item.efficiency_range[1]) for item in rows]
    plot.area("range", [*low, *reversed(high)])
    levels = ((1.0, "ideal", "ideal", -5), (BREAKS, "mark", "breaks", 13))
    for level, style, name, dy in levels:
        plot.line(style, (across.low, level), (across.high, level))
        label = f"{name}: {write(level)}"
        plot.text("tick", (across.high, level), label, "end", dy=dy)
    points = [(item.row.devices, item.efficiency or 0.0) for item in rows]
    plot.path("level", points)
    for point in points:
        plot.dot("range", point, about=f"{point[0]:,} GPUs: {write(point[1])}")
    plot.text("name", low[-1], "range", "end", dy=14)
    words = ", ".join(
        f"{gpus(item.row)} efficiency {figures.share(item.efficiency, 0)} "
        f"({figures.shares(item.efficiency_range)})"
        for item in rows
    )
    return charts.drawn([plot], words)


def _next(found: Scaling) -> Way:
    """The first action that is a command; where nothing can be run, what to do first."""
    request, answer = found.request, found.answer
    if answer.first is None:
        if found.are_files:
            return Way()
        first = "write {devices} where the program takes its number of GPUs"
        first = (
            "correct the program"
            if any("{" in word for word in request.words)
            else first
        )
        return Way(done=f"{first}, then repeat the command")
    if answer.nearest is not None and not answer.good:
        if _fits_with_more(found, answer.nearest.row):
            return Way(done=f"repeat with {MORE_MEMORY} in the environment")
        vary = "write {batch} in the command, and give --vary batch=1,2,4,8 --fit batch"
        if request.fit:
            vary = f"give smaller values of --vary {request.fit}"
        return Way(done=vary)
    has_mesh = found.are_files or answer.breaks is None or answer.breaks.row.values
    row = (answer.breaks or answer.best[-1]).row
    known = scale_account.account_of(found, row)
    if known is not None:
        state = Known(account=known)
        commands = {
            Move.MEASURE: scale_account.measure(found, row),
            Move.SEARCH: scale_account.tune(found, row),
        }
        if next_move(state) is not Move.END:
            return to_way([account.follow(state, commands)])
    if has_mesh:
        return Way(
            done="nothing that pgle can change shortens this step at these sizes"
        )
    return Way(done=f"repeat with {VARY}")


def _fits_with_more(found: Scaling, row: ScaleRow) -> bool:
    """Whether a step that does not fit would do so if jax's allocator had `MOST_MEMORY` of the
    GPU.
    """
    most = MOST_MEMORY * load_target(found.target).memory_bytes
    return (row.memory_bytes or 0) <= most


def document(found: Scaling, page: Path) -> dict[str, object]:
    """``pgle.scale/1`` without its name."""
    way = _next(found)
    return {
        "verdict": _verdict(found),
        **text.picked(
            found.hardware, "target=name devices_per_host network_gb_s=nic_gb_s"
        ),
        "network_is": "given" if found.request.names_network else "assumed",
        "rows": [_plain(item, found) for item in found.answer.rows],
        "control": scale_control.document(found),
        **text.picked(
            found.answer, "scales_to breaks_at=breaks.row.devices breaks_by=culprit"
        ),
        "anchor": found.answer.anchor and text.whole(found.answer.anchor, "factor"),
        "not_modelled": NOT_MODELLED,
        "resumed": found.resumed,
        "page": str(page),
        "next": "".join(way.next) or way.done,
        "warnings": _warnings([item.row for item in found.answer.rows]),
    }


def _plain(item: Judged, found: Scaling) -> Mapping[str, object]:
    head = text.picked(item.row, "devices hosts values") | {
        "failure": item.row.failure or None
    }
    if item.row.failure:
        return head
    return (
        head
        | text.picked(
            item,
            (
                "step_us interval_us efficiency efficiency_range predicted_us=row.step_us against_first=flat row.module "
                "row.exposed_us row.compute_us row.copy_us row.idle_us row.ceiling_us row.by_collective row.argument_bytes "
                "row.temp_bytes row.memory_bytes row.limit_bytes row.fits row.tflops row.costs_are row.covered_share row.tried "
                "row.wall_s"
            ),
        )
        | {
            "control": scale_control.row_document(item, found),
            "account": scale_account.document(found, item.row),
        }
    )
