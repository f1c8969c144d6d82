"""Accounts of a step of 1,000 µs for tests."""

from __future__ import annotations

from typing import Any

from pgle.account.value import (
    Account,
    Basis,
    Opportunity,
    OpportunityKind,
    StepBase,
    StepBounds,
    StepPart,
    in_order,
)

STEP_US = 1000.0


def opportunity(
    kind: OpportunityKind,
    expected: float | None,
    *,
    least: float = 0.0,
    most: float | None = None,
    part: StepPart = StepPart.COMPUTE,
    **others: Any,
) -> Opportunity:
    """One that saves shares of the step; `most` is what is expected if it is not given."""
    highest = most if most is not None else (expected or 0.0)
    return Opportunity(
        kind=kind,
        expected_us=None if expected is None else expected * STEP_US,
        least_us=least * STEP_US,
        most_us=highest * STEP_US,
        part=part,
        basis=Basis.ESTIMATED,
        title=others.pop("title", f"Mend {kind}"),
        **others,
    )


def account(*found: Opportunity, exposed: float = 0.3) -> Account:
    """A step of which a share is exposed communication, the rest compute."""
    exposed_us = exposed * STEP_US
    return Account(
        module="jit_step",
        base=StepBase.NOW,
        step_us=STEP_US,
        least_us=900.0,
        most_us=1100.0,
        basis=Basis.ESTIMATED,
        parts={
            StepPart.COMPUTE: STEP_US - exposed_us,
            StepPart.COMMUNICATION: exposed_us,
        },
        bounds=StepBounds(STEP_US, STEP_US - exposed_us, STEP_US),
        opportunities=in_order(found),
    )
