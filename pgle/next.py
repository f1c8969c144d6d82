"""Commands to type next, as values. Words are quoted here alone, so that every printed command can
be pasted.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, slots=True)
class Next:
    """A command, by its words. As text it is one line for bash or zsh that has exactly these
    words.
    """

    argv: tuple[str, ...]

    @classmethod
    def of(cls, *words: object) -> Next:
        """A command of pgle: what follows ``pgle``. A path that begins with ``-`` becomes ``./-…``,
        no option.
        """
        return cls(("pgle", *map(word_of, words)))

    def __str__(self) -> str:
        return " ".join(map(quoted, self.argv))


def typed(*words: object) -> str:
    """A whole command line of these words, as text; paths as in `Next.of`."""
    return str(Next(tuple(map(word_of, words))))


def word_of(item: object) -> str:
    """An argument as a word; a relative path is never an option."""
    text = str(item)
    return f"./{text}" if text.startswith("-") and isinstance(item, PurePath) else text


def quoted(word: str) -> str:
    """A word for a shell.

    What cannot be printed, is not UTF-8, or is a run of blanks (messages fold those) becomes
    ``$'…'`` of bash and zsh.
    """
    if word.isprintable() and "  " not in word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    text = "".join(map(_ansi_c, escaped))
    return "$'" + re.sub(" {2,}", lambda blanks: "\\x20" * len(blanks[0]), text) + "'"


def _ansi_c(char: str) -> str:
    """A character as it stands between ``$'`` and ``'``."""
    if char.isprintable():
        return char
    data = char.encode("utf-8", "surrogateescape")
    return "".join(f"\\x{byte:02x}" for byte in data)


BLANKS = {
    "COMMAND": "your program",
    "COMMAND_A": "the commands of both sides",
    "COMMAND_B": "the commands of both sides",
    "DUMP": "the HLO dump",
    "DUMP_DIR": "the HLO dump",
    "MODULE": "the module as it was before optimizations",
    "PROFILE": "the profile",
    "VALUE": "a value",
    "BASELINE_LOG": "the other run's log",
    "BASE": "both runs",
    "NEW": "both runs",
    "BASE_TRACE": "the trace of each side",
    "NEW_TRACE": "the trace of each side",
}
"""What only the user knows: words that a command holds in place of it, and what to give."""

_BLANK = re.compile(
    rf"(?<![^ =])(?:{'|'.join(sorted(BLANKS, key=len, reverse=True))})(?![^ ])"
)


def to_type(line: str) -> str:
    """A command as it is printed to be typed next; one that the user must complete says so, and is
    no command.
    """
    if not line.startswith("pgle "):  # words already
        return line
    _, ends, program = line.partition(" -- ")
    own = (
        ends + program if program.partition(" ")[0] not in BLANKS else ""
    )  # its words are never blanks
    asked = line.removesuffix(own) if own else line
    what = dict.fromkeys(BLANKS[word] for word in _BLANK.findall(asked))
    return f"give {' and '.join(what)}: {_BLANK.sub('…', asked)}{own}" if what else line


# The commands that remedies of the floors below `report` name. Words in capitals are for the reader
# to fill in.
AUTO = Next.of("auto")
COMPLETE = Next.of("complete", "PROFILE", "--hlo", "DUMP", "-o", "OUT.pbtxt")
CONFIRM = Next.of("confirm", "LOG")
CONVERT = Next.of("convert", "TRACE", "--hlo", "DUMP")
CONVERT_ALL = Next.of("convert", "TRACE", "-o", "DIR/")
DOCTOR = Next.of("doctor")
FLAGS_LINT = Next.of("flags", "lint")
FLAGS_LIST = Next.of("flags", "list")
HISTORY_ADD = Next.of("history", "add", "RUN", "--name", "NAME")
PERF_SIMULATED = Next.of("perf", "--capture", "simulated", "--", "COMMAND")
PROFILE = Next.of("profile", "--", "COMMAND")
PROFILE_SYNC = Next.of("profile", "--mode", "sync", "--", "COMMAND")
REHEARSE = Next.of("rehearse")
REHEARSE_FLAG = Next.of("rehearse", "--flag=--NAME=BYTES", "MODULE")
RUN = Next.of("run", "--", "COMMAND")
SHOW = Next.of("show", "PROFILE")
TUNE = Next.of("tune")
VERIFY = Next.of("verify", "PROFILE", "--hlo", "DUMP")
