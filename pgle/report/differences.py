"""What changed between two measured steps: as a page."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.analyze.differences import LAUNCHES_DIFFER, Change, Differences, Verdict
from pgle.analyze.layers import short_source
from pgle.errors import many, printable
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.measured import ROWS, step_sections, tones
from pgle.report.page.value import Cell, Column, Page, Part, Prose, Section, Table, Tone, Value
from pgle.report.timeline.scene import parts_of
from pgle.run.analyze import Analysis

FIRST = 5  # changes on the first screen
NOTE = 40  # characters of a note on the first screen
LATE = 0.005  # of the step; a smaller change of the waits for other ranks is no note
COLUMNS = (Column("change"), Column("what"), Column("before", Unit.TIME), Column("after", Unit.TIME),
           Column("change", Unit.CHANGE_TIME), Column("of the step", Unit.CHANGE))  # fmt: skip


def against_page(found: Analysis, changed: Differences, identity: tuple[str, ...]) -> Page:
    """Whether the step got longer, by which test, and the rows that add up to the difference."""
    step = found.step
    answer, tone = verdict(changed)
    times = [figures.time(parts.step_us) for parts in (changed.before, changed.after)]
    return Page(
        title=f"pgle analyze: {printable(step.costs.program.key.name)}, two steps",
        identity=(*identity[:2], f"{' → '.join(times)} a step", *identity[3:]),
        verdict=answer,
        tone=tone,
        table=first_changes(changed),
        notes=tuple(difference_notes(changed)),
        sections=(*difference_sections(changed), *step_sections(found)),
        next=found.next,
        warnings=found.shown_warnings,
    )  # fmt: skip


def verdict(found: Differences) -> tuple[str, Tone]:
    """``2.3 % longer steps (more than ±0.5 % is no noise)``."""
    share = found.typical_us / found.before.step_us
    if found.noise_us is None:
        return f"Cannot tell whether steps changed: {found.why}", "warn"
    noise = figures.share(found.noise_us / found.before.step_us)
    if found.verdict == Verdict.CANNOT_TELL:
        return f"No change beyond noise: {figures.change(share, 2)} (noise ±{noise})", ""
    tone: Tone = "bad" if found.verdict == Verdict.LONGER else "good"
    return f"Steps are {figures.share(abs(share))} {found.verdict} (noise ±{noise})", tone


def difference_notes(found: Differences) -> Iterator[str]:
    """The test, and ranks that arrive later."""
    if found.noise_us is not None:
        least = figures.share(LAUNCHES_DIFFER, 2)
        yield (
            f"Noise: Welch's 95 % interval of the difference of typical steps, and at least ±{least}, as two launches "
            "of one program differ so much."
        )
    before_us, after_us = found.late_us
    if abs(after_us - before_us) >= LATE * found.before.step_us:
        rank = printable(found.late_rank) or "the last rank, each time another one"
        yield f"Other ranks wait {figures.time(after_us)} for {rank}; before: {figures.time(before_us)}."


def first_changes(found: Differences) -> Table:
    """The largest changes, the sum of the others, and the step: the rows add up to it."""
    first = found.changes[:FIRST]
    other_us = found.delta_us - sum(change.delta_us for change in first)
    whole = found.before.step_us
    rows = [_row(change, short=True) for change in first]
    rows.append(("", "all other changes", None, None, other_us, other_us / whole))
    rows.append((Cell("step", "head"), "", whole, found.after.step_us, found.delta_us, found.share))
    return Table(COLUMNS, tuple(rows))


def _row(change: Change, *, short: bool = False) -> tuple[Value, ...]:
    before, after = change.before, change.after
    renamed = f", was {before.name}" if before and after and before.name != after.name else ""
    where = short_source(change.source) or "/".join(change.op_name.split("/")[-2:])
    note = "" if short and change.before and change.after and len(change.note) > NOTE else change.note
    about = "; ".join(filter(None, (f"{change.name}{renamed}", where, note)))
    times = (None if part is None else part.us for part in (before, after))
    return Cell(str(change.kind), tones(change.share)), printable(about), *times, change.delta_us, change.share


def difference_sections(found: Differences) -> tuple[Section, ...]:
    """Every change, the parts of both steps, and layers."""
    rows = [_row(change) for change in found.changes]
    rows.append(("", "smaller changes together", None, None, found.other_us, found.other_us / found.before.step_us))
    names = (*(change.name for change in found.changes), "")
    same = f"{many(found.matched, 'instruction')} in both steps, {found.renamed:,} under another name."
    changes: tuple[Part, ...] = (Table(COLUMNS, tuple(rows[:ROWS]), names[:ROWS]), Prose(same, tone="soft"))
    sides = ([*parts_of(parts), ("step", parts.step_us)] for parts in (found.before, found.after))
    columns = (Column("part"), *COLUMNS[2:])
    parts = tuple(
        (name, one or None, two or None, two - one, (two - one) / found.before.step_us)
        for (name, one), (_, two) in zip(*sides, strict=True)
    )
    sections = [
        Section("changes", "What changed", changes),
        Section("before", "The parts of both steps", (Table(columns, parts),)),
    ]
    if found.layers:
        heads = (Column("layer"), Column("phase"), *COLUMNS[2:])
        layers = tuple(
            (name or "(no scope)", phase, one or None, two or None, two - one, (two - one) / found.before.step_us)
            for name, phase, one, two in found.layers
        )
        sections.append(Section("changed-layers", "Layers that changed", (Table(heads, layers[:ROWS]),)))
    return tuple(sections)
