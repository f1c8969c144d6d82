"""Worlds: what costs and the device could be instead of what they are thought to be, drawn with a fixed seed.

A setting that wins by the likely costs can lose if these are a little different, so it is judged in many worlds. They
differ in costs (kernels of one shape together, collectives of one kind together) and in the model itself: how much of a
collective's time is fixed and how much grows with its bytes, how far collectives slow kernels, how long launches take.
Worlds come in opposite pairs: what one draws above the likely value, the other draws below it. So the mean over worlds
favours no setting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from pgle.costs.measure.contention import Contention, Launch
from pgle.schedule.predict import Prediction
from pgle.schedule.program import Op, Program, Stream
from pgle.schedule.simulate import run_program
from pgle.xla.hlo.module import Module


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

    def launch(self, likely: Launch) -> Launch:
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


def step_in(world: World, program: Program, shapes: dict[str, str], launch: Launch, contention: Contention) -> float:
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
