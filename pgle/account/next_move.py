"""Decide what to do after an answer, from all that pgle knows about a program. No move repeats one
that the user has made already. Each leads to a new move or to an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pgle.account.value import (
    Account,
    Basis,
    Opportunity,
    OpportunityKind,
    TimedSteps,
)
from pgle.next import Sentence
from pgle.steps.verdict import Verdict

BY_SCHEDULE = frozenset(
    (
        OpportunityKind.SCHEDULER,
        OpportunityKind.PROFILE,
        OpportunityKind.STALE_PROFILE,
        OpportunityKind.FLAGS,
    )
)
"""Opportunities that change neither the program nor the machine."""


OF_PROGRAM = frozenset(
    (
        OpportunityKind.REPLICATED,
        OpportunityKind.ATTENTION,
        OpportunityKind.PRECISION,
        OpportunityKind.CAST,
        OpportunityKind.SCATTER,
        OpportunityKind.DENSE_GRADIENT,
        OpportunityKind.LOGITS,
        OpportunityKind.REMAT,
        OpportunityKind.KEEP_LESS,
        OpportunityKind.DONATION,
        OpportunityKind.OPTIMIZER,
        OpportunityKind.COPIES,
        OpportunityKind.RECOMPILATION,
        OpportunityKind.IDLE_DEVICES,
        OpportunityKind.UNROLL,
        OpportunityKind.CHUNKS,
        OpportunityKind.SETTINGS,
    )
)
"""Opportunities that need an edit of the program. Those in neither set concern the machine."""

BY_ADVISE = frozenset(
    (
        OpportunityKind.REPLICATED,
        OpportunityKind.ATTENTION,
        OpportunityKind.PRECISION,
        OpportunityKind.CAST,
        OpportunityKind.SCATTER,
        OpportunityKind.DENSE_GRADIENT,
        OpportunityKind.REMAT,
        OpportunityKind.DONATION,
        OpportunityKind.UNROLL,
    )
)
"""Those of `OF_PROGRAM` that the command of `Move.ADVISE` tries without an edit by the user.
`pgle.run.untried.TRIED_BY` names the alternative of each.
"""


class Measured(StrEnum):
    """Whether and where the steps of baseline and performance run were timed and compared."""

    NOT = "not"
    TOO_SHORT = "too short"  # their steps cannot be compared
    SIMULATED = "simulated"
    ON_GPU = "on a GPU"


class Search(StrEnum):
    """Whether somebody searched for other flags."""

    NOT = "not"
    IN_VAIN = "in vain"
    FOUND = "found"  # better flags, not measured yet


class Move(StrEnum):
    """What to do next."""

    # make the stage or comparison of the run that is missing or out of date
    FINISH = "finish"
    VERIFY = "verify"  # see which costs the profile lacks
    USE = "use"  # an end: only the user can make XLA use the profile
    MEASURE = "measure"  # run all stages
    ADVISE = "advise"  # try the edit with the compiler
    SEARCH = "search"  # search for flags
    PROVE = "prove"  # repeat on GPUs what a simulation has shown
    REPEAT = "repeat"  # measure more launches on GPUs
    EXPLAIN = "explain"  # see where the slower side loses its time
    LENGTHEN = "lengthen"  # an end: only the user can make the program run more steps
    KEEP = "keep"  # an end: the setting is better
    EDIT = "edit"  # an end: only the user can edit the program or the machine
    END = "end"  # an end: no move is left


ENDS = frozenset((Move.USE, Move.LENGTHEN, Move.KEEP, Move.EDIT, Move.END))


@dataclass(frozen=True, slots=True)
class Known:
    """All that pgle knows about a program and its run."""

    measured: Measured = Measured.NOT
    verdict: Verdict | None = None  # of the comparison of step times
    search: Search = Search.NOT
    account: Account | None = None  # of its newest step; None if pgle has none
    is_unfinished: bool = False  # a stage of its run is missing or out of date
    # whether the profile has enough of the costs that `verify` asks for
    is_covered: bool = True
    # what to do if XLA did not use the profile; None if it did, or if that is unknown
    unused: Sentence | None = None
    is_repeated: bool = False  # undecided steps were measured with more launches

    @property
    def lever(self) -> Opportunity | None:
        """The account's lever; None without an account or a lever."""
        return None if self.account is None else self.account.lever


def known_of(
    timed: TimedSteps | None, *, search: Search, account: Account | None = None
) -> Known:
    """Combine timed steps, a search for flags, and an account.

    Args:
        timed: None if no steps were compared.
    """
    if timed is None:
        return Known(search=search, account=account)
    is_simulated = timed.basis is Basis.SIMULATED
    if not is_simulated:
        return Known(Measured.ON_GPU, timed.verdict, search, account)
    verdict = timed.verdict
    if verdict is Verdict.FASTER and not timed.pays:
        verdict = Verdict.SAME  # too little to be worth a job on GPUs
    return Known(Measured.SIMULATED, verdict, search, account)


def next_move(known: Known) -> Move:
    """The move that follows. No move asks for something that is known already."""
    if known.is_unfinished:
        return Move.FINISH
    if not known.is_covered:
        return Move.VERIFY
    if known.unused is not None:
        return Move.USE
    if known.search is Search.FOUND:
        return Move.MEASURE
    if known.measured is Measured.ON_GPU and not _is_settled(known):
        return _after_change_on_gpu(known)
    if _is_edit(known):
        return Move.ADVISE if _is_tried_by_advise(known) else Move.EDIT
    if known.lever is None and _is_tried_by_advise(known):
        return Move.ADVISE
    if known.measured is Measured.TOO_SHORT:
        return Move.LENGTHEN
    if known.measured is Measured.SIMULATED and known.verdict is Verdict.FASTER:
        return Move.PROVE
    if known.measured is Measured.NOT and known.lever is not None:
        return Move.MEASURE
    if known.search is Search.NOT and _is_open(known):
        return Move.SEARCH
    return Move.END


def _is_settled(known: Known) -> bool:
    """Whether more launches would show nothing new: steps are the same, or still undecided after a
    repetition.
    """
    is_unclear = known.verdict is Verdict.UNDECIDED
    return known.verdict is Verdict.SAME or (is_unclear and known.is_repeated)


def _after_change_on_gpu(known: Known) -> Move:
    """The move after timed steps on a GPU that are not settled. A faster setting is kept, unless an
    edit is left to try or to make.
    """
    if known.verdict is Verdict.UNDECIDED:
        return Move.REPEAT
    if known.verdict is Verdict.SLOWER:
        return Move.EXPLAIN
    if _is_tried_by_advise(known):
        return Move.ADVISE
    lever = known.lever
    is_edit = lever is not None and lever.kind in OF_PROGRAM
    return Move.EDIT if is_edit else Move.KEEP


def _is_edit(known: Known) -> bool:
    """Whether the account's lever changes the program or the machine."""
    lever = known.lever
    return lever is not None and lever.kind not in BY_SCHEDULE


def _is_tried_by_advise(known: Known) -> bool:
    """Whether the account's lever is an edit that `advise` can try, and nobody has tried yet.
    Without a lever, the largest opportunity that has only a bound counts.
    """
    account = known.account
    lever = None if account is None else account.lever or account.unproven
    if lever is None or lever.tried or lever.not_tried:
        return False
    return lever.kind in BY_ADVISE


def _is_open(known: Known) -> bool:
    """Whether flags could save enough to be worth a search."""
    if known.account is None:
        return True
    untried = known.account.untried
    return untried is not None and untried.kind in BY_SCHEDULE
