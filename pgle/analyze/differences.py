"""Two measured steps of one program: what got slower, is hidden less, appeared or is gone.

Instructions are matched by what they are, never by their number alone: opcode, the framework's name, shape, and the
place among those that share all three; names of a compiler change with every flag. What is left is matched by the
framework's name and place alone, so that a product which another kernel now computes stays one row.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgle.analyze.analysis import MeasuredStep
from pgle.schedule.timeline import Breakdown
from pgle.xla.hlo.module import Instruction, Module

NOISE = 0.0005  # of the step; changes below it are told together

EXECUTIONS_DIFFER = 0.02
"""A collective whose own time changed by less than this share did not get slower; it is hidden more or less."""


class Kind(StrEnum):
    """What happened to an instruction."""

    SLOWER = "slower"
    FASTER = "faster"
    APPEARED = "appeared"
    GONE = "gone"
    HIDDEN_LESS = "hidden less"
    HIDDEN_MORE = "hidden more"


@dataclass(frozen=True, slots=True)
class Part:
    """What an instruction takes of a step."""

    name: str  # in its trace
    us: float  # what counts: of compute its GPU time in a step, of collectives the exposed part
    each_us: float  # one execution; of collectives after the last rank arrived
    count: float  # executions in a step
    sync: bool = False  # a collective in turn with compute
    beside: tuple[str, ...] = ()  # what computes beside a collective


@dataclass(frozen=True, slots=True)
class Change:
    """One instruction in both steps."""

    kind: Kind  # what happened
    # before, after: None where it is not in that step
    before: Part | None
    after: Part | None
    delta_us: float  # what it adds to the step, or takes from it
    share: float  # that of the step before
    opcode: str  # of the one after, or before where it is gone
    # op_name, source: the framework's name, file and line; empty where unknown
    op_name: str
    source: str
    note: str = ""  # what else differs, in words

    @property
    def name(self) -> str:
        """Of the instruction after, or before where it is gone."""
        part = self.after or self.before
        return "" if part is None else part.name


@dataclass(frozen=True)
class Differences:
    """What changed between two steps."""

    before: Breakdown  # breakdown of the step compared with
    after: Breakdown  # breakdown of this step; the four parts of the difference add up to that of the steps
    waiting_us: float  # by how much waits for other ranks grew
    changes: tuple[Change, ...]  # of instructions, the largest first
    # scope, phase, GPU time before and after, those that changed most first
    layers: tuple[tuple[str, str, float, float], ...]
    # matched, renamed: instructions in both steps, and those of them under another name
    matched: int
    renamed: int
    other_us: float  # changes below `NOISE` together

    @property
    def delta_us(self) -> float:
        """By how much the step got longer."""
        return self.after.step_us - self.before.step_us

    @property
    def share(self) -> float:
        """That of the step before."""
        return self.delta_us / self.before.step_us if self.before.step_us > 0 else 0.0


@dataclass(frozen=True, slots=True)
class _Item:
    part: Part
    is_collective: bool
    opcode: str
    shape: str
    op_name: str
    source: str


def find_differences(before: MeasuredStep, after: MeasuredStep) -> Differences:
    """Match the instructions of two steps and say what each adds."""
    by_name = before.module is None or after.module is None  # what HLO alone tells cannot be compared
    pairs = _match(_items(before, by_name), _items(after, by_name))
    step_us = max(before.breakdown.step_us, 1e-9)
    changes = [change for pair in pairs if (change := _change(*pair, step_us)) is not None]
    shown = [change for change in changes if abs(change.share) >= NOISE]
    both = [(one, two) for one, two in pairs if one is not None and two is not None]
    return Differences(
        before=before.breakdown,
        after=after.breakdown,
        waiting_us=after.waiting_us - before.waiting_us,
        changes=tuple(sorted(shown, key=lambda change: (-abs(change.delta_us), change.name))),
        layers=_layers(before, after, NOISE * step_us),
        matched=len(both),
        renamed=sum(one.part.name != two.part.name for one, two in both),
        other_us=sum(change.delta_us for change in changes if abs(change.share) < NOISE),
    )


def _items(step: MeasuredStep, by_name: bool) -> list[_Item]:
    """What ran, in the order of the module; by name, in that of the names and without what HLO says."""
    module = None if by_name else step.module
    order = {} if module is None else {name: number for number, name in enumerate(module.instructions)}
    found: list[tuple[int, _Item]] = []
    for item in step.compute:
        cost, made = item.cost, None if by_name else item.instruction
        part = Part(cost.traced, item.us, cost.cost_us, item.count)
        opcode, shape = ("", "") if by_name else (cost.opcode, cost.shape)
        found.append((_place(order, made), _item(part, opcode, shape, made, is_collective=False)))
    for ran in step.collectives:
        part = Part(ran.name, ran.exposed_us, ran.time_us, ran.count, ran.sync, ran.beside)
        made, opcode = (None, "") if by_name else (ran.instruction, ran.kind)
        found.append((_place(order, made), _item(part, opcode, _result(module, made), made, is_collective=True)))
    return [item for _, item in sorted(found, key=lambda row: (row[0], _numbers(row[1].part.name)))]


def _place(order: Mapping[str, int], made: Instruction | None) -> int:
    return -1 if made is None else order.get(made.name, -1)


def _numbers(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def _result(module: Module | None, made: Instruction | None) -> str:
    """The result's shape: of a start the gathered one, whether XLA wraps it or not."""
    if made is None:
        return ""
    inner = made if module is None else module.wrapped(made) or made
    shape = inner.shape
    return str(shape.elements[1] if inner.opcode.endswith("-start") and len(shape.elements) > 1 else shape)


