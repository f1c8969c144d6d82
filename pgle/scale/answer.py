"""The answer of `scale`: a row for each size and variant of a program, and conclusions from all.

The conclusions are ranges that widen with size, efficiency, and where and why a program stops to
scale.
"""

from __future__ import annotations

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
"""The parts of a step in words, with their fields in a row."""
Range = tuple[float, float]

BREAKS = 0.9
"""A program scales if its efficiency is at least this. It is a convention: users get nine tenths of
the work that they pay for.
"""


@dataclass(frozen=True, slots=True)
class Exposed:
    """The collectives of one kind among groups of one size."""

    kind: str  # ``all-reduce``
    group: int  # devices that communicate with each other
    hosts: int  # hosts of these devices
    fabric: str  # the slowest links between them: the GPU's own, or ``network``
    time_us: float  # all executions in a step
    exposed_us: float  # the part during which nothing computes
    count: int  # executions in a step
    # the part of `exposed_us` from collectives whose arrays are as large as weights
    weights_us: float = 0.0

    @property
    def moves_weights(self) -> bool:
        """Whether most of the exposed communication is of weights or gradients, not of
        activations.
        """
        return 2 * self.weights_us > self.exposed_us

    @property
    def moves_gradients(self) -> bool:
        """Whether most of the exposed communication is of gradients."""
        return KINDS[self.kind].moves == "gradients" and self.moves_weights


@dataclass(frozen=True)
class RowControl:
    """A row's second compilation, with other kernels for matrix products."""

    flag: str  # the flag that makes XLA use them
    row: ScaleRow | None = None  # None if it makes the same program, or failed
    failure: str = ""  # why there is no second compilation, in one line


@dataclass(frozen=True)
class ScaleRow:
    """The result at one size. Times are microseconds of one step, on one GPU."""

    devices: int
    values: Mapping[str, str] = field(default_factory=dict)  # by varied name
    # the same with placeholders replaced by this size's numbers
    shown: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""  # why there is no step, in one line; then all below is empty
    module: str = ""  # name of the step's module
    hosts: int = 1
    step_us: float = 0.0
    # least_us, most_us: the range of the step, from estimated costs and contention
    least_us: float = 0.0
    most_us: float | None = 0.0  # None if the step is a lower bound
    compute_us: float = 0.0
    exposed_us: float = 0.0  # collectives run, nothing computes
    copy_us: float = 0.0  # only copies run
    idle_us: float = 0.0  # nothing runs
    ceiling_us: float = 0.0  # the step if all communication were hidden
    by_collective: tuple[Exposed, ...] = ()  # the most exposed first
    operations: float = 0.0  # from `operations_of`
    # argument_bytes, temp_bytes, memory_bytes: device memory by XLA's report, memory_bytes in all;
    # None if there is no report
    argument_bytes: int | None = None
    temp_bytes: int | None = None
    memory_bytes: int | None = None
    limit_bytes: int | None = None  # memory of jax's allocator; None if unlimited
    costs_are: str = "estimated"  # ``measured``, ``simulated and estimated``, …
    # share of the computing time whose cost is in the given profile
    covered_share: float | None = None
    wall_s: float = 0.0  # time to make the row
    scheduled: str = ""  # file of the scheduled module, relative to the folder of rows
    # file of the program's module in that folder, if it was grown from smaller captures
    grown: str = ""
    warnings: tuple[str, ...] = ()
    fitted: str = ""  # the name whose value was chosen so that the row fits
    # memory_bytes by value of the fitted name
    tried: Mapping[str, int | None] = field(default_factory=dict)
    control: RowControl | None = None  # None if kernels of products do not matter
    account: Account | None = None  # the account of `pgle rehearse` at this size

    @property
    def fits(self) -> bool | None:
        """Whether it fits into the memory of jax's allocator; None if XLA wrote no report."""
        if self.memory_bytes is None:
            return None
        return self.limit_bytes is None or self.memory_bytes <= self.limit_bytes

    @property
    def most_exposed(self) -> Exposed | None:
        """The collectives that are exposed longest; None if none is exposed."""
        first = next(iter(self.by_collective), None)
        return first if first is not None and first.exposed_us > 0 else None

    @property
    def tflops(self) -> float:
        """10^12 operations per second and GPU, from which MFU is computed."""
        return self.operations / self.step_us / 1e6 if self.step_us else 0.0

    @property
    def variant(self) -> tuple[tuple[str, str], ...]:
        """The varied values, without the fitted one. Rows of other sizes share them."""
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
        # activations come from products and feed others; weights and gradients do only one of both
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
    """Numbers of elements of the arrays that a step returns (weights, the optimizer's state), and
    of their slices in loops.
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
    """Instructions before and after matrix products and loops, within each computation."""

    after: frozenset[str]  # a product or loop feeds them, directly or through others
    before: frozenset[str]  # they feed a product or loop, directly or through others

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
    """Whether more than half of a collective's bytes are in arrays as large as weights or their
    gradients, as each GPU holds them.
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
    """(devices, hosts) that a collective connects. For a permute, hosts are 2 if any pair crosses
    hosts.
    """
    if pairs := instruction.source_target_pairs:
        jumps = (len({hardware.host(device) for device in pair}) for pair in pairs)
        return len(set(chain.from_iterable(pairs))), max(jumps)
    group = group_of(module, instruction, hardware)
    return group.size, group.hosts


