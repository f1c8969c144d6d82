"""What can be changed: flags that move collectives, each as an axis along which the search walks.

Which axes there are follows from the program: combine thresholds for the kinds that it has, pipelining where a loop
holds collectives. Flags are spelled as the compiling jaxlib knows them; what it does not know is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgle.tune.trial import Flags
from pgle.xla.collectives import KINDS, walk_collectives
from pgle.xla.flags.catalogue import known_in
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.names import loops

MIB = 1 << 20
START_BYTES = 8 * MIB
"""Where thresholds start; two to five trials from here find nine tenths of the gain (simulated, five programs)."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing to change.

    Attributes:
        name: in words.
        kind: the collective whose exposed time it is about; empty: all.
        settings: flag values to try, each on top of the best so far, in this order.
        number: the flag whose value is halved and doubled, on as long as that helps; empty where there is none.
    """

    name: str
    kind: str
    settings: tuple[Flags, ...]
    number: str = ""


def axes(module: Module, jaxlib: str, given: Iterable[str]) -> tuple[Axis, ...]:
    """The axes of a program.

    Args:
        module: scheduled, without any of these flags.
        jaxlib: that compiles.
        given: names of flags that the user has set; they stay.
    """
    found = list(walk_collectives(module))
    kinds = {kind for _, kind in found}
    looped = {kind for item, kind in found if loops(module, item.name)}
    taken = set(given)
    every = [*_thresholds(kinds), *_pipelining(looped, jaxlib), *_overlap(len(found))]
    return tuple(
        axis for axis in every if not any(_bad(flag, jaxlib, taken) for setting in axis.settings for flag in setting)
    )


def _bad(flag: str, jaxlib: str, taken: set[str]) -> bool:
    return flag in taken or known_in(flag, jaxlib) is False


def _thresholds(kinds: set[str]) -> Iterable[Axis]:
    for kind in sorted(kinds):
        if KINDS[kind].moves:
            flag = f"xla_gpu_{kind.replace('-', '_')}_combine_threshold_bytes"
            yield Axis(f"{kind} combined to", kind, ({flag: str(START_BYTES)},), flag)


def _pipelining(kinds: set[str], jaxlib: str) -> Iterable[Axis]:
    """Pipelined collectives in loops: kind by kind, then all, then with two copies of the body."""
    flags: dict[str, str] = {}
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        if kind in kinds:
            name = kind.replace("-", "_")
            new = f"xla_gpu_pipeline_{name}"
            flags |= {new: "on"} if known_in(new, jaxlib) else {f"xla_gpu_enable_pipelined_{name}": "true"}
            yield Axis(f"pipeline {kind}s" if len(flags) == 1 else f"pipeline {kind}s too", kind, (dict(flags),))
    if kinds:
        double = {"xla_gpu_enable_while_loop_double_buffering": "true"}
        yield Axis("two copies of each loop body", "", (double,))
        if len(flags) > 1:
            yield Axis("pipelining and two copies", "", ({**flags, **double},))


def _overlap(collectives: int) -> Iterable[Axis]:
    if collectives > 1:
        flag = "xla_gpu_experimental_parallel_collective_overlap_limit"
        yield Axis("collectives in flight", "", ({flag: "2"},))


def by_exposure(found: Iterable[Axis], exposed: Mapping[str, float]) -> list[Axis]:
    """The axes in order of the exposed time, by kind, that they are about; those about all kinds last."""
    return sorted(found, key=lambda axis: -exposed.get(axis.kind, 0.0))


def neighbours(value: int) -> tuple[int, int]:
    """The values to try beside a number that helped."""
    return value * 2, value // 2


def between(value: int) -> int:
    """The last value to try, once neither neighbour helps."""
    return value * 3 // 4
