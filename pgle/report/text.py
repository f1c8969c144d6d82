"""Text for people and programs: a console that never breaks a word, a live line, and JSON."""

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

GAP = 2  # columns between those of a table
SHORT, LABEL, SENTENCE = 14, 24, 20
"""Characters of a cell that stays on one line, and of a row's name that does if that was asked for;
the least width of a column of sentences.
"""
SCOPE_WIDTH = 32  # characters of a layer's name
_TIED = "\ue000"  # is the blank of "12.3 ms" until it is printed, so that no line ends there
_UNIT = re.compile(r"(?<=\d) (?=(?:[µmn]?s|[KMGT]i?B)\b)")
_COMMAND = re.compile(r"\s*(?:[^:'\"]*: )?(?:\S*/|\S+ -m )?(?:pgle|export|eval|git) ")
_INSTALLS = re.compile(r"\s*(?:[^:'\"]*: )?(?:uv pip|\S*pip|\S+ -m pip) ")
"""A line to copy that stays one line, however narrow the terminal is."""
_QUOTED = re.compile(r"'[^']*'")
_BLANKS_AT_END = re.compile(r"[ \t]+$", re.MULTILINE)
_ENDLESS = re.compile(rf"[^\n]{{{LONGEST_LINE + 1},}}")


def _drawable(item: Any) -> Any:
    if not isinstance(item, str):
        return item
    return _UNIT.sub(
        _TIED, named(_ENDLESS.sub(lambda line: shown(line[0], LONGEST_LINE), item))
    )


