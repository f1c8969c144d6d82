"""When a rehearsal has an answer, and so exits with 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from accounts import account, opportunity

from pgle.account.value import OpportunityKind
from pgle.next import WayEnd
from pgle.report.rehearse import advice, headline, profile_words
from pgle.run.rehearse import Rehearsal
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Gain

UNKNOWN = "a loop has an unknown length"


def gain(share: float) -> Gain:
    return Gain(share, share, share, 0.0)


def rehearsed(lower_bound_why: str, failed: str = "") -> Any:
    """A rehearsal in which XLA used the profile."""
    found = SimpleNamespace(
        request=SimpleNamespace(no_step="", failed=failed),
        lower_bound_why=lower_bound_why,
        used=True,
        moves=(),
        lhs_gained=None,
        gained=Controlled(gain(0.0)),
    )
    found.holds = Rehearsal.holds.__get__(found)  # type: ignore[attr-defined]
    found.good = Rehearsal.good.__get__(found)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(("why", "is_good"), [(UNKNOWN, False), ("", True)])
def test_a_step_that_is_a_lower_bound_fails_as_in_tune(why: str, is_good: bool) -> None:
    assert rehearsed(why).good is is_good


def test_the_verdict_says_why_the_step_is_a_lower_bound() -> None:
    found = rehearsed(UNKNOWN)
    found.account = account()
    assert headline(found) == (f"Cannot tell: {UNKNOWN}", "warn")


def test_a_step_of_unknown_length_names_what_an_edit_saves_as_a_time() -> None:
    found = rehearsed(UNKNOWN)
    found.account = account(opportunity(OpportunityKind.ATTENTION, 0.3))
    words, tone = headline(found)
    assert words.startswith("Mend attention that is not fused: saves 300 µs a step")
    assert words.endswith(f"the whole step is unknown: {UNKNOWN}")
    assert tone == "warn"


def test_a_program_that_fails_after_its_step_keeps_the_levers_of_the_step() -> None:
    found = rehearsed("", failed="OSError: no such file")
    found.account = account(opportunity(OpportunityKind.ATTENTION, 0.3))
    words, _ = headline(found)
    assert words.startswith("Mend attention that is not fused: saves 30.0 %")
    assert found.holds
    assert not found.good


def test_a_profile_whose_sign_hangs_on_kernels_says_so_next_to_a_larger_lever() -> None:
    found = rehearsed("")
    found.gained = Controlled(gain(-0.012), gain(0.014))
    found.account = account(opportunity(OpportunityKind.ATTENTION, 0.3))
    depends = "profile depends on what autotuning picks"
    words, _ = headline(found)
    assert words.endswith(f". The {depends}")
    sides = "the step gets 1.2 % longer or 1.4 % shorter"
    assert profile_words(found) == f"the {depends}: {sides}"


def test_a_lower_bound_with_nothing_to_gain_leads_to_what_the_warnings_name() -> None:
    found = rehearsed(UNKNOWN)
    found.account = account()
    found.run = found.tune = found.measure = found.advise = None
    _, follows = advice(found)
    assert follows.end is WayEnd.TODO
    assert "what the warnings name" in str(follows)
