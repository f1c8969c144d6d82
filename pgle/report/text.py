"""Text for people and programs: a console that never breaks words, a live line, and JSON."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from os import PathLike
from pathlib import Path
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any, Self, TextIO, dataclass_transform

from rich import table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from pgle.errors import (
    LONGEST_LINE,
    cut,
    in_percent,
    inert,
    named,
    one_line,
    printable,
    shown,
)
from pgle.files import Json
from pgle.next import Next, Sentence
from pgle.run.process import terminal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from pgle.files import Progress
    from pgle.run.compiler.compile import CompilerPhase, OnPhase

GAP = 2  # blanks between the columns of a table
SHORT, LABEL, SENTENCE = 14, 24, 20
"""Widths in characters: longest cell that stays on one line, longest row label that does so on
request, narrowest column of sentences.
"""
SCOPE_WIDTH = 32  # characters of a layer's name
#: a blank, as in "12.3 ms", at which no line may end; printed as a blank
_TIED = "\ue000"
_UNIT = re.compile(r"(?<=\d) (?=(?:[µmn]?s|[KMGT]i?B)\b)")
_COMMAND = re.compile(r"\s*(?:[^:'\"]*: )?(?:\S*/|\S+ -m )?(?:pgle|export|eval|git) ")
_INSTALLS = re.compile(r"\s*(?:[^:'\"]*: )?(?:uv pip|\S*pip|\S+ -m pip) ")
"""A command to copy that stays on one line, however narrow the terminal is."""
_QUOTED = re.compile(r"'[^']*'")
_BLANKS_AT_END = re.compile(r"[ \t]+$", re.MULTILINE)
_ENDLESS = re.compile(rf"[^\n]{{{LONGEST_LINE + 1},}}")


def _drawable(item: Any) -> Any:
    """A text as it is printed: lines have an end, commands begin as the user types them, and
    numbers stay with their units.
    """
    if not isinstance(item, str):
        return item
    return _UNIT.sub(
        _TIED, named(_ENDLESS.sub(lambda line: shown(line[0], LONGEST_LINE), item))
    )


class Screen(Console):
    """A rich console that prints text unchanged."""

    def __init__(self, stream: TextIO, width: int) -> None:
        # in a notebook rich would display its output there, even with a file
        super().__init__(
            file=stream,
            width=width,
            force_jupyter=False,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, but never break or cut words, and write no blanks at line ends in
        pipes.

        Lines with ``soft_wrap`` stay whole if nothing says how wide the reader is; a command that
        does not fit continues after a backslash, so that it can be copied.
        """
        options.setdefault("crop", False)
        objects = tuple(map(_drawable, objects))
        if objects and all(isinstance(item, str | Text) for item in objects):
            is_soft = options.get("soft_wrap", False)
            if is_soft or any(map(self._breaks_words, objects)):
                if not is_soft or self._has_width():
                    objects = tuple(map(self._wrapped, objects))
                options["soft_wrap"] = True
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as lines:
            super().print(*objects, **options)
        self.file.write(inert(_BLANKS_AT_END.sub("", lines.get())))

    def _breaks_words(self, item: Any) -> bool:
        """Whether a text has a word longer than a line."""
        return any(cell_len(word) > self.width for word in str(item).split())

    def _has_width(self) -> bool:
        """Whether the reader's width is known: from a terminal, or from COLUMNS in a pipe."""
        return self.is_terminal or os.environ.get("COLUMNS", "").isdecimal()

    def _wrapped(self, item: Any) -> Text:
        """Break lines between words. A command continues after a backslash."""
        lines: list[str] = []
        for line in str(item).split("\n"):
            if cell_len(line) <= self.width or _INSTALLS.match(line):
                lines.append(line)
                continue
            follow_on = ""
            if _COMMAND.match(line):
                follow_on = " \\"
                # keep quoted words whole
                line = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", _TIED), line)
            indent = len(line) - len(line.lstrip()) + 2 * len(follow_on)
            parts = wrap(
                line,
                self.width - len(follow_on),
                break_long_words=False,
                break_on_hyphens=False,
                subsequent_indent=" " * indent,
            )
            lines += [f"{part}{follow_on}" for part in parts[:-1]]
            lines += parts[-1:]
        style = item.style if isinstance(item, Text) else ""
        return Text("\n".join(lines), style)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, but escape control characters in names, so that the terminal does
        not obey them.
        """
        for segment in super().render(renderable, options):
            text = segment.text.replace(_TIED, " ")
            if not segment.control and not text.isprintable():
                text = "\n".join(map(printable, text.split("\n")))
            yield segment if text == segment.text else Segment(text, segment.style)

    def on_broken_pipe(self) -> None:
        """Do nothing: the command line ends quietly. Rich would exit with 1."""
        raise BrokenPipeError


def grid(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Collection[int] = (),
    whole: Collection[int] = (),
    header: bool = True,
) -> table.Table:
    """Return a borderless table that uses the available width.

    Args:
        heads: of its columns.
        rows: cells, plain text (never markup) or a `rich.text.Text`.
        right: the columns to align right.
        whole: the columns whose cells stay on one line if there is room; the others wrap between
            words.
        header: whether the heads are shown.
    """
    result = _Layout(box=None, pad_edge=False, show_header=header)
    for at, head in enumerate(heads):
        result.add_column(
            head,
            justify="right" if at in right else "left",
            overflow="fold",
            no_wrap=at in whole,
        )
    for row in rows:
        result.add_row(*map(_rich_cell, row))
    return result


def _rich_cell(cell: Any) -> Any:
    """Bind the numbers of a text to their units, so that no line ends between them. Other cells
    stay unchanged.
    """
    return Text(_UNIT.sub(_TIED, cell)) if isinstance(cell, str) else cell


class _Layout(table.Table):
    """A table that breaks no word. If the terminal is too narrow, the last columns are printed
    below their row.
    """

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        texts = [self._texts(column) for column in self.columns]
        least = [_least(*column) for column in texts]
        if self.columns and self.columns[0].no_wrap:
            name = min(max(map(cell_len, texts[0])), LABEL)
            least[0] = max(least[0], name)
        fitting = _fitting(least, options.max_width)
        gaps = GAP * (fitting - 1)
        shown = self.columns[:fitting]
        whole = [column.no_wrap for column in shown]
        room = options.max_width - gaps
        widths = _widths(texts[:fitting], whole, least[:fitting], room)
        for column, width in zip(shown, widths, strict=True):
            column.width = width
            column.no_wrap = False
        self.width = sum(widths) + gaps
        if fitting == len(least):
            yield from super().__rich_console__(console, options)
            return
        cells = [list(column.cells) for column in shown]
        hidden = list(zip(self.columns[fitting:], texts[fitting:], strict=True))
        for index in range(self.row_count):
            row = self._row(shown, header=self.show_header and not index)
            row.add_row(*(column[index] for column in cells))
            yield row
            yield from _rest(hidden, index, options.max_width)

    def _texts(self, column: table.Column) -> list[str]:
        """The head and cells of a column. The head is empty if heads are hidden."""
        head = str(column.header) if self.show_header else ""
        return [head, *map(str, column.cells)]

    def _row(self, columns: Sequence[table.Column], *, header: bool) -> table.Table:
        """A table of one row, with some columns."""
        row = table.Table(box=None, pad_edge=False, show_header=header)
        for column in columns:
            row.add_column(
                column.header,
                justify=column.justify,
                overflow="fold",
                width=column.width,
            )
        return row


def _below(column: table.Column, head: str, text: str) -> str:
    """The head and text of a cell printed below its row; empty for a cell without words, such as a
    bar.
    """
    if not re.search(r"\w", text):
        return ""
    if not head:
        return text
    return f"{head} {text}" if column.justify == "right" else f"{head}: {text}"


def _rest(
    hidden: Sequence[tuple[table.Column, Sequence[str]]], index: int, width: int
) -> Iterator[Text]:
    """Return the cells of a row that do not fit next to the others, as lines.

    Args:
        hidden: the columns without room, each with its head and its cells as texts.
        index: index of the row.
        width: width of a line.
    """
    cells: list[str] = []
    for column, (head, *texts) in hidden:
        if cell := _below(column, head.strip(), texts[index]):
            cells.append(cell)
    lines = wrap(
        ", ".join(cells),
        max(width - 4, 20),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        yield Text(f"    {line}", no_wrap=True, overflow="ignore")


def _fitting(least: Sequence[int], width: int) -> int:
    """Return how many columns fit next to each other, at least one.

    Args:
        least: least width of each column.
        width: the available width.
    """
    for count in range(len(least), 1, -1):
        gaps = GAP * (count - 1)
        if sum(least[:count]) + gaps <= width:
            return count
    return 1


def _widths(
    texts: Sequence[Sequence[str]],
    whole: Sequence[bool],
    least: Sequence[int],
    width: int,
) -> list[int]:
    """Choose the width of each column. They fit into `width` if `least` does.

    Args:
        texts: of each column the head and the cells.
        whole: the columns whose cells stay on one line if there is room.
        least: the width of each column's longest word.
        width: for all columns together.
    """
    widest = list(map(_widest, texts))
    widths = list(least)
    for index, stays in enumerate(whole):
        if stays:
            widths[index] = widest[index]
    columns = range(len(widths))
    # If the width is too small, wrap the columns first that shrink most by it.
    for index in sorted(columns, key=lambda index: least[index] - widths[index]):
        lacking = max(sum(widths) - width, 0)
        widths[index] = max(least[index], widths[index] - lacking)
    # Columns that need least get the remaining width first.
    wishes = [widest[index] - widths[index] for index in columns]
    spare = max(width - sum(widths), 0)
    for rank, index in enumerate(sorted(columns, key=wishes.__getitem__)):
        more = min(wishes[index], spare // (len(wishes) - rank))
        widths[index] += more
        spare -= more
    return widths


def _widest(texts: Sequence[str]) -> int:
    """The width of the longest line."""
    lines = "\n".join(texts).split("\n")
    return max(map(cell_len, lines))


def _least(head: str, *cells: str) -> int:
    """The least width at which no word of the cells is broken and sentences do not become a
    tower.
    """
    words = head.split()
    for cell in cells:
        if len(cell) <= SHORT:  # ``12.3 ms`` stays on one line
            words.append(cell)
        else:
            words += re.findall(r"^\s*\S+|\S+", cell)
    longest = max(map(cell_len, cells), default=0)
    return max(*map(cell_len, words), min(longest, SENTENCE), 0)


WIDTH, MIN_WIDTH, MAX_WIDTH = 100, 30, 200
"""Width if it is unknown, and limits of it. Below the lower limit no table can be laid out."""


quiet = False
"""Whether only the verdict of an answer is printed (``--quiet``)."""


def console() -> Screen:
    """Return a console. Its width comes from COLUMNS, else from the terminal, else it is 100.
    `NO_COLOR` is respected.
    """
    return Screen(sys.stdout, _width(sys.stdout))


def _width(stream: TextIO) -> int:
    """The width of the reader's lines; 100 if it is unknown."""
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isdecimal() and len(asked) < 10 else 0
    if not columns and stream.isatty():
        with suppress(OSError):
            columns = os.get_terminal_size(stream.fileno()).columns
    return max(MIN_WIDTH, min(columns, MAX_WIDTH)) if columns else WIDTH


