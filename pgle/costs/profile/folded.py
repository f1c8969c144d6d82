"""Warnings of many modules that say the same become one line."""

from __future__ import annotations

from collections.abc import Iterable

NAMES_SHOWN = 3


def folded(lines: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The lines in order of first appearance, those that differ only in their module as one.

    Args:
        lines: module and line, which begins with ``MODULE: ``; others stay as they are.
    """
    modules: dict[str, dict[str, None]] = {}
    for module, line in lines:
        prefix = f"{module}: "
        alone = not line.startswith(prefix)
        modules.setdefault(line if alone else line[len(prefix) :], {}).update({} if alone else {module: None})
    return tuple(f"{_names(list(names))}: {text}" if names else text for text, names in modules.items())


def _names(names: list[str]) -> str:
    if len(names) <= NAMES_SHOWN:
        return ", ".join(names)
    return f"{len(names)} modules ({', '.join(names[:NAMES_SHOWN])}, …)"
