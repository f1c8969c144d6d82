"""The way on from an answer: it never returns, and it ends."""

from dataclasses import replace
from itertools import product

import pytest
from accounts import account, opportunity

from pgle.account.next_move import (
    Known,
    Measured,
    Move,
    Search,
    next_move,
)
from pgle.account.value import OpportunityKind, Refused, Trial
from pgle.steps.verdict import Verdict

NOTHING = account()
PROFILE = account(opportunity(OpportunityKind.PROFILE, 0.02))
FLAGS = account(opportunity(OpportunityKind.FLAGS, None, most=0.2))
ATTENTION = account(
    opportunity(OpportunityKind.ATTENTION, 0.3),
    opportunity(OpportunityKind.FLAGS, None, most=0.2),
)
SHOWN = Trial(0.3, 0.28, 0.31, "−30.0 %, attention cudnn, better", helps=True)
TRIED = ATTENTION.with_trials({OpportunityKind.ATTENTION: SHOWN})
REFUSED = ATTENTION.with_trials({OpportunityKind.ATTENTION: Refused("it is dropped")})
LOGITS = account(opportunity(OpportunityKind.LOGITS, 0.3))
OPTIMIZER = account(opportunity(OpportunityKind.OPTIMIZER, 0.3))
ACCOUNTS = (None, NOTHING, PROFILE, FLAGS, ATTENTION, LOGITS)
VERDICTS = tuple(Verdict)


def results(known: Known, move: Move) -> list[Known]:
    """Everything that a move can show on a machine without a GPU."""
    if move is Move.MEASURE:
        after = replace(known, measured=Measured.SIMULATED, search=_used(known.search))
        return [replace(after, verdict=verdict) for verdict in VERDICTS]
    if move is Move.ADVISE:  # it ends, or proposes a run
        shown = dict.fromkeys(OpportunityKind, SHOWN)
        tried = None if known.account is None else known.account.with_trials(shown)
        measured = replace(known, measured=Measured.SIMULATED, account=tried)
        return [replace(measured, verdict=verdict) for verdict in VERDICTS]
    if move is Move.SEARCH:
        return [
            replace(known, search=Search.IN_VAIN),
            Known(search=Search.FOUND, account=known.account),
        ]
    return []


def _used(search: Search) -> Search:
    """Flags that were found are measured with the run; none are looked for after it."""
    return Search.IN_VAIN if search is Search.FOUND else search


@pytest.mark.parametrize("found", ACCOUNTS)
def test_every_way_from_a_first_answer_ends_within_four_moves(found) -> None:
    ways = [(Known(account=found), ())]
    while ways:
        known, moves = ways.pop()
        move = next_move(known)
        assert len(moves) < 4, moves
        assert (known, move) not in moves
        ways += [(after, (*moves, (known, move))) for after in results(known, move)]


@pytest.mark.parametrize(
    ("known", "move"),
    [
        (Known(account=PROFILE), Move.MEASURE),
        (Known(account=FLAGS), Move.SEARCH),
        (Known(account=ATTENTION), Move.ADVISE),
        (Known(account=TRIED), Move.EDIT),
        (Known(account=REFUSED), Move.EDIT),
        (Known(account=LOGITS), Move.EDIT),
        (Known(account=OPTIMIZER), Move.EDIT),
        (Known(Measured.SIMULATED, Verdict.SAME, account=ATTENTION), Move.ADVISE),
        (Known(Measured.SIMULATED, Verdict.SAME, account=TRIED), Move.EDIT),
        (Known(Measured.ON_GPU, Verdict.SAME, account=ATTENTION), Move.ADVISE),
        (Known(account=NOTHING), Move.END),
        (Known(Measured.SIMULATED, Verdict.FASTER, account=PROFILE), Move.PROVE),
        (Known(Measured.SIMULATED, Verdict.SAME, account=FLAGS), Move.SEARCH),
        (Known(Measured.SIMULATED, Verdict.SAME, Search.IN_VAIN, FLAGS), Move.END),
        (Known(search=Search.FOUND, account=FLAGS), Move.MEASURE),
        (Known(Measured.ON_GPU, Verdict.FASTER), Move.KEEP),
        (Known(Measured.ON_GPU, Verdict.UNDECIDED), Move.REPEAT),
        (Known(Measured.ON_GPU, Verdict.SLOWER), Move.EXPLAIN),
        (Known(Measured.ON_GPU, Verdict.SAME, Search.IN_VAIN), Move.END),
    ],
)
def test_what_is_known_decides_the_next_move(known: Known, move: Move) -> None:
    assert next_move(known) is move


def test_no_state_searches_again_or_measures_again() -> None:
    states = product(Measured, (None, *Verdict), Search, ACCOUNTS)
    for state in states:
        known = Known(*state)
        move = next_move(known)
        assert not (move is Move.SEARCH and known.search is not Search.NOT)
        assert not (move is Move.MEASURE and known.measured is not Measured.NOT)