def _item(part: Part, opcode: str, shape: str, made: Instruction | None, *, is_collective: bool) -> _Item:
    kind = opcode or re.sub(r"[.\d]+", "", part.name)
    op_name, source = ("", "") if made is None else (made.op_name.partition("[")[0], made.source)
    return _Item(part, is_collective, kind, shape, op_name, source)


_KEYS: Sequence[Callable[[_Item], Hashable | None]] = (
    lambda item: (item.part.name, item.opcode, item.op_name, item.shape),
    lambda item: (item.opcode, item.op_name, item.shape) if item.op_name or item.shape else None,
    lambda item: (item.is_collective, item.op_name) if item.op_name else None,
    lambda item: None if item.op_name else (item.opcode, re.sub(r"[.\d]+", "", item.part.name), item.shape),
)
"""From the surest match to the weakest; None: an instruction cannot be matched by it."""


def _match(before: Sequence[_Item], after: Sequence[_Item]) -> list[tuple[_Item | None, _Item | None]]:
    """Pairs, each item once; None on the side that lacks it."""
    pairs: list[tuple[_Item | None, _Item | None]] = []
    left, right = list(before), list(after)
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
        left, right = [item for item in left if id(item) not in taken], rest
    return [*pairs, *((item, None) for item in left), *((None, item) for item in right)]


def _change(before: _Item | None, after: _Item | None, step_us: float) -> Change | None:
    known = after or before
    if known is None:
        return None
    one, two = None if before is None else before.part, None if after is None else after.part
    delta = (two.us if two else 0.0) - (one.us if one else 0.0)
    return Change(
        kind=_kind(known, one, two, delta),
        before=one,
        after=two,
        delta_us=delta,
        share=delta / step_us,
        opcode=known.opcode,
        op_name=known.op_name,
        source=known.source,
        note="" if before is None or after is None else "; ".join(_notes(before, after)),
    )


def _kind(item: _Item, one: Part | None, two: Part | None, delta: float) -> Kind:
    if one is None or two is None:
        return Kind.APPEARED if one is None else Kind.GONE
    if item.is_collective:
        own = two.each_us * two.count - one.each_us * one.count
        if own * delta <= 0 or abs(own) < EXECUTIONS_DIFFER * one.each_us * one.count or abs(own) < abs(delta) / 2:
            return Kind.HIDDEN_LESS if delta > 0 else Kind.HIDDEN_MORE
    return Kind.SLOWER if delta > 0 else Kind.FASTER


def _notes(before: _Item, after: _Item) -> Iterable[str]:
    one, two = before.part, after.part
    if one.sync != two.sync:
        yield "now synchronous" if two.sync else "now asynchronous"
    if before.opcode != after.opcode:
        yield f"{before.opcode} → {after.opcode}"
    if before.shape != after.shape and before.shape and after.shape:
        yield f"{before.shape} → {after.shape}"
    if abs(one.count - two.count) > 1e-6 * max(one.count, two.count):
        yield f"{one.count:.3g} × → {two.count:.3g} × a step"
    if one.sync == two.sync and set(one.beside) != set(two.beside):
        yield f"beside {', '.join(two.beside[:2]) or 'nothing'}, was {', '.join(one.beside[:2]) or 'nothing'}"


def _layers(before: MeasuredStep, after: MeasuredStep, least_us: float) -> tuple[tuple[str, str, float, float], ...]:
    times: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for side, step in enumerate((before, after)):
        for layer in step.layers.scopes if step.layers is not None else ():
            times[layer.name, layer.phase][side] += layer.us
    rows = [(name, phase, one, two) for (name, phase), (one, two) in times.items() if abs(two - one) >= least_us]
    return tuple(sorted(rows, key=lambda row: (-abs(row[3] - row[2]), row[:2])))