def bar(fraction: float) -> str:
    """A bar of eighth blocks: ``fraction`` of 20 columns (0 to 1, clipped)."""
    clipped = min(max(fraction, 0.0), 1.0)
    full, eighths = divmod(round(clipped * 20 * 8), 8)
    drawn = "█" * full
    if eighths:
        drawn += "▏▎▍▌▋▊▉"[eighths - 1]
    return drawn.ljust(20)


def near(path: Path) -> Path:
    """Return the shortest path that can be typed here: relative if it is below the working
    directory.
    """
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def warn(lines: Iterable[str]) -> None:
    """Print warnings to stderr, one line each; on a terminal they wrap between words."""
    for line in lines:
        say(f"warning: {line}")


def say(line: str) -> None:
    """Print a line by pgle to stderr."""
    text = inert(f"pgle: {named(one_line(line))}")
    if sys.stderr.isatty():
        text = fill(
            text,
            _width(sys.stderr),
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    terminal.say(text)


def agreed(words: str) -> bool:
    """Ask on the terminal whether the user agrees. Without a terminal return False."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{one_line(words)}. Do it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def plain(value: Any) -> Any:
    """`value` as JSON types: dataclasses by field, tuples as lists, numpy scalars and arrays as
    numbers and lists.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Next | Sentence):
        return str(value)
    if isinstance(value, Enum):
        return plain(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, PathLike):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


