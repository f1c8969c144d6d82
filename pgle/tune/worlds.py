"""Worlds: what costs could be instead of what they are thought to be, drawn with a fixed seed.

A setting that wins by the costs as they stand can lose where they are a little different; it is judged by its mean over
worlds. Kernels of one shape differ by up to a tenth together, collectives of one kind by a fifth, each collective takes
up to 20 µs longer, and collectives and kernels slow each other by some share of the range of contention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from pgle.costs.fit.contention import Contention
from pgle.costs.fit.launch import Launch
from pgle.schedule.predict import Prediction
from pgle.schedule.program import Op, Program
from pgle.schedule.simulate import run_program
from pgle.schedule.timeline import Stream
from pgle.xla.hlo.module import Module


@dataclass(frozen=True, slots=True)
class Spread:
    """How far worlds differ."""

    compute: float = 0.1  # share by which kernels of one shape differ together
    collectives: float = 0.2  # the same of collectives of one kind
    latency_us: float = 20.0  # a collective takes up to so much longer
    contention: float = 1.0  # the largest share of its range


HARDER = Spread(compute=0.15, collectives=0.3, latency_us=30.0, contention=2.0)
"""Costs and latency spread half as much again, contention up to twice its range: what is accepted must win here too."""
HARDER_SEED = 1_000_003  # added to the seed of a search for its harder worlds


@dataclass(frozen=True, slots=True)
class World:
    """One draw; the same seed and number give the same world for every schedule."""

    seed: str  # ``SEED.NUMBER``
    spread: Spread  # how far it may differ

    def draw(self, what: str) -> float:
        """A number from 0 to 1 for something, always the same."""
        return _draw(f"{self.seed}:{what}")

    def cost_us(self, op: Op, shape: str) -> float:
        """What an op costs here."""
        if op.stream is Stream.COMMUNICATION:
            factor = 1 + self.spread.collectives * (2 * self.draw(op.kind) - 1)
            slowed = 1 + 0.3 * self.contended
            return op.cost_us * factor * slowed + self.spread.latency_us * self.draw("latency")
        return op.cost_us * (1 + self.spread.compute * (2 * self.draw(shape) - 1))

    @property
    def contended(self) -> float:
        """The share of the range of contention that holds here."""
        return self.spread.contention * self.draw("contention")


@lru_cache(maxsize=1 << 16)
def _draw(text: str) -> float:
    """Trials share nearly all that they ask of a world."""
    return Random(text).random()


def worlds(count: int, seed: int = 0, spread: Spread | None = None) -> tuple[World, ...]:
    """That many worlds."""
    return tuple(World(f"{seed}.{number}", spread or Spread()) for number in range(count))


def step_in(world: World, program: Program, shapes: dict[str, str], launch: Launch, contention: Contention) -> float:
    """Microseconds of a step in a world.

    Args:
        world: where.
        program: a schedule with its costs.
        shapes: what kernels of one shape share, by instruction.
        launch: gaps between kernels.
        contention: its range, of which a world takes a share.
    """
    costs = {
        op.name: world.cost_us(op, shapes.get(op.name, op.kind))
        for ops in program.computations.values()
        for op in ops
        if op.cost_us
    }
    return run_program(program, launch, contention.at(world.contended), costs=costs).step_us


def steps_in(among: Iterable[World], module: Module, found: Prediction) -> tuple[float, ...]:
    """Microseconds of a scheduled module's step in each of some worlds.

    Args:
        among: the worlds.
        module: scheduled.
        found: its prediction, of which costs, launch gaps and contention are taken.
    """
    shapes = {name: f"{item.opcode}:{item.shape}" for name, item in module.instructions.items()}
    return tuple(step_in(world, found.program, shapes, found.launch, found.contention) for world in among)
