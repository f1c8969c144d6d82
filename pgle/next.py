"""Commands to type next, as values. Only this file quotes words, so that every printed command can
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
    """A command as a tuple of words. Its text is one line for bash or zsh that has these words."""

    argv: tuple[str, ...]
    # XLA flags that the command needs in addition to those in XLA_FLAGS
    xla_flags: str = ""

    @classmethod
    def of(cls, *words: object) -> Next:
        """Make a command of pgle from the words after ``pgle``. A path that begins with ``-``
        becomes ``./-…``, so that it is not an option.
        """
        return cls(("pgle", *map(word_of, words)))

    def __str__(self) -> str:
        return self.line(map(quoted, self.argv))

    def line(self, words: Iterable[str]) -> str:
        """The command's line for a shell, with other words, which must be quoted already."""
        line = " ".join(words)
        if not self.xla_flags:
            return line
        return f'XLA_FLAGS="$XLA_FLAGS "{quoted(self.xla_flags)} {line}'

    @property
    def name(self) -> str:
        """The name of the command of pgle: ``verify``; empty if it is another program."""
        is_pgle = len(self.argv) > 1 and self.argv[0] == "pgle"
        return self.argv[1] if is_pgle else ""

    @property
    def asks(self) -> bool:
        """Whether the user must complete it, because it has words of `BLANKS`."""
        return to_type(self) != str(self)

    def with_options(self, *options: object) -> Next:
        """The command with more options, before the words of a program."""
        at = self.argv.index("--") if "--" in self.argv else len(self.argv)
        words = map(word_of, options)
        return replace(self, argv=(*self.argv[:at], *words, *self.argv[at:]))

    def filled(self, known: Mapping[str, object]) -> Next:
        """The command with words of `BLANKS` replaced.

        Args:
            known: values by the word that they replace.
        """
        words = (word_of(known.get(word, word)) for word in self.argv)
        return replace(self, argv=tuple(words))


class WayEnd(StrEnum):
    """The heading of an answer's last sentence, if no command follows."""

    DONE = "Done"  # a fact after which the user need not do anything
    EDIT = "Now edit"  # an edit of the program
    TODO = "Now"  # anything else that only the user can do


def _filled(part: str | Next, known: Mapping[str, object]) -> str | Next:
    return part.filled(known) if isinstance(part, Next) else part


def _in_a_sentence(part: str | Next) -> str:
    """A part as it is shown in a sentence, with commands between backticks."""
    return f"`{part}`" if isinstance(part, Next) else part


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with commands in it. The commands stay values until they are shown."""

    parts: tuple[str | Next, ...] = ()
    end: WayEnd = WayEnd.TODO
    code: str = ""  # code to paste into the program, on lines of its own

    @classmethod
    def done(cls, *parts: str | Next) -> Sentence:
        """A fact after which the user need not do anything."""
        return cls(parts, WayEnd.DONE)

    @classmethod
    def todo(cls, *parts: str | Next) -> Sentence:
        """Something that only the user can do."""
        return cls(parts)

    @classmethod
    def edit(cls, *parts: str | Next, code: str = "") -> Sentence:
        """An edit of the program."""
        return cls(parts, WayEnd.EDIT, code)

    def __str__(self) -> str:
        return "".join(map(_in_a_sentence, self.parts))

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def commands(self) -> tuple[Next, ...]:
        """The commands of pgle in the sentence."""
        return tuple(
            part for part in self.parts if isinstance(part, Next) and part.name
        )

    def filled(self, known: Mapping[str, object]) -> Sentence:
        """The sentence, with words of `BLANKS` replaced in its commands.

        Args:
            known: values by the word that they replace.
        """
        parts = tuple(_filled(part, known) for part in self.parts)
        return replace(self, parts=parts)

    def then(self, other: Sentence) -> Sentence:
        """Join this sentence and another one with a semicolon. The result has the other's end."""
        if not self:
            return other
        return replace(other, parts=(*self.parts, "; ", *other.parts))


def typed(*words: object) -> str:
    """The text of another program's command line. Paths are treated as in `Next.of`."""
    return str(Next(tuple(map(word_of, words))))


def word_of(item: object) -> str:
    """An argument as a word. A path that begins with ``-`` gets ``./``, so it is not an option."""
    text = str(item)
    return f"./{text}" if text.startswith("-") and isinstance(item, PurePath) else text


def quoted(word: str) -> str:
    """Quote a word for a shell.

    A word that cannot be printed, is not UTF-8, or has several blanks in a row (messages fold
    those) becomes ``$'…'`` of bash and zsh.
    """
    if word.isprintable() and "  " not in word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    text = "".join(map(_ansi_c, escaped))
    text = re.sub(" {2,}", lambda blanks: "\\x20" * len(blanks[0]), text)
    return f"$'{text}'"


def taken_apart(line: str) -> list[str]:
    """Split a line into words as a shell does.

    Raises:
        ValueError: a quote does not end.
    """
    return shlex.split(line)


def _ansi_c(char: str) -> str:
    """A character, escaped for use between ``$'`` and ``'``."""
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
"""Words in a command for something that only the user knows, and what the user must give."""


def to_type(command: Next | str) -> str:
    """The text of a command to type next. If the user must complete it, the text says so.

    A text stays as it is.
    """
    if isinstance(command, str):
        return command
    asked: dict[str, None] = {}
    words: list[str] = []
    is_program = False
    last_word = ""
    for word in command.argv:
        begins_program = last_word == "--" and word not in BLANKS
        is_program = is_program or begins_program
        last_word = word
        before, sign, value = word.rpartition("=")
        if value in BLANKS and not is_program:  # words of a program are never blanks
            asked[BLANKS[value]] = None
            words.append(f"{quoted(before)}=…" if sign else "…")
        else:
            words.append(quoted(word))
    line = command.line(words)
    return f"give {' and '.join(asked)}: {line}" if asked else line


Commands: TypeAlias = tuple[Next | Sentence, ...]
"""Commands to type next; if there are none, a sentence that ends the answer."""

Following: TypeAlias = tuple[str, Next | Sentence]
"""A reason, and what follows: a command, or a sentence that ends the answer."""


@dataclass(frozen=True, slots=True)
class Way:
    """The end of an answer: what to do next, as text."""

    # commands that can be pasted as they are, the one to type now first
    next: tuple[str, ...] = ()
    # if no command follows: a result, or something that only the user can do
    done: str = ""
    end: WayEnd = WayEnd.DONE  # heading of `done`
    code: str = ""  # what to paste into the program, if `done` is about an edit
    command: str = ""  # the command of pgle that `done` ends with

    @property
    def lines(self) -> str:
        """All commands, `done` and its code, a line each."""
        return "\n".join(filter(None, (*self.next, self.done, self.code)))


def to_way(commands: Iterable[Next | Sentence | None]) -> Way:
    """Turn commands into texts. The first sentence, or the first command that the user must
    complete, becomes `Way.done`.
    """
    given = [item for item in commands if item]
    plain_commands = [item for item in given if isinstance(item, Next)]
    whole = tuple(str(item) for item in plain_commands if not item.asks)
    for item in given:
        if isinstance(item, Sentence):
            is_last = item.parts[-1] in item.commands
            command = str(item.parts[-1]) if is_last else ""
            return Way(whole, str(item), item.end, item.code, command)
        if item.asks:
            return Way(whole, to_type(item), WayEnd.TODO)
    return Way(whole)


# Commands in remedies of the floors below `report`. The user fills in words in capitals.
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
