"""Coordinate descent over flags: one axis at a time, the best so far kept; a trial, and the worlds that judge it.

A setting that wins by the likely costs can lose if these are a little different, so it is judged in many worlds, drawn
with a fixed seed. They differ in costs (kernels of one shape together, collectives of one kind together) and in the
model itself: how much of a collective's time is fixed and how much grows with its bytes, how far collectives slow
kernels, how long launches take. Worlds come in opposite pairs: what one draws above the likely value, the other draws
below it. So the mean over worlds favours no setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random

from pgle.costs.measure.contention import Contention, LaunchGaps
from pgle.schedule.predict import Prediction
from pgle.schedule.program import Op, Program, Stream
from pgle.schedule.simulate import run_program
from pgle.tune.moves import ALL, Axis, Flags, by_exposure
from pgle.xla.hlo.module import Module

LITTLE = 0.005  # less than half a per cent is not worth a re-profile: it is what a job's own noise hides
WON_SHARE = 0.9
NEAR_CEILING = 0.01  # within so much of the ceiling there is nothing left to look for
PROGRESS = 0.001
SAME = 2  # compilations, in budgets, after which the search ends though most changed nothing


@dataclass(frozen=True)
class Trial:
    """One setting, compiled and simulated."""

    flags: Flags  # what differs from the user's own flags
    label: str  # what was tried, in words
    step_us: float | None = None  # by the costs as they stand; None where it did not compile
    exposed_us: float = 0.0  # communication of it that nothing hides
    exposed_by_kind: Mapping[str, float] = field(default_factory=dict)  # the same by kind of collective
    worlds_us: tuple[float, ...] = ()  # steps in the worlds
    temp_bytes: int | None = None  # temporary memory that XLA plans for; None if it left no report
    memory_bytes: int | None = None  # all device memory that XLA plans for; None if it left no report
    lower_bound: bool = False  # whether the step is one: a loop has an unknown length
    modelled: int = 0  # collectives that the program did not have before, whose costs are modelled
    program: str = ""  # fingerprint before scheduling; settings that share it are the same program
    same_as: str = ""  # label of an earlier trial that compiled to the same program and is scheduled alike; empty: none
    failure: str = ""  # why it did not compile; empty where it did

    @property
    def mean_us(self) -> float:
        """Mean step over all worlds; infinite if it did not compile."""
        return sum(self.worlds_us) / len(self.worlds_us) if self.worlds_us else float("inf")


def exposed_by_kind(prediction: Prediction) -> dict[str, float]:
    """Exposed microseconds of a step by kind of collective."""
    found: dict[str, float] = {}
    for item in prediction.timeline.exposures:
        found[item.kind] = found.get(item.kind, 0.0) + item.exposed_us
    return found


@dataclass(frozen=True, slots=True)
class OverWorlds:
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


def judge(after_us: Sequence[float], before_us: Sequence[float]) -> OverWorlds:
    """How steps do against others in the same worlds; nothing is accepted where there are none."""
    changes = [after / before - 1 for after, before in zip(after_us, before_us, strict=True)]
    if not changes:
        return OverWorlds(0, 0, 0.0, 0.0, 0.0)
    won, mean = sum(change < 0 for change in changes), sum(after_us) / sum(before_us) - 1
    return OverWorlds(won, len(changes), mean, max(changes), min(changes))


def holds_up(trial: Trial, pgle: Trial) -> bool:
    """Whether a trial is accepted against the profile alone: by the likely costs and over the worlds."""
    if trial.step_us is None or pgle.step_us is None or trial.lower_bound or pgle.lower_bound:
        return False
    return trial.step_us <= pgle.step_us * (1 - LITTLE) and judge(trial.worlds_us, pgle.worlds_us).accepted


def best(current: Trial, trials: Sequence[Trial]) -> Trial:
    """The shortest mean step; one that is hardly shorter does not replace `current`."""
    shortest = min(trials, key=lambda item: item.mean_us, default=current)
    return shortest if shortest.mean_us < current.mean_us * (1 - PROGRESS) else current


def nothing_to_gain(pgle: Prediction) -> bool:
    """Whether nothing can be gained: at the ceiling, or next to nothing is exposed."""
    step = max(pgle.step_us, 1e-9)
    breakdown = pgle.timeline.breakdown
    exposed = (breakdown.exposed_communication_us + breakdown.exposed_copy_us) / step
    return exposed < LITTLE or 1 - pgle.ceiling_us / step < NEAR_CEILING


Setting = tuple[Flags, str]
"""Flags, and a label for them."""


def search(
    pgle: Trial, ceiling_us: float, found: Sequence[Axis], attempt: Callable[[Sequence[Setting]], Sequence[Trial]],
    *, budget: int,
) -> list[Trial]:  # fmt: skip
    """All trials, in order; `best` picks from them.

    Args:
        pgle: the user's own flags with the profile.
        ceiling_us: of its program.
        found: the axes.
        attempt: compiles and simulates, at once where there are several.
        budget: trials at most; flags that leave the program and its scheduling as they were are none.
    """
    trials: list[Trial] = []
    current = pgle

    def left() -> int:
        return min(budget - sum(not trial.same_as for trial in trials), SAME * budget - len(trials))

    def tried(settings: Sequence[Setting], number: str) -> bool:
        """Try the new settings; whether one of these is better than the best before."""
        nonlocal current
        made, before = (pgle, *trials), current
        known = [trial.flags for trial in made]
        unknown = [item for item in settings if item[0] not in known and not _is_between_alike(item[0], number, made)]
        new = unknown[: max(left(), 0)]
        trials.extend(attempt(new) if new else ())
        current = best(current, trials)
        return current is not before

    def on_top(axis: Axis, settings: Sequence[Flags], start: Trial) -> list[Setting]:
        return [({**start.flags, **setting}, _label(axis, setting, start)) for setting in settings]

    while left() > 0:
        before = current
        for axis in by_exposure(found, current.exposed_by_kind):
            start = pgle if axis.kind == ALL else current  # presets and the like are starts of their own
            near = _half_and_twice(axis, axis.settings[0])
            tried([*_without(axis, current.flags), *on_top(axis, [*axis.settings, *near], start)], axis.number)
            while axis.number in current.flags:  # halved and doubled as long as that helps, then three quarters
                if not tried(on_top(axis, _half_and_twice(axis, current.flags), current), axis.number):
                    value = int(current.flags[axis.number]) * 3 // 4
                    tried(on_top(axis, [{axis.number: str(value)}], current), axis.number)
                    break
            if left() <= 0 or _is_at_ceiling(current, ceiling_us):
                return trials
        if current.mean_us > before.mean_us * (1 - PROGRESS):
            break
    return trials


def without_one(accepted: Trial) -> dict[str, Setting]:
    """The accepted setting without each of its flags, by flag, to see what each gives; none where it has only one."""
    flags = accepted.flags
    if len(flags) < 2:
        return {}
    return {left: ({name: flags[name] for name in flags if name != left}, f"without {left}") for left in flags}


def _is_at_ceiling(trial: Trial, ceiling_us: float) -> bool:
    """Whether nothing is left to hide. A step below the ceiling is of another program, whose ceiling is not known."""
    step_us = trial.step_us or 0.0
    return ceiling_us <= step_us <= ceiling_us * (1 + NEAR_CEILING) or trial.exposed_us < LITTLE * step_us


def _is_between_alike(flags: Flags, number: str, made: Sequence[Trial]) -> bool:
    """If two thresholds give the same program, with the same other flags, so does every value between them."""
    if number not in flags:
        return False
    others = {name: value for name, value in flags.items() if name != number}
    values: dict[str, list[int]] = {}
    for trial in made:
        if trial.program and number in trial.flags and trial.flags == {**others, number: trial.flags[number]}:
            values.setdefault(trial.program, []).append(int(trial.flags[number]))
    return any(min(alike) <= int(flags[number]) <= max(alike) for alike in values.values())


def _half_and_twice(axis: Axis, flags: Flags) -> list[Flags]:
    """Half and twice the number of an axis; none where it has no number."""
    if not axis.number:
        return []
    value = int(flags[axis.number])
    return [{axis.number: str(near)} for near in (value * 2, value // 2) if near > 0]


def _without(axis: Axis, flags: Flags) -> list[Setting]:
    """The setting without what a start of several flags brought it of an axis; none where it has nothing else."""
    rest = {name: value for name, value in flags.items() if all(name not in setting for setting in axis.settings)}
    if axis.kind == ALL or not 0 < len(rest) < len(flags):
        return []
    return [(rest, f"left out: {axis.name.removesuffix(' to')}")]


def _label(axis: Axis, setting: Flags, current: Trial) -> str:
    """The tried setting, with a plus where it comes on top of flags of other axes."""
    value = next(iter(setting.values()))
    text = f"{axis.name} {int(value) / (1 << 20):g} MiB" if axis.number else axis.name
    text = f"{text}={value}" if not axis.number and axis.kind != ALL and len(setting) == 1 else text
    return f"+ {text}" if any(flag not in setting for flag in current.flags) else text


@dataclass(frozen=True, slots=True)
class Spread:
    """How far worlds differ, above and below the likely value."""

    compute: float = 0.15  # share by which kernels of one shape differ together
    collectives: float = 0.3  # share by which the part of a collective that grows with its bytes differs, by kind
    fixed_us: float = 30.0  # the fixed part of each collective, from nothing to twice; at most half of what it takes
    contention: float = 1.0  # slowdown of kernels during collectives, from none to twice the likely one
    launch: float = 1.0  # launch gaps and host time, from none to twice


@dataclass(frozen=True, slots=True)
class World:
    """One draw; the same seed and number give the same world for every schedule."""

    pair: str  # ``SEED.NUMBER``, what its draws follow from
    side: int  # 1 or -1: the two of a pair; 0: everything as it is likely to be
    spread: Spread  # how far it may differ

    def draw(self, what: str) -> float:
        """A number from -1 to 1 for something, always the same; minus that in the other world of the pair."""
        return self.side * (2 * _draw(f"{self.pair}:{what}") - 1)

    def cost_us(self, op: Op, shape: str) -> float:
        """What an op costs here."""
        if op.stream is not Stream.COMMUNICATION:
            return op.cost_us * (1 + self.spread.compute * self.draw(shape))
        fixed = min(self.spread.fixed_us, op.cost_us / 2)
        grows = (op.cost_us - fixed) * (1 + self.spread.collectives * self.draw(op.kind))
        return fixed * (1 + self.draw("fixed")) + grows

    @property
    def contended(self) -> float:
        """How many times the likely contention holds here, 0 to 2."""
        return 1 + self.spread.contention * self.draw("contention")

    def launch(self, likely: LaunchGaps) -> LaunchGaps:
        """The gaps between kernels here."""
        times = 1 + self.spread.launch * self.draw("launch")
        return replace(
            likely, gap_us=likely.gap_us * times, switch_us=likely.switch_us * times, host_us=likely.host_us * times
        )


@lru_cache(maxsize=1 << 16)
def _draw(text: str) -> float:
    """Trials share nearly all that they ask of a world."""
    return Random(text).random()


def worlds(count: int, seed: int = 0, spread: Spread | None = None) -> tuple[World, ...]:
    """That many worlds, in opposite pairs; if the count is odd, the last is the likely one."""
    sides = [(number // 2, 0 if number == count - 1 and count % 2 else 1 - 2 * (number % 2)) for number in range(count)]
    return tuple(World(f"{seed}.{pair}", side, spread or Spread()) for pair, side in sides)


def step_in(
    world: World, program: Program, shapes: dict[str, str], launch: LaunchGaps, contention: Contention
) -> float:
    """Microseconds of a step in a world.

    Args:
        world: which.
        program: a schedule with its costs.
        shapes: what kernels of one shape share, by instruction.
        launch: gaps between kernels.
        contention: the likely one.
    """
    costs = {
        op.name: world.cost_us(op, shapes.get(op.name, op.kind))
        for ops in program.computations.values()
        for op in ops
        if op.cost_us
    }
    return run_program(program, world.launch(launch), contention.at(world.contended), costs=costs).step_us


def steps_in(among: Iterable[World], module: Module, found: Prediction) -> tuple[float, ...]:
    """Microseconds of a scheduled module's step in each world, with costs, launch gaps and contention of its
    prediction."""
    shapes = {name: f"{item.opcode}:{item.shape}" for name, item in module.instructions.items()}
    return tuple(step_in(world, found.program, shapes, found.launch, found.contention) for world in among)
