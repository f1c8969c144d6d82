"""The way on from an answer: what is known of a program decides the next move, and each move leads
to one that was not made yet, or to an end.
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
"""Opportunities that need no edit of the program and none of the machine."""


OF_PROGRAM = frozenset(
    (
        OpportunityKind.REPLICATED,
        OpportunityKind.ATTENTION,
        OpportunityKind.PRECISION,
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
"""Opportunities that need an edit of the program. What is in neither set is the machine's."""

BY_ADVISE = frozenset(
    (
        OpportunityKind.REPLICATED,
        OpportunityKind.ATTENTION,
        OpportunityKind.PRECISION,
        OpportunityKind.SCATTER,
        OpportunityKind.DENSE_GRADIENT,
        OpportunityKind.REMAT,
        OpportunityKind.DONATION,
    )
)
"""Of these, what the command of `Move.ADVISE` tries without an edit of the user. `TRIED_BY` of
`pgle.run.untried` names the alternative of each.
"""


class Measured(StrEnum):
    """Whether baseline and performance run were timed and compared."""

    NOT = "not"
    TOO_SHORT = "too short"  # their steps cannot be compared
    SIMULATED = "simulated"
    ON_GPU = "on a GPU"


class Search(StrEnum):
    """Whether other flags were looked for."""

    NOT = "not"
    IN_VAIN = "in vain"
    FOUND = "found"  # and they are not measured yet


class Move(StrEnum):
    """What to do next."""

    # the stage or comparison of the run that is missing or out of date
    FINISH = "finish"
    VERIFY = "verify"  # see what the profile lacks
    USE = "use"  # the end: the user makes XLA use the profile
    MEASURE = "measure"  # a run of all stages
    ADVISE = "advise"  # try the edit with the compiler
    SEARCH = "search"  # for flags
    PROVE = "prove"  # on GPUs what a simulation has shown
    REPEAT = "repeat"  # more launches on GPUs
    EXPLAIN = "explain"  # where the slower side loses its time
    LENGTHEN = "lengthen"  # the end: only the user makes the program run more steps
    KEEP = "keep"  # the end: the setting is better
    EDIT = "edit"  # the end: the program or the machine is the user's
    END = "end"  # the end: nothing is left


ENDS = frozenset((Move.USE, Move.LENGTHEN, Move.KEEP, Move.EDIT, Move.END))


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a program."""

    measured: Measured = Measured.NOT
    verdict: Verdict | None = None  # of the comparison of their step times
    search: Search = Search.NOT
    account: Account | None = None  # of its newest step; None: no step was taken apart
    is_unfinished: bool = False  # a stage of its run is missing or out of date
    # the profile has enough of the costs that `verify` asks for
    is_covered: bool = True
    # what to do if XLA did not use the profile; None: it did, or nobody knows
    unused: Sentence | None = None
    is_repeated: bool = False  # undecided steps were measured by more launches

    @property
    def lever(self) -> Opportunity | None:
        """The largest lever of the account; None without an account, or if nothing is to gain."""
        return None if self.account is None else self.account.lever


def known_of(
    timed: TimedSteps | None, *, search: Search, account: Account | None = None
) -> Known:
    """What is known by timed steps, a search for flags, and an account.

    Args:
        timed: None: nothing was compared.
    """
    if timed is None:
        return Known(search=search, account=account)
    is_simulated = timed.basis is Basis.SIMULATED
    if not is_simulated:
        return Known(Measured.ON_GPU, timed.verdict, search, account)
    verdict = timed.verdict
    if verdict is Verdict.FASTER and not timed.pays:
        verdict = Verdict.SAME  # no job on GPUs is worth it
    return Known(Measured.SIMULATED, verdict, search, account)


def next_move(known: Known) -> Move:
    """The move that follows; no move leads back to what is known already."""
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
    """Whether a setting changes nothing that more launches could show."""
    is_unclear = known.verdict is Verdict.UNDECIDED
    return known.verdict is Verdict.SAME or (is_unclear and known.is_repeated)


def _after_change_on_gpu(known: Known) -> Move:
    """After timed steps on a GPU that are not settled. A faster setting is kept, but for an edit
    that nobody tried or made yet.
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
    """Whether the largest lever is an edit of the program, or is the machine's."""
    lever = known.lever
    return lever is not None and lever.kind not in BY_SCHEDULE


def _is_tried_by_advise(known: Known) -> bool:
    """Whether the largest lever is an edit that nobody has tried yet, and `advise` can."""
    lever = known.lever
    if lever is None or lever.tried or lever.not_tried:
        return False
    return lever.kind in BY_ADVISE


def _is_open(known: Known) -> bool:
    """Whether flags could save enough to look for them."""
    if known.account is None:
        return True
    unproven = known.account.unproven
    return unproven is not None and unproven.kind in BY_SCHEDULE
