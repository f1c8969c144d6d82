"""Kinds of options: which values each takes, and how it is written on a command line."""

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
        """Raise `UserError` for a value that the library does not take either."""

    def check_bare(self, name: str, value: Any) -> None:
        """The same for a value of the library, which has no unit that a person wrote."""

    def words(self, flag: str, value: Any) -> list[str]:
        """An option and its value as words."""
        return [flag, word_of(value)]


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A number within `rule`. If the value is a mapping, each of its values is checked."""

    rule: Rule

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for anything else."""
        check_numbers(name, value, self.rule)

    def words(self, flag: str, value: Any) -> list[str]:
        """The number without zeros that say nothing."""
        return [flag, f"{value:g}"]


@dataclass(frozen=True, slots=True)
class Bandwidth(Number):
    """GB/s, as a number or with a unit: ``50``, ``50GB/s``, ``400Gbit/s``."""

    def parts(self, text: str) -> tuple[str, int] | None:
        """The number in a text, and how many of its unit are one GB/s; None: it is none."""
        pattern = r"([\d.e+-]+)\s*(GB/s|Gbit/s|Gb/s|Gbps)?"
        found = re.fullmatch(pattern, text.strip())
        if found is None:
            return None
        return found[1], 1 if found[2] in (None, "GB/s") else GBIT_PER_GB


@dataclass(frozen=True, slots=True)
class Portion(Number):
    """A share, as a number; on a command line ``2%`` or ``0.02``, and 200 % too, by its unit."""

    def check(self, name: str, value: Any) -> None:
        """Whoever reads the unit has checked it."""

    def check_bare(self, name: str, value: Any) -> None:
        """Raise `UserError` for a number out of range."""
        check_numbers(name, value, self.rule)


@dataclass(frozen=True, slots=True)
class Pair(Kind):
    """Two texts."""

    def words(self, flag: str, value: Any) -> list[str]:
        """The option and both."""
        return [flag, *value]


@dataclass(frozen=True, slots=True)
class Pattern(Kind):
    """A regular expression."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for a text that is none."""
        check_pattern(name, value)


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    """On or off."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for anything but True and False."""
        check_switch(name, value)

    def words(self, flag: str, value: Any) -> list[str]:
        """The option alone, or its negation."""
        return [flag if value else flag.replace("--", "--no-", 1)]


PROCESSES = "processes"
DASK = "dask://"


@dataclass(frozen=True, slots=True)
class Place(Kind):
    """Where work is done: `PROCESSES` of this machine, or a Dask cluster, ``dask://HOST:PORT``."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for anything else."""
        if value != PROCESSES and not re.fullmatch(rf"{DASK}[^\s/]+:\d+", str(value)):
            raise UserError(
                f"{value!r} is no place for work",
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
    """Flags of XLA, which a file may hold too."""

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` for anything but several texts."""
        check_words(name, value)


@dataclass(frozen=True, slots=True)
class PathOf(Kind):
    """A file or folder, to read or to write."""

    # how the name of a file to write may end; empty: the command says
    ends: tuple[str, ...] = ()
    needed: str = "a file"  # or ``a folder``
    remedy: str = ""  # if it is an address of an object store; empty: it may be one


@dataclass(frozen=True, slots=True)
class Words(Kind):
    """The words of a program, or paths."""

    # whether a project's own program is taken if no words are given
    is_program: bool = True


@dataclass(frozen=True, slots=True)
class Word(Kind):
    """A word of the command line that a function reads, as its value."""

    read: Callable[[str], Any]
    rule: Rule | None = None  # of the numbers in the value

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
"""The line of a file of flags before the flags that a run judges."""
PORTION = Portion(SHARE)
FILE = PathOf()
LOCAL = PathOf(remedy="copy it here first")
FOLDER = PathOf(
    needed="a folder", remedy="choose one here, and copy it there afterwards"
)
