"""Two schedules of one program: where each puts its collectives, which is faster, and whether a profile pays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pgle.schedule.predict import Gain, Prediction, gain
from pgle.schedule.timeline import Stream, Timeline
from pgle.trace.table import distinct
from pgle.xla.collectives import async_pairs, collective_kind, walk_collectives
from pgle.xla.hlo.module import Computation, Module
from pgle.xla.hlo.names import lhs_names

BLOCK = 4096  # instructions that are looked at together

EXPOSED_SHARE = 0.05
"""Collectives of which less is exposed need no reason: launch gaps around them already are a few microseconds."""

NOTHING_INDEPENDENT = "nothing is independent of it"
UNREAD = "nothing reads its result, and XLA runs it all the same"

_ACTING = ("send", "recv", "outfeed", "infeed", "custom-call", "while", "conditional", "call", "copy-start")

DISABLE_ASYNC = "--xla_gpu_disable_async_collectives"
"""Names kinds without their hyphens, separated by commas, or all of them: ``allcollectives``."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One collective in one schedule."""

    name: str  # when LHS ran
    kind: str  # ``all-gather`` …
    sync: bool  # nothing overlaps it
    between: int  # compute instructions from its start to its done
    cover_us: float  # their time
    cost_us: float  # its own time, once
    exposed_us: float  # the part of all its executions in a step during which nothing computes
    independent_us: float  # compute of its computation that neither needs it nor is needed by it
    count: int = 1  # its executions in a step
    kept_by: str = ""  # the flag that keeps it synchronous; empty where none does
    unread: bool = False  # no instruction on the way to the computation's result needs it

    @property
    def hideable_us(self) -> float:
        """As much of its exposed time as there is independent compute that does not run next to it already."""
        return min(self.exposed_us, max(self.independent_us - self.cover_us, 0.0) * self.count)

    @property
    def reason(self) -> str:
        """Why it is exposed, in words; empty where less than a twentieth of it is."""
        if self.exposed_us <= EXPOSED_SHARE * max(self.cost_us * self.count, 1e-9):
            return ""
        if self.unread:
            return UNREAD
        if self.kept_by:
            return f"synchronous by {self.kept_by}"
        if self.independent_us < 0.01 * self.cost_us:
            return NOTHING_INDEPENDENT
        if self.sync:
            return "nothing is scheduled next to it"
        if self.independent_us < self.cost_us:
            return "too little independent compute"
        return "independent compute is not scheduled next to it"


@dataclass(frozen=True, slots=True)
class Move:
    """One collective in two schedules; None where a schedule has none of that name."""

    name: str
    before: Placement | None
    after: Placement | None

    @property
    def moved(self) -> bool:
        """Whether start and done stand otherwise: synchronous or not, or another number of instructions between."""
        if self.before is None or self.after is None:
            return True
        return (self.before.sync, self.before.between) != (self.after.sync, self.after.between)


def placements(module: Module, timeline: Timeline, flags: Iterable[str] = ()) -> Mapping[str, Placement]:
    """Every collective of a scheduled module, by its name when LHS ran.

    Args:
        module: scheduled.
        timeline: a simulation of it; gives the costs.
        flags: the XLA flags that it was compiled with, the last of a name counts.
    """
    names = lhs_names(module)
    disabled = _disabled(flags)
    cost = _cost_by_name(timeline)
    compute = {timeline.names[code] for code in distinct(timeline.instruction[timeline.stream == Stream.COMPUTE])}
    exposures = {item.name: item for item in timeline.exposures}
    chosen = [
        (item, kind)
        for item, kind in walk_collectives(module)
        if not item.opcode.endswith(("-done", "-update")) and item.name in cost
    ]
    by_computation: dict[str, list[str]] = {}
    for item, _ in chosen:
        by_computation.setdefault(item.computation, []).append(item.name)
    read = {name: _read(module.computations[name]) for name in by_computation}
    free_us = {
        name: us
        for of, inside in by_computation.items()
        for name, us in _independent_us(module.computations[of], inside, cost, compute).items()
    }
    dones = {pair.start: pair.done for pair in async_pairs(module) if pair.is_collective}
    positions = {c.name: {item.name: i for i, item in enumerate(c.instructions)} for c in module.computations.values()}
    found: dict[str, Placement] = {}
    for item, kind in chosen:
        computation = module.computations[item.computation]
        where = positions[computation.name]
        done = dones.get(item.name, item.name)
        inside = computation.instructions[where[item.name] + 1 : where[done]]
        covering = [other.name for other in inside if other.name in compute and collective_kind(module, other) is None]
        name = names.get(item.name, item.name)
        found[name] = Placement(
            name=name,
            kind=kind,
            sync=not covering,
            between=len(covering),
            cover_us=sum(cost.get(other, 0.0) for other in covering),
            cost_us=cost[item.name],
            exposed_us=exposures[item.name].exposed_us if item.name in exposures else 0.0,
            independent_us=free_us[item.name],
            count=exposures[item.name].count if item.name in exposures else 1,
            kept_by=DISABLE_ASYNC if disabled & {"allcollectives", kind.replace("-", "")} else "",
            unread=item.name not in read[item.computation],
        )
    return found


