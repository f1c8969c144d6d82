"""Checks of numbers, switches and texts. The fields of requests choose the rules, which the library
and the command line share.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pgle.errors import UserError


@dataclass(frozen=True, slots=True)
class Rule:
    """A range of numbers. No range contains `nan`."""

    least: float
    most: float = math.inf
    above: bool = False  # whether `least` itself is excluded
    whole: bool = False  # whether only whole numbers are allowed

    def words(self) -> str:
        """The range in words."""
        kind = "a whole number" if self.whole else "a number"
        relation = "above" if self.above else "of at least"
        words = f"{kind} {relation} {self.least:g}"
        if self.most == math.inf:
            return words
        return f"{words}, at most {self.most:g}"

    def check(self, name: str, value: Any) -> None:
        """Raise `UserError` if a value is not a number in the range.

        Args:
            name: name of the parameter, for the error.
        """
        number = _number(value, whole=self.whole)
        is_large = number > self.least if self.above else number >= self.least
        if not (is_large and number <= self.most and number < math.inf):
            raise UserError(
                f"{_shown(value)} is out of range",
                where=name,
                remedy=f"give {self.words()}",
            )


SHARE = Rule(0, 1)
"""A share as a number: 0.02 is 2 %. The command line also takes ``200%``, since it has the unit."""


def check_numbers(name: str, value: Any, rule: Rule) -> None:
    """Raise `UserError` if a number, or any number in a sequence or mapping, is out of range."""
    for item in _items(value):
        rule.check(name, item)


def check_pattern(name: str, text: Any) -> None:
    """Raise `UserError` if a text is not a regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError, TypeError) as error:
        raise UserError(
            f"{text!r} is not a regular expression ({error})",
            where=name,
            remedy="write a backslash before each character that is meant literally",
        ) from None


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else (value,)


def _number(value: Any, *, whole: bool) -> float:
    """A number, also from numpy; `nan` for anything else, which no range contains."""
    if isinstance(value, bool | str | bytes):
        return math.nan
    try:
        return operator.index(value) if whole else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def check_switch(name: str, value: Any) -> None:
    """Raise `UserError` for anything except True and False."""
    if type(value).__name__ not in ("bool", "bool_"):  # ``bool_`` is numpy's
        raise UserError(
            f"{_shown(value)} is not a switch", where=name, remedy="give True or False"
        )


def is_several(value: Any) -> bool:
    """Whether an object holds several values. Texts and mappings do not."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def check_words(name: str, value: Any) -> None:
    """Raise `UserError` unless a value holds several texts."""
    if not (is_several(value) and all(isinstance(word, str) for word in value)):
        raise UserError(
            f"{_shown(value)} is not a list of texts",
            where=name,
            remedy='give ["--xla_…=…"]',
        )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)[:80]