RECOMPUTED = "rematted_computation"
"""JAX has it in names of values that `jax.checkpoint` computes again. XLA's own copies have names
that end in ``.remat``.
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
    """The measured and the predicted step at one size, in microseconds. It corrects the predicted
    steps of all sizes.
    """

    devices: int
    measured_us: float
    predicted_us: float

    @property
    def factor(self) -> float:
        """The factor for predicted steps. It assumes that costs have the same relative error at
        every size.
        """
        return self.measured_us / self.predicted_us

    def ends_us(self, step_us: float) -> tuple[float, float]:
        """The predicted step corrected by the factor, and corrected by the difference instead. The
        smaller is first.

        One measured size cannot tell which correction is right. At that size they are equal.
        """
        added = max(step_us + self.measured_us - self.predicted_us, 0.0)
        low, high = sorted((step_us * self.factor, added))
        return low, high


@dataclass(frozen=True)
class Judged:
    """A row, compared with the first row. Ratios are None if the row has no step."""

    row: ScaleRow
    step_us: float = 0.0  # corrected by the anchor, if there is one
    interval_us: Range = (0.0, 0.0)
    # work per second and GPU, divided by the first row's
    efficiency: float | None = None
    efficiency_range: Range = (0.0, 0.0)
    flat: float | None = None  # step, divided by the first row's
    scaling: float | None = None  # as `efficiency`, for its variant's first row


@dataclass(frozen=True)
class ScaleAnswer:
    """Every size, compared with the smallest one that has a step."""

    rows: tuple[Judged, ...]
    # the smallest size with a step, which others are compared with; None if no row has one
    first: Judged | None
    # the rows of the variant that is fastest at the largest size
    best: tuple[Judged, ...]
    breaks: Judged | None  # the first row of `best` whose `scaling` is below `BREAKS`
    # the collectives that are exposed longest in `breaks`
    culprit: Exposed | None
    culprit_share: float  # their exposed share of the step there
    anchor: Anchor | None

    @property
    def with_step(self) -> tuple[Judged, ...]:
        """The rows that have a step."""
        return tuple(item for item in self.rows if not item.row.failure)

    @property
    def judged(self) -> Judged:
        """The row of `best` for the verdict: `breaks`, else the largest size."""
        return self.breaks or self.best[-1]

    @property
    def breaks_at(self) -> int | None:
        """The devices of `breaks`; None if it scales to all sizes."""
        return None if self.breaks is None else self.breaks.row.devices

    @property
    def scales_to(self) -> int | None:
        """The devices of the largest size of `best` before `breaks`; None if there is none."""
        until = inf if self.breaks is None else self.breaks.row.devices
        return max(
            (item.row.devices for item in self.best if item.row.devices < until),
            default=None,
        )

    @property
    def nearest(self) -> Judged | None:
        """The row that does not fit but lacks least memory; None if all fit."""
        large = (item for item in self.rows if item.row.fits is False)
        return min(
            large,
            key=lambda item: (item.row.memory_bytes or 0) - (item.row.limit_bytes or 0),
            default=None,
        )

    @property
    def grows(self) -> str:
        """The part of the step that grew most from the first row of `best` to `breaks`, for the
        same work; empty if it scales.
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
        """Whether some row has a step and fits (or its memory is unknown)."""
        return any(item.row.fits is not False for item in self.with_step)


def answer(
    rows: Sequence[ScaleRow], measured: Mapping[int, float] | None = None
) -> ScaleAnswer:
    """Judge all rows.

    Args:
        rows: in any order. The answer has smaller sizes first.
        measured: microseconds of a measured step by size, at most one, of the first variant.
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
    culprit = None if breaks is None else breaks.row.most_exposed
    share = 0.0
    if breaks is not None and culprit is not None:
        share = culprit.exposed_us / breaks.row.step_us
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
    # Estimates of compute have about the same relative error at both sizes; communication has not.
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
    """The range of a step: the prediction's own error, and the error that grows with size.

    With an anchor, the two possible corrections replace the prediction's own error.
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
    """Work per microsecond of one GPU."""
    return (row.operations or 1.0) / row.step_us


def _best(judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """The rows of the variant that does most work per second at the largest size. A variant that
    does not fit there loses to one that fits.
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
