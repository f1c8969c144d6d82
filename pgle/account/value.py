"""The account of a step as a value, which every command shows and none computes for itself.

A step has parts, which add up to it. An *opportunity* is one change that would shorten it. Its
saving is counted against one base, the step of the account, and is drawn from one part of it. What
all savings of a part make together is at most that part (`Account.together_us`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType

from pgle.next import Next
from pgle.steps.verdict import Verdict
from pgle.worth import is_worth
from pgle.xla.hlo.frames import in_package

LARGE = 0.05
"""Of the step. From here on a saving that was left is a warning."""


class Basis(StrEnum):
    """What a figure rests on."""

    MEASURED = "measured"  # on a GPU
    SIMULATED = "simulated"  # recorded on the simulated GPU
    COMPILED = "compiled"  # two schedules of the real compiler, priced alike
    ESTIMATED = "estimated"  # a model of the hardware, with its error in the range


class StepBase(StrEnum):
    """Which step an account is of: what its shares are counted against."""

    NOW = "with the flags that you use now"
    PROFILED = "with the profile and the flags that you use now"
    OVERLAPPED = "with the latency-hiding scheduler on"
    SCHEDULED = "as it is scheduled"
    TRACED = "that was traced"
    ALONE = "of the profile run, which runs each collective alone"

    @property
    def short(self) -> str:
        """The step in a headline, where the base is named below."""
        return "the step with the profile" if self is StepBase.PROFILED else "the step"


class StepPart(StrEnum):
    """Parts of a step; they add up to it."""

    COMPUTE = "compute"
    COMMUNICATION = "exposed communication"
    COPIES = "exposed copies"
    OTHER = "other GPU work"
    IDLE = "idle"


class OpportunityKind(StrEnum):
    """What would change. Each kind has one remedy."""

    # the schedule and its flags
    SCHEDULER = "latency-hiding scheduler"
    PROFILE = "profile"
    STALE_PROFILE = "stale profile"
    FLAGS = "flags"
    # the program
    IDLE_DEVICES = "devices that do nothing"
    REPLICATED = "work that every device repeats"
    ATTENTION = "attention that is not fused"
    PRECISION = "products of f32 values"
    SCATTER = "scatters"
    DENSE_GRADIENT = "whole gradients of tables"
    LOGITS = "full logits"
    REMAT = "values computed twice"
    KEEP_LESS = "memory"
    DONATION = "state that is copied"
    OPTIMIZER = "many small kernels"
    COPIES = "exposed copies"
    RECOMPILATION = "repeated compilation"
    OTHER_MODULES = "other modules"
    # that only `advise` finds
    UNROLL = "iterations of a loop"
    CHUNKS = "a loss over all tokens at once"
    SETTINGS = "settings of the trainer"
    # the machine
    INPUT = "idle between steps"
    HOST = "host gaps inside steps"
    LAUNCH_GAPS = "launch gaps"
    RANK_SKEW = "waits for the slowest rank"
    SLOW_STEPS = "slow steps"
    CHANGING_STEPS = "steps that change over time"
    SLOW_PRODUCTS = "slow matrix products"
    SLOW_COLLECTIVES = "slow collectives"
    SLOW_LINK = "a slow link"
    CONTENDING_COPIES = "copies that slow kernels"
    OUTSIDE_COPIES = "copies outside of the program"


@dataclass(frozen=True, slots=True)
class Place:
    """One instruction that an opportunity is about."""

    instruction: str  # its name in the module or in the trace; else what the row is of
    us: float  # microseconds in a step, all executions
    note: str = ""  # in words
    op_name: str = ""  # the framework's name: ``jit(step)/layers/attn/dot_general``
    source: str = ""  # ``train.py:41``; empty where unknown


@dataclass(frozen=True, slots=True)
class Opportunity:
    """One change, and what it would save of the account's step."""

    kind: OpportunityKind
    # microseconds of a step; None: only its bound is known, until somebody tries it
    expected_us: float | None
    least_us: float  # what it saves at least; negative if it can lengthen the step
    most_us: float  # what it saves at most
    part: StepPart  # of the step, which the saving is drawn from
    basis: Basis  # how the saving was found
    title: str  # the remedy as an imperative: ``Fuse the attention``
    why: str = ""  # what was found, one clause with its number
    edit: str = ""  # what to write or set, one sentence
    command: Next | None = None  # that tries it
    flag: str = ""  # an XLA flag that does it
    source: str = ""  # line of the program to edit; empty: see the first of `where`
    where: tuple[Place, ...] = ()  # the costliest first
    # instructions whose time it takes away; of opportunities with common ones only one counts
    instructions: frozenset[str] = field(default=frozenset(), repr=False)
    tried: str = ""  # what trying it has shown, in words; empty: nobody tried
    not_tried: str = ""  # why `advise` could not try it; empty: nobody knows
    # it goes before all savings, since figures of the step do not hold what it saves
    comes_first: bool = False

    @property
    def line(self) -> str:
        """Where the edit is made: ``train.py:41``; empty if nobody knows."""
        sources = (self.source, *(place.source for place in self.where))
        return in_package(next(filter(None, sources), ""))

    @property
    def known_saving_us(self) -> float:
        """What it is ordered by: the expected saving; a bound alone counts for nothing."""
        return 0.0 if self.expected_us is None else self.expected_us

    @property
    def at_stake_us(self) -> float:
        """The expected saving; its bound if nobody knows what to expect."""
        return self.most_us if self.expected_us is None else self.expected_us


