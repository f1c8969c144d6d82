"""Kinds of options: the values that each takes, and its words on a command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgle.checks import (
    SHARE,
    Rule,
    check_numbers,
    check_pattern,
    check_switch,
    check_words,
)
from pgle.errors import UserError
from pgle.next import word_of

GBIT_PER_GB = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """Any text."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for a value that neither the command line nor the library takes.

        Args:
            name: name of the parameter, for the error.
        """

    def check_bare(self, name: str, value: Any) -> None:
        """Raise `UserError` for a value that the library does not take. It has no unit."""

    def words(self, flag: str, value: Any) -> list[str]:
        """The words of a command line for an option and its value."""
        return [flag, word_of(value)]


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A number within `rule`. If the value is a mapping, each of its values is checked."""

    rule: Rule

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for anything else."""
        check_numbers(name, value, self.rule)

    def words(self, flag: str, value: Any) -> list[str]:
        """The option and its number, without needless zeros."""
        return [flag, f"{value:g}"]


@dataclass(frozen=True, slots=True)
class Bandwidth(Number):
    """GB/s, as a number or with a unit: ``50``, ``50GB/s``, ``400Gbit/s``."""

    def parts(self, text: str) -> tuple[str, int] | None:
        """The number in a text, and how many of its unit make one GB/s; None if the text is not a
        bandwidth.
        """
        pattern = r"([\d.e+-]+)\s*(GB/s|Gbit/s|Gb/s|Gbps)?"
        found = re.fullmatch(pattern, text.strip())
        if found is None:
            return None
        return found[1], 1 if found[2] in (None, "GB/s") else GBIT_PER_GB


@dataclass(frozen=True, slots=True)
class Portion(Number):
    """A share. On a command line it is ``2%`` or ``0.02``, and may be ``200%``. In the library it
    is a number within `rule`.
    """

    def check(self, name: str, value: Any) -> None:
        """Accept every value: the reader of the unit has checked it."""

    def check_bare(self, name: str, value: Any) -> None:
        """Raise `UserError` for a number out of range."""
        check_numbers(name, value, self.rule)


@dataclass(frozen=True, slots=True)
class Pair(Kind):
    """Two texts."""

    def words(self, flag: str, value: Any) -> list[str]:
        """The option and both texts."""
        return [flag, *value]


@dataclass(frozen=True, slots=True)
class Pattern(Kind):
    """A regular expression."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for any other text."""
        check_pattern(name, value)


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    """On or off."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for anything except True and False."""
        check_switch(name, value)

    def words(self, flag: str, value: Any) -> list[str]:
        """The option alone, or its negation (``--no-…``)."""
        return [flag if value else flag.replace("--", "--no-", 1)]


PROCESSES = "processes"
DASK = "dask://"


@dataclass(frozen=True, slots=True)
class Place(Kind):
    """Where pgle works: in `PROCESSES` of this machine, or on a Dask cluster
    (``dask://HOST:PORT``).
    """

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for anything else."""
        if value != PROCESSES and not re.fullmatch(rf"{DASK}[^\s/]+:\d+", str(value)):
            raise UserError(
                f"{value!r} is not a place for work",
                where=name,
                remedy=f"give {PROCESSES}, or {DASK}HOST:PORT of a Dask scheduler",
            )


@dataclass(frozen=True, slots=True)
class OneOf(Kind):
    """One of some texts."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuName(Kind):
    """The name of a GPU, or a file that describes one."""


@dataclass(frozen=True, slots=True)
class XlaFlags(Kind):
    """Flags of XLA. A file may hold them, too."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for anything except a sequence of texts."""
        check_words(name, value)


@dataclass(frozen=True, slots=True)
class PathOf(Kind):
    """A file or folder, to read or to write."""

    # allowed endings of a file to write; if empty, the command decides
    ends: tuple[str, ...] = ()
    needed: str = "a file"  # or ``a folder``
    # remedy for an address of an object store; empty if the option takes such an address
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Words(Kind):
    """The words of a program, or paths."""

    # whether a project's configuration may give the program if the user gives no words
    is_program: bool = True


@dataclass(frozen=True, slots=True)
class Word(Kind):
    """A word of the command line that a function turns into a value."""

    read: Callable[[str], Any]
    rule: Rule | None = None  # for the numbers in the value

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for a number out of range."""
        if self.rule is not None:
            check_numbers(name, value, self.rule)


TEXT = Kind()
PAIR = Pair()
PATTERN = Pattern()
SWITCH = Switch()
GPU = GpuName()
COMMAND = Words()
SIDES = Words(is_program=False)
XLA_FLAGS = XlaFlags()
FOUND_BY_SEARCH = "# found by a search; a baseline is measured without these:"
"""A comment in a file of flags. A run judges the flags after it."""
PORTION = Portion(SHARE)
FILE = PathOf()
LOCAL = PathOf(remedy="copy it here first")
FOLDER = PathOf(
    needed="a folder", remedy="choose one here, and copy it there afterwards"
)
