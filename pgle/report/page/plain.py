"""A page as text for a terminal, and as GitHub's Markdown, in which no name turns into a link, a
picture or HTML.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from pgle.errors import UserError, choices, many, printable, shown
from pgle.next import Way
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import (
    MOST_ACTIONS,
    Advice,
    Cell,
    Page,
    Part,
    Prose,
    Section,
    Table,
    TimelineData,
    as_cell,
    table,
)

STYLES: dict[str, str] = {
    "good": "green",
    "bad": "red",
    "warn": "yellow",
    "soft": "dim",
    "exposed": "red",
    "hidden": "green",
    "head": "bold",
}
MARKS: dict[str, str] = {"good": "✓ ", "bad": "✗ ", "warn": "! "}
WARNINGS = 2  # how many the first screen has room for
ALL = "*"  # every section


def show(page: Page, *, sections: Sequence[str] = ()) -> None:
    """Print a page: the verdict first, the next command last. With ``--quiet`` print only the
    verdict.

    Args:
        page: the answer.
        sections: keys of further sections to print. `ALL` prints every section and row.

    Raises:
        UserError: the page has no section with that key.
    """
    screen = text.console()
    everything = ALL in sections
    if not everything:
        _check_sections(page, sections)
    _verdict(screen, page)
    if text.quiet:
        return
    if page.table is not None:
        screen.print()
        _table(screen, page.table, everything)
    for note in page.notes:
        cell = as_cell(note)
        screen.print(printable(str(cell.value)), style=STYLES.get(cell.tone, ""))
    if page.actions:
        screen.print()
        _actions(screen, page.actions, everything)
    for section in page.sections:
        if everything or section.key in sections:
            _section(screen, section, everything)
    for key in page.silent:
        if key in sections:
            screen.print(f"{key}: nothing to show")
    _warnings(screen, page.warnings, everything)
    if os.environ.get("PGLE_NEXT") != "0":
        _next(screen, page, everything)


def _check_sections(page: Page, keys: Sequence[str]) -> None:
    """Refuse the key of a section that this page does not have."""
    known = [section.key for section in page.sections]
    for key in keys:
        if key in known or key in page.silent:
            continue
        remedy = choices(key, known) if known else None
        raise UserError(f"no section '{key}' in this answer", remedy=remedy)


def _verdict(screen: text.Screen, page: Page) -> None:
    """The identity, the verdict, and a line to paste."""
    if page.identity and not text.quiet:
        screen.print(printable(" · ".join(page.identity)), soft_wrap=True)
    words = _mark(page.tone) + printable(page.verdict)
    style = f"bold {STYLES.get(page.tone, '')}".strip()
    screen.print(words, style=style, soft_wrap=True)
    if page.paste:
        screen.print(f"  {printable(page.paste)}", style="cyan", soft_wrap=True)


def _warnings(screen: text.Screen, warnings: Sequence[str], everything: bool) -> None:
    """Print the first warnings, then how many more there are. A single further warning is printed
    instead of a count.
    """
    has_room = len(warnings) <= WARNINGS + 1
    first = warnings if everything or has_room else warnings[:WARNINGS]
    for line in first:
        screen.print(f"warning: {shown(line)}", style="yellow")
    left = len(warnings) - len(first)
    if left:
        screen.print(f"… and {many(left, 'more warning')} (--all)", style="yellow")


def _next(screen: text.Screen, page: Page, everything: bool) -> None:
    """Print the next command, or the closing sentence."""
    commands = page.next if everything else page.next[:1]
    head = "Next: "
    for command in commands:
        screen.print(f"{head}{printable(command)}", style="cyan", soft_wrap=True)
        head = ""
    if page.done and not commands:
        _closing(screen, page.way)


def _closing(screen: text.Screen, way: Way) -> None:
    """Print the closing sentence. If it is longer than a line, the command at its end gets a line
    of its own, which can be pasted.
    """
    words = f"{way.end}: {printable(way.done)}"
    command = f"`{printable(way.command)}`"
    is_apart = len(words) > screen.width and words.endswith(command)
    if is_apart:
        words = words.removesuffix(command).rstrip()
    screen.print(words, style="cyan")
    if is_apart:
        _code(screen, way.command)
    if way.code:
        _code(screen, way.code)


def _mark(tone: str) -> str:
    """The sign before a verdict; empty if the terminal cannot show it."""
    mark = MARKS.get(tone, "")
    try:
        mark.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ""
    return mark


def _table(screen: text.Screen, content: Table, everything: bool) -> None:
    """Print the first rows of a table, and how many more there are."""
    drawn = content.drawn()
    first = drawn.rows
    option = "--json"  # that lists the rows that are left
    if not everything:
        first = first[: content.shown]
        option = "--all"
    heads = list(map(printable, drawn.heads))
    rows = [list(map(_styled, row)) for row in first]
    right = {at for at, is_right in enumerate(drawn.right) if is_right}
    whole = {0, *right}
    screen.print(text.grid(heads, rows, right=right, whole=whole, header=any(heads)))
    left = len(drawn.rows) + content.more - len(first)
    if left:
        screen.print(f"… and {left:,} more ({option} lists them)", style="dim")


def _styled(cell: Cell) -> str | Text:
    """A cell; in colour on a terminal."""
    plain = shown(str(cell.value))
    if cell.tone and sys.stdout.isatty():
        return Text(plain, style=STYLES[cell.tone])
    return plain


def _actions(screen: text.Screen, actions: Sequence[Advice], everything: bool) -> None:
    """Print the first actions as a table; or all, and then the commands that they have."""
    if not everything:
        actions = actions[:MOST_ACTIONS]
    heads = ["", "what to do"]
    has_savings = any(action.saves for action in actions)
    if has_savings:
        heads.append("saves")
    rows: list[list[str]] = []
    commands: list[str] = []
    for place, action in enumerate(actions, start=1):
        words = f"{action.title}: {action.why}" if action.why else action.title
        row = [str(place), printable(words)]
        if has_savings:
            row.append(str(action.saves or figures.NONE))
        rows.append(row)
        if action.command:
            commands.append(f"{place}: {printable(action.command)}")
    screen.print(text.grid(heads, rows, right={2}, whole={2}))
    for place, action in enumerate(actions, start=1):
        if action.code:
            screen.print(f"{place}:")
            _code(screen, action.code)
    if everything:
        for command in commands:
            screen.print(command, style="cyan", soft_wrap=True)


def _section(screen: text.Screen, section: Section, everything: bool) -> None:
    """Print the heading and parts of a section."""
    screen.print()
    screen.print(printable(section.heading), style="bold")
    for part in section.parts:
        if isinstance(part, Table):
            _table(screen, part, everything)
        elif isinstance(part, Prose):
            _prose(screen, part)
        elif isinstance(part, TimelineData):
            screen.print(_timeline(part, screen.width), soft_wrap=True)
        else:
            screen.print(part.alt, soft_wrap=True)


def _timeline(part: TimelineData, width: int) -> str:
    """The timeline as text, or how many columns it needs."""
    drawn = [line for line in part.text.splitlines() if line.startswith(" ")]
    widest = max(map(len, drawn), default=0)
    if widest > width:
        return f"(The timeline needs {widest} columns.)"
    return part.text.rstrip()


def _prose(screen: text.Screen, part: Prose) -> None:
    """Print a paragraph. Each line of code is indented, so that none looks like a line of pgle."""
    if part.code:
        _code(screen, part.text)
    else:
        screen.print(printable(part.text), style=STYLES.get(part.tone, ""))


def _code(screen: text.Screen, lines: str) -> None:
    """Print text to paste, unbroken and indented."""
    for line in lines.split("\n"):
        screen.print(f"  {printable(line)}", style="cyan", soft_wrap=True)


_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#~!&"})
#: patterns that GitHub's autolinks need
_ADDRESS = re.compile(r"(?<=\w)://|(?<=www)\.|@(?=\w)")


def markdown(page: Page) -> str:
    """Render a page as Markdown: verdict, table, actions, next command, sections, origin."""
    return "\n\n".join(_blocks(page)) + "\n"


def _blocks(page: Page) -> Iterator[str]:
    """The blocks of a page, to be separated by blank lines."""
    yield f"# {_escaped(page.verdict)}"
    yield _escaped(" · ".join(page.identity))
    if page.table is not None:
        yield _rows(page.table)
    for note in page.notes:
        yield _escaped(str(as_cell(note).value))
    if page.actions:
        yield "\n".join(_numbered(page.actions))
    if page.next:
        yield "Next:"
        yield _fenced("\n".join(map(printable, page.next)), "sh")
    elif page.done:
        yield f"{page.way.end}: {_escaped(page.done)}"
        if page.way.code:
            yield _fenced(page.way.code, "python")
    for section in (*page.sections, *_about(page)):
        if section.heading:
            yield f"## {_escaped(section.heading)}"
        yield from map(_block, section.parts)
    if page.warnings:
        yield "## Warnings"
        yield "\n".join(f"- {_escaped(line)}" for line in page.warnings)


def _about(page: Page) -> Iterator[Section]:
    """A section on where the figures come from."""
    if page.about:
        content = table(("name", "value"), page.about)
        yield Section("about", "Where this comes from", (content,))


def _escaped(content: str) -> str:
    """Escape text so that Markdown shows every letter. GitHub does not link addresses in it
    either.
    """
    line = printable(" ".join(content.split()))
    return _ADDRESS.sub(r"\\\g<0>", line.translate(_SPECIAL))


def _block(part: Part) -> str:
    """A part of a section in Markdown."""
    if isinstance(part, Table):
        return _rows(part)
    if isinstance(part, TimelineData):
        return _fenced(part.text, "text")
    if isinstance(part, Prose):
        if part.code:
            return _fenced(part.text, "sh")
        mark = "### " if part.tone == "head" else ""
        return mark + _escaped(part.text)
    return _escaped(part.alt)


def _rows(content: Table) -> str:
    """A table in Markdown."""
    drawn = content.drawn()
    rules = "|".join(map(_rule, drawn.right))
    lines = [_row(drawn.heads), f"|{rules}|"]
    for row in drawn.rows:
        cells = [str(cell.value) for cell in row]
        line = _row(cells)
        if cells and cells[0].startswith("  "):
            # the row belongs to the one above; Markdown would drop its indent
            line = line.replace("| ", "| &nbsp;&nbsp;", 1)
        lines.append(line)
    return "\n".join(lines)


def _rule(is_right: bool) -> str:
    """The alignment of a column in Markdown."""
    return "---:" if is_right else "---"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _numbered(actions: Sequence[Advice]) -> Iterator[str]:
    """The actions as a numbered list, with their commands."""
    for place, action in enumerate(actions, start=1):
        saves = f" (saves {action.saves})" if action.saves else ""
        why = f": {_escaped(action.why)}" if action.why else ""
        yield f"{place}. **{_escaped(action.title)}**{saves}{why}"
        if action.command:
            command = printable(action.command).replace("`", "'")
            yield f"   `{command}`"
        if action.code:
            yield textwrap.indent(_fenced(action.code, "python"), "   ")


def _fenced(content: str, language: str) -> str:
    """Put text into a block of code, unchanged."""
    lines = (printable(line).replace("```", "'''") for line in content.splitlines())
    return "\n".join([f"```{language}", *lines, "```"])
