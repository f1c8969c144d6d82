"""The two ways a command ends early, how each becomes one line and an exit code, and the words of
every message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pgle.next import Next, Sentence


# characters of a line that are printed: a command with every path that it needs is shorter
LONGEST_LINE = 20_000


def printable(text: str) -> str:
    """A name or line from outside as one that can be printed anywhere.

    What could move the cursor, break the line, turn the direction of writing (control and format
    characters) or not be encoded is escaped as in Python: ``\\x1b``.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable_char, text))


def _printable_char(char: str) -> str:
    if char.isprintable():
        return char
    return char.encode("unicode_escape").decode()


_OBEYED = re.compile(
    r"^(?P<blanks>[^\S\n]*):(?=:[A-Za-z][\w-]*(?: [^\n]*)?::)|##(?=\w*\[)", re.MULTILINE
)
"""What a CI runner obeys in a log: GitHub lines that begin with ``::error::`` (after blanks) and
``##[error]`` anywhere (github.com/actions/runner, src/Runner.Common/ActionCommand.cs), Azure
Pipelines ``##vso[…]``, TeamCity ``##teamcity[…]``.
"""


def inert(text: str) -> str:
    """Lines for a log, in which no name from outside is a command to the CI runner that reads the
    log.
    """
    return _OBEYED.sub(
        lambda found: (
            "#\\x23" if found["blanks"] is None else f"{found['blanks']}\\x3a"
        ),
        text,
    )


def shown(text: str, most: int = 500) -> str:
    """As `printable`; of a text that nobody reads to its end, as a damaged file may name things,
    the beginning.
    """
    if len(text) <= most:
        return printable(text)
    return f"{printable(text[:most])}… ({len(text.strip()):,} characters)"


def one_line(text: str) -> str:
    """Any text as one printable line."""
    return shown(" ".join(text.split()), LONGEST_LINE)


def suggestion(word: str, choices: Iterable[str]) -> str:
    """``did you mean X?`` where one of the choices is like `word`; else empty."""
    from difflib import get_close_matches  # only on the way to an error

    near = get_close_matches(word, list(choices), 1, 0.6)
    return f"did you mean '{near[0]}'?" if near else ""


def choices(word: str, names: Iterable[str]) -> str:
    """``did you mean X? it has X, Y``: what can be named instead of `word`; the first five."""
    known = list(dict.fromkeys(names))
    return " ".join(
        filter(None, (suggestion(word, known), f"it has {', '.join(known[:5])}"))
    )


_names: dict[str, str] = {}
"""How pgle was started, if not as ``pgle``, by each of its commands."""


def call_it(program: str, commands: Iterable[str]) -> None:
    """Have every command of pgle that is printed begin as the user can type it, such as
    ``.venv/bin/pgle``.
    """
    _names.clear()
    _names[program] = rf"(?<![\w./-])pgle(?= (?:{'|'.join(commands)}|--help)\b)"


def named(text: str) -> str:
    """A text with the commands of pgle in it as the user can type them."""
    for program, word in _names.items():
        text = re.sub(word, lambda _, program=program: program, text)  # type: ignore[misc]
    return text


def many(count: int, noun: str) -> str:
    """``1 gap``, ``2,000 gaps``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def in_words(us: float) -> str:
    """A time in µs, ms or s."""
    if us < 1e3:
        return f"{us:.3g} µs"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def in_percent(share: float, decimals: int = 1) -> str:
    """A share of 0 to 1 as ``28.0 %``."""
    minus = "−" if share < 0 else ""
    return f"{minus}{abs(share) * 100:,.{decimals}f} %"


def as_change(share: float, decimals: int = 1) -> str:
    """A share with its sign as ``−7.8 %`` or ``+0.0 %``."""
    plus = "" if share < 0 else "+"
    return f"{plus}{in_percent(share, decimals)}"


def some(names: Iterable[str], most: int) -> str:
    """The first of some names: ``a, b and 3 more``."""
    listed = list(names)
    return ", ".join(listed[:most]) + (
        f" and {len(listed) - most:,} more" if len(listed) > most else ""
    )


def cut(text: str, room: int) -> str:
    """A text of at most `room` characters."""
    return text if len(text) <= room else f"{text[: room - 1]}…"


class UserError(Exception):
    """Input or usage that the user can mend: one line saying what, where and what to do. Exit code
    2.

    Args:
        what: the mistake, a clause without a full stop ("not a SQLite database").
        where: the file, option or line that it is about.
        remedy: what to do next, best a command to type, as a value: `Next.of("show", path)`.
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str | PathLike[str] | None = None,
        remedy: str | Next | Sentence | None = None,
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.remedy = None if remedy is None else str(remedy)
        super().__init__(self.line())

    def line(self) -> str:
        """The message as one line: ``WHERE: what; remedy``."""
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.remedy is not None:
            text = f"{text}; {self.remedy}"
        return one_line(text)


def shell_code(code: int) -> int:
    """The exit code of a process as a shell gives it: 128 + N where signal N ended it, which
    `subprocess` has as -N.
    """
    return code if code >= 0 else 128 - code


def points_into(error: BaseException, folder: Path) -> bool:
    """Whether a message names a folder or something in it, so that the folder must stay."""
    names = {str(folder), str(folder.resolve())}
    return any(
        re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])", str(error))
        for name in names
    )


class WorkloadError(Exception):
    """The user's own program failed: its exit code is passed through as ours.

    Args:
        exit_code: what the program returned, 128 + N where signal N ended it.
        what: one line about it.
        who: the command that `what` is about, in front of it; empty: `what` names it.
    """

    def __init__(self, exit_code: int, what: str, *, who: str = "") -> None:
        self.exit_code = exit_code
        self.what = what if not who else f"the program {what}"
        super().__init__(one_line(f"{who} {what}".lstrip()))
