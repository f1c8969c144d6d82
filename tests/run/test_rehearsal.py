"""When a rehearsal has an answer, and so exits with 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pgle.report.rehearse import headline
from pgle.run.rehearse import Rehearsal

UNKNOWN = "a loop has an unknown length"


def rehearsed(lower_bound_why: str) -> Any:
    """A rehearsal in which XLA used the profile."""
    found = SimpleNamespace(
        request=SimpleNamespace(no_step="", failed=""),
        lower_bound_why=lower_bound_why,
        used=True,
        moves=(),
    )
    found.good = Rehearsal.good.__get__(found)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(("why", "is_good"), [(UNKNOWN, False), ("", True)])
def test_a_step_that_is_a_lower_bound_fails_as_in_tune(why: str, is_good: bool) -> None:
    assert rehearsed(why).good is is_good


def test_the_verdict_says_why_the_step_is_a_lower_bound() -> None:
    assert headline(rehearsed(UNKNOWN)) == (f"Cannot tell: {UNKNOWN}", "warn")
