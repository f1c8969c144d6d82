"""A page as text: identity, verdict, one table, at most three actions, and the next command as the last line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from pgle.errors import UserError, choices, many, printable, shown
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import MOST_ACTIONS, Action, Cell, Page, Prose, Section, Table, Timeline, Tone

STYLES: dict[str, str] = {
    "good": "green", "bad": "red", "warn": "yellow", "soft": "dim", "exposed": "red", "hidden": "green", "head": "bold",
}  # fmt: skip
MARKS: dict[str, str] = {"good": "✓ ", "bad": "✗ ", "warn": "! "}
WARNINGS = 2  # that the first screen has room for
ALL = "*"  # every section


def show(page: Page, *, sections: Sequence[str] = ()) -> None:
    """Print a page; with ``--quiet`` its verdict alone.

    Args:
        page: the answer.
        sections: keys of the sections that are printed too; `ALL`: every one, and every row.

    Raises:
        UserError: the page has no section of that key.
    """
    screen = text.console()
    everything = ALL in sections
    chosen = [section for section in page.sections if everything or section.key in sections]
    for key in sections if not everything else ():
        if key not in (known := [section.key for section in page.sections]):
            raise UserError(f"no section '{key}' in this answer", remedy=choices(key, known) if known else None)
    if page.identity and not text.quiet:
        screen.print(" · ".join(filter(None, page.identity)), soft_wrap=True)
    screen.print(_mark(page.tone) + page.verdict, style=f"bold {STYLES.get(page.tone, '')}".strip(), soft_wrap=True)
    if page.paste:
        screen.print(f"  {page.paste}", style="cyan", soft_wrap=True)
    if text.quiet:
        return
    if page.table is not None:
        screen.print()
        _table(screen, page.table, everything)
    for note in page.notes:
        cell = note if isinstance(note, Cell) else Cell(note)
        screen.print(printable(str(cell.value)), style=STYLES.get(cell.tone, ""))
    if page.actions:
        screen.print()
        _actions(screen, page.actions if everything else page.actions[:MOST_ACTIONS], everything)
    for section in chosen:
        _section(screen, section, everything)
    _warnings(screen, page.warnings, everything)
    if os.environ.get("PGLE_NEXT") != "0":
        for place, command in enumerate(page.next if everything else page.next[:1]):
            screen.print(f"{'' if place else 'Next: '}{command}", style="cyan", soft_wrap=True)


def _mark(tone: Tone) -> str:
    mark = MARKS.get(tone, "")
    try:
        mark.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ""
    return mark


def _table(screen: Any, table: Table, everything: bool) -> None:
    from pgle.report.text import grid

    cells = table.cells()
    first = cells if everything else cells[: table.shown]
    heads = table.heads()
    right = {at for at, is_number in enumerate(table.right()) if is_number}
    rows = [[_styled(cell) for cell in row] for row in first]
    screen.print(grid(heads, rows, right=right, whole={0, *right}, header=any(heads)))
    if left := len(cells) + table.more - len(first):
        screen.print(f"… and {left:,} more (--{'json' if everything else 'all'} lists them)", style="dim")


def _styled(cell: Cell) -> Any:
    """A cell; in colour on a terminal."""
    plain = shown(str(cell.value))
    if not cell.tone or not sys.stdout.isatty():
        return plain
    from rich.text import Text

    return Text(plain, style=STYLES[cell.tone])


def _actions(screen: Any, actions: Sequence[Action], everything: bool) -> None:
    from pgle.report.text import grid

    saves = [action.saves for action in actions]
    heads = ["", "what to do", "saves up to"] if any(saves) else ["", "what to do"]
    rows: list[list[str]] = []
    for place, action in enumerate(actions, start=1):
        words = f"{action.title}: {action.why}" if action.why else action.title
        rows.append([str(place), printable(words), figures.share(action.saves)][: len(heads)])
    screen.print(grid(heads, rows, right={2}, whole={2}))
    if everything:
        for place, action in enumerate(actions, start=1):
            if action.command:
                screen.print(f"{place}: {action.command}", style="cyan", soft_wrap=True)


def _section(screen: Any, section: Section, everything: bool) -> None:
    screen.print()
    screen.print(section.heading, style="bold")
    for part in section.parts:
        if isinstance(part, Table):
            _table(screen, part, everything)
        elif isinstance(part, Timeline):
            lanes = [line for line in part.text.splitlines() if line.startswith(" ")]
            widest = max(map(len, lanes), default=0)
            is_narrow = widest > screen.width
            screen.print(f"(The timeline needs {widest} columns.)" if is_narrow else part.text.rstrip(), soft_wrap=True)
        elif isinstance(part, Prose):
            style = "cyan" if part.code else STYLES.get(part.tone, "")
            screen.print(f"  {part.text}" if part.code else part.text, style=style, soft_wrap=part.code)
        else:
            screen.print(part.alt, soft_wrap=True)


def _warnings(screen: Any, warnings: Sequence[str], everything: bool) -> None:
    first = warnings if everything or len(warnings) == WARNINGS + 1 else warnings[:WARNINGS]
    for line in first:
        screen.print(f"warning: {shown(line)}", style="yellow")
    if len(first) < len(warnings):
        screen.print(f"… and {many(len(warnings) - len(first), 'more warning')} (--all)", style="yellow")