@dataclass(frozen=True, slots=True)
class Trial:
    """What the compiler has shown of an opportunity's edit, as shares of the step."""

    saved: float  # negative: the step is longer
    least: float
    most: float
    words: str  # ``−70.1 % of the predicted step, attention cudnn, better``
    helps: bool  # it is worth an edit
    title: str = ""  # the edit as an imperative; empty: it is none of the program
    edit: str = ""  # what to write, one sentence
    source: str = ""  # line of the program to edit
    part: StepPart = StepPart.COMPUTE  # of the step, that gets shorter most


Refused = NewType("Refused", str)
"""Why `advise` could not try an opportunity's edit, one clause."""

Budget = NewType("Budget", int)
"""How many alternatives `advise` must try to come to an opportunity's edit."""

Shown = Mapping[OpportunityKind, Trial | Refused | Budget]
"""What trying the edit of each opportunity has shown, or why it was not tried."""


@dataclass(frozen=True, slots=True)
class StepBounds:
    """What a step could take at best, by name; each changes one thing and keeps the rest."""

    best_order_us: float  # no order of these instructions is shorter
    without_communication_us: float  # the same step with no collectives
    without_copies_us: float  # the same step with no exposed copies


@dataclass(frozen=True, slots=True)
class ContentionLoss:
    """What a step loses because collectives slow the kernels that run at the same time."""

    us: float  # of compute in a step
    product: float  # how many times as long matrix products take
    other: float  # and other kernels
    launches: int  # that these factors were measured on; 0: assumed, of other jobs


@dataclass(frozen=True, slots=True)
class UnreadWork:
    """Work of a trace that an edit may shorten; without the program's HLO nobody can price it."""

    what: str  # ``scatters``; ``compute`` if the names of its instructions say no more
    us: float  # in a step
    is_named: bool  # the names of its instructions say what to edit
    where: tuple[Place, ...] = ()  # the costliest first


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """What the timed steps of a run directory say; it counts more than any prediction."""

    base_us: float  # the median step without the profile
    step_us: float  # with it
    change: float  # of the step as a share, negative if it got shorter
    # least, most: ends of the change's confidence interval; of simulated steps, the ends of the
    # estimate's range
    least: float
    most: float
    verdict: Verdict
    basis: Basis  # measured or simulated

    @property
    def pays(self) -> bool:
        """Whether the step got shorter by enough to be worth an action."""
        return self.verdict is Verdict.FASTER and is_worth(-self.change)


