"""What a measured step loses to collectives and to ranks that differ: one function per finding."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import islice
from math import prod
from statistics import median

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.findings import LEAST_SAVED, ROWS, THRESHOLDS, Evidence, Finding, in_percent, in_words
from pgle.analyze.layers import Phase, phases_of
from pgle.costs.estimate.communication import group_us
from pgle.costs.estimate.network import LAUNCH_US, Group
from pgle.errors import many
from pgle.next import DOCTOR, PROFILE, REHEARSE, RUN, TUNE
from pgle.schedule.compare import DISABLE_ASYNC
from pgle.xla.collectives import KINDS
from pgle.xla.hlo.module import Module

GRADIENT_BYTES = 4  # of a gradient in f32, the largest type it is usually reduced in

_STATE = re.compile(r"opt|\bmu\b|\bnu\b|\['[mv]'\]|ema|moment")
"""In names of arguments: the optimizer's state, which is as large as the parameters."""

LEAST_HIDDEN = 0.001  # of the step; less is no reason for another profile
SMALL_BYTES = 1 << 20  # of a collective that ought to be combined with others


def synchronous(step: MeasuredStep) -> Finding | None:
    """Collectives in turn with compute, unless the recording itself keeps them so."""
    ours = sorted((item for item in step.collectives if item.sync), key=lambda item: -item.transfer_exposed_us)
    share = sum(item.transfer_exposed_us for item in ours) / step.step_us
    if share <= THRESHOLDS["synchronous-collective"].limit or step.measures_alone:
        return None
    rooms = {} if step.overlap is None else {room.name: room for room in step.overlap.rooms}
    why = {item.name: rooms[item.name].why if item.name in rooms else "" for item in ours}
    stuck = bool(rooms) and not any(rooms[item.name].hideable_us for item in ours if item.name in rooms)
    return Finding(
        "synchronous-collective",
        share,
        many(len(ours), "synchronous collective"),
        _rows((item, "; ".join(filter(None, (item.kind, why[item.name])))) for item in ours),
        _NOTHING_BESIDE if stuck else _MAKE_ASYNC,
    )


_AS_THEY_ARE = f"these collectives as they are: '{TUNE}' tries combined, split and pipelined ones"
_NOTHING_BESIDE = f"no compute is independent of them, so no schedule hides {_AS_THEY_ARE}"
_MAKE_ASYNC = (
    f"make them asynchronous: see that {DISABLE_ASYNC} does not name their kind, then '{REHEARSE}' says whether "
    "the scheduler finds compute to overlap them with"
)


def _rows(of: Iterable[tuple[MeasuredCollective, str]]) -> tuple[Evidence, ...]:
    """The first of some exposed collectives, each with a note."""
    rows = (Evidence(item.name, item.transfer_exposed_us, note, item.op_name) for item, note in of)
    return tuple(islice((row for row in rows if row.us > 0), ROWS))


def exposed(step: MeasuredStep) -> Finding | None:
    """Asynchronous collectives that no compute overlaps, after the last rank arrived."""
    share = step.async_exposed_us / step.step_us
    if share < THRESHOLDS["exposed-communication"].limit:
        return None
    ours = sorted((item for item in step.collectives if not item.sync), key=lambda item: -item.transfer_exposed_us)
    return Finding(
        "exposed-communication",
        share,
        "asynchronous collectives run while nothing computes",
        _rows((item, _beside(item)) for item in ours),
        _remedy(step, {item.name for item in ours}),
    )


def _remedy(step: MeasuredStep, names: Collection[str]) -> str:
    """A profile where a schedule could hide it, other flags where none can."""
    overlap = step.overlap
    if overlap is None:
        return f"give the scheduler measured costs ('{RUN}'), or search flags without a GPU ('{TUNE}')"
    rooms = [room for room in overlap.rooms if room.name in names]
    hideable = sum(room.hideable_us for room in rooms) / step.step_us
    stuck = sum(room.exposed_us for room in rooms) / step.step_us - hideable
    profile = f"a profile of this program ('{RUN}')" if overlap.use is None else f"a fresh profile ('{PROFILE}')"
    if hideable < LEAST_HIDDEN:
        return f"no schedule hides {_AS_THEY_ARE}"
    return (
        f"there is compute to hide {in_percent(hideable)} of the step behind: {profile} lets the scheduler see it; the "
        f"other {in_percent(stuck)} no schedule hides: '{TUNE}' tries combined and pipelined collectives"
    )