FLAT: Mapping[str, bool] = {"flat": True}
"""Metadata of a field whose own fields replace it in JSON. If its value is None, they are
absent.
"""


def flat() -> Any:
    """Declare a field of a document whose own fields replace it in JSON."""
    return field(metadata=FLAT)


@dataclass_transform(frozen_default=True, field_specifiers=(flat,))
@dataclass(frozen=True)
class Document:
    """An object that pgle prints as JSON. Subclasses become frozen dataclasses without a
    decorator.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @classmethod
    def of_value(cls, *values: object, **others: Any) -> Self:
        """Make a document. `others` gives some fields. Every other field is the attribute of that
        name from the first value that has it.
        """
        for item in fields(cls):
            if item.name not in others:
                others[item.name] = _said_first(item.name, values)
        return cls(**others)


def _said_first(name: str, values: Iterable[object]) -> object:
    """The attribute of the first value that has it."""
    for value in values:
        found = getattr(value, name, MISSING)
        if found is not MISSING:
            return found
    raise TypeError(f"no value of the document has {name}")


def _plain_fields(value: DataclassInstance) -> dict[str, Any]:
    """The fields of a dataclass as JSON types. Flat ones are merged into it."""
    found: dict[str, Any] = {}
    for item in fields(value):
        inner = getattr(value, item.name)
        if "flat" not in item.metadata:
            found[item.name] = plain(inner)
        elif inner is not None:
            found |= plain(inner)
    return found


class ErrorParts(Document):
    """What went wrong, where, and what to do."""

    what: str
    where: str | None = None
    remedy: str | None = None


class ErrorDocument(Document):
    """``pgle.error/1``."""

    error: ErrorParts
    exit_code: int


def as_json(schema: str, value: Any) -> str:
    """The object as indented JSON text; ``schema`` such as ``pgle.verify/1`` comes first.
    Characters that a terminal obeys, or that UTF-8 cannot encode, are escaped.
    """
    document = {"schema": schema, **plain(value)}
    return json_lines(json.dumps(document, indent=2, ensure_ascii=False))


def json_lines(document: str) -> str:
    """Escape JSON without changing its values, so that UTF-8 can encode it and no terminal or CI
    runner obeys it.
    """
    lines = document.rstrip("\n").replace("##", "#\\u0023").split("\n")
    return "\n".join(_escaped(line, str.isprintable) for line in lines) + "\n"


def _escaped(line: str, stays: Callable[[str], bool]) -> str:
    """Escape a line of JSON, except the characters `stays`."""
    if stays(line):
        return line

    def kept(char: str) -> str:
        return char if stays(char) else json.dumps(char)[1:-1]

    return "".join(map(kept, line))


def print_json(schema: str, value: Json) -> None:
    """Print the object on stdout."""
    found = as_json(schema, value)
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if encoding not in ("utf8", "utf16", "utf32"):
        found = _escaped(found, str.isascii)
    sys.stdout.write(found)
    sys.stdout.flush()


FIRST_S, TURN_S, LOG_S = 0.3, 0.1, 10.0
is_shown = False
"""Whether progress is shown: commands show it, the library does not."""
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SCHEDULES = {
    "default": "XLA's default schedule",
    "baseline": "the schedule without a profile",
    "profiled": "the schedule with the profile",
    "proof": "the proof",
}
"""What a compilation is for, by its folder's name."""


