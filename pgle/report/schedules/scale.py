"""What a program does at other sizes, as a page and as ``pgle.scale/1``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgle.errors import many
from pgle.next import typed
from pgle.report import json
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Cell, Column, Page, Prose, Section, Table, Value
from pgle.report.progress import live
from pgle.run.scale.scale import OnRow, Scaling
from pgle.scale.answer import BREAKS, Judged
from pgle.scale.row import Exposed

NOT_MODELLED = "jitter between GPUs, the network's topology and congestion, failures, input and checkpoints"


@contextmanager
def making(sizes: int) -> Iterator[OnRow]:
    """A live line on the rows that are being made."""
    with live(f"capturing and compiling {many(sizes, 'size')}") as line:
        line.noun = "row"

        def on_row(row: object, done: int, total: int) -> None:
            line.done, line.total = done, total

        yield on_row


def scale_page(found: Scaling) -> Page:
    """The verdict, a row for each size and variant, and what is not known."""
    request, rows = found.request, found.answer.rows
    names = [item.row.module for item in rows if item.row.module]
    warnings = tuple(dict.fromkeys(line for item in rows for line in item.row.warnings))
    costs = sorted({item.row.costs_are for item in rows if not item.row.failure})
    return Page(
        title="pgle scale",
        identity=(
            *names[:1],
            f"{request.target}, {found.per_host} a host",
            f"{' and '.join(costs)} costs" * bool(costs),
        ),
        verdict=_verdict(found),
        tone="" if found.answer.breaks is None and found.answer.good else "warn" if found.answer.good else "bad",
        table=_table(found),
        notes=(*_notes(found),),
        sections=(Section("limits", "What is not modelled", (Prose(f"Not modelled: {NOT_MODELLED}."),)),),
        next=(_next(found),),
        warnings=warnings,
    )


def _verdict(found: Scaling) -> str:
    answer = found.answer
    if answer.first is None:
        return f"No size has a step: {answer.rows[0].row.failure}"
    if not answer.good:
        return "It fits at no size"
    if answer.breaks is None:
        last = answer.best[-1]
        return f"Scales to {figures.count(last.row.devices)} GPUs (efficiency {figures.share(last.efficiency, 0)})"
    at = (
        f"at {figures.count(answer.breaks.row.devices)} GPUs efficiency is {figures.share(answer.breaks.efficiency, 0)}"
    )
    to = answer.scales_to
    return f"Scales to {figures.count(to)}; {at}" if to and answer.breaks is not answer.first else f"Breaks: {at}"


def _table(found: Scaling) -> Table:
    varied = tuple(found.request.vary)
    columns = (
        Column("GPUs", Unit.COUNT), *map(Column, varied), Column("step", Unit.TIME), Column("range"),
        Column("efficiency", Unit.SHARE), Column("exposed", Unit.SHARE), Column("most exposed"),
        Column("memory", Unit.SIZE), Column("fits"), Column("TFLOP/s", Unit.RATE),
    )  # fmt: skip
    return Table(columns, tuple(_row(item, varied) for item in found.answer.rows))


def _row(item: Judged, varied: tuple[str, ...]) -> tuple[Value, ...]:
    row = item.row
    head: tuple[Value, ...] = (row.devices, *(row.values[name] for name in varied))
    if row.failure:
        return (*head, None, None, None, None, Cell(row.failure, "warn"), None, None, None)
    fits = {None: None, True: "yes", False: Cell("no", "bad")}[row.fits]
    worst = row.by_collective[0] if row.by_collective and row.by_collective[0].exposed_us else None
    return (
        *head, item.step_us, _range(item), item.efficiency, Cell(row.exposed_us / row.step_us, "exposed"),
        f"{_where(worst)} {figures.share(worst.exposed_us / row.step_us)}" if worst else None,
        row.memory_bytes, fits, row.tflops or None,
    )  # fmt: skip


def _range(item: Judged) -> str:
    low, high = (figures.time(us) for us in item.interval_us)
    return figures.between(low, high)


def _where(item: Exposed) -> str:
    return (
        f"{item.kind} over {many(item.hosts, 'host')}" if item.hosts > 1 else f"{item.kind} of {item.group} in a host"
    )


def _notes(found: Scaling) -> Iterator[str]:
    answer = found.answer
    if answer.breaks is not None and answer.culprit is not None:
        yield (
            f"At {figures.count(answer.breaks.row.devices)} GPUs {_where(answer.culprit)} is exposed for "
            f"{figures.share(answer.culprit_share)} of the step (exposed: the GPU waits, nothing computes)."
        )
    if answer.first is not None:
        yield (
            f"Efficiency: work per second and GPU against the first row; from {figures.share(BREAKS, 0)} on it scales. "
            f"Not modelled: {NOT_MODELLED}."
        )


def _next(found: Scaling) -> str:
    largest = max(found.answer.rows, key=lambda item: item.row.devices).row
    return typed(
        "pgle", "tune", "--target", found.request.target, "--devices", largest.devices, "-o", "tuned", "--", "…"
    )


def show_json(found: Scaling) -> None:
    """``pgle.scale/1``."""
    answer = found.answer
    json.show(
        "pgle.scale/1",
        {
            "target": found.request.target,
            "devices_per_host": found.per_host,
            "network_gb_s": found.network_gb_s,
            "network_is": "assumed" if found.request.network_gb_s is None else "given",
            "rows": [_plain(item) for item in answer.rows],
            "scales_to": answer.scales_to,
            "breaks_at": None if answer.breaks is None else answer.breaks.row.devices,
            "not_modelled": NOT_MODELLED,
            "next": _next(found),
            "warnings": list(dict.fromkeys(line for item in answer.rows for line in item.row.warnings)),
        },
    )


def _plain(item: Judged) -> dict[str, object]:
    row = item.row
    head = {"devices": row.devices, "values": row.values, "failure": row.failure or None}
    if row.failure:
        return head
    return {
        **head,
        "step_us": item.step_us,
        "interval_us": item.interval_us,
        "predicted_us": row.step_us,
        "flat": item.flat,
        "exposed_us": row.exposed_us,
        "compute_us": row.compute_us,
        "copy_us": row.copy_us,
        "idle_us": row.idle_us,
        "ceiling_us": row.ceiling_us,
        "by_collective": row.by_collective,
        **json.picked(row, "argument_bytes temp_bytes memory_bytes limit_bytes fits tflops costs_are carried_share"),
        "efficiency": item.efficiency,
        "efficiency_range": item.efficiency_range,
    }