def _beside(item: MeasuredCollective) -> str:
    return f"{item.kind}, overlaps {', '.join(item.beside[:2]) or 'nothing'}"


def rank_skew(step: MeasuredStep) -> Finding | None:
    """A rank that arrives later at collectives than the others, which wait for it."""
    late = step.late
    if not late.devices:
        return None
    of_one = late.devices[0][1]
    waited_us = of_one if of_one >= (1 - LEAST_LATE) * late.us else late.us
    share = waited_us / step.step_us
    if share < THRESHOLDS["rank-skew"].limit:
        return None
    ranks = [
        Evidence(step.rank_name(device), us, f"the others wait for it; last in {count} of {late.steps} steps")
        for device, us, count in late.devices
        if us >= LEAST_LATE * late.us
    ]
    slow = sorted(step.compute, key=lambda item: -(item.cost.skew_us or 0.0) * item.count)
    longer = [
        Evidence(item.cost.name, (item.cost.skew_us or 0.0) * item.count, "longer on the slowest rank", item.op_name)
        for item in slow
        if (item.cost.skew_us or 0.0) * item.count >= LEAST_LATE * late.us
    ]
    idlest, more_us = _idlest(step)
    if more_us >= LEAST_LATE * late.us:
        longer.insert(0, Evidence(f"idle on {idlest}", more_us, "more than on the other ranks"))
    who = f"for {step.late_rank}" if step.late_rank else "for the last one, which differs"
    waits = sorted(step.collectives, key=lambda item: -item.wait_us)
    rows = [*ranks[:ROWS], *longer[:ROWS]]
    rows += [Evidence(item.name, item.wait_us, "waits here, mean over ranks", item.op_name) for item in waits[:1]]
    return Finding(
        "rank-skew",
        share,
        f"the other ranks wait {in_percent(share)} of the step ({in_words(waited_us)}) {who}",
        tuple(rows),
        "even out these instructions: alike data on each rank, or an algorithm whose time does not hang on the data; "
        f"if all of them are slow on one rank, check its clocks ('{DOCTOR}' there); if it is idle, check its host",
    )


LEAST_LATE = 0.1  # of the wait; what explains less is not shown


def _idlest(step: MeasuredStep) -> tuple[str, float]:
    """The device with most gaps over 20 µs inside steps, and how much more that is than on the typical other one."""
    if len(step.windows) < 2:
        return "", 0.0
    us = [float(item.waits.length[item.waits.inside].sum()) / item.steps / 1e3 for item in step.windows]
    most = max(range(len(us)), key=us.__getitem__)
    return step.rank_name(step.windows[most].device), us[most] - median(us[:most] + us[most + 1 :])


_CHECK_LINKS = (
    "check NVLink and NCCL's choice (NCCL_DEBUG=INFO), and the kernels that overlap them, which take bandwidth and SMs"
)


def slow_collectives(step: MeasuredStep) -> Finding | None:
    """Collectives slower than XLA's table; only what is exposed of them counts."""
    slow: list[tuple[float, MeasuredCollective]] = []
    for item in step.collectives:
        if item.link is not None and item.link.estimate_us < THRESHOLDS["slow-collective"].limit * item.time_us:
            lost = min((item.time_us - item.link.estimate_us) * item.count, item.transfer_exposed_us)
            slow.append((lost, item))
    slow.sort(key=lambda row: -row[0])
    share = sum(row[0] for row in slow) / step.step_us
    if share < LEAST_SAVED or step.hardware is None:
        return None
    partly, remedy = "", _CHECK_LINKS
    if len(step.windows) < max(step.costs.ranks, 2):
        partly = " (waits for the ranks that are missing count as transfer)"
        remedy = f"trace all ranks first: that separates waiting from transfer; if they are still slow: {_CHECK_LINKS}"
    return Finding(
        "slow-collective",
        share,
        f"{many(len(slow), 'collective')} run at less than 70 % of the speed expected on {step.hardware.name.upper()}"
        f"{partly}",
        tuple(
            Evidence(
                item.name, lost, f"{in_words(item.time_us)}, expected {in_words(item.link.estimate_us)}", item.op_name
            )
            for lost, item in slow[:ROWS]
            if item.link is not None
        ),
        remedy,
    )


