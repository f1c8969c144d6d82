"""The account of a step as a value. Every command shows it, and no command computes its own.

A step has parts, which add up to it. An *opportunity* is one change that would shorten the step.
Its saving is counted against the step of the account, and shortens one part of that step. All
savings of a part together are at most that part (`Account.together_us`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import fsum
from typing import NewType

from pgle.next import Next
from pgle.steps.verdict import Verdict
from pgle.worth import is_worth
from pgle.xla.hlo.frames import in_package

LARGE = 0.05
"""Share of the step. pgle warns if the user leaves a saving of at least this size."""


class Basis(StrEnum):
    """How a figure was found."""

    MEASURED = "measured"  # on a GPU
    SIMULATED = "simulated"  # recorded on the simulated GPU
    COMPILED = "compiled"  # two schedules of the real compiler, priced alike
    ESTIMATED = "estimated"  # a model of the hardware, with its error in the range


class StepBase(StrEnum):
    """Which step an account describes. Its shares are shares of this step."""

    NOW = "with the flags that you use now"
    PROFILED = "with the profile and the flags that you use now"
    OVERLAPPED = "with the latency-hiding scheduler on"
    SCHEDULED = "as it is scheduled"
    TRACED = "that was traced"
    ALONE = "of the profile run, which runs each collective alone"

    @property
    def short(self) -> str:
        """The step in a headline, if the text below names the base."""
        return "the step with the profile" if self is StepBase.PROFILED else "the step"


class StepPart(StrEnum):
    """Parts of a step. They add up to it."""

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
    CAST = "values in f32"
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
    # only `advise` finds these
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

    # its name in the module or in the trace; the row's name if it is not an instruction
    instruction: str
    us: float  # microseconds in a step, all executions
    note: str = ""  # a remark in words
    op_name: str = ""  # the framework's name: ``jit(step)/layers/attn/dot_general``
    source: str = ""  # ``train.py:41``; empty if unknown


@dataclass(frozen=True, slots=True)
class Opportunity:
    """One change, and how much it would shorten the account's step."""

    kind: OpportunityKind
    # expected saving in microseconds of a step; None if only its bound is known
    expected_us: float | None
    least_us: float  # least saving; negative if it can lengthen the step
    most_us: float  # most saving
    part: StepPart  # the part of the step that the saving shortens
    basis: Basis  # how the saving was found
    title: str  # the remedy as an imperative: ``Fuse the attention``
    why: str = ""  # the finding, one clause with its number
    edit: str = ""  # what to write or set, one sentence
    code: str = ""  # code to paste, which `edit` calls "this"; empty: there is none
    command: Next | None = None  # the command that tries the change
    flag: str = ""  # an XLA flag that makes the change
    source: str = ""  # line of the program to edit; if empty, the first of `where`
    where: tuple[Place, ...] = ()  # the costliest first
    # instructions whose time it removes; of opportunities that share some, only one counts
    instructions: frozenset[str] = field(default=frozenset(), repr=False)
    # by instruction that it shortens, how much of its saving is drawn from it, as weights; others
    # may shorten the same. Empty: nobody knows
    shortened: Mapping[str, float] = field(default_factory=dict, repr=False, hash=False)
    tried: str = ""  # result of a trial, in words; empty if nobody tried
    not_tried: str = ""  # why `advise` could not try it; empty if unknown
    # whether it goes before all savings, because the step's figures do not contain its saving
    comes_first: bool = False

    @property
    def line(self) -> str:
        """The line to edit: ``train.py:41``; empty if unknown."""
        sources = (self.source, *(place.source for place in self.where))
        return in_package(next(filter(None, sources), ""))

    @property
    def known_saving_us(self) -> float:
        """The expected saving, which decides its place; 0 if only a bound is known."""
        return 0.0 if self.expected_us is None else self.expected_us

    @property
    def at_stake_us(self) -> float:
        """The expected saving, or its upper bound if the expected saving is unknown."""
        return self.most_us if self.expected_us is None else self.expected_us


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of compiling the program with an opportunity's edit, as shares of the step."""

    saved: float  # negative if the step is longer
    least: float
    most: float
    words: str  # ``−70.1 % of the predicted step, attention cudnn, better``
    helps: bool  # whether it is worth an edit
    title: str = ""  # the edit as an imperative; empty if the program needs no edit
    edit: str = ""  # what to write, one sentence
    code: str = ""  # code to paste, which `edit` calls "this"
    source: str = ""  # line of the program to edit
    part: StepPart = StepPart.COMPUTE  # the part of the step that gets shorter most
    combinations: tuple[Combination, ...] = ()  # compiled programs that hold the edit
    # the edit does not surely help, but both compilations find it shorter
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Combination:
    """Several edits that `advise` compiled as one program."""

    # of each edit, the opportunities that it is for
    edits: tuple[frozenset[OpportunityKind], ...]
    saved: float  # of the step, as a share

    def is_of(self, kinds: Collection[OpportunityKind]) -> bool:
        """Whether each edit is for one of these opportunities."""
        return all(not edit.isdisjoint(kinds) for edit in self.edits)

    def holds(self, kind: OpportunityKind) -> bool:
        """Whether the program has an edit for this opportunity."""
        return any(kind in edit for edit in self.edits)


