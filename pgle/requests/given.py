"""What the library takes for a field, made the value of the field: converters of requests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pgle.checks import is_several
from pgle.errors import UserError
from pgle.files import AnyPath, as_path

StrPath: TypeAlias = "str | os.PathLike[str]"
Paths: TypeAlias = "StrPath | Sequence[StrPath]"
"""One path or several; an address such as ``gs://`` too."""

REMEDY = "give a path or a list of paths"


def are_paths(given: object) -> bool:
    """Whether something is a path, or a sequence of paths."""
    items = given if isinstance(given, Sequence) else [given]
    return all(isinstance(item, str | os.PathLike) for item in items)


def paths(given: Paths) -> tuple[AnyPath, ...]:
    """Paths of one path, several or none."""
    if not are_paths(given):
        raise UserError(f"a path is needed, not {type(given).__name__}", remedy=REMEDY)
    items: Sequence[Any] = [given] if isinstance(given, str | os.PathLike) else given
    return tuple(map(as_path, items))


def some_paths(given: Paths) -> tuple[AnyPath, ...]:
    """Paths of one path or several."""
    found = paths(given)
    if not found:
        raise UserError("no input is given", remedy=REMEDY)
    return found


def path(given: StrPath) -> AnyPath:
    """One path."""
    found = some_paths(given)
    if len(found) > 1:
        raise UserError(f"{len(found)} paths are given", remedy="give one")
    return found[0]


def optional_path(given: StrPath | None) -> AnyPath | None:
    """One path or none."""
    return None if given is None else path(given)


def place(given: StrPath) -> Path:
    """One path of this machine."""
    return Path(str(path(given)))


def local_path(given: StrPath | None) -> Path | None:
    """One path of this machine or none."""
    return None if given is None else place(given)


def words(given: StrPath | Sequence[str]) -> tuple[str, ...]:
    """One path, or the words of a command line."""
    if isinstance(given, str | os.PathLike):
        return (str(path(given)),)
    return tuple(map(str, given))


def texts(given: Sequence[str]) -> tuple[str, ...]:
    """Several texts; what is none stays as it is, for the check of the field."""
    return tuple(given) if is_several(given) else given  # type: ignore[return-value]
