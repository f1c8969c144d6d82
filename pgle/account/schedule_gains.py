"""Turn the gains of other schedules of a program into opportunities of the schedule that runs
today.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from pgle.account.scheduled import gained
from pgle.account.value import Opportunity, OpportunityKind, StepPart, TimedSteps
from pgle.next import Next
from pgle.schedule.control import Controlled
from pgle.schedule.placements import Move
from pgle.worth import is_worth

NOISE = "within the model's noise"


@dataclass(frozen=True)
class ScheduleGains:
    """The gains of the latency-hiding scheduler (LHS) and of a profile."""

    lhs: Controlled | None  # over today's schedule; None if that uses LHS already
    profile: Controlled  # over LHS without a profile
    now_us: float  # the step with the user's flags
    lhs_us: float  # the step with LHS and no profile
    moved: str  # how many collectives the profile moves, by `moved_words`
    is_measured: bool  # whether the profile has measured costs
    lhs_flag: str  # the flag that turns LHS on
    measure: Next | None  # the command that measures the program
    timed: TimedSteps | None = None  # the measured change by the profile, if any

    @property
    def opportunities(self) -> Iterator[Opportunity]:
        """LHS and the profile as opportunities, if they shorten the step."""
        if self.lhs is not None and self.lhs.answer.share > 0:
            yield gained(
                OpportunityKind.SCHEDULER,
                self.lhs,
                self.now_us,
                title=f"Set {self.lhs_flag}",
                why="it is off by default here",
                edit="add it to XLA_FLAGS",
                flag=self.lhs_flag,
            )
        if self.timed is not None:
            yield from self._of_timed(self.timed)
        elif self.profile.answer.share > 0:
            yield self._of_profile()

    def _of_timed(self, timed: TimedSteps) -> Iterator[Opportunity]:
        """The profile as an opportunity, if it made timed steps enough shorter."""
        if not timed.pays:
            return
        yield Opportunity(
            kind=OpportunityKind.PROFILE,
            expected_us=-timed.change * self.lhs_us,
            least_us=-timed.most * self.lhs_us,
            most_us=-timed.least * self.lhs_us,
            part=StepPart.COMMUNICATION,
            basis=timed.basis,
            title="Use the profile",
            why="timed steps got shorter with it",
        )

    def _of_profile(self) -> Opportunity:
        title = "Measure a profile and use it"
        if self.is_measured:
            title = "Use the profile"
        found = gained(
            OpportunityKind.PROFILE,
            self.profile,
            self.lhs_us,
            title=title,
            why=self.moved,
            command=self.measure,
        )
        if is_sure(self.profile):
            return found
        return replace(found, expected_us=None, tried=found.tried or NOISE)


def moved_words(moves: Collection[Move]) -> str:
    """How many collectives a profile moves, in words."""
    moved = sum(move.moved for move in moves)
    return f"{moved} of {len(moves)} collectives move"


def is_sure(found: Controlled) -> bool:
    """Whether a predicted gain comes from more overlap and not from the model's noise."""
    answer = found.answer
    is_overlap = answer.idle_share <= answer.share / 2
    return not found.depends and answer.low >= 0 and is_overlap


def pays(found: Controlled) -> bool:
    """Whether a schedule's predicted gain is sure, and large enough to be worth a job."""
    return is_sure(found) and is_worth(found.answer.share)
