"""The second compilation of a scaling, which uses other kernels for matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pgle.errors import many, printable
from pgle.report.account import sentence
from pgle.report.control import STAGE
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Column, Prose, Table, Value, table
from pgle.report.text import Document
from pgle.run.scale import Scaling
from pgle.scale.answer import Judged, RowControl, ScaleAnswer, ScaleRow
from pgle.scale.control import ScaleControl


def depends_words(found: Scaling) -> str:
    """Return a verdict for the case that the choice of matrix kernels decides it; else empty."""
    control = found.control
    if control is None or not control.depends:
        return ""
    sides = (found.answer, control.other)
    if control.is_other_best:
        largest = [side.best[-1].row for side in sides]
        names = " or ".join(map(named, largest))
        at = figures.count(largest[0].devices)
        return f"The best at {at} GPUs depends on what autotuning picks: {names}"
    sizes = [figures.count(side.scales_to) for side in sides]
    reaches = " or ".join(f"to {size} GPUs" for size in sizes)
    return f"How far it scales depends on what autotuning picks: {reaches}"


def named(row: ScaleRow) -> str:
    """The varied values of a row: ``mesh=a, batch=4``."""
    return ", ".join(f"{name}={printable(value)}" for name, value in row.shown.items())


SIZE = (Column("GPUs", Unit.COUNT), "variant")
"""The heads of the columns that identify a row in every section."""


def size_of(row: ScaleRow) -> tuple[int, str]:
    """The cells of the columns `SIZE`."""
    return row.devices, named(row)


def notes(found: Scaling) -> Iterator[str]:
    """Say how far compilation went, and how the second one changes the judged row."""
    there = [row for row in found.rows if not row.failure]
    if not there:
        return
    checked = [row.control for row in there if row.control is not None]
    failed = [one for one in checked if one.failure]
    control = found.control
    yield sentence(f"{_stage(checked, control)}{STAGE}")
    if failed:
        rows = many(len(failed), "row")
        why = printable(failed[0].failure)
        yield sentence(f"{rows}: {why}")
    if control is not None:
        yield from _depending(control)


def _stage(checked: Sequence[RowControl], control: ScaleControl | None) -> str:
    """The result of the second compilation, as the beginning of a sentence; empty without one."""
    if control is not None:
        flag = next(one.flag for one in checked if one.row is not None)
        return f"control ({flag}): {_last(control.other)}; "
    if checked and not any(one.failure for one in checked):
        return f"control ({checked[0].flag}): the same programs; "
    return ""


def _depending(control: ScaleControl) -> Iterator[str]:
    """Name what autotuning may change: whether rows fit, and which of two variants is faster."""
    for row in control.fits:
        size = f"{figures.count(row.devices)} GPUs {named(row)}"
        yield f"{size}: whether it fits depends on autotuning."
    if control.is_other_best:
        return  # the verdict says it
    for one, two in control.swapped:
        at = f"at {figures.count(one.devices)} GPUs"
        which = f"Whether {named(one)} or {named(two)}"
        yield f"{which} is faster {at} depends on autotuning."


def _last(answer: ScaleAnswer) -> str:
    """The step and efficiency of the row that a verdict is about."""
    item = answer.judged
    step = f"{figures.time(item.step_us)} at {figures.count(item.row.devices)} GPUs"
    if len(answer.best) == 1 or item.scaling is None:
        return step
    return f"{step}, efficiency {figures.share(item.scaling)}"


def section(found: Scaling) -> tuple[Prose | Table, ...]:
    """Both compilations of every row."""
    control = found.control
    if control is None:
        why = "No row has a matrix product whose kernel a second compilation would change."
        return (Prose(why),)
    pairs = zip(found.answer.rows, control.other.rows, strict=True)
    rows = [_row(one, two) for one, two in pairs if not one.row.failure]
    heads = (
        *SIZE,
        Column("step", Unit.TIME),
        Column("control", Unit.TIME),
        Column("efficiency", Unit.SHARE),
        Column("control's", Unit.SHARE),
        Column("exposed", Unit.TIME),
        Column("control's", Unit.TIME),
    )
    why = (
        "Without a GPU XLA cannot time kernels of matrix products. "
        "The second compilation of each row takes other kernels. Ranges hold both."
    )
    return table(heads, rows), Prose(why, tone="soft")


def _row(one: Judged, two: Judged) -> tuple[Value, ...]:
    """A row for one size in both compilations."""
    return (
        *size_of(one.row),
        one.step_us,
        two.step_us,
        one.efficiency,
        two.efficiency,
        one.row.exposed_us,
        two.row.exposed_us,
    )


class ScaleControlDocument(Document):
    """The answer by the second compilation, and whether the answer depends on the kernels."""

    depends: bool
    scales_to: int | None
    breaks_at: int | None
    best: Mapping[str, str] | None


class RowControlDocument(Document):
    """A row by the second compilation."""

    flag: str
    same_program: bool
    failure: str | None
    step_us: float | None
    efficiency: float | None
    exposed_us: float | None


def document(found: Scaling) -> ScaleControlDocument | None:
    """The verdict by the second compilation; None without one."""
    control = found.control
    if control is None:
        return None
    other = control.other
    best = other.best[-1].row.values if other.best else None
    return ScaleControlDocument.of_value(other, depends=control.depends, best=best)


def row_document(item: Judged, found: Scaling) -> RowControlDocument | None:
    """A row by the second compilation; None if no choice of matrix kernels can change it."""
    kept = item.row.control
    if kept is None:
        return None
    other: Judged | None = None
    if found.control is not None and kept.row is not None:
        pairs = zip(found.answer.rows, found.control.other.rows, strict=True)
        other = next(two for one, two in pairs if one is item)
    return RowControlDocument(
        flag=kept.flag,
        same_program=kept.row is None and not kept.failure,
        failure=kept.failure or None,
        step_us=None if other is None else other.step_us,
        efficiency=None if other is None else other.efficiency,
        exposed_us=None if other is None else other.row.exposed_us,
    )
