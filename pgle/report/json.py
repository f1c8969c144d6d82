"""Results as one JSON object on stdout, with a versioned ``schema``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from os import PathLike
from typing import Any


def plain(value: Any) -> Any:
    """`value` as JSON types: dataclasses by field, tuples as lists, numpy scalars and arrays as numbers and lists."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, PathLike):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def picked(value: object, names: str) -> dict[str, Any]:
    """The named attributes of a value, such as ``name cost_us`` of a cost."""
    return {name: getattr(value, name) for name in names.split()}


def whole(value: Any, names: str) -> dict[str, Any]:
    """A dataclass by field, and the named properties of it."""
    return {**plain(value), **picked(value, names)}


def text(schema: str, value: Any) -> str:
    """The object as indented JSON text; ``schema`` such as ``pgle.verify/1`` comes first. What a terminal acts upon, or
    UTF-8 cannot encode, is escaped.
    """
    found = json.dumps({"schema": schema, **plain(value)}, indent=2, ensure_ascii=False) + "\n"
    return "\n".join(line if line.isprintable() else _escaped(line, str.isprintable) for line in found.split("\n"))


def _escaped(line: str, stays: Callable[[str], bool]) -> str:
    return "".join(char if stays(char) else json.dumps(char)[1:-1] for char in line)


def show(schema: str, value: Mapping[str, Any]) -> None:
    """Print the object on stdout, and its ``warnings`` on stderr as well."""
    found = text(schema, value)
    if (sys.stdout.encoding or "").lower().replace("-", "") not in ("utf8", "utf16", "utf32"):
        found = _escaped(found, str.isascii)
    sys.stdout.write(found)
    sys.stdout.flush()
    if value.get("warnings"):
        from pgle.report.text import warn

        warn(value["warnings"])
