"""The account of a step: which opportunity leads, and what all of them come to."""

from accounts import STEP_US, account, opportunity

from pgle.account.value import OpportunityKind, StepPart, Trial, chosen, excluded

ATTENTION = OpportunityKind.ATTENTION
PRECISION = OpportunityKind.PRECISION
FLAGS = OpportunityKind.FLAGS
PROFILE = OpportunityKind.PROFILE


def test_the_lever_is_the_largest_expected_saving_of_any_kind() -> None:
    found = account(
        opportunity(PROFILE, 0.02),
        opportunity(ATTENTION, 0.3),
        opportunity(FLAGS, None, most=0.5),
    )
    assert found.lever is not None
    assert found.lever.kind is ATTENTION


def test_savings_below_one_per_cent_are_no_lever() -> None:
    assert account(opportunity(PROFILE, 0.009)).lever is None


def test_a_bound_that_nobody_tried_is_no_lever_but_stays_open() -> None:
    found = account(opportunity(FLAGS, None, most=0.5))
    assert found.lever is None
    assert found.unproven is not None
    assert found.unproven.kind is FLAGS


def test_of_two_that_take_the_same_instructions_away_one_counts() -> None:
    shared = frozenset(("fusion.1",))
    first = opportunity(ATTENTION, 0.3, instructions=shared)
    second = opportunity(PRECISION, 0.2, instructions=shared)
    assert chosen((second, first)) == (first,)
    assert excluded((second, first)) == {PRECISION: ATTENTION}
    assert account(first, second).together_us == 0.3 * STEP_US


def test_all_savings_of_a_part_never_exceed_the_part() -> None:
    part = StepPart.COMMUNICATION
    found = account(
        opportunity(PROFILE, 0.2, part=part),
        opportunity(FLAGS, 0.25, part=part),
        opportunity(ATTENTION, 0.1),
        exposed=0.3,
    )
    assert round(found.together_us) == 0.4 * STEP_US


def test_the_parts_of_a_step_name_what_it_is_bound_by() -> None:
    assert account(exposed=0.6).bound_by is StepPart.COMMUNICATION
    assert account(exposed=0.3).bound_by is StepPart.COMPUTE


def test_nothing_is_expected_of_an_edit_that_was_tried_and_does_not_help() -> None:
    worse = Trial(-0.5, -0.6, -0.5, "+50.0 %, attention cudnn, worse", helps=False)
    known = account(opportunity(ATTENTION, 0.3), opportunity(PROFILE, 0.02))
    tried = known.with_trials({ATTENTION: worse})
    assert tried.lever is not None
    assert tried.lever.kind is PROFILE
