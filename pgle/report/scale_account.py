"""The account of each size of a scaling, in words, and the commands for that size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pgle.account.next_move import BY_ADVISE
from pgle.account.value import Account, OpportunityKind
from pgle.errors import many
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.report import account
from pgle.report.account import AccountDocument
from pgle.report.page.figures import Unit
from pgle.report.page.value import Cell, Column, Section, Value, table
from pgle.report.scale_control import SIZE, size_of
from pgle.requests.predictions import Advise
from pgle.requests.shared import Network
from pgle.requests.stages import Stage
from pgle.run.directory.directory import free
from pgle.run.scale import Scaling
from pgle.scale.answer import Judged, ScaleRow
from pgle.scale.plan import SizeTrial, filled


def account_of(found: Scaling, row: ScaleRow) -> Account | None:
    """A row's account with the commands of its size; None if it has no account."""
    if row.account is None:
        return None
    commands = {
        OpportunityKind.FLAGS: tune(found, row),
        OpportunityKind.PROFILE: measure(found, row),
    }
    commands |= dict.fromkeys(BY_ADVISE, advise(found, row))
    opportunities = tuple(
        replace(item, command=commands.get(item.kind, item.command))
        for item in row.account.opportunities
    )
    return replace(row.account, opportunities=opportunities)


def shown(found: Scaling) -> tuple[Judged, ...]:
    """The row that others are compared with, and the row that the verdict is about."""
    answer = found.answer
    if not answer.best:
        return ()
    first = answer.best[0]
    return (first,) if answer.judged is first else (first, answer.judged)


def _judged(found: Scaling) -> Account | None:
    """The account of the row that the verdict is about; None if there is none."""
    rows = shown(found)
    return account_of(found, rows[-1].row) if rows else None


def lever_lines(found: Scaling) -> Iterator[str]:
    """Name the largest opportunity at the first size, and at the judged one."""
    for item in shown(found):
        known = account_of(found, item.row)
        if known is not None:
            words, _ = account.headline(known)
            yield f"At {gpus(item.row)}: {words}."


def base_line(found: Scaling) -> str:
    """Say which step the savings of the actions refer to."""
    known = _judged(found)
    return "" if known is None else account.note(known)


def section(found: Scaling, rows: Sequence[Judged]) -> Section:
    """The largest opportunity of every row, then all opportunities of the judged row."""
    levers: list[tuple[Value, ...]] = []
    for item in rows:
        if (known := account_of(found, item.row)) is not None:
            words, tone = account.headline(known)
            step = (*size_of(item.row), known.step_us, known.base)
            levers.append((*step, Cell(words, tone)))
    head = (
        *SIZE,
        Column("step", Unit.TIME),
        "which step",
        "largest lever",
    )
    known = _judged(found)
    whole = () if known is None else account.section(known).parts
    parts = (table(head, levers), *whole)
    return Section("opportunities", "What would shorten the step", parts)


def document(found: Scaling, row: ScaleRow) -> AccountDocument | None:
    """The account of a row; None if it has none."""
    known = account_of(found, row)
    return None if known is None else account.document(known)


def tune(found: Scaling, row: ScaleRow) -> Next | None:
    """The search for flags at one size; None for HLO files."""
    request = found.request
    if found.are_files:
        return None
    network = request.next_words(Network)
    options = (*_place(found, row), *network, "-o", free(Path("tuned")))
    if row.grown:
        return Next.of("tune", *options, str(request.out / row.grown))
    return Next.of("tune", *options, *_command(found, row))


def advise(found: Scaling, row: ScaleRow) -> Next | None:
    """The command that tries edits of the program at one size; None for HLO files."""
    request = found.request
    if found.are_files or row.grown:
        return None
    options = request.next_words(Advise, without="target devices")
    return Next.of("advise", *_place(found, row), *options, *_command(found, row))


def measure(found: Scaling, row: ScaleRow) -> Next | None:
    """The run that measures the program at one size; None for HLO files."""
    request = found.request
    if found.are_files or row.grown:
        return None
    options = (
        *request.next_words(Stage, without="flags target devices"),
        *_place(found, row),
        *(f"--flag={flag}" for flag in request.flags),
    )
    folder = ("--run-dir", free(Path("runs/default")))
    return Next.of("run", *folder, *options, *_command(found, row))


def _trial(found: Scaling, row: ScaleRow) -> SizeTrial:
    """The size and values of a row, which fill the words of its commands."""
    values = tuple(row.values.items())
    return SizeTrial(row.devices, found.hardware.devices_per_host, values)


def _place(found: Scaling, row: ScaleRow) -> tuple[object, ...]:
    """The options that describe the GPUs of a size."""
    trial = _trial(found, row)
    size: tuple[object, ...] = ("--devices", trial.devices)
    if trial.hosts > 1:
        size = ("--topology", trial.topology)
    return ("--target", found.target, *size)


def _command(found: Scaling, row: ScaleRow) -> tuple[object, ...]:
    """``--`` and the program's own command at a size."""
    return ("--", *kept_argv(filled(found.request.words, _trial(found, row))))


def gpus(row: ScaleRow) -> str:
    """``64 GPUs``."""
    return many(row.devices, "GPU")
