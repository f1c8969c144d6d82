"""The way on from an answer: it never returns, and it ends."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from accounts import account, opportunity

from pgle.account.next_move import (
    Known,
    Measured,
    Move,
    Search,
    known_of,
    next_move,
)
from pgle.account.value import (
    Basis,
    OpportunityKind,
    Refused,
    StepPart,
    TimedSteps,
    Trial,
)
from pgle.next import Sentence
from pgle.report.account import end_words
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
LOOPS = account(opportunity(OpportunityKind.UNROLL, None, most=0.9))
LOGITS = account(opportunity(OpportunityKind.LOGITS, 0.3))
OPTIMIZER = account(opportunity(OpportunityKind.OPTIMIZER, 0.3))
ACCOUNTS = (None, NOTHING, PROFILE, FLAGS, ATTENTION, LOGITS, LOOPS)
VERDICTS = tuple(Verdict)


DIVIDED = Trial(
    0.7,
    0.6,
    0.8,
    "−70.0 % of the predicted step, sharding P('data'), better",
    helps=True,
    title="Write sharding P('data') in train.py:37",
    edit="Write x = divided(x) in train.py:37",
    source="train.py:37",
    part=StepPart.COMMUNICATION,
)
ONLY_TRIED = NOTHING.with_trials({OpportunityKind.REPLICATED: DIVIDED})
VAIN = Trial(0.0, -0.01, 0.01, "0.0 %, attention cudnn, worse", helps=False)
STATES = tuple(
    Known(*state, is_unfinished=unfinished)
    for *state, unfinished in product(
        Measured, (None, *VERDICTS), Search, ACCOUNTS, (False, True)
    )
)
UNUSED = Sentence.todo("end its name with .pbtxt")
"""What can be known of a program or of a run directory."""


def results(known: Known, move: Move) -> list[Known]:
    """Everything that a move can show."""
    if move is Move.FINISH:
        whole = replace(known, is_unfinished=False)
        short = replace(whole, measured=Measured.TOO_SHORT, verdict=None)
        bad = (replace(whole, is_covered=False), replace(whole, unused=UNUSED))
        return [short, *bad, *compared(whole, Measured.SIMULATED, Measured.ON_GPU)]
    if move is Move.MEASURE:
        measured = replace(known, search=_used(known.search))
        is_known = known.measured in (Measured.SIMULATED, Measured.ON_GPU)
        there = (known.measured,) if is_known else (Measured.SIMULATED, Measured.ON_GPU)
        return list(compared(measured, *there))
    if move is Move.PROVE:
        return list(compared(replace(known, search=Search.NOT), Measured.ON_GPU))
    if move is Move.ADVISE:
        return [_shown(known, trial) for trial in (SHOWN, VAIN, Refused("dropped"))]
    if move is Move.SEARCH:
        return [replace(known, search=search) for search in (Search.IN_VAIN, FOUND)]
    if move is Move.REPEAT:
        return list(compared(replace(known, is_repeated=True), Measured.ON_GPU))
    return []  # VERIFY and EXPLAIN have answers of their own


FOUND = Search.FOUND


def compared(known: Known, *measured: Measured) -> Iterator[Known]:
    """The same with every verdict on its steps."""
    for where, verdict in product(measured, VERDICTS):
        yield replace(known, measured=where, verdict=verdict)


def _shown(known: Known, trial: Trial | Refused) -> Known:
    assert known.account is not None
    shown = dict.fromkeys(OpportunityKind, trial)
    return replace(known, account=known.account.with_trials(shown))


def _used(search: Search) -> Search:
    """Flags that were found are measured with the run; none are looked for after it."""
    return Search.IN_VAIN if search is Search.FOUND else search


def test_every_way_ends_and_no_move_is_made_twice_by_the_same_facts() -> None:
    ways: list[tuple[Known, tuple[tuple[Known, Move], ...]]]
    ways = [(known, ()) for known in STATES]
    while ways:
        known, moves = ways.pop()
        move = next_move(known)
        assert (known, move) not in moves
        assert len(moves) < 9, [each for _, each in moves]
        ways += [(after, (*moves, (known, move))) for after in results(known, move)]


@pytest.mark.parametrize(
    ("known", "move"),
    [
        (Known(account=PROFILE), Move.MEASURE),
        (Known(account=FLAGS), Move.SEARCH),
        (Known(account=ATTENTION), Move.ADVISE),
        (Known(account=TRIED), Move.EDIT),
        (Known(account=REFUSED), Move.EDIT),
        (Known(account=ONLY_TRIED), Move.EDIT),
        (Known(search=Search.IN_VAIN, account=ONLY_TRIED), Move.EDIT),
        (Known(Measured.SIMULATED, Verdict.SAME, account=ONLY_TRIED), Move.EDIT),
        (Known(Measured.ON_GPU, Verdict.FASTER, account=ONLY_TRIED), Move.EDIT),
        (Known(account=LOGITS), Move.EDIT),
        (Known(account=OPTIMIZER), Move.EDIT),
        (Known(Measured.SIMULATED, Verdict.SAME, account=ATTENTION), Move.ADVISE),
        (Known(Measured.SIMULATED, Verdict.SAME, account=TRIED), Move.EDIT),
        (Known(Measured.ON_GPU, Verdict.SAME, account=ATTENTION), Move.ADVISE),
        (Known(account=NOTHING), Move.END),
        (Known(Measured.SIMULATED, Verdict.FASTER, account=PROFILE), Move.PROVE),
        (Known(Measured.SIMULATED, Verdict.SAME, account=FLAGS), Move.SEARCH),
        (Known(Measured.SIMULATED, Verdict.SAME, Search.IN_VAIN, FLAGS), Move.END),
        (Known(Measured.SIMULATED, Verdict.FASTER, account=ATTENTION), Move.ADVISE),
        (Known(Measured.SIMULATED, Verdict.FASTER, account=TRIED), Move.EDIT),
        (Known(Measured.ON_GPU, Verdict.FASTER, account=ATTENTION), Move.ADVISE),
        (Known(Measured.ON_GPU, Verdict.FASTER, account=TRIED), Move.EDIT),
        (Known(Measured.ON_GPU, Verdict.FASTER, account=LOGITS), Move.EDIT),
        (Known(Measured.ON_GPU, Verdict.FASTER, account=REFUSED), Move.EDIT),
        (Known(Measured.ON_GPU, Verdict.FASTER, account=PROFILE), Move.KEEP),
        (Known(Measured.TOO_SHORT, account=ATTENTION), Move.ADVISE),
        (Known(Measured.TOO_SHORT, account=FLAGS), Move.LENGTHEN),
        (Known(account=ATTENTION, is_unfinished=True), Move.FINISH),
        (Known(Measured.SIMULATED, Verdict.SAME, Search.FOUND, FLAGS), Move.MEASURE),
        (Known(search=Search.FOUND, account=FLAGS), Move.MEASURE),
        (Known(Measured.ON_GPU, Verdict.FASTER), Move.KEEP),
        (Known(Measured.ON_GPU, Verdict.UNDECIDED), Move.REPEAT),
        (Known(Measured.ON_GPU, Verdict.UNDECIDED, is_repeated=True), Move.SEARCH),
        (Known(Measured.ON_GPU, Verdict.FASTER, is_repeated=True), Move.KEEP),
        (Known(Measured.ON_GPU, Verdict.FASTER, unused=UNUSED), Move.USE),
        (Known(Measured.SIMULATED, Verdict.FASTER, unused=UNUSED), Move.USE),
        (Known(account=ATTENTION, is_covered=False), Move.VERIFY),
        (Known(unused=UNUSED, is_covered=False), Move.VERIFY),
        (Known(Measured.ON_GPU, Verdict.SLOWER), Move.EXPLAIN),
        (Known(Measured.ON_GPU, Verdict.SAME, Search.IN_VAIN), Move.END),
    ],
)
def test_what_is_known_decides_the_next_move(known: Known, move: Move) -> None:
    assert next_move(known) is move


def test_no_state_searches_again_or_measures_again() -> None:
    for known in STATES:
        move = next_move(known)
        assert not (move is Move.SEARCH and known.search is not Search.NOT)
        is_measured = known.measured is not Measured.NOT and known.search is not FOUND
        assert not (move is Move.MEASURE and is_measured)


@pytest.mark.parametrize(("change", "move"), [(-0.009, Move.PROVE), (-0.004, Move.END)])
def test_a_simulated_change_is_proven_on_gpus_from_the_limit_of_all_levers_on(
    change: float, move: Move
) -> None:
    profile = account(opportunity(OpportunityKind.PROFILE, -change))
    timed = TimedSteps(
        base_us=1000.0,
        step_us=1000.0 * (1 + change),
        change=change,
        least=change,
        most=change,
        verdict=Verdict.FASTER,
        basis=Basis.SIMULATED,
    )
    known = known_of(timed, search=Search.IN_VAIN, account=profile)
    assert next_move(known) is move
    assert (profile.lever is not None) == timed.pays


def test_an_edit_that_has_only_a_bound_is_tried_by_the_compiler_once() -> None:
    assert next_move(Known(account=LOOPS)) is Move.ADVISE
    vain = LOOPS.with_trials({OpportunityKind.UNROLL: VAIN})
    assert next_move(Known(account=vain)) is not Move.ADVISE


def test_an_edit_that_may_help_is_the_end_after_the_search_for_flags() -> None:
    cast, flags = OpportunityKind.CAST, OpportunityKind.FLAGS
    unsure = Trial(0.339, -0.02, 0.5, "unsure", helps=False, is_open=True)
    found = account(
        opportunity(cast, 0.35, edit="Cast x"), opportunity(flags, None, most=0.1)
    ).with_trials({cast: unsure})
    assert next_move(Known(account=found)) is Move.SEARCH
    searched = Known(account=found, search=Search.IN_VAIN)
    assert next_move(searched) is Move.END
    assert str(end_words(searched)).startswith("Cast x: saves at most 50.0 %")