def small_collectives(step: MeasuredStep) -> Finding | None:
    """Collectives of one computation that could be one: each but one would save its latency."""
    groups: dict[tuple[str, str, int], list[MeasuredCollective]] = defaultdict(list)
    for item in step.collectives:
        if item.link is not None and item.link.payload_bytes < SMALL_BYTES:
            groups[item.kind, item.instruction.computation if item.instruction else "", item.link.group].append(item)
    rows = []
    for (kind, computation, group), items in groups.items():
        if len(items) >= THRESHOLDS["small-collectives"].limit and step.hardware is not None:
            table = KINDS[kind].measured
            fixed = group_us(table, Group(group, 1), 1, step.hardware) if table else LAUNCH_US
            launches = sum(item.count for item in items) - max(item.count for item in items)
            saved = min(launches * fixed, sum(item.transfer_exposed_us for item in items))
            size = sum(item.link.payload_bytes for item in items if item.link) / len(items) / 1024
            rows.append(Evidence(f"{len(items)} × {kind}", saved, f"{size:.3g} KiB each, in {computation}"))
    share = sum(row.us for row in rows) / step.step_us
    if share < LEAST_SAVED:
        return None
    return Finding(
        "small-collectives",
        share,
        "small collectives could be combined, which saves latency",
        tuple(sorted(rows, key=lambda row: -row.us)[:ROWS]),
        f"raise --xla_gpu_{{all_gather,all_reduce,reduce_scatter}}_combine_threshold_bytes; '{TUNE}' tries them",
    )


def gradient_reduction(step: MeasuredStep) -> Finding | None:
    """Gradients that are reduced more than once, or in a larger type than they need."""
    module = step.module
    parameters = 0 if module is None else _parameters(module)
    if module is None or not parameters:
        return None
    phases = phases_of(module)
    ours = [
        item
        for item in step.collectives
        if item.kind in ("all-reduce", "reduce-scatter") and item.link is not None and item.instruction is not None
        and phases.get(item.instruction.name) in (Phase.BACKWARD, Phase.OPTIMIZER)
    ]  # fmt: skip
    shards = max((item.link.group for item in ours if item.link and item.kind == "reduce-scatter"), default=1)
    reduced = sum(item.link.payload_bytes * item.count for item in ours if item.link is not None)
    ratio = reduced / (parameters * shards * GRADIENT_BYTES)
    if ratio < THRESHOLDS["gradient-reduction"].limit:
        return None
    return Finding(
        "gradient-reduction",
        sum(item.transfer_exposed_us for item in ours) * (1 - 1 / ratio) / step.step_us,
        f"{reduced / 2**20:.4g} MiB are reduced for {parameters * shards / 1e6:.3g} M parameters, {ratio:.2g} times "
        f"their size at {GRADIENT_BYTES} bytes each",
        tuple(
            Evidence(item.name, item.transfer_exposed_us,
                     f"{item.count:.3g} × {item.link.payload_bytes / 2**20:.3g} MiB", item.op_name)
            for item in sorted(ours, key=lambda item: -item.transfer_exposed_us)[:ROWS]
            if item.link is not None
        ),
        "add the gradients of microbatches up, then reduce them once, in the type they are kept in",
    )  # fmt: skip


def _parameters(module: Module) -> int:
    """Elements of the model's parameters on one device, by what the framework calls the arguments; 0 where unknown."""
    return sum(
        prod(item.shape.dimensions)
        for item in module.entry_computation.instructions
        if item.opcode == "parameter" and "param" in item.op_name and not _STATE.search(item.op_name)
    )
