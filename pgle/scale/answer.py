"""The answer: a row for a program at one size, in one variant, and what the rows say together.

That is ranges that widen with size, efficiency, where a program stops to scale, and why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import hypot, inf, prod

from pgle.account.value import Account
from pgle.costs.estimate.communication import group_of
from pgle.costs.estimate.products import attention_operations, matmuls
from pgle.costs.estimate.unknown import size_spread
from pgle.costs.profile.value import has_remat
from pgle.schedule.predict import ESTIMATE_RANGE, Prediction
from pgle.xla.collective_kinds import KINDS
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.trips import trip_count
from pgle.xla.matrix_products import is_product
from pgle.xla.targets import Hardware

PARTS = {
    "compute": "compute_us",
    "exposed communication": "exposed_us",
    "copies": "copy_us",
    "idle time": "idle_us",
}
"""Of a step, in words, and their fields in a row."""
Range = tuple[float, float]

BREAKS = 0.9
"""Efficiency from which on a program counts as scaling; a convention: nine tenths of the GPUs' work
for the money.
"""


@dataclass(frozen=True, slots=True)
class Exposed:
    """The collectives of one kind among groups of one size."""

    kind: str  # ``all-reduce``
    group: int  # devices that talk to each other
    hosts: int  # that they are on
    fabric: str  # the slowest links between them: the GPU's own, or ``network``
    time_us: float  # of all executions in a step
    exposed_us: float  # the part during which nothing computes
    count: int  # executions in a step
    # of `exposed_us`, the part of collectives whose arrays are as large as weights
    weights_us: float = 0.0

    @property
    def moves_weights(self) -> bool:
        """Whether weights or gradients, and not activations, are most of the exposed
        communication.
        """
        return 2 * self.weights_us > self.exposed_us

    @property
    def moves_gradients(self) -> bool:
        """Whether gradients are most of the exposed communication."""
        return KINDS[self.kind].moves == "gradients" and self.moves_weights


@dataclass(frozen=True)
class RowControl:
    """A row's second compilation, with other kernels for matrix products."""

    flag: str  # by which XLA takes them
    row: ScaleRow | None = None  # None: it makes the same program, or failed
    failure: str = ""  # in one line


@dataclass(frozen=True)
class ScaleRow:
    """What was found at one size; times in microseconds of one step, on one GPU."""

    devices: int
    values: Mapping[str, str] = field(default_factory=dict)  # of each varied name
    shown: Mapping[str, str] = field(
        default_factory=dict
    )  # the same as they are at this size
    failure: str = ""  # why there is no step, in one line; then all below is empty
    module: str = ""  # name of the step's module
    hosts: int = 1
    step_us: float = 0.0
    # least_us, most_us: the range of the step that follows from estimated costs and contention
    least_us: float = 0.0
    most_us: float | None = 0.0  # None: no end, the step is a lower bound
    compute_us: float = 0.0
    exposed_us: float = 0.0  # collectives run, nothing computes
    copy_us: float = 0.0  # only copies run
    idle_us: float = 0.0  # nothing runs
    ceiling_us: float = 0.0  # the step if all communication were hidden
    by_collective: tuple[Exposed, ...] = ()  # the most exposed first
    operations: float = 0.0  # as of `operations_of`
    # argument_bytes, temp_bytes, memory_bytes: device memory by XLA's report, memory_bytes in all;
    # None: no report
    argument_bytes: int | None = None
    temp_bytes: int | None = None
    memory_bytes: int | None = None
    limit_bytes: int | None = None  # that jax's allocator has; None: no limit
    costs_are: str = "estimated"  # ``measured``, ``simulated and estimated``, …
    covered_share: float | None = (
        None  # of the computing time, the part with a cost of the given profile
    )
    wall_s: float = 0.0  # that the row took
    scheduled: str = ""  # file of the scheduled module, from the folder of all rows on
    # file of the program's module, from that folder on, if it is larger than a capture
    grown: str = ""
    warnings: tuple[str, ...] = ()
    fitted: str = ""  # the name whose value was chosen so that the row fits
    tried: Mapping[str, int | None] = field(
        default_factory=dict
    )  # by value of the fitted name, its memory_bytes
    control: RowControl | None = None  # None: nothing hangs on kernels of products
    account: Account | None = None  # as `pgle rehearse` has it of this size

    @property
    def fits(self) -> bool | None:
        """Whether it fits into the memory of jax's allocator; None where XLA left no report."""
        if self.memory_bytes is None:
            return None
        return self.limit_bytes is None or self.memory_bytes <= self.limit_bytes

    @property
    def tflops(self) -> float:
        """10^12 operations of `operations` per second and GPU: what MFU is computed from."""
        return self.operations / self.step_us / 1e6 if self.step_us else 0.0

    @property
    def variant(self) -> tuple[tuple[str, str], ...]:
        """What it shares with the rows of other sizes."""
        return tuple(pair for pair in self.values.items() if pair[0] != self.fitted)


