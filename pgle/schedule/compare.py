"""Two schedules of one program: where each puts its collectives, which is faster, whether a profile pays, and why
collectives stay exposed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pgle.schedule.predict import Gain, Prediction, gain
from pgle.schedule.program import FREE, Stream, Timeline
from pgle.trace.table import distinct
from pgle.xla.collectives import async_pairs, collective_kind, walk_collectives
from pgle.xla.hlo.module import Computation, Instruction, Module
from pgle.xla.hlo.names import lhs_names, loops

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
        flags: the XLA flags that it was compiled with, the last of a name counts.
    """
    names = lhs_names(module)
    given = [flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == DISABLE_ASYNC]
    disabled = {name.strip().lower() for name in given[-1].split(",")} if given else set[str]()
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
        costs_are: ``measured``, ``estimated`` or ``mixed``.
    """
    step = baseline.step_us
    gained = gain(baseline, profiled)
    copies = baseline.timeline.breakdown.exposed_copy_us
    exposed = _exposed_share(baseline)
    what = "exposed communication" if copies == 0 else "exposed communication and host copies"
    by = "" if costs_are == "measured" else f" ({costs_are} costs)"
    if baseline.lower_bound or profiled.lower_bound:
        return f"Cannot tell: the program has a loop of unknown length, of which one iteration is counted{by}."
    change = in_percent(gained)
    if gained.share >= LEAST_GAIN and gained.idle_share > gained.share / 2:
        return (
            f"Cannot tell: the step gets {change} shorter, but {gained.idle_share:.1%} are time in which nothing runs, "
            f"the model's noise; exposed time goes from {exposed:.1%} to {_exposed_share(profiled):.1%} of the "
            f"step{by}."
        )
    if gained.share >= LEAST_GAIN and gained.low < 0:
        return f"Cannot tell: the step gets {change} shorter, and the range reaches below zero{by}."
    if gained.share >= LEAST_GAIN:
        moved = sum(move.moved for move in moves)
        copies_us = copies - profiled.timeline.breakdown.exposed_copy_us
        hidden = f"{copies_us:.0f} µs more of the host copies hide"
        others = hidden if copies_us > 0 else "no collective moves, but other instructions do,"
        reason = f"the profile moves {moved} of {len(moves)} collectives" if moved else others
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
    small = f"the profile {'shortens the step by only' if gained.share > 0 else 'lengthens the step by'} "
    small += f"{abs(gained.share):.2%}"
    result = "the profile does not change the step time" if abs(gained.share) < 5e-5 else small
    return f"No: {exposed:.1%} of the step is {what}; perfect overlap would save {room:.1%}, but {result}{by}."


def stuck_share(prediction: Prediction, placed: Sequence[Placement]) -> float:
    """The part of a schedule's exposed time, of its placements, that no other order of its instructions hides."""
    return _share([item for item in placed if item.reason == NOTHING_INDEPENDENT], prediction)


def _exposed_share(prediction: Prediction) -> float:
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


def _share(placements: Sequence[Placement], baseline: Prediction) -> float:
    """The part of the exposed time that is theirs; no more than all, where collectives overlap each other."""
    exposed = baseline.exposed_us + baseline.timeline.breakdown.exposed_copy_us
    return min(sum(item.exposed_us for item in placements) / max(exposed, 1e-9), 1.0)


@dataclass(frozen=True, slots=True)
class ExposedGroup:
    """Collectives of one kind that are exposed for the same reason, or hidden."""

    kind: str  # ``all-gather`` …
    why: str  # why they are exposed in the second schedule, else why they were in the first; empty: hidden in both
    name: str  # of the one with the most exposed time, when LHS ran
    is_left: bool = True  # whether they are exposed in the second schedule; a few per cent of their time do not count
    count: int = 0  # their executions in a step
    time_us: float = 0.0  # of all executions
    # before_us, after_us: exposed time of all executions in either schedule
    before_us: float = 0.0
    after_us: float = 0.0

    @property
    def most_us(self) -> float:
        """Exposed time in the schedule that exposes more."""
        return max(self.before_us, self.after_us)


def groups(moves: Iterable[Move]) -> tuple[ExposedGroup, ...]:
    """Collectives in groups, the most exposed in the second schedule first."""
    found: dict[tuple[str, str, bool], ExposedGroup] = {}
    for move in sorted(moves, key=lambda move: (-_exposed_us(move.after), -_exposed_us(move.before), move.name)):
        known = move.after or move.before
        if known is None:
            continue
        is_left = move.after is not None and bool(move.after.reason)
        why = move.after.reason if is_left and move.after else move.before.reason if move.before else ""
        group = found.setdefault((known.kind, why, is_left), ExposedGroup(known.kind, why, move.name, is_left))
        found[known.kind, why, is_left] = replace(
            group,
            count=group.count + known.count,
            time_us=group.time_us + known.cost_us * known.count,
            before_us=group.before_us + _exposed_us(move.before),
            after_us=group.after_us + _exposed_us(move.after),
        )
    return tuple(sorted(found.values(), key=lambda group: (-group.after_us, -group.before_us)))


def in_one(placed: Iterable[Placement]) -> tuple[ExposedGroup, ...]:
    """The collectives of one schedule in groups."""
    return groups(Move(item.name, item, item) for item in placed)


