"""What `pgle advise` did not try, why not, and how to try it."""

from dataclasses import replace

import pytest
from accounts import account, opportunity

from pgle.account.next_move import BY_ADVISE, Known, Move
from pgle.account.value import Budget, OpportunityKind
from pgle.next import Next
from pgle.report.account import follow
from pgle.run.alternatives import Alternative, Kind
from pgle.run.untried import (
    NO_ALTERNATIVE,
    NOT_FOUND,
    OVER_BUDGET,
    TRIED_BY,
    Attempted,
    by_stake,
    combinations_of,
    refused_of,
    untried_of,
)

NO_KERNEL = "no kernel"


@pytest.mark.parametrize(
    ("kind", "attempted", "why"),
    [
        (OpportunityKind.ATTENTION, Attempted({Kind.ATTENTION}, {}, {}), OVER_BUDGET),
        (OpportunityKind.ATTENTION, Attempted({}, {}, {}), NOT_FOUND),
        (
            OpportunityKind.ATTENTION,
            Attempted({}, {}, {Kind.ATTENTION: NO_KERNEL}),
            NO_KERNEL,
        ),
        (OpportunityKind.OPTIMIZER, Attempted({}, {}, {}), NO_ALTERNATIVE),
        (OpportunityKind.LOGITS, Attempted({}, {Kind.LOSS}, {}), NO_ALTERNATIVE),
        (OpportunityKind.PRECISION, Attempted({}, {}, {}), NOT_FOUND),
        (OpportunityKind.CAST, Attempted({}, {Kind.PRECISION}, {}), NOT_FOUND),
        (OpportunityKind.FLAGS, Attempted({Kind.FLAGS}, {}, {}), OVER_BUDGET),
    ],
)
def test_what_was_not_tried_has_its_reason(
    kind: OpportunityKind, attempted: Attempted, why: str
) -> None:
    found = untried_of(account(opportunity(kind, None, most=0.4)), attempted)
    assert [item.why for item in found] == [why]


def test_a_bound_counts_as_much_as_an_expected_saving() -> None:
    scatter = opportunity(OpportunityKind.SCATTER, 0.1)
    fuse = opportunity(OpportunityKind.ATTENTION, None, most=0.4)
    found = untried_of(account(scatter, fuse), Attempted({}, {}, {}))
    assert [item.opportunity for item in found] == [fuse, scatter]


def test_what_was_tried_or_saves_nothing_is_not_named() -> None:
    fuse = opportunity(OpportunityKind.ATTENTION, 0.4)
    small = opportunity(OpportunityKind.OPTIMIZER, 0.004)
    attempted = Attempted({Kind.ATTENTION}, {Kind.ATTENTION}, {})
    assert untried_of(account(fuse, small), attempted) == ()


def test_what_the_budget_left_out_is_tried_by_a_command() -> None:
    fuse = opportunity(OpportunityKind.ATTENTION, 0.4)
    by_command = {OVER_BUDGET: "pgle advise --budget 9 -- python train.py"}
    left = Attempted({Kind.ATTENTION}, {}, {}, how=by_command)
    (found,) = untried_of(account(fuse), left)
    assert found.how == by_command[OVER_BUDGET]
    (other,) = untried_of(account(fuse), Attempted({}, {}, {}))
    assert other.how == (fuse.edit or fuse.title)


def test_all_but_what_was_shown_and_what_the_budget_left_is_refused() -> None:
    without_kernel = {Kind.ATTENTION: NO_KERNEL}
    attempted = Attempted({Kind.LOOKUP}, {Kind.REMAT}, without_kernel, budget=9)
    found = refused_of(attempted, [OpportunityKind.REMAT])
    assert found[OpportunityKind.ATTENTION] == NO_KERNEL
    assert found[OpportunityKind.DONATION] == NOT_FOUND
    assert found[OpportunityKind.SCATTER] == 9
    assert OpportunityKind.REMAT not in found


def test_what_the_budget_left_out_leads_to_advise_with_a_larger_one() -> None:
    given = Next.of("advise", "--", "python", "train.py")
    fuse = replace(opportunity(OpportunityKind.ATTENTION, 0.4), command=given)
    known = Known(account=account(fuse).with_trials({fuse.kind: Budget(9)}))
    line = follow(known, {Move.ADVISE: given})
    assert str(line) == "pgle advise --budget 9 -- python train.py"


def test_an_answer_leads_to_advise_only_for_what_an_alternative_edits() -> None:
    others = {OpportunityKind.FLAGS, OpportunityKind.KEEP_LESS}
    only_shown = {OpportunityKind.CHUNKS, OpportunityKind.SETTINGS}
    assert TRIED_BY.keys() - others - only_shown == BY_ADVISE


def test_what_may_save_most_is_tried_first_after_what_the_command_says() -> None:
    kinds = (Kind.REMAT, Kind.LOOKUP, Kind.PRECISION, Kind.WORDS)
    changes = [Alternative(kind, "", "", "") for kind in kinds]
    precision = opportunity(OpportunityKind.PRECISION, None, most=0.4)
    scatter = opportunity(OpportunityKind.SCATTER, 0.1)
    found = [item.kind for item in by_stake(changes, account(scatter, precision))]
    assert found == [Kind.WORDS, Kind.PRECISION, Kind.LOOKUP, Kind.REMAT]


def test_a_program_counts_for_all_opportunities_of_its_edits() -> None:
    varied = ({Kind.LOOKUP, Kind.VARIED}, 0.9)  # another batch is no opportunity
    (found,) = combinations_of([({Kind.LOOKUP, Kind.UNROLL}, 0.3), varied])
    assert found.saved == 0.3
    assert found.is_of((OpportunityKind.SCATTER, OpportunityKind.UNROLL))
    assert found.holds(OpportunityKind.DENSE_GRADIENT)
    assert not found.is_of((OpportunityKind.SCATTER, OpportunityKind.ATTENTION))
