"""How much work a function is, as a count: a rule about growth needs no clock."""

import sys
from collections.abc import Callable
from typing import Any


def calls_of(function: Callable[[], object]) -> int:
    """The calls of Python functions, and steps of generators, until `function` returns."""
    count = 0

    def on_event(frame: Any, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
