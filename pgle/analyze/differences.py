"""Compare two measured steps of one program: rows that got slower, are hidden less, appeared or are
gone.

Rows come from `pgle.analyze.window`, so they add up to the difference of the steps. They are
instructions, collectives, waits for other ranks, copies, other modules, idle time by cause, slow
steps, and the unexplained rest.

Compilers change names of instructions with every flag. So instructions are matched by opcode, the
framework's name, shape, and the place among instructions that share all three. The rest is matched
by the framework's name and place alone. So a product that another kernel computes stays one row.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product

import numpy as np

from pgle.analyze.alike import common_ratio
from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.layers import MeasuredInstruction
from pgle.analyze.window import RowGroup, StepTime, times_with_pauses
from pgle.costs.measure.alignment import MatchedBy, match
from pgle.errors import as_change
from pgle.schedule.simulate import Breakdown
from pgle.xla.hlo.module import Instruction, Module

NOISE = 0.0005  # share of the step; smaller changes are added up in one figure

EXECUTIONS_DIFFER = 0.02
"""If a collective's own time changed by a smaller share, it is hidden more or less, but not slower.
"""


LAUNCHES_DIFFER = 0.0054
"""Two launches of one program, on the same hosts within hours, differ by less than this share in 19
of 20 cases. The standard deviation of five public pairs is 0.21 % (marin-community/marin#7012,
#8277, #8822, #7912).
"""

SAME = 1e-6  # share of the step; simulated steps that differ by less are the same
LEAST_STEPS = 3  # on each side; fewer do not show how much steps differ


class ChangeKind(StrEnum):
    """How a row changed."""

    SLOWER = "slower"
    FASTER = "faster"
    APPEARED = "appeared"
    GONE = "gone"
    HIDDEN_LESS = "hidden less"
    HIDDEN_MORE = "hidden more"
    # for rows that are not instructions
    LONGER = "longer"
    SHORTER = "shorter"


class StepVerdict(StrEnum):
    """How the typical step changed."""

    LONGER = "longer"
    SHORTER = "shorter"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class InstructionTime:
    """The time of an instruction in a step."""

    name: str  # in its trace
    us: float  # its own part of a step, see `pgle.analyze.window`
    each_us: float  # one execution; for collectives, after the last rank arrived
    count: float  # executions in a step
    sync: bool = False  # whether it is a collective that alternates with compute


@dataclass(frozen=True, slots=True)
class StepChange:
    """One row in both steps."""

    kind: ChangeKind
    # before, after: None if that step has no such row
    before: InstructionTime | None
    after: InstructionTime | None
    delta_us: float  # how much it lengthens the step; negative if it shortens it
    share: float  # `delta_us` as a share of the step before
    opcode: str  # of the instruction after; if gone, of the one before
    # op_name, source: the framework's name, file and line; empty if unknown
    op_name: str
    source: str
    group: str  # a `RowGroup` of `pgle.analyze.window`, ``slow steps`` or ``not explained``
    note: str = ""  # other differences, in words

    @property
    def name(self) -> str:
        """Name of the instruction after; if gone, of the one before."""
        part = self.after or self.before
        return "" if part is None else part.name


@dataclass(frozen=True)
class Differences:
    """The changes between two steps."""

    before: Breakdown  # of the step before
    # of the step after; the differences of the four parts add up to the steps' difference
    after: Breakdown
    waiting_us: float  # how much waits for other ranks grew
    # the largest first; with `other_us` they add up to `delta_us`
    changes: tuple[StepChange, ...]
    # matched, renamed: instructions in both steps, and how many of them have another name
    matched: int
    renamed: int
    other_us: float  # sum of all changes below `NOISE`
    verdict: StepVerdict  # of the typical step, without slow ones
    typical_us: float  # how much the typical step got longer
    # how much it must differ to be significant; None if a side has too few steps
    noise_us: float | None
    why: str  # why no difference can be seen; else empty
    # time in a step that the other ranks wait for the last one: before, after
    late_us: tuple[float, float]
    late_rank: str  # the rank that they wait for most, after; empty if it is not one

    @property
    def delta_us(self) -> float:
        """How much the step got longer, in microseconds."""
        return self.after.step_us - self.before.step_us

    @property
    def share(self) -> float:
        """`delta_us` as a share of the step before."""
        return self.delta_us / self.before.step_us if self.before.step_us > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Item:
    part: InstructionTime
    group: RowGroup
    opcode: str
    shape: str = ""
    made: Instruction | None = None  # of the final module; None without HLO
    kernels: float = 0.0  # in a step
    # type and unit in which it multiplied; empty if it multiplies nothing
    multiplied: str = ""

    @property
    def op_name(self) -> str:
        return "" if self.made is None else self.made.op_name.partition("[")[0]

    @property
    def bare_name(self) -> str:
        """The name without its numbers."""
        return re.sub(r"[.\d]+", "", self.part.name)

    @property
    def kind(self) -> str:
        """The opcode, or the name without its numbers."""
        return self.opcode or self.bare_name


def find_differences(before: MeasuredStep, after: MeasuredStep) -> Differences:
    """Match the rows of two steps, and find how much each adds to the difference."""
    # without the HLO of both, only names can be compared
    by_name = before.module is None or after.module is None
    pairs = _match(_items(before, by_name), _items(after, by_name))
    both = [(one, two) for one, two in pairs if one is not None and two is not None]
    renamed = sum(one.part.name != two.part.name for one, two in both)
    step_us = max(before.breakdown.step_us, 1e-9)
    computed = [
        (one.part.us, two.part.us) for one, two in both if _is_compute(one, two)
    ]
    before_us, after_us = np.array(computed, np.float64).reshape(-1, 2).T
    ratio = common_ratio(before_us, after_us)
    changes = []
    for one, two in pairs:
        if (known := two or one) is not None:
            changes.append(_change(known, one, two, step_us, ratio))
    if ratio != 1:
        changes.append(_compute_row(before_us.tolist(), ratio, step_us))
    changes += _other_rows(before, after, step_us)
    explained_us = sum(change.delta_us for change in changes)
    rest_us = after.step_us - before.step_us - explained_us
    changes.append(_row("not explained", "", 0.0, rest_us, step_us))
    shown = [change for change in changes if abs(change.share) >= NOISE]
    shown.sort(key=lambda change: (-abs(change.delta_us), change.name))
    other_us = sum(change.delta_us for change in changes if abs(change.share) < NOISE)
    verdict, typical_us, noise_us, why = _verdict(before, after)
    return Differences(
        before=before.breakdown,
        after=after.breakdown,
        waiting_us=after.waiting_us - before.waiting_us,
        changes=tuple(shown),
        matched=len(both),
        renamed=renamed,
        other_us=other_us,
        verdict=verdict,
        typical_us=typical_us,
        noise_us=noise_us,
        why=why,
        late_us=(before.late.us, after.late.us),
        late_rank=after.late_rank,
    )


def _verdict(
    before: MeasuredStep, after: MeasuredStep
) -> tuple[StepVerdict, float, float | None, str]:
    """Whether typical steps differ.

    Returns:
        The verdict, how much the typical step got longer (µs), how much it must differ (µs), and
        why the verdict is unknown.
    """
    delta_us = float(after.parts.typical_us.sum() - before.parts.typical_us.sum())
    noise_us, why = _noise(before, after)
    if noise_us is None:
        return StepVerdict.CANNOT_TELL, delta_us, None, why
    if abs(delta_us) <= noise_us:
        why = "steps and launches of one program differ as much"
        return StepVerdict.CANNOT_TELL, delta_us, noise_us, why
    verdict = StepVerdict.LONGER if delta_us > 0 else StepVerdict.SHORTER
    return verdict, delta_us, noise_us, ""


def _noise(before: MeasuredStep, after: MeasuredStep) -> tuple[float | None, str]:
    """How many microseconds typical steps may differ by chance, as steps of one run (Welch's test
    at 5 %) and as launches of one program; None if unknown, and why.
    """
    step_us = before.breakdown.step_us
    if before.trace.simulated and after.trace.simulated:
        return SAME * step_us, ""
    if _is_one_run(before, after):
        return None, "both sides are ranks of one run"
    sides = [_typical_steps(side.parts.steps) for side in (before, after)]
    fewest = min(map(len, sides))
    if fewest < LEAST_STEPS:
        return None, f"a side has {fewest} steady steps; {LEAST_STEPS} are needed"
    return max(step_us * LAUNCHES_DIFFER, _welch_us(*sides)), ""


def _typical_steps(steps: Sequence[StepTime]) -> list[float]:
    """Microseconds of each step that is not slow. The last one gets the mean pause."""
    typical = [step for step in steps if not step.is_slow]
    pauses = [step.pause_us for step in typical if step.pause_us is not None]
    return times_with_pauses(typical, sum(pauses) / max(len(pauses), 1))


def _welch_us(before: Sequence[float], after: Sequence[float]) -> float:
    """The half width of Welch's 95 % confidence interval of the difference of two means."""
    # only here: it takes longer to import than all else
    from scipy.special import stdtrit

    if min(len(before), len(after)) < 2:
        return float("inf")
    sides = (before, after)
    errors = [float(np.var(side, ddof=1)) / len(side) for side in sides]
    total = sum(errors)
    if not 0 < total < np.inf:
        return total
    freedom = total**2 / sum(
        error**2 / (len(side) - 1) for error, side in zip(errors, sides, strict=True)
    )
    return float(stdtrit(freedom, 0.975) * np.sqrt(total))


def _is_one_run(before: MeasuredStep, after: MeasuredStep) -> bool:
    """Whether the sides are different processes of one run: their collectives end together."""
    pairs = list(product(before.costs.ends, after.costs.ends))
    if _pids(before) & _pids(after) or not pairs:
        return False
    one, other = max(pairs, key=lambda pair: len(pair[0].shared(pair[1])))
    columns = one.shared(other)
    return match(one.of(columns), other.of(columns))[1] == MatchedBy.ENDS


def _pids(step: MeasuredStep) -> set[str]:
    """The numbers of the processes that ran a step."""
    processes = (step.trace.devices[window.device].process for window in step.windows)
    return {process.rpartition(":")[2] for process in processes}


def _other_rows(
    before: MeasuredStep, after: MeasuredStep, step_us: float
) -> Iterator[StepChange]:
    """The rows that are not instructions of the main module."""
    idle = (RowGroup.LAUNCH, RowGroup.HOST, RowGroup.BETWEEN)
    for group in (RowGroup.WAIT, *idle, RowGroup.OTHER):
        one = sum(before.parts.of(group).values())
        two = sum(after.parts.of(group).values())
        yield _row(str(group), _where(group, before, after), one, two, step_us)
    module = str(RowGroup.MODULE)
    ones = before.parts.of(RowGroup.MODULE)
    twos = after.parts.of(RowGroup.MODULE)
    for name in {**ones, **twos}:
        yield _row(module, "", ones.get(name), twos.get(name), step_us, name=name)
    slow = [f"execution {item.execution}" for item in after.parts.steps if item.is_slow]
    which = ", ".join(slow[:5])
    yield _row("slow steps", which, before.parts.slow_us, after.parts.slow_us, step_us)


def _where(group: RowGroup, before: MeasuredStep, after: MeasuredStep) -> str:
    """The part of a row that changed most, in words."""
    if group == RowGroup.WAIT:
        return f"for {after.late_rank}" if after.late_rank else ""
    if group != RowGroup.HOST:
        return ""
    one = before.parts.of(group)
    two = after.parts.of(group)
    most = max(
        {**one, **two},
        key=lambda name: abs(two.get(name, 0.0) - one.get(name, 0.0)),
        default="",
    )
    return f"most before {most}" if most else ""


def _row(
    group: str,
    note: str,
    one: float | None,
    two: float | None,
    step_us: float,
    *,
    name: str = "",
) -> StepChange:
    delta_us = (two or 0.0) - (one or 0.0)
    return StepChange(
        kind=_kind_of_row(one, two),
        before=None if one is None else _once(name or group, one),
        after=None if two is None else _once(name or group, two),
        delta_us=delta_us,
        share=delta_us / step_us,
        opcode="",
        op_name="",
        source="",
        group=group,
        note=note,
    )


def _kind_of_row(one: float | None, two: float | None) -> ChangeKind:
    if two and not one:
        return ChangeKind.APPEARED
    if one and not two:
        return ChangeKind.GONE
    longer = (two or 0.0) > (one or 0.0)
    return ChangeKind.LONGER if longer else ChangeKind.SHORTER


def _once(name: str, us: float) -> InstructionTime:
    """The time of something that runs once in a step."""
    return InstructionTime(name, us, us, 1.0)


def _items(step: MeasuredStep, by_name: bool) -> list[_Item]:
    """All instructions of a step, in the module's order. If `by_name`, in the order of names and
    without HLO.
    """
    module = step.module
    compute = step.parts.of(RowGroup.COMPUTE)
    transfers = step.parts.of(RowGroup.TRANSFER)
    copies = step.parts.of(RowGroup.COPY)
    found: list[_Item] = []
    for item in step.compute:
        us = compute.pop(item.cost.traced, None)
        if us is not None:
            kernels = step.parts.kernels.get(item.cost.traced, 0.0)
            found.append(_compute_item(item, us, kernels))
    for ran in step.collectives:
        us = transfers.pop(ran.trace_name, 0.0)
        name = ran.trace_name if by_name else ran.name
        part = InstructionTime(name, us, ran.time_us, ran.count, ran.sync)
        shape = _result(module, ran.instruction)
        transfer = _Item(part, RowGroup.TRANSFER, ran.kind, shape, ran.instruction)
        found.append(transfer)
    instructions = {} if module is None else module.instructions
    for group, rest in (
        (RowGroup.COMPUTE, compute),
        (RowGroup.TRANSFER, transfers),
        (RowGroup.COPY, copies),
    ):
        for name, us in rest.items():
            made = instructions.get(name)
            found.append(_Item(_once(name, us), group, "", made=made))
    if by_name:
        found = [replace(item, opcode="", shape="", made=None) for item in found]
    places = {name: at for at, name in enumerate(instructions)}

    def place(item: _Item) -> tuple[int, list[str | int]]:
        at = -1 if item.made is None else places.get(item.made.name, -1)
        return at, _numbered(item.part.name)

    return sorted(found, key=place)


def _compute_item(item: MeasuredInstruction, us: float, kernels: float) -> _Item:
    """A compute instruction.

    Args:
        us: its own part of a step.
        kernels: `_Item.kernels`.
    """
    cost = item.cost
    unit = "" if item.tensor_cores else " off the Tensor Cores"
    return _Item(
        part=InstructionTime(cost.traced, us, cost.cost_us, item.count),
        group=RowGroup.COMPUTE,
        opcode=cost.opcode,
        shape=cost.shape,
        made=item.instruction,
        kernels=kernels,
        multiplied="" if item.tensor_cores is None else f"{item.dtype}{unit}",
    )


def _numbered(name: str) -> list[str | int]:
    """Split a name, so that names sort by their numbers: ``["fusion.", 12, ""]``."""
    parts: list[str | int] = [*re.split(r"(\d+)", name)]
    parts[1::2] = map(int, parts[1::2])
    return parts


def _result(module: Module | None, made: Instruction | None) -> str:
    """The shape of the result; for a start, the shape that the collective gives, wrapped or not."""
    if made is None:
        return ""
    inner = made if module is None else module.operation(made)
    shape = inner.shape
    if inner.opcode.endswith("-start") and len(shape.elements) > 1:
        return str(shape.elements[1])
    return str(shape)


def _by_all(item: _Item) -> Hashable:
    return item.part.name, item.kind, item.op_name, item.shape


def _by_source_and_shape(item: _Item) -> Hashable | None:
    known = item.op_name or item.shape
    return (item.kind, item.op_name, item.shape) if known else None


def _by_source(item: _Item) -> Hashable | None:
    is_transfer = item.group == RowGroup.TRANSFER
    return (is_transfer, item.op_name) if item.op_name else None


def _by_name_and_shape(item: _Item) -> Hashable | None:
    """A key for instructions without ``op_name``."""
    return None if item.op_name else (item.kind, item.bare_name, item.shape)


_KEYS: Sequence[Callable[[_Item], Hashable | None]] = (
    _by_all,
    _by_source_and_shape,
    _by_source,
    _by_name_and_shape,
)
"""Keys from the surest match to the weakest. None means that the key cannot match the item."""


def _match(
    before: Sequence[_Item], after: Sequence[_Item]
) -> list[tuple[_Item | None, _Item | None]]:
    """Match items in pairs, each item once. None replaces a missing side."""
    pairs: list[tuple[_Item | None, _Item | None]] = []
    left = list(before)
    right = list(after)
    for key in _KEYS:
        waiting: dict[Hashable, deque[_Item]] = defaultdict(deque)
        for item in left:
            waiting[key(item)].append(item)
        rest = []
        for item in right:
            found = waiting.get(key(item))
            if key(item) is not None and found:
                pairs.append((found.popleft(), item))
            else:
                rest.append(item)
        taken = {id(one) for one, _ in pairs}
        left = [item for item in left if id(item) not in taken]
        right = rest
    gone = ((item, None) for item in left)
    new = ((None, item) for item in right)
    return [*pairs, *gone, *new]


def _is_compute(before: _Item, after: _Item) -> bool:
    """Whether a pair is one compute instruction in both steps."""
    return before.group == after.group == RowGroup.COMPUTE


def _compute_row(before_us: list[float], ratio: float, step_us: float) -> StepChange:
    """The row for all compute instructions, which take longer or shorter by one factor."""
    whole_us = sum(before_us)
    after_us = whole_us * ratio
    note = f"{as_change(ratio - 1)} each"
    name = f"compute, all {len(before_us)} instructions"
    return _row(str(RowGroup.COMPUTE), note, whole_us, after_us, step_us, name=name)


def _change(
    known: _Item,
    before: _Item | None,
    after: _Item | None,
    step_us: float,
    ratio: float,
) -> StepChange:
    """The change of one instruction. For compute, it excludes the factor common to all of it.

    Args:
        known: the instruction after; if gone, the one before.
    """
    one = None if before is None else before.part
    two = None if after is None else after.part
    delta_us = (two.us if two else 0.0) - (one.us if one else 0.0)
    note = ""
    if before is not None and after is not None:
        note = "; ".join(_notes(before, after))
        if _is_compute(before, after):
            delta_us -= before.part.us * (ratio - 1)
    return StepChange(
        kind=_kind(known, one, two, delta_us),
        before=one,
        after=two,
        delta_us=delta_us,
        share=delta_us / step_us,
        opcode=known.kind,
        op_name=known.op_name,
        source="" if known.made is None else known.made.source,
        group=str(known.group),
        note=note,
    )


def _kind(
    item: _Item, one: InstructionTime | None, two: InstructionTime | None, delta: float
) -> ChangeKind:
    if one is None or two is None:
        return ChangeKind.APPEARED if one is None else ChangeKind.GONE
    if item.group == RowGroup.TRANSFER:
        own = two.each_us * two.count - one.each_us * one.count
        is_opposite = own * delta <= 0
        is_small = abs(own) < EXECUTIONS_DIFFER * one.each_us * one.count
        if is_opposite or is_small or abs(own) < abs(delta) / 2:
            return ChangeKind.HIDDEN_LESS if delta > 0 else ChangeKind.HIDDEN_MORE
    return ChangeKind.SLOWER if delta > 0 else ChangeKind.FASTER


def _notes(before: _Item, after: _Item) -> Iterable[str]:
    one, two = before.part, after.part
    if one.sync != two.sync:
        yield "now synchronous" if two.sync else "now asynchronous"
    if before.kind != after.kind:
        yield f"{before.kind} → {after.kind}"
    if before.shape != after.shape and before.shape and after.shape:
        yield f"{before.shape} → {after.shape}"
    if abs(one.count - two.count) > 1e-6 * max(one.count, two.count):
        yield f"{one.count:.3g} × → {two.count:.3g} × a step"
    more = abs(before.kernels - after.kernels)
    if before.kernels and after.kernels and more > 0.01 * before.kernels:
        yield f"{before.kernels:.3g} → {after.kernels:.3g} kernels a step"
    if before.multiplied and after.multiplied and before.multiplied != after.multiplied:
        yield f"multiplied in {before.multiplied}, now in {after.multiplied}"