class Screen(Console):
    """A console of rich that takes text as it is."""

    def __init__(self, stream: TextIO, width: int) -> None:
        # in a notebook rich would show what it prints there, whatever the file
        super().__init__(
            file=stream,
            width=width,
            force_jupyter=False,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints, but words are never broken or cut, and lines in pipes end where their
        text does.

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
        """Whether a text has a word that is longer than a line."""
        return any(cell_len(word) > self.width for word in str(item).split())

    def _has_width(self) -> bool:
        """Whether something says how wide the reader is: a terminal, or COLUMNS in a pipe."""
        return self.is_terminal or os.environ.get("COLUMNS", "").isdecimal()

    def _wrapped(self, item: Any) -> Text:
        lines: list[str] = []
        for line in str(item).split("\n"):
            if cell_len(line) <= self.width or _INSTALLS.match(line):
                lines.append(line)
                continue
            follow_on = " \\" if _COMMAND.match(line) else ""
            if follow_on:  # quoted words stay whole
                line = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", _TIED), line)
            indent = " " * (len(line) - len(line.lstrip()) + 2 * len(follow_on))
            parts = wrap(
                line,
                self.width - len(follow_on),
                break_long_words=False,
                break_on_hyphens=False,
                subsequent_indent=indent,
            )
            lines += [f"{part}{follow_on}" for part in parts[:-1]] + parts[-1:]
        return Text("\n".join(lines), item.style if isinstance(item, Text) else "")

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich renders; what a name holds is printed, never obeyed by the terminal."""
        for segment in super().render(renderable, options):
            text = segment.text.replace(_TIED, " ")
            if segment.control or text.isprintable():
                yield segment if text == segment.text else Segment(text, segment.style)
            else:
                yield Segment(
                    "\n".join(map(printable, text.split("\n"))), segment.style
                )

    def on_broken_pipe(self) -> None:
        """Left to the command line, which ends quietly; rich would end with 1."""
        raise BrokenPipeError


def grid(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Collection[int] = (),
    whole: Collection[int] = (),
    header: bool = True,
) -> table.Table:
    """A borderless table, as wide as there is room.

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
    """A text whose numbers stay on one line with their units; other cells as they are."""
    return Text(_UNIT.sub(_TIED, cell)) if isinstance(cell, str) else cell


class _Layout(table.Table):
    """A table that breaks no word. If columns have no room, the last ones are printed below their
    row.
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
        widths = _widths(
            texts[:fitting],
            [column.no_wrap for column in shown],
            least[:fitting],
            options.max_width - gaps,
        )
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
        """Head, which is empty if heads are not shown, and cells of a column."""
        head = str(column.header) if self.show_header else ""
        return [head, *map(str, column.cells)]

    def _row(self, columns: Sequence[table.Column], *, header: bool) -> table.Table:
        """A table for one row of some columns."""
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
    """Head and text of a cell that is below its row; empty if it has no words, as a bar."""
    if not re.search(r"\w", text):
        return ""
    if not head:
        return text
    return f"{head} {text}" if column.justify == "right" else f"{head}: {text}"


def _rest(
    hidden: Sequence[tuple[table.Column, Sequence[str]]], index: int, width: int
) -> Iterator[Text]:
    """The cells of a row that do not fit next to the others, as lines.

    Args:
        hidden: the columns without room, each with its head and its cells as texts.
        index: of the row.
        width: of a line.
    """
    cells = (
        _below(column, texts[0].strip(), texts[index + 1]) for column, texts in hidden
    )
    lines = wrap(
        ", ".join(filter(None, cells)),
        max(width - 4, 20),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        yield Text(f"    {line}", no_wrap=True, overflow="ignore")


def _fitting(least: Sequence[int], width: int) -> int:
    """How many columns have room next to each other, one at least.

    Args:
        least: the columns that each needs.
        width: that there are.
    """
    for count in range(len(least), 1, -1):
        if sum(least[:count]) + GAP * (count - 1) <= width:
            return count
    return 1


def _widths(
    texts: Sequence[Sequence[str]],
    whole: Sequence[bool],
    least: Sequence[int],
    width: int,
) -> list[int]:
    """The width of each column, so that they fit into `width` if `least` does.

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
    # If there is too little room, the columns that gain most from wrapping wrap first.
    for index in sorted(columns, key=lambda index: least[index] - widths[index]):
        lacking = max(sum(widths) - width, 0)
        widths[index] = max(least[index], widths[index] - lacking)
    # The columns that need least get the rest of the room first.
    wishes = [widest[index] - widths[index] for index in columns]
    spare = max(width - sum(widths), 0)
    for rank, index in enumerate(sorted(columns, key=wishes.__getitem__)):
        more = min(wishes[index], spare // (len(wishes) - rank))
        widths[index] += more
        spare -= more
    return widths


def _widest(texts: Sequence[str]) -> int:
    """The columns of the longest line."""
    lines = "\n".join(texts).split("\n")
    return max(map(cell_len, lines))


def _least(head: str, *cells: str) -> int:
    """The columns that cells need so that no word is broken and no sentence becomes a tower."""
    words = head.split()
    for cell in cells:  # a short one (``12.3 ms``) stays on one line
        words += [cell] if len(cell) <= SHORT else re.findall(r"^\s*\S+|\S+", cell)
    sentence = min(max(map(cell_len, cells), default=0), SENTENCE)
    return max(*map(cell_len, words), sentence, 0)


WIDTH, MIN_WIDTH, MAX_WIDTH = 100, 30, 200
"""Columns if nothing says how many there are, and limits: no table can be laid out in less."""


quiet = False
"""Whether an answer is its verdict alone, as ``--quiet`` asks."""


def console() -> Screen:
    """A console as wide as COLUMNS says, else as the terminal is, else of 100 columns. `NO_COLOR`
    is respected.
    """
    return Screen(sys.stdout, _width(sys.stdout))


def _width(stream: TextIO) -> int:
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isdecimal() and len(asked) < 10 else 0
    if not columns and stream.isatty():
        with suppress(OSError):
            columns = os.get_terminal_size(stream.fileno()).columns
    return max(MIN_WIDTH, min(columns, MAX_WIDTH)) if columns else WIDTH


def bar(fraction: float) -> str:
    """A bar of eighth blocks: ``fraction`` of 20 columns (0 to 1, clipped)."""
    eighths = round(min(max(fraction, 0.0), 1.0) * 20 * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + ("" if rest == 0 else "▏▎▍▌▋▊▉"[rest - 1])).ljust(20)


def near(path: Path) -> Path:
    """A path as short as it can be typed here: relative if it is below the working directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def warn(lines: Iterable[str]) -> None:
    """Print warnings to stderr, one line each; on a terminal they wrap between words."""
    for line in lines:
        say(f"warning: {line}")


def say(line: str) -> None:
    """Print a line of pgle's own to stderr."""
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
    """Whether the user agrees to something, asked on a terminal; False if there is none."""
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
"""Metadata of a field whose own fields take its place in JSON. If it is None, they are absent."""


def flat() -> Any:
    """A field of a document whose own fields take its place."""
    return field(metadata=FLAT)


@dataclass_transform(frozen_default=True, field_specifiers=(flat,))
@dataclass(frozen=True)
class Document:
    """An object that pgle prints as JSON. Each kind is a frozen dataclass, without saying so."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    @classmethod
    def of_value(cls, *values: object, **others: Any) -> Self:
        """A document of which `others` are given. Each other field is the attribute of that name,
        of the first value that has it.
        """
        for item in fields(cls):
            if item.name not in others:
                others[item.name] = _said_first(item.name, values)
        return cls(**others)


def _said_first(name: str, values: Iterable[object]) -> object:
    """An attribute of the first value that has it."""
    for value in values:
        found = getattr(value, name, MISSING)
        if found is not MISSING:
            return found
    raise TypeError(f"no value of the document has {name}")


def _plain_fields(value: DataclassInstance) -> dict[str, Any]:
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
    """The object as indented JSON text; ``schema`` such as ``pgle.verify/1`` comes first. What a
    terminal acts upon, or UTF-8 cannot encode, is escaped.
    """
    return json_lines(
        json.dumps({"schema": schema, **plain(value)}, indent=2, ensure_ascii=False)
    )


def json_lines(document: str) -> str:
    """JSON with the same values that no terminal and no CI runner acts upon, and that UTF-8 can
    encode.
    """
    lines = document.rstrip("\n").replace("##", "#\\u0023").split("\n")
    return "\n".join(_escaped(line, str.isprintable) for line in lines) + "\n"


def _escaped(line: str, stays: Callable[[str], bool]) -> str:
    """A line of JSON in which only some characters stay as they are."""
    if stays(line):
        return line

    def kept(char: str) -> str:
        return char if stays(char) else json.dumps(char)[1:-1]

    return "".join(map(kept, line))


def print_json(schema: str, value: Json) -> None:
    """Print the object on stdout."""
    found = as_json(schema, value)
    if (sys.stdout.encoding or "").lower().replace("-", "") not in (
        "utf8",
        "utf16",
        "utf32",
    ):
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
"""What a compilation is for, by the name of its folder."""


@dataclass
class Line:
    """The state of the work; any thread may change it."""

    what: str  # ``reading traces``
    done: int = 0  # of `total`
    total: int = 0  # 0: not known
    noun: str = ""  # the counted thing: ``trial``; empty: a share is shown
    item: str = ""  # the one that `done` counts up to, in words
    best: str = ""  # the best so far, in words
    since: float = field(default_factory=time.monotonic)
    _least_left_s: float = field(default=math.inf, init=False)  # that was shown

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
        """``, about 50 s left``; empty if that is not known, less than a second, or more than was
        shown before.
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
    """A line that is shown while the context lasts, if `is_shown`; the work changes what it
    says.
    """
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
    """A line that shows progress; the yielded function takes (done, total)."""
    with live(what) as line:

        def advance(done: int, total: int) -> None:
            # After reading comes parsing: a full bar would claim that the work is done.
            line.done, line.total = (done, total) if done < total else (0, 0)
            line.what = what if done < total else f"{what}: all read, working on it"

        yield advance


@contextmanager
def phases(line: Line | None = None) -> Iterator[OnPhase]:
    """A function that takes the phases of compilations, and has a line show them."""
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
    """What compiles, by the last compilation of those that run; by the name of its folder."""
    folder, last = list(running.items())[-1]
    what = f", {SCHEDULES[folder]}" if folder in SCHEDULES else ""
    module = f" {last.module}" if last.module else ""
    more = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return f"compiling{module}{what} ({last.name}){more}"


def _redrawn(line: Line, ended: threading.Event) -> None:
    turn = 0
    while not ended.wait(TURN_S if turn else FIRST_S):
        words = f"{SPINNER[turn % len(SPINNER)]} {line.text(time.monotonic())}"
        terminal.draw(cut(words, shutil.get_terminal_size().columns - 1))
        turn += 1
    terminal.clear()


def _logged(line: Line, ended: threading.Event) -> None:
    while not ended.wait(LOG_S):
        terminal.say(f"pgle: {line.text(time.monotonic())}")
