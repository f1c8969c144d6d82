"""The second compilation of a rehearsal, which uses other kernels for matrix products."""

from __future__ import annotations

from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Column, Prose, Table, Value, table
from pgle.report.text import Document
from pgle.run.rehearse import Rehearsal
from pgle.run.second_compilation import Schedules
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Gain

STAGE = "scheduled, kernels not compiled"
"""How far XLA compiles without a device."""
SMALLER = "the smaller change counts"
"""The meaning of a second compilation's column."""


def depends_words(result: Rehearsal) -> str:
    """Return a verdict for the case that the choice of matrix kernels decides the sign of a change;
    else empty.
    """
    for what, found in (("LHS", result.lhs_gained), ("The profile", result.gained)):
        if words := changes_words(what, found):
            return words
    return ""


def changes_words(what: str, found: Controlled | None) -> str:
    """Return the change by both compilations if the kernels decide its sign; else empty."""
    if found is None or found.other is None or not found.depends:
        return ""
    first = longer(found.first.share)
    other = longer(found.other.share)
    sides = f"the step gets {first} or {other}"
    return f"{what} depends on what autotuning picks: {sides}"


def longer(share: float) -> str:
    """``1.4 % shorter``: a gain, given as a share of the step."""
    size = figures.share(abs(share))
    return f"{size} shorter" if share > 0 else f"{size} longer"


def note(result: Rehearsal) -> str:
    """Say how far the compilation went, and explain the column of the second one."""
    found = result.control
    if found is None or found.failure:
        return STAGE
    control = f"control ({found.flag})"
    if found.schedules is None:
        return f"{control}: the same program; {STAGE}"
    return f"{control}: {SMALLER}; {STAGE}"


def changes(result: Rehearsal) -> tuple[float | None, ...]:
    """Return the change of the step in the second compilation, for each schedule: XLA's own if
    there is one, LHS without the profile, LHS with it.

    Returns:
        shares of the first schedule's step; None for the first one, and if there is no second
        compilation.
    """
    sides = 2 if result.default is None else 3
    found = None if result.control is None else result.control.schedules
    if found is None:
        return (None,) * sides
    steps_us = [found.baseline.step_us, found.profiled.step_us]
    if result.default is not None:
        if found.default is None:
            return (None,) * sides
        steps_us.insert(0, found.default.step_us)
    first_us, *others_us = steps_us
    return None, *(step_us / first_us - 1 for step_us in others_us)


def section(result: Rehearsal) -> tuple[Prose | Table, ...]:
    """The schedules of both compilations."""
    found = result.control
    if found is None:
        why = (
            "Every matrix product has a measured cost, or there is none: "
            "nothing hangs on autotuning."
        )
        return (Prose(why),)
    if found.schedules is None:
        same = f"{found.flag} makes the same program"
        return (Prose(f"{found.failure or same}."),)
    gained = result.gained
    rows = [_row("your flags", result.schedules, gained.first)]
    if gained.other is not None:
        rows.append(_row(found.flag, found.schedules, gained.other))
    why = (
        "Without a GPU XLA cannot time kernels of matrix products. The second compilation "
        "takes other kernels. If both change the step in one direction, the smaller change "
        "counts."
    )
    heads = (
        "compiled with",
        Column("no profile", Unit.TIME),
        Column("the profile", Unit.TIME),
        Column("change", Unit.CHANGE),
    )
    return table(heads, rows), Prose(why, tone="soft")


def _row(name: str, schedules: Schedules, gain: Gain) -> tuple[Value, ...]:
    """The step of one compilation, without and with the profile."""
    before_us = schedules.baseline.step_us
    return name, before_us, schedules.profiled.step_us, -gain.share


class RehearsalControl(Document):
    """The profile's gain by both compilations."""

    flag: str
    same_program: bool
    depends: bool
    first: Gain
    other: Gain | None
    baseline_us: float | None
    profiled_us: float | None


def document(result: Rehearsal) -> RehearsalControl | None:
    """Both compilations; None if no choice of matrix kernels can change the verdict."""
    found = result.control
    if found is None:
        return None
    steps = found.schedules
    return RehearsalControl.of_value(
        result.gained,
        flag=found.flag,
        same_program=steps is None and not found.failure,
        baseline_us=None if steps is None else steps.baseline.step_us,
        profiled_us=None if steps is None else steps.profiled.step_us,
    )
