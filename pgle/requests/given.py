"""Converters of requests: they turn arguments of the library into values of fields."""

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
"""One path or several. Addresses such as ``gs://`` are paths, too."""

REMEDY = "give a path or a list of paths"


def are_paths(given: object) -> bool:
    """Whether an object is a path or a sequence of paths."""
    items = given if isinstance(given, Sequence) else [given]
    return all(isinstance(item, str | os.PathLike) for item in items)


def paths(given: Paths) -> tuple[AnyPath, ...]:
    """Convert one path, several or none to a tuple.

    Raises:
        UserError: the argument is something else.
    """
    if not are_paths(given):
        raise UserError(f"a path is needed, not {type(given).__name__}", remedy=REMEDY)
    items: Sequence[Any] = [given] if isinstance(given, str | os.PathLike) else given
    return tuple(map(as_path, items))


def some_paths(given: Paths) -> tuple[AnyPath, ...]:
    """Convert one path or several to a tuple.

    Raises:
        UserError: no path is given, or something else.
    """
    found = paths(given)
    if not found:
        raise UserError("no input is given", remedy=REMEDY)
    return found


def path(given: StrPath) -> AnyPath:
    """Convert one path.

    Raises:
        UserError: several paths are given, none, or something else.
    """
    found = some_paths(given)
    if len(found) > 1:
        raise UserError(f"{len(found)} paths are given", remedy="give one")
    return found[0]


def optional_path(given: StrPath | None) -> AnyPath | None:
    """Convert one path; None stays None."""
    return None if given is None else path(given)


def place(given: StrPath) -> Path:
    """Convert one path on this machine."""
    return Path(str(path(given)))


def local_path(given: StrPath | None) -> Path | None:
    """Convert one path on this machine; None stays None."""
    return None if given is None else place(given)


def words(given: StrPath | Sequence[str]) -> tuple[str, ...]:
    """Convert one path, or the words of a command line, to words."""
    if isinstance(given, str | os.PathLike):
        return (str(path(given)),)
    return tuple(map(str, given))


def texts(given: Sequence[str]) -> tuple[str, ...]:
    """Convert texts to a tuple. Anything else stays as it is, and the field's check refuses it."""
    return tuple(given) if is_several(given) else given  # type: ignore[return-value]
