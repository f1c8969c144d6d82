"""A trial: one setting, compiled and simulated, as a small value that a line of JSON holds; and how one is judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from pgle.schedule.predict import Prediction

Flags = Mapping[str, str]  # values by flag name, without dashes
Amount = Annotated[float, msgspec.Meta(ge=0, lt=10**18)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]

LITTLE = 0.005  # less than half a per cent is not worth a re-profile: it is what a job's own noise hides
WON_SHARE = 0.9


@dataclass(frozen=True)
class Trial:
    """One setting, compiled and simulated."""

    flags: Flags  # what differs from the user's own flags
    label: str  # what was tried, in words
    step_us: Amount | None = None  # by the costs as they stand; None where it did not compile
    exposed_us: Amount = 0.0  # communication of it that nothing hides
    exposed_by_kind: Mapping[str, Amount] = field(default_factory=dict)  # the same by kind of collective
    worlds_us: tuple[Amount, ...] = ()  # steps in the worlds
    temp_bytes: Count | None = None  # temporary memory that XLA plans for; None if it left no report
    memory_bytes: Count | None = None  # all device memory that XLA plans for; None if it left no report
    lower_bound: bool = False  # whether the step is one: a loop has an unknown length
    modelled: Count = 0  # collectives that the program did not have before, whose costs are modelled
    program: str = ""  # fingerprint before scheduling; settings that share it are the same program
    same_as: str = ""  # label of an earlier trial that compiled to the same program and is scheduled alike; empty: none
    failure: str = ""  # why it did not compile; empty where it did

    @property
    def mean_us(self) -> float:
        """Mean step over all worlds; infinite if it did not compile."""
        return sum(self.worlds_us) / len(self.worlds_us) if self.worlds_us else float("inf")


def key_of(flags: Flags) -> str:
    """What tells a setting from others, as text."""
    return json.dumps(sorted(flags.items()))


def decoded(line: bytes | str, worlds: int) -> Trial:
    """The trial that a line of JSON holds, judged in so many worlds.

    Raises:
        ValueError: it is not one.
    """
    trial = msgspec.json.decode(line, type=Trial)
    if len(trial.worlds_us) != (worlds if trial.step_us is not None else 0):
        raise ValueError("judged in other worlds")
    return trial


def exposed_by_kind(prediction: Prediction) -> dict[str, float]:
    """Exposed microseconds of a step by kind of collective."""
    found: dict[str, float] = {}
    for item in prediction.timeline.exposures:
        found[item.kind] = found.get(item.kind, 0.0) + item.exposed_us
    return found


@dataclass(frozen=True, slots=True)
class Judged:
    """Steps against the steps of PGLE's schedule with the user's own flags, world by world."""

    won: int  # worlds in which the step is shorter
    of: int  # worlds
    mean: float  # change of the mean step over the worlds, as a share; negative is shorter
    worst: float  # the change in the worst world
    best: float  # the change in the best world

    @property
    def accepted(self) -> bool:
        """Whether it wins in nine of ten worlds and by enough."""
        return 0 < WON_SHARE * self.of <= self.won and self.mean <= -LITTLE


def judge(after_us: Sequence[float], before_us: Sequence[float]) -> Judged:
    """How steps do against others in the same worlds; nothing is accepted where there are none."""
    changes = [after / before - 1 for after, before in zip(after_us, before_us, strict=True)]
    if not changes:
        return Judged(0, 0, 0.0, 0.0, 0.0)
    won, mean = sum(change < 0 for change in changes), sum(after_us) / sum(before_us) - 1
    return Judged(won, len(changes), mean, max(changes), min(changes))


def holds_up(trial: Trial, pgle: Trial) -> bool:
    """Whether a trial is accepted against the profile alone: by the likely costs and over the worlds."""
    if trial.step_us is None or pgle.step_us is None or trial.lower_bound or pgle.lower_bound:
        return False
    return trial.step_us <= pgle.step_us * (1 - LITTLE) and judge(trial.worlds_us, pgle.worlds_us).accepted
