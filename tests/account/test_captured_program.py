"""What a capture has shown of a program goes before all savings of its step."""

from dataclasses import replace

from accounts import account, opportunity

from pgle.account.captured_program import (
    CapturedFacts,
    Recompiled,
    opportunities_of,
)
from pgle.account.next_move import Known, Move, next_move
from pgle.account.value import Account, OpportunityKind, in_order
from pgle.report.account import actions, end_words, headline

EACH_STEP = Recompiled(
    "train_step",
    compilations=8,
    executions=8,
    why="lr was static 0.1 and is static 0.2",
    remedy="pass lr as an array",
)
ATTENTION = opportunity(OpportunityKind.ATTENTION, 0.5, least=0.5)


def known(facts: CapturedFacts, devices: int) -> Account:
    """A step whose attention takes half of it, with what its capture has shown."""
    found = account(ATTENTION)
    more = opportunities_of(facts, devices, found.step_us)
    return replace(found, opportunities=in_order((*found.opportunities, *more)))


def test_a_step_on_some_of_the_devices_leads_to_the_others() -> None:
    found = known(CapturedFacts(devices=8), devices=1)
    words, tone = headline(found)
    assert words == "Use all 8 GPUs: the step runs on 1 of the 8 that were asked for"
    assert tone == "warn"
    assert [str(item.saves) for item in actions(found)] == ["at most 87.5 %", "50.0 %"]
    assert next_move(Known(account=found)) is Move.EDIT
    assert "Mesh(jax.devices()" in end_words(Known(account=found)).code


def test_a_step_on_all_devices_that_were_asked_for_has_no_such_lever() -> None:
    for facts in (CapturedFacts(devices=8), CapturedFacts()):
        assert known(facts, devices=8).lever == ATTENTION


def test_a_step_that_is_compiled_each_time_is_compiled_once_first() -> None:
    found = known(CapturedFacts(devices=8, recompiled=EACH_STEP), devices=1)
    assert [item.kind for item in found.opportunities] == [
        OpportunityKind.RECOMPILATION,
        OpportunityKind.IDLE_DEVICES,
        OpportunityKind.ATTENTION,
    ]
    assert actions(found)[0].saves is None
    words = "the program, then rehearse. Pass lr as an array"
    assert str(end_words(Known(account=found))) == words


def test_a_second_compilation_in_the_second_step_is_no_lever() -> None:
    once_more = replace(EACH_STEP, compilations=2, executions=3)
    assert known(CapturedFacts(recompiled=once_more), devices=8).lever == ATTENTION
