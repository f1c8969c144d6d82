"""A page as Markdown, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from pgle.errors import printable
from pgle.report.page.parts import Chart, Moving, Page, Part, Section, Table
from pgle.report.text import WIDTH, console, show_rest, table, warn
from pgle.report.timeline.scene import text_timeline

SHOWN = 12  # rows of a table on a terminal
_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#"})


def markdown(page: Page) -> str:
    """The page in GitHub's Markdown; names are escaped, pictures are text."""
    lines = [f"# {_safe(page.verdict)}", "", _safe(page.title), ""]
    for text in page.lead:
        lines += [_safe(text), ""]
    sections = [Section("Next", page.next)] if page.next else []
    about = Table(("", ""), page.about, shown=len(page.about))
    sections += [*page.sections, *([Section("Where this comes from", (about,))] if page.about else [])]
    for section in sections:
        lines += [f"## {_safe(section.heading)}", ""] if section.heading else []
        for part in section.parts:
            lines += [*_markdown(part), ""]
    if page.warnings:
        lines += ["## Notes", "", *(f"- {_safe(line)}" for line in page.warnings), ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown(part: Part) -> Iterator[str]:
    if isinstance(part, Table):
        yield f"| {' | '.join(map(_safe, part.columns))} |"
        yield f"|{'|'.join('---:' if i in part.right else '---' for i in range(len(part.columns)))}|"
        for row in part.cells:
            yield f"| {' | '.join(_safe(cell.text) for cell in row)} |"
    elif isinstance(part, Chart):
        yield _safe(part.alt)
    elif isinstance(part, Moving):
        yield from ("```text", *map(_fenced, part.text.splitlines()), "```")
    elif part.code:
        yield from ("```sh", *map(_fenced, part.text.splitlines()), "```")
    else:
        yield f"### {_safe(part.text)}" if part.tone == "head" else _safe(part.text)


def _safe(text: str) -> str:
    return printable(" ".join(text.split())).translate(_SPECIAL)


def _fenced(line: str) -> str:
    return printable(line).replace("```", "'''")


def _lanes(part: Moving, width: int) -> str:
    """The timeline as text; one that was stored cannot be drawn narrower."""
    if part.panels:
        return text_timeline(part.panels, width, part.first_us).rstrip()
    widest = max((len(line) for line in part.text.splitlines() if line.startswith(" ")), default=0)
    return part.text.rstrip() if widest <= width else f"(The timeline, {widest} columns wide, does not fit here.)"


def show(page: Page) -> None:
    """The page on stdout, warnings on stderr."""
    screen = console()
    screen.print(page.verdict, style="bold", soft_wrap=True)
    for line in page.lead:
        screen.print(line, soft_wrap=True)
    for section in page.sections:
        screen.print()
        if section.heading:
            screen.print(section.heading, style="bold")
        for part in section.parts:
            if isinstance(part, Table):
                heads = [head or " " * (i + 1) for i, head in enumerate(part.columns)]
                heads = [head if head not in heads[:i] else f"{head}{' ' * i}" for i, head in enumerate(heads)]
                right = "|".join(heads[i] for i in part.right)
                screen.print(
                    table(heads, [[cell.text for cell in row] for row in part.cells[:SHOWN]], right=right, whole=right)
                )
                show_rest(screen, len(part.rows) - SHOWN)
            elif isinstance(part, Moving):
                screen.print(_lanes(part, min(screen.width, WIDTH)), soft_wrap=True)
            elif isinstance(part, Chart):
                screen.print(part.alt, soft_wrap=True)
            else:
                screen.print(f"  {part.text}" if part.code else part.text, soft_wrap=True)
    screen.print()
    for name, value in page.about:
        screen.print(f"{name}: {value}", style="dim", soft_wrap=True)
    for part in page.next:
        screen.print(indent(part.text, "  ") if part.code else part.text, style="bold", soft_wrap=True)
    warn(page.warnings)