@dataclass
class Line:
    """The state of the work shown on the live line. Any thread may change it."""

    what: str  # ``reading traces``
    done: int = 0  # number of finished items
    total: int = 0  # number of all items; 0: unknown
    noun: str = ""  # what is counted: ``trial``; empty: the line shows a share
    item: str = ""  # name of the current item
    best: str = ""  # description of the best so far
    since: float = field(default_factory=time.monotonic)
    #: seconds: the least time left that the line has shown
    _least_left_s: float = field(default=math.inf, init=False)

    def text(self, now: float) -> str:
        """``trial 5 of 20 · best −4.4 % · compiling · 18 s, about 50 s left``."""
        parts: list[str] = []
        if self.total:
            share = in_percent(self.done / self.total, 0)
            counted = f"{self.noun} {self.done} of {self.total}"
            parts.append(counted if self.noun else share)
        if self.item:
            parts.append(self.item)
        if self.best:
            parts.append(f"best {self.best}")
        if doing := terminal.status() or self.what:
            parts.append(doing)
        elapsed_s = now - self.since
        parts.append(f"{elapsed_s:.0f} s{self._left(elapsed_s)}")
        return printable(" · ".join(parts))

    def _left(self, elapsed_s: float) -> str:
        """``, about 50 s left``; empty if unknown, below a second, or more than was shown
        before.
        """
        if not 0 < self.done < self.total:
            return ""
        left_s = elapsed_s / self.done * (self.total - self.done)
        if not 1 <= left_s <= self._least_left_s:
            return ""
        self._least_left_s = left_s
        return f", about {left_s:.0f} s left"


