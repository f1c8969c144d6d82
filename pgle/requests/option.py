"""Options. Each is declared once, as a field of a request, with its spelling, unit, help and check.

The fields of a request become the options of its command, and the signature of its library function
(`pgle.api`). They also become the question that an answer's folder records, and the words of the
next command. A field is `attrs.field(default, converter, metadata=option(...))`, so that mypy knows
the types that the library takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import attrs

from pgle.requests.kinds import TEXT, Kind

_KEY = "pgle.option"  # key in the metadata of a field


@dataclass(frozen=True, slots=True)
class Option:
    """How a user gives a field."""

    names: str  # names on a command line, separated by blanks; empty for an argument
    help: str  # help on a command line, one line
    metavar: str | None = None
    kind: Kind = field(default_factory=lambda: TEXT)
    meaning: str = ""  # help in the library; if empty, `help`
    # default that `--help` shows; None for the default of the field, if it is not empty
    default: str | None = None
    older: str = ""  # an older name that still works, but `--help` leaves it out
    # whether it takes several values: an option is repeated, an argument has many words
    is_listed: bool = False
    is_recorded: bool = True  # whether an answer depends on it
    is_repeated: bool = True  # whether the next command repeats it
    instead_of: str = ""  # another field that gives the same information
    is_general: bool = True  # whether it means the same in all commands that have it

    @property
    def is_argument(self) -> bool:
        """Whether it has no name on the command line."""
        return not self.names

    @property
    def flag(self) -> str:
        """The long name: ``--network``."""
        longest = max(self.names.split(), key=len)
        return longest.partition("/")[0]


def option(names: str, help: str, **how: Any) -> Mapping[str, Option]:
    """The metadata of a field that is an option.

    Args:
        how: other fields of `Option`.
    """
    return {_KEY: Option(names, help, **how)}


def argument(metavar: str, meaning: str, **how: Any) -> Mapping[str, Option]:
    """The metadata of a field that is an argument.

    Args:
        how: other fields of `Option`.
    """
    return {_KEY: Option("", "", metavar, meaning=meaning, **how)}


@dataclass(frozen=True, slots=True)
class Declared:
    """A field of a request."""

    name: str  # name of the attribute
    parameter: str  # name of the parameter in the library
    option: Option
    default: Any  # None if it has no default
    is_required: bool  # whether it has no default

    def check(self, value: Any) -> None:
        """Raise `UserError` if the field does not take a value. Every field takes None."""
        if value is not None:
            self.option.kind.check(self.parameter, value)

    def words(self, value: Any) -> list[str]:
        """The words of a command line for a value; empty if the value is empty."""
        if value in (None, (), ""):
            return []
        kind, flag = self.option.kind, self.option.flag
        if not self.option.is_listed:
            return kind.words(flag, value)
        found: list[str] = []
        for item in value:
            found += kind.words(flag, item)
        return found


@attrs.frozen(slots=False)
class Request:
    """The options and arguments of one call of a command. Values are checked at creation."""

    def __attrs_post_init__(self) -> None:
        for item in declared(type(self)):
            item.check(getattr(self, item.name))

    def check_bare(self) -> None:
        """Check the values of a call of the library. They have no units, unlike typed words."""
        for item in declared(type(self)):
            value = getattr(self, item.name)
            if value is not None:
                item.option.kind.check_bare(item.parameter, value)

    def question(self) -> dict[str, Any]:
        """The options that the answer depends on, as JSON values by name."""
        recorded = [
            item.name
            for item in declared(type(self))
            if item.option.is_recorded and not item.option.is_argument
        ]
        return {name: _plain(getattr(self, name)) for name in recorded}

    def next_words(self, command: type[Request], *, without: str = "") -> list[str]:
        """The words for options that are given here and that another command takes, too.

        Args:
            command: the request of the next command.
            without: names of fields to leave out, separated by blanks.
        """
        left_out = without.split()
        defaults = {item.name: item.default for item in declared(type(self))}
        words = []
        for item in declared(command):
            is_ours = item.name in defaults and item.name not in left_out
            if is_ours and item.option.is_repeated and not item.option.is_argument:
                value = getattr(self, item.name)
                words += [] if value == defaults[item.name] else item.words(value)
        return words


def declared(request: type[Request]) -> tuple[Declared, ...]:
    """The fields of a request: those of its base classes from left to right, then its own.

    If a class declares a field again, the field keeps its place.
    """
    fields = attrs.fields_dict(request)
    names = dict.fromkeys(_names(request))
    return tuple(
        _declared(name, fields[name]) for name in names if _KEY in fields[name].metadata
    )


def _names(kind: type) -> Iterator[str]:
    for base in kind.__bases__:
        if issubclass(base, Request):
            yield from _names(base)
    yield from vars(kind).get("__annotations__", {})


def _declared(name: str, found: attrs.Attribute[Any]) -> Declared:
    is_required = found.default is attrs.NOTHING
    default = None if is_required else found.default
    return Declared(
        name,
        parameter=str(found.alias),
        option=found.metadata[_KEY],
        default=default,
        is_required=is_required,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value
