"""The largest opportunity of a step that `pgle advise` did not try, and why not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pgle.account.value import LEAST_WORTH, Account, Opportunity, OpportunityKind
from pgle.run.alternatives import Kind

TRIED_BY: Mapping[OpportunityKind, Kind] = {
    OpportunityKind.ATTENTION: Kind.ATTENTION,
    OpportunityKind.SCATTER: Kind.LOOKUP,
    OpportunityKind.LOGITS: Kind.LOSS,
    OpportunityKind.KEEP_LESS: Kind.CHECKPOINT,
    OpportunityKind.REMAT: Kind.REMAT,
    OpportunityKind.PRECISION: Kind.PRECISION,
    OpportunityKind.DONATION: Kind.DONATION,
    OpportunityKind.FLAGS: Kind.FLAGS,
}
"""The alternatives of each opportunity of the account. The others have none."""

NO_ALTERNATIVE = "pgle has no alternative for it"
NOT_FOUND = "pgle found no place in the program to change"
OVER_BUDGET = "the budget ended before it (--budget N)"


@dataclass(frozen=True, slots=True)
class Untried:
    """An opportunity that nobody tried."""

    opportunity: Opportunity
    why: str  # one clause


@dataclass(frozen=True, slots=True)
class Attempted:
    """Which kinds of alternatives a program has, and which of them were tried."""

    possible: Collection[Kind]
    tried: Collection[Kind]
    # kinds that cannot be made for this GPU or of what was given, with the reason
    impossible: Mapping[Kind, str]

    def why_not(self, kind: OpportunityKind) -> str:
        """Why no alternative of an opportunity was tried; empty if one was."""
        alternative = TRIED_BY.get(kind)
        if alternative is None:
            return NO_ALTERNATIVE
        if alternative in self.tried:
            return ""
        if alternative in self.impossible:
            return self.impossible[alternative]
        return OVER_BUDGET if alternative in self.possible else NOT_FOUND


def untried_of(account: Account, attempted: Attempted) -> Untried | None:
    """The opportunity that may save most of those that nobody tried; None if none is worth it."""
    for item in sorted(account.opportunities, key=lambda item: -item.at_stake_us):
        if account.share(item.at_stake_us) < LEAST_WORTH:
            return None
        if why := attempted.why_not(item.kind):
            return Untried(item, why)
    return None
