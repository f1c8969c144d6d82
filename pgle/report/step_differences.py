"""What changed between two measured steps, as the first screen and the sections of `pgle analyze
--against`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pgle.analyze.differences import (
    LAUNCHES_DIFFER,
    Differences,
    StepChange,
    StepVerdict,
)
from pgle.analyze.layers import short_source
from pgle.errors import many, printable
from pgle.report.layers import ROWS
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Cell,
    Column,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.timeline import part_names, parts_of
from pgle.worth import is_worth

FIRST = 5  # changes on the first screen
NOTE = 40  # characters of a note on the first screen
TIMES = (
    Column("before", Unit.TIME),
    Column("after", Unit.TIME),
    Column("change", Unit.CHANGE_TIME),
    Column("of the step", Unit.CHANGE),
)


def verdict_of_change(found: Differences) -> tuple[str, Tone]:
    """Return ``Steps are 2.3 % longer (noise ±0.5 %)`` and its tone."""
    if found.noise_us is None:
        return f"Cannot tell whether steps changed: {found.why}", "warn"
    before_us = found.before.step_us
    change = found.typical_us / before_us
    noise = f"(noise ±{figures.share(found.noise_us / before_us)})"
    if found.verdict == StepVerdict.CANNOT_TELL:
        return f"No change beyond noise: {figures.change(change, 2)} {noise}", ""
    tone: Tone = "bad" if found.verdict == StepVerdict.LONGER else "good"
    return f"Steps are {figures.share(abs(change))} {found.verdict} {noise}", tone


def difference_notes(found: Differences) -> Iterator[str]:
    """Explain the noise, and name ranks that arrive later than before."""
    if found.noise_us is not None:
        least = figures.share(LAUNCHES_DIFFER, 2)
        yield (
            "Noise: Welch's 95 % interval of the difference of typical steps, and at least "
            f"±{least}, as two launches of one program differ so much."
        )
    before_us, after_us = found.late_us
    if is_worth(abs(after_us - before_us), found.before.step_us):
        rank = printable(found.late_rank) or "the last rank, each time another one"
        after = figures.time(after_us)
        before = figures.time(before_us)
        yield f"Other ranks wait {after} for {rank}; before: {before}."


def first_changes(found: Differences) -> Table:
    """The largest changes, the sum of the others, and the step: the rows add up to it."""
    first = found.changes[:FIRST]
    rows = [_change_row(change, most_note=NOTE) for change in first]
    other_us = found.delta_us - sum(change.delta_us for change in first)
    rows.append(_rest_row("all other changes", other_us, found))
    rows.append(_step_row(found))
    return table(("change", "what", *TIMES), rows)


def _rest_row(name: str, us: float, found: Differences) -> tuple[Value, ...]:
    """The sum of changes that have no row of their own."""
    return "", name, None, None, us, us / found.before.step_us


def _step_row(found: Differences) -> tuple[Value, ...]:
    """The whole step before and after."""
    label = Cell("step", "head")
    times = (found.before.step_us, found.after.step_us, found.delta_us)
    return label, "", *times, found.share


def _change_row(change: StepChange, most_note: int | None = None) -> tuple[Value, ...]:
    """A row for a change.

    Args:
        change: change of one instruction or one kind of time.
        most_note: most characters of a note if both steps have the row; None: no limit.
    """
    before = change.before
    after = change.after
    note = change.note
    if before and after and most_note is not None and len(note) > most_note:
        note = ""
    last_scopes = "/".join(change.op_name.split("/")[-2:])
    where = short_source(change.source) or last_scopes
    about = "; ".join(filter(None, (_both_names(change), where, note)))
    return (
        Cell(str(change.kind), _tone_of(change.share)),
        printable(about),
        None if before is None else before.us,
        None if after is None else after.us,
        change.delta_us,
        change.share,
    )


def _both_names(change: StepChange) -> str:
    """Return the name of a row, and its old name if that differs."""
    before, after = change.before, change.after
    if before and after and before.name != after.name:
        return f"{change.name}, was {before.name}"
    return change.name


def _tone_of(share: float) -> Tone:
    """Return the tone of a change: a longer step is bad."""
    if share > 0:
        return "bad"
    return "good" if share < 0 else ""


def difference_sections(found: Differences) -> tuple[Section, ...]:
    """Every change, and the parts of both steps."""
    both = f"{many(found.matched, 'instruction')} in both steps"
    same = f"{both}, {found.renamed:,} under another name."
    changes = (_all_changes(found), Prose(same, tone="soft"))
    return (
        Section("changes", "What changed", changes),
        Section("before", "The parts of both steps", (_both_parts(found),)),
    )


def _all_changes(found: Differences) -> Table:
    """Every change that is large enough, then the sum of the others."""
    rows = [_change_row(change) for change in found.changes]
    rows.append(_rest_row("smaller changes together", found.other_us, found))
    names = [*(change.name for change in found.changes), ""]
    return table(("change", "what", *TIMES), rows[:ROWS], finds=names[:ROWS])


def _both_parts(found: Differences) -> Table:
    """A row for each part of both steps."""
    whole_us = found.before.step_us
    before = dict(parts_of(found.before), step=whole_us)
    after = dict(parts_of(found.after), step=found.after.step_us)
    rows: list[tuple[Value, ...]] = []
    for name in (*part_names(found.before, found.after), "step"):
        before_us = before.get(name, 0.0)
        after_us = after.get(name, 0.0)
        change_us = after_us - before_us
        times = (before_us or None, after_us or None, change_us)
        rows.append((name, *times, change_us / whole_us))
    return table(("part", *TIMES), rows)
