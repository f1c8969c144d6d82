"""What `pgle advise` did not try on a step, why not, and how to try it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pgle.account.next_move import BY_ADVISE
from pgle.account.value import (
    Account,
    Budget,
    Combination,
    Opportunity,
    OpportunityKind,
    Refused,
)
from pgle.run.alternatives import MOST_SITES, OF_COMMAND, Alternative, Kind
from pgle.worth import is_worth

TRIED_BY: Mapping[OpportunityKind, Kind] = {
    OpportunityKind.REPLICATED: Kind.SHARDING,
    OpportunityKind.ATTENTION: Kind.ATTENTION,
    OpportunityKind.SCATTER: Kind.LOOKUP,
    OpportunityKind.DENSE_GRADIENT: Kind.LOOKUP,
    OpportunityKind.KEEP_LESS: Kind.CHECKPOINT,
    OpportunityKind.REMAT: Kind.REMAT,
    OpportunityKind.PRECISION: Kind.PRECISION,
    OpportunityKind.CAST: Kind.CAST,
    OpportunityKind.DONATION: Kind.DONATION,
    OpportunityKind.FLAGS: Kind.FLAGS,
    OpportunityKind.UNROLL: Kind.UNROLL,
    OpportunityKind.CHUNKS: Kind.LOSS,
    OpportunityKind.SETTINGS: Kind.WORDS,
}
"""The alternatives that make the edit of an opportunity. The last two are opportunities only if a
trial helps. Other opportunities have no alternative. `LOGITS` has none: a loss in chunks computes
logits twice to save memory, so it does not show what fewer passes save.
"""

NO_ALTERNATIVE = "pgle has no alternative for it"
NOT_FOUND = "pgle found no place in the program to change"
OVER_BUDGET = "the budget ended before it"
STOPPED = "the trials were stopped before it"
OTHER_PLACES = f"at most {MOST_SITES} places of a kind are tried"
UNCHANGED = "the alternative changes nothing in the step"
BY_WORDS = "words of the command decide it, and these were tried"
AS_ELSEWHERE = "write there what helps at the other places"


def by_stake(
    changes: Sequence[Alternative], account: Account
) -> tuple[Alternative, ...]:
    """Return alternatives in the order of their trials: those that the command names, then those of
    opportunities (largest first), then the others.
    """
    stake: dict[Kind, float] = {}
    for item in account.opportunities:
        kind = TRIED_BY.get(item.kind)
        if kind is not None:
            stake[kind] = max(stake.get(kind, 0.0), item.at_stake_us)

    def order(change: Alternative) -> tuple[bool, float]:
        return change.kind not in OF_COMMAND, -stake.get(change.kind, 0.0)

    return tuple(sorted(changes, key=order))


@dataclass(frozen=True, slots=True)
class Untried:
    """Something that `advise` did not try."""

    what: str  # an opportunity, an alternative, or a place
    why: str  # why nobody tried it, in one clause
    how: str  # how to try it: a command to paste, or what to write
    opportunity: Opportunity | None = None  # None: the account does not price it


@dataclass(frozen=True, slots=True)
class Attempted:
    """Which kinds of alternatives a program has, and which were tried."""

    possible: Collection[Kind]
    tried: Collection[Kind]
    # kinds that this GPU or input rules out, or that made no step; with the reason
    impossible: Mapping[Kind, str]
    left: str = OVER_BUDGET  # why a possible alternative was not tried
    # command that tries an alternative, by the reason
    how: Mapping[str, str] = field(default_factory=dict)
    budget: int = 0  # budget that is enough to try all possible alternatives

    def why_not(self, kind: OpportunityKind) -> str:
        """Return why no alternative of an opportunity was tried; empty if one was tried."""
        alternative = TRIED_BY.get(kind)
        if alternative is None:
            return NO_ALTERNATIVE
        if alternative in self.tried:
            return ""
        if alternative in self.impossible:
            return self.impossible[alternative]
        if alternative in self.possible:
            return self.left
        return NOT_FOUND


def combinations_of(
    programs: Iterable[tuple[Collection[Kind], float]],
) -> tuple[Combination, ...]:
    """Return the programs whose edits are all for opportunities.

    Args:
        programs: of each compiled program the kinds of its edits, and what it saves of the step.
    """
    found = []
    for kinds, saved in programs:
        edits = [
            frozenset(of for of, kind in TRIED_BY.items() if kind is each)
            for each in sorted(kinds)
        ]
        if all(edits):
            found.append(Combination(tuple(edits), saved))
    return tuple(found)


def refused_of(
    attempted: Attempted, shown: Collection[OpportunityKind]
) -> Mapping[OpportunityKind, Refused | Budget]:
    """Return the opportunities that no repeated trial can try, with the reason, and those that a
    larger budget tries.

    Args:
        attempted: what was tried.
        shown: opportunities whose edit was tried.
    """
    found: dict[OpportunityKind, Refused | Budget] = {}
    left = [kind for kind in OpportunityKind if kind in BY_ADVISE - set(shown)]
    for kind in left:
        why = attempted.why_not(kind) or BY_WORDS
        if why == OVER_BUDGET:
            found[kind] = Budget(attempted.budget)
        elif why != attempted.left:
            found[kind] = Refused(why)
    return found


def untried_of(account: Account, attempted: Attempted) -> tuple[Untried, ...]:
    """Return the opportunities that are worth a trial and had none, largest possible saving
    first.
    """
    found = []
    counted = [item for item in account.opportunities if not item.comes_first]
    for item in sorted(counted, key=lambda item: -item.at_stake_us):
        if not is_worth(account.share(item.at_stake_us)):
            break
        if why := attempted.why_not(item.kind):
            how = attempted.how.get(why) or item.edit or item.title
            found.append(Untried(str(item.kind), why, how, item))
    return tuple(found)