def exposed_by_collective(
    module: Module, prediction: Prediction, hardware: Hardware
) -> tuple[Exposed, ...]:
    """The collectives of a step by kind, group and hosts, the most exposed first."""
    found: dict[tuple[str, int, int], Exposed] = {}
    weights = _weight_sizes(module)
    flow = _Flow.of(module)
    for item in prediction.timeline.exposures:
        if item.kind not in KINDS or item.name not in module.instructions:
            continue
        instruction = module.instructions[item.name]
        inner = module.operation(instruction)
        size, hosts = _reach(module, inner, hardware)
        # activations come from products and go to others; weights and gradients do one of both
        is_weights = _moves_weights(module, item.kind, inner, size, weights) and not (
            item.name in flow.before
            and (item.name in flow.after or KINDS[item.kind].moves == "gradients")
        )
        fabric = "network" if hosts > 1 else hardware.library.fabric
        nothing = Exposed(
            kind=item.kind,
            group=size,
            hosts=hosts,
            fabric=fabric,
            time_us=0.0,
            exposed_us=0.0,
            count=0,
        )
        was = found.get((item.kind, size, hosts), nothing)
        found[item.kind, size, hosts] = replace(
            was,
            time_us=was.time_us + item.duration_us,
            exposed_us=was.exposed_us + item.exposed_us,
            count=was.count + item.count,
            weights_us=was.weights_us + item.exposed_us * is_weights,
        )
    return tuple(
        sorted(
            found.values(),
            key=lambda item: (-item.exposed_us, -item.time_us, item.kind),
        )
    )


def _weight_sizes(module: Module) -> frozenset[int]:
    """Elements of what a step returns, its weights and the optimizer's state, and of their slices
    in loops.
    """
    root = module.instructions[module.entry_computation.root].shape
    trips = {
        count
        for item in module.walk()
        if item.opcode == "while" and (count := trip_count(module, item))
    } | {1}
    sizes = {prod(shape.dimensions) for shape in root.arrays if shape.dimensions}
    slices = product(sizes, trips)
    return frozenset(
        size // count for size, count in slices if size % count == 0 and size > count
    )


@dataclass(frozen=True)
class _Flow:
    """What matrix products and loops feed and use, each within its computation."""

    after: frozenset[str]  # instructions that one feeds, itself or through others
    before: frozenset[str]  # instructions that feed one

    @classmethod
    def of(cls, module: Module) -> _Flow:
        after = set[str]()
        before = set[str]()
        for computation in map(module.computations.__getitem__, module.scheduled):
            works = {
                item.name
                for item in computation.instructions
                if item.opcode == "while" or is_product(module, item)
            }
            for item in computation.instructions:
                if any(name in works or name in after for name in item.operands):
                    after.add(item.name)
            for item in reversed(computation.instructions):
                if item.name in works or item.name in before:
                    before.update(item.operands)
        return cls(frozenset(after), frozenset(before))


def _moves_weights(
    module: Module, kind: str, item: Instruction, group: int, weights: Collection[int]
) -> bool:
    """Whether half of the bytes of a collective, as each GPU holds them, are as large as weights or
    their gradients.
    """
    if not KINDS[kind].moves:
        return False
    shapes = [
        module.instructions[name].shape
        for name in item.operands
        if name in module.instructions
    ]
    parts = group if kind == "reduce-scatter" else 1
    alike = sum(
        shape.size_bytes
        for shape in shapes
        if prod(shape.dimensions) // parts in weights
    )
    return 2 * alike > sum(shape.size_bytes for shape in shapes)


def _reach(
    module: Module, instruction: Instruction, hardware: Hardware
) -> tuple[int, int]:
    """Devices that talk to each other, and hosts that they are on; of a permute those of its
    longest jump.
    """
    if pairs := instruction.source_target_pairs:
        jumps = (len({hardware.host(device) for device in pair}) for pair in pairs)
        return len(set(chain.from_iterable(pairs))), max(jumps)
    group = group_of(module, instruction, hardware)
    return group.size, group.hosts


