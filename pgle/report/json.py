"""Results as one JSON object on stdout, with a versioned ``schema``."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from os import PathLike
from typing import Any

_UNSEEN = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""Control and format characters, which a terminal acts upon, and what UTF-8 cannot encode."""


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


def text(schema: str, value: Any) -> str:
    """The object as indented JSON text; ``schema`` such as ``pgle.verify/1`` comes first."""
    found = json.dumps({"schema": schema, **plain(value)}, indent=2, ensure_ascii=False) + "\n"
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", found)


def show(schema: str, value: Any) -> None:
    """Print the object on stdout."""
    try:
        found = text(schema, value)
        if (sys.stdout.encoding or "").lower().replace("-", "") not in ("utf8", "utf16", "utf32"):
            found = "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in found)
        sys.stdout.write(found)
        sys.stdout.flush()
    except BrokenPipeError:
        from pgle.report.text import reader_left

        reader_left()
