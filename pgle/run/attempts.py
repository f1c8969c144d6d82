"""The results of alternatives that `advise` tried, and what they show about an opportunity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.account.parts_and_bounds import parts_of
from pgle.account.value import Shown, StepPart, Trial
from pgle.errors import as_change, cut
from pgle.run.alternative_steps import MOST_SAID, Tried
from pgle.run.alternatives import BY_HAND, OF_COMMAND, Alternative, Kind
from pgle.run.capture.captured import ComparedValues
from pgle.run.untried import TRIED_BY, combinations_of
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Gain
from pgle.schedule.verdict import Verdict
from pgle.worth import is_worth


@dataclass(frozen=True)
class Attempt:
    """The result of trying an alternative, or several together."""

    changes: tuple[Alternative, ...]
    verdict: Verdict
    why: str  # one clause; empty: the figures explain the verdict
    tried: Tried | None = None  # None: it was not compiled
    gained: Controlled | None = None  # gain over the unchanged program
    same_as: str = ""  # an earlier attempt that makes the same program
    # effect on the step's values; None: they stay the same, or were not compared
    values: ComparedValues | None = None
    module: Path | None = None  # the compiled module; None: not compiled
    work: float = 1.0  # amount of data relative to the unchanged program's
    # for flags: the gain over the best program without them
    added: Controlled | None = None

    @property
    def deciding_gain(self) -> Controlled:
        """The gain that decides the verdict: for flags over the best program without them, else
        over the unchanged program.
        """
        return self.added or self.gained or Controlled(Gain(0.0, 0.0, 0.0, 0.0))

    @property
    def name(self) -> str:
        """Its changes in a few words."""
        return named(self.changes)

    @property
    def least(self) -> float:
        """The smaller gain of both compilations, as a share of the step."""
        return 0.0 if self.gained is None else min(self.gained.shares)

    @property
    def helps(self) -> bool:
        """Whether the edit is worth making: it shortens the step, or makes it fit into memory."""
        return self.verdict in (Verdict.BETTER, Verdict.FITS)

    @property
    def is_open(self) -> bool:
        """Whether both compilations make a shorter step, although it is not sure that it helps."""
        return self.verdict is Verdict.UNSURE and is_worth(self.least)

    @property
    def are_values_compared(self) -> bool:
        """Whether its results were shown to equal the program's, up to rounding."""
        if not any(change.changes_values for change in self.changes):
            return True
        return self.values is not None and not self.values.why


def shown_of(
    attempts: Sequence[Attempt], base: Tried, in_vain: Mapping[Kind, str]
) -> Shown:
    """Return the best trial of each opportunity's edit, and the programs with several edits.

    Args:
        attempts: all trials.
        base: the step of the program as it is.
        in_vain: kinds whose trials made no other step, with their results.
    """
    found = {}
    compiled = combinations_of(
        ({change.kind for change in one.changes}, one.least)
        for one in attempts
        if len(one.changes) > 1 and one.gained and one.verdict is not Verdict.DIFFERS
    )
    for opportunity, kind in TRIED_BY.items():
        tried = [
            one
            for one in attempts
            if one.gained is not None and [each.kind for each in one.changes] == [kind]
        ]
        if tried:
            best = max(tried, key=lambda one: (one.helps, one.least))
            holding = tuple(each for each in compiled if each.holds(opportunity))
            trial = _trial_of(best, base)
            found[opportunity] = replace(trial, combinations=holding)
        elif kind in in_vain:
            found[opportunity] = Trial(0.0, 0.0, 0.0, in_vain[kind], helps=False)
    return found


def ending_of(item: Attempt) -> str:
    """Say what was tried and why it is not a gain: ``attention cudnn: could not be made``."""
    how = item.why or item.verdict
    return f"{item.name}: {cut(how, MOST_SAID)}"


def _trial_of(best: Attempt, base: Tried) -> Trial:
    """Turn an attempt into the trial of an opportunity."""
    answer = best.deciding_gain.answer
    is_shorter = best.helps and best.least > 0
    change = f"{as_change(-best.least)} of the predicted step"
    words = f"{change}, {best.name}, {best.verdict}"
    if not best.helps and best.why:
        words = f"{words}: {cut(best.why, MOST_SAID)}"
    found = Trial(
        best.least, answer.low, answer.high, words, is_shorter, is_open=best.is_open
    )
    (edit,) = best.changes
    if not is_shorter or edit.kind is Kind.FLAGS:
        return found
    part = _shorter_part(base, best)
    if part is not StepPart.COMPUTE:
        found = replace(found, words=f"{words}; most of it is {part}")
    at = place_of_edit(edit)
    written = edit.how or f"Write {edit.what} {at}"
    if edit.limit:
        written = f"{written} ({edit.limit})"
    source = "" if edit.kind in OF_COMMAND else edit.where
    return replace(
        found,
        title=f"Write {edit.name} {at}",
        edit=written,
        code=edit.code,
        source=source,
        part=part,
    )


def _shorter_part(base: Tried, best: Attempt) -> StepPart:
    """Name the part of the step that an attempt shortens most."""
    if best.tried is None:
        return StepPart.COMPUTE
    was = parts_of(base.prediction.timeline.breakdown)
    now = parts_of(best.tried.prediction.timeline.breakdown)
    return max(was, key=lambda part: was[part] - now[part])


def place_of_edit(change: Alternative) -> str:
    """Return where an edit is to be written: a clause that follows the edit. Flax's nnx makes a
    module in another line than the one that calls it.
    """
    if change.kind in OF_COMMAND:
        return "in the command"
    if change.kind is Kind.FLAGS:
        return "in XLA_FLAGS"
    if not change.where:
        return "where the program begins"
    if change.where == BY_HAND:
        return "in the loss"
    if change.library.startswith("flax/nnx/") and "attention_fn=" in change.edit:
        return f"where the module is made that {place_of(change)} calls"
    return f"in {place_of(change)}"


def place_of(change: Alternative) -> str:
    """Return the line of the program, and the library's file that makes the call for it."""
    if not change.library:
        return change.where
    return f"{change.where} (called by {change.library})"


def named(changes: Sequence[Alternative]) -> str:
    """Changes in a few words."""
    return " + ".join(change.name for change in changes)