Refused = NewType("Refused", str)
"""Why `advise` could not try an opportunity's edit, one clause."""

Budget = NewType("Budget", int)
"""How many alternatives `advise` must try before it reaches an opportunity's edit."""

Shown = Mapping[OpportunityKind, Trial | Refused | Budget]
"""By opportunity: the result of trying its edit, or why nobody tried it."""


@dataclass(frozen=True, slots=True)
class StepBounds:
    """Lower bounds of a step in microseconds. Each changes one thing and keeps the rest."""

    best_order_us: float  # no order of these instructions is shorter
    without_communication_us: float  # the same step with no collectives
    without_copies_us: float  # the same step with no exposed copies


@dataclass(frozen=True, slots=True)
class ContentionLoss:
    """The compute time that a step loses because collectives slow kernels at the same time."""

    us: float  # lost compute time in a step
    product: float  # how many times as long matrix products take
    other: float  # how many times as long other kernels take
    launches: int  # launches behind these factors; 0 if assumed from other jobs


@dataclass(frozen=True, slots=True)
class UnreadWork:
    """Work in a trace that an edit may shorten. pgle cannot price it without the program's HLO."""

    what: str  # ``scatters``; ``compute`` if names of instructions tell no more
    us: float  # microseconds in a step
    is_named: bool  # whether names of instructions tell what to edit
    where: tuple[Place, ...] = ()  # the costliest first


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """The comparison of timed steps in a run directory. It counts more than any prediction."""

    base_us: float  # the median step without the profile
    step_us: float  # the median step with the profile
    change: float  # share of the step, negative if it got shorter
    # least, most: ends of the change's confidence interval; for simulated steps, the ends of the
    # estimate's range
    least: float
    most: float
    verdict: Verdict
    basis: Basis  # measured or simulated

    @property
    def pays(self) -> bool:
        """Whether the step got shorter, by enough to be worth an action."""
        return self.verdict is Verdict.FASTER and is_worth(-self.change)