@dataclass(frozen=True)
class Account:
    """One step."""

    module: str  # the program's name
    base: StepBase  # which step it is
    step_us: float
    least_us: float  # what the step takes at least
    most_us: float | None  # and at most; None: it is a lower bound
    basis: Basis  # what `step_us` rests on
    parts: Mapping[StepPart, float]  # microseconds; they add up to the step
    bounds: StepBounds
    opportunities: tuple[Opportunity, ...]  # the largest expected saving first
    timed: TimedSteps | None = None  # of its run directory; None: nothing was compared
    unread: UnreadWork | None = None  # None: the program's HLO was read
    contention: ContentionLoss | None = (
        None  # None: no kernel runs next to a collective
    )

    def with_trials(self, shown: Shown) -> Account:
        """The account with what trying edits of its program has shown.

        An edit that helps saves what was compiled, also if the account had no such opportunity.
        Nothing is expected of an edit that does not help. What could not be tried keeps its saving
        and says why. What a budget left out is tried with a larger one.
        """
        known = {item.kind for item in self.opportunities}
        placed = [shown[kind] for kind in known if kind in shown]
        found = list(self.opportunities)
        for kind, trial in shown.items():
            if not isinstance(trial, Trial) or trial in placed:
                continue
            if trial.helps and trial.title:
                placed.append(trial)
                found.append(_found_by(kind, trial))
        for place, item in enumerate(found):
            if item.kind in shown:
                found[place] = self._tried(item, shown[item.kind])
        return replace(self, opportunities=in_order(found))

    def _tried(self, item: Opportunity, trial: Trial | Refused | Budget) -> Opportunity:
        if isinstance(trial, int):
            if item.command is None:
                return item
            return replace(item, command=item.command.with_options("--budget", trial))
        if not isinstance(trial, Trial):
            return replace(item, not_tried=trial, command=None)
        tried = replace(item, tried=trial.words, command=None, expected_us=0.0)
        if not trial.helps:
            return replace(tried, least_us=0.0, most_us=0.0, basis=Basis.COMPILED)
        # one edit may be that of several opportunities
        taken = item.instructions | {trial.words}
        tried = replace(
            tried,
            title=trial.title or item.title,
            edit=trial.edit or item.edit,
            source=trial.source if trial.edit else item.source,
            instructions=taken,
        )
        return replace(
            tried,
            expected_us=trial.saved * self.step_us,
            least_us=trial.least * self.step_us,
            most_us=trial.most * self.step_us,
            basis=Basis.COMPILED,
            part=trial.part,
        )

    def share(self, us: float) -> float:
        """Microseconds as a share of the step; 0 of an empty step."""
        return us / self.step_us if self.step_us > 0 else 0.0

    @property
    def lever(self) -> Opportunity | None:
        """The largest opportunity that is worth its effort, or what comes first; None: nothing is
        to gain.
        """
        for item in self.opportunities:
            if item.comes_first or is_worth(self.share(item.known_saving_us)):
                return item
        return None

    @property
    def first(self) -> Opportunity | None:
        """What goes before all savings; None: nothing does."""
        lever = self.lever
        return lever if lever is not None and lever.comes_first else None

    @property
    def unproven(self) -> Opportunity | None:
        """The largest one that nobody has tried, and whose bound is worth an attempt."""
        open_ones = (
            item
            for item in self.opportunities
            if item.expected_us is None and not item.comes_first
        )
        most = max(open_ones, key=lambda item: item.most_us, default=None)
        if most is None or not is_worth(self.share(most.most_us)):
            return None
        return most

    @property
    def needs_module(self) -> bool:
        """Whether unread work may hide more than the largest lever saves.

        Work of which names say what to edit counts as a whole. Other compute counts if no lever
        is large.
        """
        if self.unread is None or self.share(self.unread.us) < LARGE:
            return False
        lever_us = 0.0 if self.lever is None else self.lever.known_saving_us
        if self.unread.is_named:
            return self.unread.us > lever_us
        return self.share(lever_us) < LARGE

    @property
    def bound_by(self) -> StepPart:
        """The part that takes most of the step."""
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def together_us(self) -> float:
        """What all opportunities are expected to save together: never more than their parts, but
        for one edit that shortens several parts.
        """
        found = chosen(self.opportunities)
        together_us = sum(
            min(sum(item.known_saving_us for item in group), self.parts.get(part, 0.0))
            for part, group in _by_part(found).items()
        )
        return max(together_us, *(item.known_saving_us for item in found), 0.0)


def _found_by(kind: OpportunityKind, trial: Trial) -> Opportunity:
    """What a trial alone has found; `Account.with_trials` says what it saves."""
    return Opportunity(
        kind=kind,
        expected_us=0.0,
        least_us=0.0,
        most_us=0.0,
        part=trial.part,
        basis=Basis.COMPILED,
        title=trial.title,
    )


def in_order(found: Iterable[Opportunity]) -> tuple[Opportunity, ...]:
    """What comes first, then opportunities by expected saving, then by what they save at most."""
    return tuple(sorted(found, key=_place_of))


def _place_of(item: Opportunity) -> tuple[bool, float, float]:
    """What it is sorted by; what comes first keeps its order."""
    if item.comes_first:
        return False, 0.0, 0.0
    return True, -item.known_saving_us, -item.most_us


def chosen(found: Iterable[Opportunity]) -> tuple[Opportunity, ...]:
    """The opportunities that can be had together: of two that take away the same instructions,
    the larger.
    """
    taken: set[str] = set()
    kept = []
    for item in in_order(found):
        if taken & item.instructions:
            continue
        taken |= item.instructions
        kept.append(item)
    return tuple(kept)


def excluded(found: Iterable[Opportunity]) -> Mapping[OpportunityKind, OpportunityKind]:
    """By kind, the larger opportunity that takes its instructions away."""
    owner: dict[str, OpportunityKind] = {}
    other: dict[OpportunityKind, OpportunityKind] = {}
    for item in in_order(found):
        shared = sorted(item.instructions & owner.keys())
        if shared:
            other[item.kind] = owner[shared[0]]
            continue
        owner |= dict.fromkeys(item.instructions, item.kind)
    return other


def _by_part(
    found: Iterable[Opportunity],
) -> Mapping[StepPart, tuple[Opportunity, ...]]:
    groups: dict[StepPart, tuple[Opportunity, ...]] = {}
    for item in found:
        groups[item.part] = (*groups.get(item.part, ()), item)
    return groups
