"""The two errors that end a command early, each with one line and an exit code; and words that all
messages use.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pgle.next import Next, Sentence


# most characters of a printed line; a command with all its paths is shorter
LONGEST_LINE = 20_000


def printable(text: str) -> str:
    """Escape a name or line from outside, so that it can be printed anywhere.

    Control and format characters could move the cursor, break the line or turn the direction of
    writing. These, and characters that cannot be encoded, are escaped as in Python: ``\\x1b``.
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
"""Text in a log that a CI runner takes as a command. GitHub obeys lines that begin with
``::error::`` (after blanks), and ``##[error]`` anywhere (github.com/actions/runner,
src/Runner.Common/ActionCommand.cs). Azure Pipelines obeys ``##vso[…]``, TeamCity ``##teamcity[…]``.
"""


def inert(text: str) -> str:
    """Escape lines for a log, so that a CI runner that reads it obeys no name from outside."""
    return _OBEYED.sub(
        lambda found: (
            "#\\x23" if found["blanks"] is None else f"{found['blanks']}\\x3a"
        ),
        text,
    )


def shown(text: str, most: int = 500) -> str:
    """Make a text printable (`printable`), and cut it after `most` characters. A damaged file may
    have endless names.
    """
    if len(text) <= most:
        return printable(text)
    return f"{printable(text[:most])}… ({len(text.strip()):,} characters)"


def one_line(text: str) -> str:
    """Turn any text into one printable line."""
    return shown(" ".join(text.split()), LONGEST_LINE)


def suggestion(word: str, choices: Iterable[str]) -> str:
    """``did you mean X?`` if one of the choices is like `word`; else empty."""
    from difflib import get_close_matches  # imported only for an error

    near = get_close_matches(word, list(choices), 1, 0.6)
    return f"did you mean '{near[0]}'?" if near else ""


def choices(word: str, names: Iterable[str]) -> str:
    """``did you mean X? it has X, Y``: names that the user can give instead of `word`, at most
    five.
    """
    known = list(dict.fromkeys(names))
    near = suggestion(word, known)
    listed = f"it has {', '.join(known[:5])}"
    return f"{near} {listed}" if near else listed


_names: dict[str, str] = {}
"""The user's word for pgle, if it is not ``pgle``, with the pattern of commands to replace."""


def call_it(program: str, commands: Iterable[str]) -> None:
    """Let all printed commands of pgle begin as the user can type them, such as ``.venv/bin/pgle``.

    Args:
        program: the word that starts pgle.
        commands: names of pgle's commands.
    """
    follows = "|".join((*commands, "--help"))
    _names.clear()
    _names[program] = rf"(?<![\w./-])pgle(?= (?:{follows})\b)"


def named(text: str) -> str:
    """Replace pgle's commands in a text by commands that the user can type (`call_it`)."""
    for program, word in _names.items():
        text = re.sub(word, lambda _, program=program: program, text)  # type: ignore[misc]
    return text


def many(count: int, noun: str) -> str:
    """``1 gap``, ``2,000 gaps``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def with_counts(names: Iterable[str], sign: str = "x") -> str:
    """Each different name, and how often it is there: ``8 x H100, 1 x T4``."""
    counts = Counter(names)
    return ", ".join(f"{count} {sign} {name}" for name, count in counts.items())


def in_words(us: float) -> str:
    """A time given in microseconds, with three digits, in µs, ms or s."""
    if us < 1e3:
        return f"{us:.3g} µs"
    if us < 1e6:
        return f"{us / 1e3:.3g} ms"
    return f"{us / 1e6:.3g} s"


def in_percent(share: float, decimals: int = 1) -> str:
    """A share (1 is the whole) in per cent: ``28.0 %``."""
    minus = "−" if share < 0 else ""
    return f"{minus}{abs(share) * 100:,.{decimals}f} %"


def as_change(share: float, decimals: int = 1) -> str:
    """A share with its sign, in per cent: ``−7.8 %``, ``+0.0 %``."""
    plus = "" if share < 0 else "+"
    return f"{plus}{in_percent(share, decimals)}"


def some(names: Iterable[str], most: int) -> str:
    """At most `most` names, and the number of the others: ``a, b and 3 more``."""
    listed = list(names)
    first = ", ".join(listed[:most])
    left = len(listed) - most
    return f"{first} and {left:,} more" if left > 0 else first


def cut(text: str, room: int) -> str:
    """Cut a text to at most `room` characters."""
    return text if len(text) <= room else f"{text[: room - 1]}…"


class UserError(Exception):
    """A mistake in input or usage that the user can fix. One line names the mistake, its place and
    the remedy. The exit code is 2.

    Args:
        what: the mistake, a clause without a full stop ("not a SQLite database").
        where: the file, option or line with the mistake.
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
    """The exit code of a process as a shell gives it. If signal N ended it, that is 128 + N, but -N
    in `subprocess`.
    """
    return code if code >= 0 else 128 - code


def points_into(error: BaseException, folder: Path) -> bool:
    """Whether an error's message names a folder or something in it. If so, the folder must stay."""
    names = {str(folder), str(folder.resolve())}
    return any(
        re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])", str(error))
        for name in names
    )


class WorkloadError(Exception):
    """The user's own program failed. pgle ends with the program's exit code.

    Args:
        exit_code: of the program; 128 + N if signal N ended it.
        what: one line about the failure.
        who: the command that failed, put before `what`; empty if `what` names it.
    """

    def __init__(self, exit_code: int, what: str, *, who: str = "") -> None:
        self.exit_code = exit_code
        self.what = what if not who else f"the program {what}"
        super().__init__(one_line(f"{who} {what}".lstrip()))