@dataclass(frozen=True)
class Account:
    """One step in parts, with its bounds and the changes that would shorten it."""

    module: str  # the program's name
    base: StepBase  # which step it is
    step_us: float
    least_us: float  # lower end of the step's range
    most_us: float | None  # upper end; None if `step_us` is a lower bound
    basis: Basis  # how `step_us` was found
    parts: Mapping[StepPart, float]  # microseconds; they add up to the step
    bounds: StepBounds
    opportunities: tuple[Opportunity, ...]  # the largest expected saving first
    timed: TimedSteps | None = None  # None if its run directory compares no steps
    unread: UnreadWork | None = None  # None if pgle read the program's HLO
    # None if no kernel runs during a collective
    contention: ContentionLoss | None = None
    combinations: tuple[Combination, ...] = ()  # that `advise` compiled

    def with_trials(self, shown: Shown) -> Account:
        """The account with the results of trying edits of its program.

        If an edit helps, its opportunity gets the saving of the trial. The opportunity is added if
        the account lacks it. If an edit does not help, its opportunity saves 0. If that is
        unsure, only its bounds are known. If `advise` could
        not try an edit, the opportunity keeps its saving and says why. If the budget was too small
        for it, the command gets a larger one. What this answer compiled itself keeps its saving.
        """
        known = {item.kind: item for item in self.opportunities}
        placed = [shown[kind] for kind in known if kind in shown]
        found = list(self.opportunities)
        for kind, trial in shown.items():
            if not isinstance(trial, Trial) or trial in placed:
                continue
            if trial.helps and trial.title:
                placed.append(trial)
                other = known.get(OTHER_WAY.get(kind, kind))
                new = _found_by(kind, trial, other)
                found.append(self._tried(new, trial))
        for place, item in enumerate(self.opportunities):
            if item.kind in shown and item.basis is not Basis.COMPILED:
                found[place] = self._tried(item, shown[item.kind])
        compiled: dict[Combination, None] = {}
        for trial in shown.values():
            if isinstance(trial, Trial):
                compiled |= dict.fromkeys(trial.combinations)
        return replace(
            self, opportunities=in_order(found), combinations=tuple(compiled)
        )

    def _tried(self, item: Opportunity, trial: Trial | Refused | Budget) -> Opportunity:
        if isinstance(trial, int):
            if item.command is None:
                return item
            return replace(item, command=item.command.with_options("--budget", trial))
        if not isinstance(trial, Trial):
            return replace(item, not_tried=trial, command=None)
        tried = replace(item, tried=trial.words, command=None, expected_us=0.0)
        if trial.is_open:
            return replace(
                tried,
                expected_us=None,
                least_us=trial.least * self.step_us,
                most_us=trial.most * self.step_us,
                basis=Basis.COMPILED,
            )
        if not trial.helps:
            return replace(tried, least_us=0.0, most_us=0.0, basis=Basis.COMPILED)
        # several opportunities may have the same edit
        taken = item.instructions | {trial.words}
        tried = replace(
            tried,
            title=trial.title or item.title,
            edit=trial.edit or item.edit,
            code=trial.code if trial.edit else item.code,
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
        """Microseconds as a share of the step; 0 if the step is empty."""
        return us / self.step_us if self.step_us > 0 else 0.0

    @property
    def lever(self) -> Opportunity | None:
        """The opportunity that comes first, else the largest one that is worth its effort; None if
        there is neither.
        """
        for item in self.opportunities:
            if item.comes_first or is_worth(self.share(item.known_saving_us)):
                return item
        return None

    @property
    def first(self) -> Opportunity | None:
        """The opportunity that goes before all savings; None if none does."""
        lever = self.lever
        return lever if lever is not None and lever.comes_first else None

    @property
    def unproven(self) -> Opportunity | None:
        """The largest opportunity that has only a bound, if that bound is worth a trial; else
        None.
        """
        return self._largest_bound(self.opportunities)

    @property
    def untried(self) -> Opportunity | None:
        """The largest of these that nobody tried."""
        return self._largest_bound(
            item for item in self.opportunities if not item.tried
        )

    def _largest_bound(self, found: Iterable[Opportunity]) -> Opportunity | None:
        open_ones = (
            item for item in found if item.expected_us is None and not item.comes_first
        )
        most = max(open_ones, key=lambda item: item.most_us, default=None)
        if most is None or not is_worth(self.share(most.most_us)):
            return None
        return most

    @property
    def needs_module(self) -> bool:
        """Whether unread work may hold a larger saving than the lever, so that the module is
        needed.

        If names tell what to edit, all of the work counts. Other compute counts only if no lever is
        large.
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
        """The expected saving of all opportunities together, in microseconds.

        If `advise` compiled several edits as one program, that program's saving counts for them.
        The others are added, and each instruction counts once. The sum of a part is at most the
        part. The exception is one edit, or one program, that shortens several parts.
        """
        found = chosen(self.opportunities)
        compiled_us = 0.0
        of_one_program = self._compiled_together
        if of_one_program is not None:
            compiled_us = of_one_program.saved * self.step_us
        others = [item for item in found if not _is_of(item, of_one_program)]
        by_part: dict[StepPart, list[float]] = {}
        for item, us in _once(others):
            by_part.setdefault(item.part, []).append(us)
        added_us = sum(
            min(fsum(saved), self.parts.get(part, 0.0))
            for part, saved in by_part.items()
        )
        together_us = min(compiled_us + added_us, self.step_us)
        return max(together_us, *(item.known_saving_us for item in found), 0.0)

    @property
    def only_if_added(self) -> bool:
        """Whether `together_us` adds savings that no compiled program has together."""
        counted = [
            item for item in chosen(self.opportunities) if item.known_saving_us > 0
        ]
        others = [item for item in counted if not _is_of(item, self._compiled_together)]
        return len(counted) > 1 and bool(others)

    @property
    def _compiled_together(self) -> Combination | None:
        """The best program with several of the chosen edits; None: nobody compiled one."""
        kinds = {item.kind for item in chosen(self.opportunities)}
        found = (item for item in self.combinations if item.is_of(kinds))
        return max(found, key=lambda item: item.saved, default=None)


OTHER_WAY: Mapping[OpportunityKind, OpportunityKind] = {
    OpportunityKind.PRECISION: OpportunityKind.CAST,
    OpportunityKind.CAST: OpportunityKind.PRECISION,
}
"""The other way to shorten the same products. Only one of both counts."""


def _found_by(
    kind: OpportunityKind, trial: Trial, other: Opportunity | None
) -> Opportunity:
    """An opportunity that only a trial has found. `Account.with_trials` sets its saving.

    Args:
        other: the other way to shorten the same instructions; None if unknown.
    """
    return Opportunity(
        kind=kind,
        expected_us=0.0,
        least_us=0.0,
        most_us=0.0,
        part=trial.part,
        basis=Basis.COMPILED,
        title=trial.title,
        instructions=frozenset() if other is None else other.instructions,
        shortened={} if other is None else other.shortened,
    )


def in_order(found: Iterable[Opportunity]) -> tuple[Opportunity, ...]:
    """Sort opportunities: those that come first, then by expected saving, then by most saving."""
    return tuple(sorted(found, key=_place_of))


def _place_of(item: Opportunity) -> tuple[bool, float, float]:
    """The sort key of an opportunity. Those that come first keep their order."""
    if item.comes_first:
        return False, 0.0, 0.0
    return True, -item.known_saving_us, -item.most_us


def chosen(found: Iterable[Opportunity]) -> tuple[Opportunity, ...]:
    """The opportunities that add up. Of two that remove the same instructions, only the larger one
    counts.
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
    """By kind of a left-out opportunity, the larger one that removes the same instructions."""
    owner: dict[str, OpportunityKind] = {}
    other: dict[OpportunityKind, OpportunityKind] = {}
    for item in in_order(found):
        shared = sorted(item.instructions & owner.keys())
        if shared:
            other[item.kind] = owner[shared[0]]
            continue
        owner |= dict.fromkeys(item.instructions, item.kind)
    return other


def _is_of(item: Opportunity, program: Combination | None) -> bool:
    """Whether the edit of an opportunity is in a compiled program."""
    return program is not None and program.holds(item.kind)


def _once(
    found: Iterable[Opportunity],
) -> Iterator[tuple[Opportunity, float]]:
    """Each opportunity, the largest first, with the microseconds that it saves on its own.

    Of an instruction that several shorten, only the largest saving counts.
    """
    counted: dict[str, float] = {}
    for item in in_order(found):
        saved_us = _saved_by_instruction(item)
        shared = [min(us, counted.get(name, 0.0)) for name, us in saved_us.items()]
        yield item, max(item.known_saving_us - fsum(shared), 0.0)
        for name, us in saved_us.items():
            counted[name] = max(us, counted.get(name, 0.0))


def _saved_by_instruction(item: Opportunity) -> Mapping[str, float]:
    """The microseconds of the expected saving that each shortened instruction contributes."""
    all_us = fsum(item.shortened.values())
    if all_us <= 0:
        return {}
    share = item.known_saving_us / all_us
    return {name: us * share for name, us in item.shortened.items()}