def _exposed_us(placement: Placement | None) -> float:
    return 0.0 if placement is None else placement.exposed_us


SHOWN = 3
FAR = 2_000  # instructions that are looked at for the nearest one with a name of the program

_BACKWARD = "transpose("  # in the names that jax gives the instructions of a backward pass
_GRADIENTS = (
    "accumulate gradients over micro-batches, so that the next one's compute hides this one's reduction, or give the "
    "optimizer's update of other weights to overlap it"
)
_PARTIAL_SUMS = (
    "gather the weights of that product before it, or shard them along a dimension that it does not sum over "
    "(jax.lax.with_sharding_constraint), so that no partial sums travel"
)
_WEIGHTS = "gather a layer's weights while the layer before computes (a scan over layers with pipelined all-gathers)"
_HALVES = "split the batch in two halves whose layers alternate, so that one computes while the other communicates"
_TOKENS = "split the tokens in two halves, so that one's experts compute while the other's tokens travel"
_NOTHING: Mapping[str, str] = {
    "all-reduce": _HALVES,
    "reduce-scatter": _GRADIENTS,
    "all-gather": _HALVES,
    "all-to-all": _TOKENS,
    "ragged-all-to-all": _TOKENS,
    "collective-permute": "take more micro-batches, and send the one before while this one computes",
}
_GROUPS = "put it and the compute into one scheduling group (jax.experimental.scheduling_groups)"
_BYTES = "send fewer bytes (a narrower type, a larger batch on each device), since the compute next to it is too short"


@dataclass(frozen=True, slots=True)
class Reason:
    """One collective that stays exposed."""

    name: str  # when LHS ran
    kind: str  # ``all-gather`` …
    exposed_us: float  # of the step, all executions together
    why: str  # in words
    made_by: str  # what makes its operand, in the program's words with the source line; empty where nothing says so
    needed_by: str  # the first that needs its result; empty: the step returns it
    loop: str  # the loop around it with its iterations; empty if absent
    help: str  # what change of the program would help


def reasons(module: Module, placed: Iterable[Placement], count: int = SHOWN) -> tuple[Reason, ...]:
    """The collectives that stay exposed, the most exposed first."""
    names = lhs_names(module)
    dones = {pair.start: pair.done for pair in async_pairs(module)}
    starts = {names.get(item.name, item.name): item for item, _ in walk_collectives(module)}
    worst = sorted((item for item in placed if item.reason), key=lambda item: -item.exposed_us)[:count]
    return tuple(_reason(module, item, starts[item.name], dones) for item in worst if item.name in starts)


def _reason(module: Module, placed: Placement, start: Instruction, dones: Mapping[str, str]) -> Reason:
    inside = module.computations[start.computation].instructions
    items = {item.name: item for item in inside}
    users: dict[str, list[str]] = {}
    for item in inside:
        for operand in item.operands:
            users.setdefault(operand, []).append(item.name)
    made = _nearest(module, start.operands, items, lambda item: item.operands)
    done = dones.get(start.name, start.name)
    needed = _nearest(module, users.get(done, ()), items, lambda item: users.get(item.name, ()))
    around = loops(module, start.name)
    loop = "" if not around else f"{around[-1][0]} × {around[-1][1] or 'unknown'}"
    return Reason(
        name=placed.name,
        kind=placed.kind,
        exposed_us=placed.exposed_us,
        why=placed.reason,
        made_by="" if made is None else in_words(made),
        needed_by="" if needed is None else in_words(needed),
        loop=loop,
        help=_help(placed, made, needed, bool(around)),
    )


def _nearest(
    module: Module,
    first: Iterable[str],
    items: Mapping[str, Instruction],
    following: Callable[[Instruction], Iterable[str]],
) -> Instruction | None:
    """The nearest instruction that computes and has a name of the program."""
    seen, queue = set(first), deque(first)
    while queue and len(seen) < FAR:
        item = items.get(queue.popleft())
        if item is None:
            continue
        if item.op_name and item.opcode not in FREE and collective_kind(module, item) is None:
            return item
        new = [name for name in following(item) if name not in seen]
        seen.update(new)
        queue.extend(new)
    return None


def in_words(item: Instruction) -> str:
    """An instruction in the program's words: its operation without the name of the jitted function, and its line."""
    operation = re.sub(r"^(jit|pjit|pmap)\([^)]*\)/", "", item.op_name)
    return f"{operation} at {item.source.rpartition('/')[2]}" if item.source else operation


def _help(placed: Placement, made: Instruction | None, needed: Instruction | None, looped: bool) -> str:
    if placed.kept_by:
        return f"leave out {placed.kept_by}"
    if placed.reason != NOTHING_INDEPENDENT:
        return _BYTES if placed.independent_us < placed.cost_us else _GROUPS
    if placed.kind == "all-gather" and made is None:
        return _WEIGHTS
    if placed.kind == "reduce-scatter" and made is not None and _BACKWARD not in made.op_name:
        return _PARTIAL_SUMS
    if placed.kind == "all-reduce" and needed is None and not looped:
        return _GRADIENTS
    return _NOTHING.get(placed.kind, _HALVES)
