"""The account of a step: which opportunity leads, and what all of them come to."""

from dataclasses import replace

import pytest
from accounts import STEP_US, account, opportunity

from pgle.account.value import (
    Basis,
    Combination,
    OpportunityKind,
    StepBase,
    StepPart,
    Trial,
    chosen,
    excluded,
)
from pgle.report.account import headline, note

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


def test_savings_below_half_a_per_cent_are_no_lever() -> None:
    assert account(opportunity(PROFILE, 0.004)).lever is None


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


def test_an_edit_that_may_help_stays_open_with_its_bound() -> None:
    words = "−33.9 %, cast bfloat16, unsure"
    unsure = Trial(0.339, -0.02, 0.5, words, helps=False, is_open=True)
    cast = OpportunityKind.CAST
    found = account(opportunity(cast, 0.35)).with_trials({cast: unsure})
    assert found.lever is None
    assert headline(found)[0].endswith("(at most 50.0 % of the step)")
    assert "tried in vain" not in note(found)


DIVIDED = Trial(0.7, 0.6, 0.8, "−70.0 %, sharding", helps=True, title="Divide x")


def test_an_edit_that_helps_is_the_lever_though_no_lever_found_it() -> None:
    found = account().with_trials({OpportunityKind.REPLICATED: DIVIDED})
    assert found.lever is not None
    assert found.lever.title == "Divide x"
    assert found.share(found.lever.known_saving_us) == 0.7
    assert headline(found)[0].startswith("Divide x: saves 70.0 % (60.0 … 80.0 %)")


def test_one_edit_of_two_opportunities_counts_once() -> None:
    scatter, table = OpportunityKind.SCATTER, OpportunityKind.DENSE_GRADIENT
    shown = {scatter: DIVIDED, table: DIVIDED}
    alone = account().with_trials(shown)
    both = account(opportunity(scatter, 0.1), opportunity(table, 0.2))
    assert [item.kind for item in alone.opportunities] == [scatter]
    assert len(chosen(both.with_trials(shown).opportunities)) == 1


def test_one_edit_may_shorten_more_than_its_part() -> None:
    shown = {OpportunityKind.REPLICATED: replace(DIVIDED, part=StepPart.COMMUNICATION)}
    assert account(exposed=0.3).with_trials(shown).together_us == 0.7 * STEP_US


def test_an_instruction_that_two_shorten_counts_once() -> None:
    fuse = replace(opportunity(ATTENTION, 0.3), shortened={"softmax": 1.0})
    cast = replace(
        opportunity(OpportunityKind.CAST, 0.2), shortened={"softmax": 1.0, "dot": 3.0}
    )
    # a quarter of the cast's saving is of the softmax, which the fused call saves anyway
    assert account(fuse, cast).together_us == pytest.approx(0.45 * STEP_US)


BOTH = Combination((frozenset((ATTENTION,)), frozenset((FLAGS,))), 0.5)


def tried(saved: float, *programs: Combination) -> Trial:
    """An edit that helps, alone and in some programs."""
    trial = replace(DIVIDED, saved=saved, least=saved, most=saved)
    return replace(trial, words=f"{saved}", combinations=programs)


def test_what_edits_save_together_is_what_one_program_with_them_saves() -> None:
    alone = account(opportunity(ATTENTION, 0.3), opportunity(FLAGS, 0.4))
    added = alone.with_trials({ATTENTION: tried(0.3)})
    assert added.together_us == pytest.approx(0.7 * STEP_US)
    compiled = alone.with_trials({ATTENTION: tried(0.3, BOTH)})
    assert compiled.together_us == pytest.approx(0.5 * STEP_US)


def test_what_no_program_has_together_is_added_with_a_doubt() -> None:
    alone = account(opportunity(ATTENTION, 0.3), opportunity(FLAGS, 0.4))
    assert note(alone).endswith("together 70.0 % if they add.")
    compiled = alone.with_trials({ATTENTION: tried(0.3, BOTH)})
    assert note(compiled).endswith("together 50.0 %.")
    more = replace(
        compiled, opportunities=(*compiled.opportunities, opportunity(PROFILE, 0.1))
    )
    assert note(more).endswith("together 60.0 % if they add.")


def test_a_program_of_other_edits_says_nothing() -> None:
    alone = account(opportunity(ATTENTION, 0.3), opportunity(PROFILE, 0.1))
    found = alone.with_trials({ATTENTION: tried(0.3, BOTH)})
    assert found.together_us == pytest.approx(0.4 * STEP_US)


def test_flags_that_an_answer_compiled_itself_keep_their_saving() -> None:
    own = replace(opportunity(FLAGS, 0.2), basis=Basis.COMPILED)
    others = replace(DIVIDED, saved=-0.1, helps=False)
    found = account(own).with_trials({FLAGS: others})
    assert found.together_us == pytest.approx(0.2 * STEP_US)


def test_the_other_way_to_shorten_the_same_products_is_not_added() -> None:
    products = frozenset(("dot",))
    cast = opportunity(OpportunityKind.CAST, 0.3, instructions=products)
    found = account(cast).with_trials({PRECISION: tried(0.2)})
    assert found.together_us == pytest.approx(0.3 * STEP_US)


def test_an_edit_that_was_tried_says_of_which_step_its_saving_is_a_share() -> None:
    traced = replace(account(), base=StepBase.ALONE)
    found = traced.with_trials({OpportunityKind.REPLICATED: DIVIDED})
    assert "what was tried of the predicted step" in note(found)
