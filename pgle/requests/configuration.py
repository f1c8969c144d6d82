"""Options of a project, from its configuration: ``[tool.pgle]`` of pyproject.toml, or pgle.toml.

A key is the long name of an option without its dashes, or ``command`` for the words of the program.
It applies to all commands in which it means the same. A table with the name of a command holds
keys for that command only, which take precedence:

    target = "h100"
    command = ["python", "train.py"]

    [tune]
    budget = 40
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import split
from typing import Any

from pgle.errors import UserError, suggestion
from pgle.files import Json, read_bytes
from pgle.next import quoted
from pgle.requests import kinds
from pgle.requests.commands import COMMANDS
from pgle.requests.option import Declared, Request, declared
from pgle.requests.project import MOST_BYTES, SHARED

PROGRAM = "command"  # the key of the words of a program


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of an option in a project's configuration."""

    key: str  # key in the file
    shown: str  # the value as text
    value: Any  # the value as a command line gives it: a text, a bool, or several texts
    # another field with the same information; the setting is ignored if a command line has that
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of a configuration file."""

    path: Path
    keys: Json  # for all commands
    tables: Mapping[str, Json]  # keys by the command that they are for

    @property
    def name(self) -> str:
        """The file's name in an answer."""
        return self.path.name

    def settings(self, command: str) -> dict[str, Setting]:
        """The settings for a command, by the name of its field.

        Raises:
            UserError: a value has the wrong type.
        """
        own = self.tables.get(command, {})
        found: dict[str, Setting] = {}
        for item in declared(COMMANDS[command]):
            key = key_of(item)
            if key in own:
                found[item.name] = self._setting(item, key, own[key])
            elif key in self.keys and _is_meant(item, self.keys[key]):
                found[item.name] = self._setting(item, key, self.keys[key])
        return found

    def _setting(self, item: Declared, key: str, given: Any) -> Setting:
        """The setting that a value in the file means for a field."""
        kind = item.option.kind
        is_switch = isinstance(kind, kinds.Switch)
        if is_switch != isinstance(given, bool):
            raise UserError(
                f"{_shown(given)} is not what this option takes",
                where=f"{self.path}: {key}",
                remedy="write true or false" if is_switch else "write a value",
            )
        if is_switch:
            return Setting(key, _shown(given), given)
        if isinstance(kind, kinds.Words):
            words = split(given) if isinstance(given, str) else map(str, given)
            program = tuple(words)
            return Setting(key, " ".join(map(quoted, program)), program)
        items = given if isinstance(given, list) else [given]
        texts = tuple(self._text(kind, value) for value in items)
        shown = ", ".join(texts)
        if item.option.is_listed or isinstance(kind, kinds.Pair):
            return Setting(key, shown, texts)
        return Setting(key, shown, ",".join(texts), item.option.instead_of)

    def _text(self, kind: kinds.Kind, value: Any) -> str:
        """A value as a user would type it. A path in the file is relative to the file's folder."""
        text = str(value)
        if not isinstance(kind, kinds.PathOf) or "://" in text:
            return text
        return os.path.relpath(self.path.parent / text)


def read_configuration(path: Path) -> Configuration:
    """Read a file that `project_file` found.

    Raises:
        UserError: it is not TOML, or has a key that no command takes.
    """
    try:
        table: Any = tomllib.loads(read_bytes(path, max_bytes=MOST_BYTES).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"is not TOML ({error})", where=path) from None
    if path.name == SHARED:
        table = table.get("tool", {}).get("pgle", {})
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    keys = {key: value for key, value in table.items() if key not in tables}
    found = Configuration(path, keys, tables)
    _check(found)
    return found


def _check(found: Configuration) -> None:
    """Raise `UserError` for a key that no command takes."""
    known: dict[str, set[str]] = {}  # the keys of each command
    general: set[str] = set()  # keys that mean the same in all commands
    for name, request in COMMANDS.items():
        items = declared(request)
        known[name] = set(map(key_of, items))
        general |= {key_of(item) for item in items if item.option.is_general}
    every = set().union(*known.values())
    names = {*every, *COMMANDS}
    for key in found.keys:
        if key not in every:
            raise _unknown(key, str(found.path), names)
        if key not in general:
            raise UserError(
                f"'{key}' is something else in every command",
                where=found.path,
                remedy="write it into the table of a command: [tune]",
            )
    for name in found.tables:
        if name not in COMMANDS:
            raise _unknown(name, str(found.path), names)
    for name, table in found.tables.items():
        for key in table:
            if key not in known[name]:
                raise _unknown(key, f"{found.path}: [{name}]", known[name])


def _unknown(key: str, where: str, known: set[str]) -> UserError:
    """The error for a key that nothing takes, with the most similar one that is known."""
    near = suggestion(key, sorted(known - {""}))
    remedy = near or "keys are the long names of options: target, devices, network"
    return UserError(f"no command has '{key}'", where=where, remedy=remedy)


def key_of(item: Declared) -> str:
    """The key of a field; empty if it has none."""
    if not item.option.is_argument:
        return item.option.flag.removeprefix("--")
    is_program = item.option.kind == kinds.COMMAND
    return PROGRAM if is_program else ""


def _is_meant(item: Declared, given: Any) -> bool:
    """Whether a key for all commands is meant for this field. For example, ``cache`` is a switch in
    some commands and a folder in others.
    """
    is_switch = isinstance(item.option.kind, kinds.Switch)
    return item.option.is_general and is_switch == isinstance(given, bool)


def _shown(given: Any) -> str:
    """A value as TOML writes it."""
    return str(given).lower() if isinstance(given, bool) else str(given)


def program_of(request: type[Request]) -> str | None:
    """The name of the field with the words of a program; None if a command has none."""
    names = [item.name for item in declared(request) if key_of(item) == PROGRAM]
    return names[0] if names else None