def compare_placements(before: Mapping[str, Placement], after: Mapping[str, Placement]) -> tuple[Move, ...]:
    """Every collective of either schedule, the one whose exposed time changes most first."""
    moves = [Move(name, before.get(name), after.get(name)) for name in {**before, **after}]

    def weight(move: Move) -> tuple[float, str]:
        old = 0.0 if move.before is None else move.before.exposed_us
        new = 0.0 if move.after is None else move.after.exposed_us
        return -abs(old - new), move.name

    return tuple(sorted(moves, key=weight))


def _disabled(flags: Iterable[str]) -> set[str]:
    """Kinds that the flags keep synchronous, as `DISABLE_ASYNC` spells them."""
    given = [flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == DISABLE_ASYNC]
    return {name.strip().lower() for name in given[-1].split(",")} if given else set()


def _cost_by_name(timeline: Timeline) -> dict[str, float]:
    """Microseconds per execution of every instruction of a timeline."""
    size = len(timeline.names)
    total = np.bincount(timeline.instruction, weights=timeline.duration_us, minlength=size)
    count = np.bincount(timeline.instruction, weights=timeline.count, minlength=size)
    return {timeline.names[code]: float(total[code] / count[code]) for code in np.flatnonzero(count).tolist()}


def _independent_us(
    computation: Computation, names: Sequence[str], cost: Mapping[str, float], compute: Collection[str]
) -> Mapping[str, float]:
    """Time of the compute instructions that could overlap each of some instructions, whatever the schedule.

    A bit per name says what needs it, and what it needs: one pass over the schedule each way, whatever their number.
    """
    bits = {name: 1 << number for number, name in enumerate(names)}
    needs, needed = dict(bits), dict(bits)
    edges = [(item.name, (*item.operands, *item.control_predecessors)) for item in computation.instructions]
    for name, operands in edges:
        for operand in operands:
            needs[name] = needs.get(name, 0) | needs.get(operand, 0)
    for name, operands in reversed(edges):
        for operand in operands if needed.get(name) else ():
            needed[operand] = needed.get(operand, 0) | needed[name]
    compute_names = [name for name, _ in edges if name in compute and name in cost]
    size = -(-len(bits) // 8)
    free_us = np.zeros(len(bits))
    for first in range(0, len(compute_names), BLOCK):
        block = compute_names[first : first + BLOCK]
        tied = b"".join((needs.get(name, 0) | needed.get(name, 0)).to_bytes(size, "little") for name in block)
        packed = np.frombuffer(tied, np.uint8).reshape(len(block), size)
        is_tied = np.unpackbits(packed, axis=1, count=len(bits), bitorder="little")
        free_us += np.array([cost[name] for name in block]) @ (1 - is_tied)
    return dict(zip(bits, free_us.tolist(), strict=True))


def _read(computation: Computation) -> set[str]:
    """What the result of a computation depends on, and what does something besides giving a result."""
    operands = {item.name: item.operands for item in computation.instructions}
    acts = (item.name for item in computation.instructions if item.opcode in _ACTING or item.is_host_transfer)
    read: set[str] = set()
    todo = [computation.root, *acts]
    while todo:
        name = todo.pop()
        if name not in read:
            read.add(name)
            todo += operands.get(name, ())
    return read


LEAST_GAIN = 0.005
"""Gains below half a per cent of the step are called not worth a job: controlled PGLE gains that users report on tuned
models are 1 to 2 %, and null results are common (see docs)."""


MOSTLY = 0.5  # of the exposed time, from which on what has nothing to hide behind is the answer


def judge_gain(baseline: Prediction, profiled: Prediction, moves: Sequence[Move], costs_are: str) -> str:
    """The sentence; it says where the costs are not measured.

    Args:
        baseline, profiled: predictions with one cost table.
        moves: collectives of both.
        costs_are: ``measured``, ``estimated`` or ``mixed``.
    """
    step = baseline.step_us
    gained = gain(baseline, profiled)
    copies = baseline.timeline.breakdown.exposed_copy_us
    exposed = _exposed(baseline)
    what = "exposed communication" if copies == 0 else "exposed communication and host copies"
    by = "" if costs_are == "measured" else f" ({costs_are} costs)"
    if baseline.lower_bound or profiled.lower_bound:
        return f"Cannot tell: the program has a loop of unknown length, of which one iteration is counted{by}."
    change = in_percent(gained)
    if gained.share >= LEAST_GAIN and gained.idle_share > gained.share / 2:
        return (
            f"Cannot tell: the step gets {change} shorter, but {gained.idle_share:.1%} are time in which nothing runs, "
            f"the model's noise; exposed time goes from {exposed:.1%} to {_exposed(profiled):.1%} of the step{by}."
        )
    if gained.share >= LEAST_GAIN and gained.low < 0:
        return f"Cannot tell: the step gets {change} shorter, and the range reaches below zero{by}."
    if gained.share >= LEAST_GAIN:
        reason = _moved(moves, copies - profiled.timeline.breakdown.exposed_copy_us)
        return f"Yes: {reason} and the step gets {change} shorter{by}."
    if gained.share <= -LEAST_GAIN:
        return (
            f"No: with true costs the greedy scheduler does worse here, the step gets {-gained.share:.1%} longer{by}."
        )
    if not moves and not baseline.timeline.breakdown.copy_us:
        return "No: the program has no collective that could be hidden."
    if exposed < LEAST_GAIN:
        return f"No: only {exposed:.2%} of the step is {what} without a profile{by}."
    before = [move.before for move in moves if move.before is not None]
    kept = _share([item for item in before if item.kept_by], baseline)
    if kept > 0.5:
        flag = next(item.kept_by for item in before if item.kept_by)
        return f"No: {flag} keeps {kept:.0%} of the {what} synchronous, whatever the profile says{by}."
    stuck = stuck_share(baseline, before)
    if stuck > MOSTLY:
        return (
            f"No: {exposed:.1%} of the step is {what}, but {stuck:.0%} of it has nothing independent to hide behind, "
            f"so no profile hides it{by}."
        )
    room = max(0.0, (step - baseline.ceiling.step_us) / step)
    return (
        f"No: {exposed:.1%} of the step is {what}; perfect overlap would save {room:.1%}, "
        f"but {_change(gained.share)}{by}."
    )


def stuck_share(prediction: Prediction, placed: Sequence[Placement]) -> float:
    """The part of a schedule's exposed time, of its placements, that no other order of its instructions hides."""
    return _share([item for item in placed if item.reason == NOTHING_INDEPENDENT], prediction)


def _exposed(prediction: Prediction) -> float:
    """The share of the step in which only collectives or copies run."""
    found = prediction.timeline.breakdown
    return (found.exposed_communication_us + found.exposed_copy_us) / max(found.step_us, 1e-9)


def in_percent(gained: Gain) -> str:
    """A gain and its range: ``3.1% (1.6 … 3.1%)``."""
    if gained.high - gained.low < 5e-4:
        return f"{gained.share:.1%}"
    known = f"as measured on {gained.samples} launches" if gained.samples else "as on two other jobs"
    low, high = f"{100 * gained.low:.1f}", f"{gained.high:.1%}"
    return f"{gained.share:.1%} (range {low} … {high}; kernels that hide collectives run slower, {known})"


def _moved(moves: Sequence[Move], copies_us: float) -> str:
    moved = sum(move.moved for move in moves)
    if not moved and copies_us > 0:
        return f"{copies_us:.0f} µs more of the host copies hide"
    if not moved:
        return "no collective moves, but other instructions do,"
    return f"the profile moves {moved} of {len(moves)} collectives"


def _share(placements: Sequence[Placement], baseline: Prediction) -> float:
    """The part of the exposed time that is theirs; no more than all, where collectives overlap each other."""
    exposed = baseline.exposed_us + baseline.timeline.breakdown.exposed_copy_us
    return min(sum(item.exposed_us for item in placements) / max(exposed, 1e-9), 1.0)


def _change(gain: float) -> str:
    if abs(gain) < 5e-5:
        return "the profile does not change the step time"
    return f"the profile {'shortens the step by only' if gain > 0 else 'lengthens the step by'} {abs(gain):.2%}"
