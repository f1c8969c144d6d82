"""Commands to type next, as values. Words are quoted here alone, so that every printed command can
be pasted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePath
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Next:
    """A command, by its words. As text it is one line for bash or zsh that has exactly these
    words.
    """

    argv: tuple[str, ...]
    # XLA flags that the command needs, next to those in XLA_FLAGS
    xla_flags: str = ""

    @classmethod
    def of(cls, *words: object) -> Next:
        """A command of pgle: what follows ``pgle``. A path that begins with ``-`` becomes ``./-…``,
        no option.
        """
        return cls(("pgle", *map(word_of, words)))

    def __str__(self) -> str:
        return self.line(map(quoted, self.argv))

    def line(self, words: Iterable[str]) -> str:
        """The line of a shell with these words, quoted already, in place of its own."""
        line = " ".join(words)
        if not self.xla_flags:
            return line
        return f'XLA_FLAGS="$XLA_FLAGS "{quoted(self.xla_flags)} {line}'

    @property
    def name(self) -> str:
        """The command of pgle that it is: ``verify``; empty if it is none."""
        is_pgle = len(self.argv) > 1 and self.argv[0] == "pgle"
        return self.argv[1] if is_pgle else ""

    @property
    def asks(self) -> bool:
        """Whether the user must complete it."""
        return to_type(self) != str(self)

    def with_options(self, *options: object) -> Next:
        """The command with more options, before the words of a program."""
        at = self.argv.index("--") if "--" in self.argv else len(self.argv)
        words = map(word_of, options)
        return replace(self, argv=(*self.argv[:at], *words, *self.argv[at:]))

    def filled(self, known: Mapping[str, object]) -> Next:
        """The command with words of `BLANKS` replaced, by their names."""
        words = (word_of(known.get(word, word)) for word in self.argv)
        return replace(self, argv=tuple(words))


class WayEnd(StrEnum):
    """The word before the last words, if no command follows."""

    DONE = "Done"  # a fact: nothing is to do
    EDIT = "Now edit"  # the program
    TODO = "Now"  # anything else that only the user can do


def _filled(part: str | Next, known: Mapping[str, object]) -> str | Next:
    return part.filled(known) if isinstance(part, Next) else part


def _in_a_sentence(part: str | Next) -> str:
    """A part as a sentence shows it: commands between backticks."""
    return f"`{part}`" if isinstance(part, Next) else part


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words with commands in them, which stay values until they are shown."""

    parts: tuple[str | Next, ...] = ()
    end: WayEnd = WayEnd.TODO

    @classmethod
    def done(cls, *parts: str | Next) -> Sentence:
        """A fact after which nothing is to do."""
        return cls(parts, WayEnd.DONE)

    @classmethod
    def todo(cls, *parts: str | Next) -> Sentence:
        """What only the user can do."""
        return cls(parts)

    @classmethod
    def edit(cls, *parts: str | Next) -> Sentence:
        """What to write in the program."""
        return cls(parts, WayEnd.EDIT)

    def __str__(self) -> str:
        return "".join(map(_in_a_sentence, self.parts))

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def commands(self) -> tuple[Next, ...]:
        """The commands of pgle in it."""
        return tuple(
            part for part in self.parts if isinstance(part, Next) and part.name
        )

    def filled(self, known: Mapping[str, object]) -> Sentence:
        """The sentence with what its commands leave open, by the names of `BLANKS`."""
        parts = tuple(_filled(part, known) for part in self.parts)
        return replace(self, parts=parts)

    def then(self, other: Sentence) -> Sentence:
        """This sentence, a semicolon, and another one, whose end is that of both."""
        if not self:
            return other
        return replace(other, parts=(*self.parts, "; ", *other.parts))


def typed(*words: object) -> str:
    """A command line of another program, as text; paths as in `Next.of`."""
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


def taken_apart(line: str) -> list[str]:
    """The words of a line, as a shell takes them apart; ValueError: a quote does not end."""
    return shlex.split(line)


def _ansi_c(char: str) -> str:
    """A character as it is written between ``$'`` and ``'``."""
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
    "BYTES": "a size",
    "DIR/": "a folder",
    "LOG": "the log",
    "TRACE": "the trace",
    "BASE": "both runs",
    "NEW": "both runs",
    "BASE_TRACE": "the trace of each side",
    "NEW_TRACE": "the trace of each side",
}
"""What only the user knows: words that a command holds in place of it, and what to give."""


def to_type(command: Next | str) -> str:
    """A command as it is printed to be typed next; one that the user must complete says so.

    A text is words already, and stays.
    """
    if isinstance(command, str):
        return command
    asked: dict[str, None] = {}
    words = []
    is_program = False
    for place, word in enumerate(command.argv):
        begins_program = place > 0 and command.argv[place - 1] == "--"
        is_program = is_program or (begins_program and word not in BLANKS)
        before, sign, last = word.rpartition("=")
        if last in BLANKS and not is_program:  # its own words are never blanks
            asked[BLANKS[last]] = None
            words.append(f"{quoted(before)}=…" if sign else "…")
        else:
            words.append(quoted(word))
    line = command.line(words)
    return f"give {' and '.join(asked)}: {line}" if asked else line


Commands: TypeAlias = tuple[Next | Sentence, ...]
"""Commands that lead on; where there is none, the end in words."""

Following: TypeAlias = tuple[str, Next | Sentence]
"""Why, and what follows: a command, or the end in words."""


@dataclass(frozen=True, slots=True)
class Way:
    """How an answer leads on, as it is printed."""

    # commands that can be pasted as they are, the one to type now first
    next: tuple[str, ...] = ()
    # where there is none: what was reached, or what only the user can do
    done: str = ""
    end: WayEnd = WayEnd.DONE  # of `done`

    @property
    def lines(self) -> str:
        """All of it, a line each."""
        return "\n".join(filter(None, (*self.next, self.done)))


def to_way(commands: Iterable[Next | Sentence | None]) -> Way:
    """Commands as they are printed to be typed next; those that the user must complete, and
    sentences, are the end of the way.
    """
    given = tuple(item for item in commands if item)
    whole = tuple(
        str(item) for item in given if isinstance(item, Next) and not item.asks
    )
    for item in given:
        if isinstance(item, Sentence):
            return Way(whole, str(item), item.end)
        if item.asks:
            return Way(whole, to_type(item), WayEnd.TODO)
    return Way(whole)


# The commands that remedies of the floors below `report` name. Words in capitals are for the reader
# to fill in.
ADVISE = Next.of("advise", "--", "COMMAND")
AUTO = Next.of("auto")
CARRY = Next.of("carry")
COMPLETE = Next.of("complete", "PROFILE", "--hlo", "DUMP")
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