RECOMPUTED = "rematted_computation"
"""In the framework's name of what `jax.checkpoint` computes again; XLA ends names of its own copies
in ``.remat``.
"""


def operations_of(module: Module, prediction: Prediction) -> float:
    """Operations of matrix products and attention in a step, on one GPU, without recomputation."""
    timeline = prediction.timeline
    counts = timeline.executions.tolist()
    total = 0.0
    for name, count in zip(timeline.names, counts, strict=True):
        item = module.instructions.get(name)
        if count and item is not None and not _is_recomputed(module, item):
            once = sum(
                product.operations for product in matmuls(module, item)
            ) or attention_operations(module, item)
            total += once * count
    return total


def _is_recomputed(module: Module, item: Instruction) -> bool:
    fused = module.fused(item)
    inner = (
        ()
        if fused is None
        else (one for one in fused.instructions if one.opcode in ("dot", "convolution"))
    )
    return has_remat(item.name) or any(
        RECOMPUTED in one.op_name for one in (item, *inner)
    )


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured step at one size and what was predicted for it, microseconds: it moves the steps
    of all sizes.
    """

    devices: int
    measured_us: float
    predicted_us: float

    @property
    def factor(self) -> float:
        """What predicted steps are multiplied by: costs are taken to be off by the same share at
        every size.
        """
        return self.measured_us / self.predicted_us

    def ends_us(self, step_us: float) -> tuple[float, float]:
        """The step multiplied and the step with the difference added instead, the smaller first.
        One measured size cannot tell the two apart; they are equal there.
        """
        added = max(step_us + self.measured_us - self.predicted_us, 0.0)
        low, high = sorted((step_us * self.factor, added))
        return low, high


@dataclass(frozen=True)
class Judged:
    """A size, compared with the first row."""

    row: ScaleRow
    step_us: float = 0.0  # moved by the anchor, if there is one
    interval_us: Range = (0.0, 0.0)
    efficiency: float | None = (
        None  # work per second and GPU against the first row's; None where there is no step
    )
    efficiency_range: Range = (0.0, 0.0)
    flat: float | None = None  # step against the first row's
    scaling: float | None = None  # efficiency against the first row of its own variant


@dataclass(frozen=True)
class ScaleAnswer:
    """Every size, compared with the smallest one that has a step."""

    rows: tuple[Judged, ...]
    # the smallest size, which others are compared with; None where no row has a step
    first: Judged | None
    # the rows of the variant that is fastest at the largest size
    best: tuple[Judged, ...]
    breaks: Judged | None  # of `best`, the first whose `scaling` is below `BREAKS`
    # the collectives exposed more there than in the first of `best`
    culprit: Exposed | None
    culprit_share: float  # of the step that it is exposed for there
    anchor: Anchor | None

    @property
    def with_step(self) -> tuple[Judged, ...]:
        """The rows that have a step."""
        return tuple(item for item in self.rows if not item.row.failure)

    @property
    def judged(self) -> Judged:
        """Of `best`, the row that the verdict is about: where it breaks, else the largest size."""
        return self.breaks or self.best[-1]

    @property
    def breaks_at(self) -> int | None:
        """The devices of `breaks`."""
        return None if self.breaks is None else self.breaks.row.devices

    @property
    def scales_to(self) -> int | None:
        """The largest size of `best` before it breaks."""
        until = inf if self.breaks is None else self.breaks.row.devices
        return max(
            (item.row.devices for item in self.best if item.row.devices < until),
            default=None,
        )

    @property
    def nearest(self) -> Judged | None:
        """Of the rows that do not fit, the one that lacks least memory."""
        large = (item for item in self.rows if item.row.fits is False)
        return min(
            large,
            key=lambda item: (item.row.memory_bytes or 0) - (item.row.limit_bytes or 0),
            default=None,
        )

    @property
    def grows(self) -> str:
        """The part of the step that grew most, for the same work, from the first row of `best` to
        where it breaks.
        """
        if self.breaks is None:
            return ""
        first, row = self.best[0].row, self.breaks.row
        work = (row.operations or 1.0) / (first.operations or 1.0)
        more_us = {
            words: getattr(row, name) - work * getattr(first, name)
            for words, name in PARTS.items()
        }
        return max(more_us, key=more_us.__getitem__)

    @property
    def good(self) -> bool:
        """Whether there is a step that fits."""
        return any(item.row.fits is not False for item in self.with_step)


def answer(
    rows: Sequence[ScaleRow], measured: Mapping[int, float] | None = None
) -> ScaleAnswer:
    """Judge all rows.

    Args:
        rows: of any order; those of smaller sizes come first in the answer.
        measured: microseconds of a measured step by size, one at most; the first variant's.
    """
    rows = sorted(rows, key=lambda row: row.devices)
    there = [row for row in rows if not row.failure and row.step_us > 0]
    if not there:
        return ScaleAnswer(
            rows=tuple(map(Judged, rows)),
            first=None,
            best=(),
            breaks=None,
            culprit=None,
            culprit_share=0.0,
            anchor=None,
        )
    measured_us = measured or {}
    anchors = (
        Anchor(row.devices, measured_us[row.devices], row.step_us)
        for row in there
        if row.devices in measured_us
    )
    anchor = next(anchors, None)
    own = {row.variant: row for row in reversed(there)}
    judged = tuple(
        _judged(row, there[0], own.get(row.variant, row), anchor) for row in rows
    )
    first = next(item for item in judged if item.row is there[0])
    best = _best(judged)
    breaks = next(
        (item for item in best if item.scaling is not None and item.scaling < BREAKS),
        None,
    )
    culprit, share = (
        (None, 0.0) if breaks is None else _culprit(breaks.row, best[0].row)
    )
    return ScaleAnswer(
        rows=judged,
        first=first,
        best=best,
        breaks=breaks,
        culprit=culprit,
        culprit_share=share,
        anchor=anchor,
    )


def _judged(
    row: ScaleRow, first: ScaleRow, own: ScaleRow, anchor: Anchor | None
) -> Judged:
    if row.failure or not row.step_us:
        return Judged(row)
    # Of the estimates, compute is off by about the same share at both sizes; communication is not.
    modelled = [
        abs(factor - 1) * row.exposed_us / row.step_us for factor in ESTIMATE_RANGE
    ]
    faster, slower = size_spread(first.devices, row.devices)
    efficiency = _rate(row) / _rate(first)
    down = hypot(modelled[1], slower - 1)
    up = hypot(modelled[0], 1 - faster)
    if row is first:
        down = up = 0.0
    factor = 1.0 if anchor is None else anchor.factor
    scaling = _rate(row) / _rate(own)
    return Judged(
        row,
        step_us=row.step_us * factor,
        interval_us=_interval(row, first, anchor),
        efficiency=efficiency,
        efficiency_range=(efficiency / (1 + down), efficiency / max(1 - up, 0.1)),
        flat=row.step_us / first.step_us,
        scaling=scaling,
    )


def _interval(row: ScaleRow, first: ScaleRow, anchor: Anchor | None) -> Range:
    """The range of a step: what the prediction does not know of itself, and what no compiler knows
    of another size.

    With an anchor the prediction's own doubt is gone, but for communication that the anchor's size
    does not have.
    """
    known_at = first.devices if anchor is None else anchor.devices
    low, high = size_spread(known_at, row.devices)
    if anchor is None:
        step_us = row.step_us
        least_us = row.least_us
        most_us = inf if row.most_us is None else row.most_us
    else:
        step_us = row.step_us * anchor.factor
        least_us, most_us = anchor.ends_us(row.step_us)
    down_us = hypot(step_us - least_us, step_us * (1 - low))
    up_us = hypot(most_us - step_us, step_us * (high - 1))
    return max(step_us - down_us, 0.0), step_us + up_us


def _rate(row: ScaleRow) -> float:
    """Work per time of one GPU."""
    return (row.operations or 1.0) / row.step_us


def _best(judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """The rows of the variant that does most work per second at the largest size; one that does not
    fit comes last.
    """
    there = [item for item in judged if item.efficiency is not None]
    last = max(
        there,
        key=lambda item: (
            item.row.fits is not False,
            item.row.devices,
            item.efficiency or 0.0,
        ),
    )
    return tuple(item for item in there if item.row.variant == last.row.variant)


def _culprit(row: ScaleRow, first: ScaleRow) -> tuple[Exposed | None, float]:
    """What grew most from the first row, as a share of the step."""
    before = defaultdict[str, float](float)
    for item in first.by_collective:
        before[item.kind] += item.exposed_us / first.step_us
    if not row.by_collective:
        return None, 0.0
    worst = max(
        row.by_collective,
        key=lambda item: item.exposed_us / row.step_us - before[item.kind],
    )
    return (
        (worst, worst.exposed_us / row.step_us) if worst.exposed_us > 0 else (None, 0.0)
    )
