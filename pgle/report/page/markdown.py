"""A page as GitHub's Markdown. Names are escaped, so that none becomes a link, a picture or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pgle.errors import printable
from pgle.report.page import figures
from pgle.report.page.value import Action, Cell, Column, Page, Part, Prose, Section, Table, Timeline

_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#~!&"})
_ADDRESS = re.compile(r"(?<=\w)://|(?<=www)\.|@(?=\w)")  # what GitHub's autolinks need


def markdown(page: Page) -> str:
    """The page: verdict, table, actions, next command, sections, where it comes from."""
    blocks = [f"# {escaped(page.verdict)}", escaped(" · ".join(filter(None, page.identity)))]
    blocks += [table(page.table)] if page.table is not None else []
    blocks += [escaped(str(note.value if isinstance(note, Cell) else note)) for note in page.notes]
    blocks += ["\n".join(_actions(page.actions))] if page.actions else []
    blocks += ["Next:", fenced("\n".join(page.next), "sh")] if page.next else []
    for item in page.sections:
        blocks += section(item)
    if page.about:
        columns = (Column("name"), Column("value"))
        blocks += section(Section("about", "Where this comes from", (Table(columns, page.about),)))
    if page.warnings:
        blocks += ["## Warnings", "\n".join(f"- {escaped(line)}" for line in page.warnings)]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Text as Markdown shows it letter by letter; GitHub makes no link of an address in it either."""
    return _ADDRESS.sub(r"\\\g<0>", printable(" ".join(text.split())).translate(_SPECIAL))


def section(content: Section) -> list[str]:
    """Heading and parts, a block each."""
    return [*([f"## {escaped(content.heading)}"] if content.heading else []), *map(_part, content.parts)]


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return table(part)
    if isinstance(part, Timeline):
        return fenced(part.text, "text")
    if isinstance(part, Prose):
        return fenced(part.text, "sh") if part.code else ("### " if part.tone == "head" else "") + escaped(part.text)
    return fenced(part.alt, "text") if "\n" in part.alt else escaped(part.alt)


def table(content: Table) -> str:
    """A table of GitHub's Markdown."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rows = [[escaped(str(cell.value)) for cell in row] for row in content.cells()]
    rule = f"|{'|'.join('---:' if is_number else '---' for is_number in content.right())}|"
    return "\n".join([line([escaped(head) for head in content.heads()]), rule, *map(line, rows)])


def _actions(actions: Sequence[Action]) -> Iterator[str]:
    for place, action in enumerate(actions, start=1):
        saves = f" (saves up to {figures.share(action.saves)})" if action.saves else ""
        why = f": {escaped(action.why)}" if action.why else ""
        yield f"{place}. **{escaped(action.title)}**{saves}{why}"
        if action.command:
            yield f"   `{printable(action.command).replace('`', chr(39))}`"


def fenced(text: str, language: str) -> str:
    """Text as it is, in a block of code."""
    lines = (printable(line).replace("```", "'''") for line in text.splitlines())
    return "\n".join([f"```{language}", *lines, "```"])