@contextmanager
def live(what: str) -> Iterator[Line]:
    """Show a live line while the context lasts, if `is_shown`. The caller changes its text."""
    line = Line(what)
    if not is_shown:
        yield line
        return
    ended = threading.Event()
    shown = _redrawn if sys.stderr.isatty() else _logged
    thread = threading.Thread(target=shown, args=(line, ended), daemon=True)
    thread.start()
    try:
        yield line
    finally:
        ended.set()
        thread.join()


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show a line with progress. The yielded function takes (done, total)."""
    with live(what) as line:

        def advance(done: int, total: int) -> None:
            if done < total:
                line.what = what
                line.done = done
                line.total = total
            else:
                # Parsing follows reading, so a full bar would claim that the work is done.
                line.what = f"{what}: all read, working on it"
                line.done = line.total = 0

        yield advance


@contextmanager
def phases(line: Line | None = None) -> Iterator[OnPhase]:
    """Return a function that receives the phases of compilations and shows them on a line."""
    running: dict[str, CompilerPhase] = {}
    with (
        live("starting XLA's compiler") if line is None else nullcontext(line) as shown
    ):

        def note(phase: CompilerPhase) -> None:
            name = phase.request.dump_dir.name
            if phase.name == "done":
                running.pop(name, None)
            else:
                running[name] = phase
            if running:
                shown.what = _compiling(running)

        yield note


def _compiling(running: Mapping[str, CompilerPhase]) -> str:
    """Say what compiles, from the folder of the last compilation that runs."""
    *others, folder = running
    last = running[folder]
    what = f", {SCHEDULES[folder]}" if folder in SCHEDULES else ""
    module = f" {last.module}" if last.module else ""
    more = f" and {len(others)} more" if others else ""
    return f"compiling{module}{what} ({last.name}){more}"


def _redrawn(line: Line, ended: threading.Event) -> None:
    """Draw a line again and again on a terminal, until the work ends."""
    turn = 0
    while not ended.wait(TURN_S if turn else FIRST_S):
        mark = SPINNER[turn % len(SPINNER)]
        words = f"{mark} {line.text(time.monotonic())}"
        width = shutil.get_terminal_size().columns
        terminal.draw(cut(words, width - 1))
        turn += 1
    terminal.clear()


def _logged(line: Line, ended: threading.Event) -> None:
    """Print a line from time to time if there is no terminal."""
    while not ended.wait(LOG_S):
        terminal.say(f"pgle: {line.text(time.monotonic())}")
