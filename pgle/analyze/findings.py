"""What a measured step loses: one function per finding, each with its number, its evidence and what to do.

A finding is only made where its number passes the limit that `THRESHOLDS` gives with its source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pgle.analyze.analysis import MeasuredInstruction, MeasuredStep, total_us
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.window import LAUNCH_GAP_NS, LONG_GAP_NS
from pgle.costs.fit import perf_tables
from pgle.costs.fit.communication import LAUNCH_US
from pgle.costs.fit.compute import compute_us, matmuls
from pgle.schedule.timeline import Stream
from pgle.trace.table import Reason
from pgle.xla.collectives import KINDS
from pgle.xla.hlo.module import Instruction, Module

ROWS = 5
"""Evidence rows of a finding."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """From where on a number is a finding.

    Attributes:
        limit: what the number must reach; a share of the step where `rule` says nothing else.
        rule: in words.
        source: who says so.
    """

    limit: float
    rule: str
    source: str


_OWN = "pgle's proposal"
THRESHOLDS: Mapping[str, Threshold] = {
    "synchronous-collective": Threshold(
        0.01, "exposed time of synchronous collectives above 1 % of the step", "marin-community/marin#8054"
    ),
    "exposed-communication": Threshold(
        0.03, "exposed asynchronous communication of at least 3 % of the step", f"{_OWN}: what PGLE can give"
    ),
    "rank-skew": Threshold(
        0.02, "compute takes at least 2 % of the step longer on the slowest rank than typically", _OWN
    ),
    "scatter-add": Threshold(0.05, "scatters of at least 5 % of the step", "openxla/xla#46225, #26371"),
    "slow-matmul": Threshold(
        0.5, "matrix products below 50 % of the speed that XLA's table and a roofline give", f"{_OWN}; XLA's table"
    ),
    "idle": Threshold(0.15, "idle for more than 15 % of the window, or 3 gaps over 1 ms on one device", _OWN),
    "gaps-before-custom-calls": Threshold(
        3, "at least 3 gaps over 20 µs before custom calls in a step", f"{_OWN}; 4 × H100 MaxText job of JAX-Toolbox"
    ),
    "slow-collective": Threshold(
        0.7, "collectives below 70 % of the speed that XLA's table gives for size and group", f"{_OWN}; XLA's table"
    ),
    "small-collectives": Threshold(
        8, "at least 8 collectives of one kind in a computation, below 1 MiB each", "marin-community/marin: 1,009"
    ),
    "exposed-copies": Threshold(0.01, "exposed copies of at least 1 % of the step", "openxla/xla#45983"),
    "short-kernels": Threshold(
        0.05,
        "kernels below 3 µs and the gaps before them take at least 5 % of the step",
        f"{_OWN}; NVIDIA blog: 2.9 µs",
    ),
    "window": Threshold(0.01, "warm-up in the window, or kernels of autotuning of at least 1 % of GPU time", _OWN),
}
"""Every rule, by the id of its finding."""

LEAST_SAVED = 0.01
"""Of the step. What could be saved by faster matrix products or collectives is a finding from here on."""
LONG_GAPS = 3
SMALL_BYTES = 1 << 20
SHORT_NS = 3_000
"""A kernel that is shorter than its launch: 2.9 µs on the GPU, 3.8 with its launch ("Getting Started with CUDA Graphs",
NVIDIA technical blog, 2019)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row that a finding stands on.

    Attributes:
        name: an instruction, or what the row is of.
        us: microseconds in a step.
        note: in words.
        op_name: the framework's name; empty where unknown.
    """

    name: str
    us: float
    note: str = ""
    op_name: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs time.

    Attributes:
        id: of `THRESHOLDS`.
        share: of the step, what it could save at most; 0 where it saves nothing but spoils the measurement.
        number: what was found, in words.
        evidence: rows, the most important first.
        remedy: what to do next.
    """

    id: str
    share: float
    number: str
    evidence: tuple[Evidence, ...]
    remedy: str


def find_findings(step: MeasuredStep) -> tuple[Finding, ...]:
    """Every finding, the one that could save most first."""
    if step.breakdown.step_us <= 0:
        return ()
    found = [finding for rule in RULES if (finding := rule(step)) is not None]
    return tuple(sorted(found, key=lambda finding: -finding.share))


def _synchronous(step: MeasuredStep) -> Finding | None:
    ours = [item for item in step.collectives if item.sync]
    share = sum(item.transfer_exposed_us for item in ours) / step.breakdown.step_us
    if share <= THRESHOLDS["synchronous-collective"].limit:
        return None
    return Finding(
        "synchronous-collective",
        share,
        f"{_many(len(ours), 'synchronous collective')}: {share:.1%} of the step",
        tuple(Evidence(item.name, item.transfer_exposed_us, item.kind, item.op_name) for item in ours[:ROWS]),
        "make them asynchronous: see that --xla_gpu_disable_async_collectives does not name their kind, then "
        "'pgle rehearse' says whether the scheduler finds compute to put beside them",
    )  # fmt: skip


def _exposed(step: MeasuredStep) -> Finding | None:
    share = step.async_exposed_us / step.breakdown.step_us
    if share < THRESHOLDS["exposed-communication"].limit:
        return None
    ours = sorted((item for item in step.collectives if not item.sync), key=lambda item: -item.transfer_exposed_us)
    return Finding(
        "exposed-communication",
        share,
        f"{share:.1%} of the step is asynchronous communication with no compute beside it",
        tuple(Evidence(item.name, item.transfer_exposed_us, _beside(item), item.op_name) for item in ours[:ROWS]),
        "give the scheduler measured costs ('pgle run'), or search flags without a GPU ('pgle tune')",
    )


def _beside(item: MeasuredCollective) -> str:
    return f"{item.kind}, beside {', '.join(item.beside[:2])}" if item.beside else f"{item.kind}, beside nothing"


def _skew(step: MeasuredStep) -> Finding | None:
    skew = step.costs.skew_us or 0.0
    share = skew / step.breakdown.step_us
    if share < THRESHOLDS["rank-skew"].limit:
        return None
    slow = sorted(step.compute, key=lambda item: -(item.cost.skew_us or 0.0) * item.count)
    rows = [
        Evidence(item.cost.name, (item.cost.skew_us or 0.0) * item.count, "longer on the slowest rank", item.op_name)
        for item in slow[:ROWS]
        if (item.cost.skew_us or 0.0) > 0
    ]
    waits = sorted(step.collectives, key=lambda item: -item.wait_us)
    rows += [Evidence(item.name, item.wait_us, "waits here, mean over ranks", item.op_name) for item in waits[:1]]
    return Finding(
        "rank-skew",
        share,
        f"the other ranks wait {share:.1%} of the step ({skew / 1e3:.3g} ms) for the slowest one",
        tuple(rows),
        "even out these instructions: alike data on each rank, or an algorithm whose time does not hang on the data; "
        "if all of them are slow on one rank, check its clocks ('pgle doctor' there)",
    )


def _scatters(step: MeasuredStep) -> Finding | None:
    ours = [item for item in step.compute if _is_scatter(step.module, item)]
    share = total_us(ours) / step.breakdown.step_us
    if share < THRESHOLDS["scatter-add"].limit:
        return None
    return Finding(
        "scatter-add",
        share,
        f"{_many(len(ours), 'scatter')}: {share:.1%} of the step",
        _of_compute(ours),
        "write the gradient of the lookup as a matrix product with one-hot rows, or sort the indices first "
        "(indices_are_sorted, unique_indices)",
    )


def _is_scatter(module: Module | None, item: MeasuredInstruction) -> bool:
    """By its HLO: a scatter, alone or in a fusion; without, by its name."""
    if module is None or item.instruction is None:
        return "scatter" in item.cost.name
    return any(inner.opcode == "scatter" for inner in (item.instruction, *_inside(module, item.instruction)))


def _inside(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    for name in instruction.called if instruction.opcode == "fusion" else ():
        if name in module.computations:
            yield from module.computations[name].instructions


def _slow_matmuls(step: MeasuredStep) -> Finding | None:
    module, hardware = step.module, step.hardware
    if module is None or hardware is None:
        return None
    slow: list[tuple[float, MeasuredInstruction, float]] = []
    for item in step.compute:
        if item.instruction is not None and next(matmuls(module, item.instruction), None) is not None:
            expected = compute_us(module, item.instruction, hardware)
            if expected < THRESHOLDS["slow-matmul"].limit * item.cost.cost_us:
                slow.append(((item.cost.cost_us - expected) * item.count, item, expected))
    slow.sort(key=lambda row: -row[0])
    share = sum(row[0] for row in slow) / step.breakdown.step_us
    if share < LEAST_SAVED:
        return None
    return Finding(
        "slow-matmul",
        share,
        f"{_many(len(slow), 'matrix product')} at less than half the speed expected on {hardware.name}: {share:.1%}",
        tuple(
            Evidence(item.cost.name, saved, f"{item.cost.cost_us:.4g} µs, expected {expected:.4g}", item.op_name)
            for saved, item, expected in slow[:ROWS]
        ),
        "check dtype and precision (f32 without TF32 leaves the Tensor Cores), layouts, and sides that are no multiple "
        "of 8; let XLA autotune them (--xla_gpu_autotune_level=4)",
    )


def _idle(step: MeasuredStep) -> Finding | None:
    share = step.breakdown.idle_us / step.breakdown.step_us
    lengths = [window.gaps.end - window.gaps.start for window in step.windows]
    most = max((int((length > LONG_GAP_NS).sum()) for length in lengths), default=0)
    if share <= THRESHOLDS["idle"].limit and most < LONG_GAPS:
        return None
    parts = [window.parts for window in step.windows]
    rows = {
        "between steps: the host, its input or a transfer is late": sum(part.between_steps_ns for part in parts),
        "inside steps, gaps over 1 ms": sum(part.long_waits_ns for part in parts),
        "inside steps, 20 µs to 1 ms": sum(part.waits_ns for part in parts),
        "inside steps, launch gaps": sum(part.launch_gaps_ns for part in parts),
    }
    first = max(rows, key=rows.__getitem__)
    evidence = [
        Evidence(name, ns / 1e3 / step.steps) for name, ns in sorted(rows.items(), key=lambda row: -row[1]) if ns
    ]
    return Finding(
        "idle",
        share,
        f"no GPU work for {share:.1%} of the window; {_many(most, 'gap')} over 1 ms on one device",
        (*evidence, *_before(step)[: ROWS - 2]),
        "prefetch input to the device and take the host off the step (no block_until_ready, print or device_get in it)"
        if first.startswith("between") or "1 ms" in first
        else "let CUDA graphs launch the kernels (--xla_gpu_enable_command_buffer=FUSION,CUBLAS; not while a profile "
        "is recorded), or fuse them",
    )  # fmt: skip


def _before(step: MeasuredStep) -> list[Evidence]:
    """What waited longest in gaps inside steps that are no launch gaps."""
    time: dict[int, float] = defaultdict(float)
    count: dict[int, int] = defaultdict(int)
    for window in step.windows:
        length, here = window.gaps.end - window.gaps.start, window.inside & window.is_wait
        for row, ns in zip(window.after_gap[here].tolist(), length[here].tolist(), strict=True):
            code = int(step.trace.instruction[row])
            time[code] += ns
            count[code] += 1
    order = sorted(time, key=lambda code: -time[code])
    return [
        Evidence(
            f"before {step.trace.instructions[code]}",
            time[code] / 1e3 / step.steps,
            f"{count[code] / step.steps:.3g} gaps a step, {time[code] / count[code] / 1e3:.3g} µs each",
        )
        for code in order
    ]


def _gaps_before_custom_calls(step: MeasuredStep) -> Finding | None:
    if step.module is None:
        return None
    targets = {item.name: item.custom_call_target for item in step.module.walk() if item.opcode == "custom-call"}
    rows = [row for row in _before(step) if row.name[len("before ") :] in targets]
    codes = np.array([name in targets for name in step.trace.instructions] or [False])
    count = sum(
        int((codes[step.trace.instruction[window.after_gap]] & window.inside & window.is_wait).sum())
        for window in step.windows
    )
    if count < THRESHOLDS["gaps-before-custom-calls"].limit * step.steps:
        return None
    us = sum(row.us for row in rows)
    return Finding(
        "gaps-before-custom-calls",
        us / step.breakdown.step_us,
        f"{count / step.steps:.3g} gaps over 20 µs before custom calls in a step, {us:.4g} µs",
        tuple(Evidence(row.name, row.us, f"{row.note}; {targets[row.name[len('before ') :]]}") for row in rows[:ROWS]),
        "the host prepares these calls while the GPU waits: update the library behind the target, or let XLA's own "
        "kernels replace it",
    )  # fmt: skip


def _slow_collectives(step: MeasuredStep) -> Finding | None:
    slow: list[tuple[float, MeasuredCollective]] = []
    for item in step.collectives:
        if item.link is not None and item.link.estimate_us < THRESHOLDS["slow-collective"].limit * item.time_us:
            lost = min((item.time_us - item.link.estimate_us) * item.count, item.transfer_exposed_us)
            slow.append((lost, item))
    slow.sort(key=lambda row: -row[0])
    share = sum(row[0] for row in slow) / step.breakdown.step_us
    if share < LEAST_SAVED or step.hardware is None:
        return None
    partly = "; not all ranks are given, so waits for the others are in it" if _ranks_missing(step) else ""
    return Finding(
        "slow-collective",
        share,
        f"{_many(len(slow), 'collective')} below 70 % of XLA's table for {step.hardware.name}: {share:.1%}{partly}",
        tuple(
            Evidence(item.name, lost, f"{item.time_us:.4g} µs, expected {item.link.estimate_us:.4g}", item.op_name)
            for lost, item in slow[:ROWS]
            if item.link is not None
        ),
        "check NVLink and NCCL's choice (NCCL_DEBUG=INFO), and the kernels beside them, which take bandwidth and SMs",
    )


def _ranks_missing(step: MeasuredStep) -> bool:
    return len(step.windows) < max(step.costs.ranks, 2)


def _small_collectives(step: MeasuredStep) -> Finding | None:
    groups: dict[tuple[str, str, int], list[MeasuredCollective]] = defaultdict(list)
    for item in step.collectives:
        if item.link is not None and item.link.payload_bytes < SMALL_BYTES:
            groups[item.kind, item.computation, item.link.group].append(item)
    rows = []
    for (kind, computation, group), items in groups.items():
        if len(items) >= THRESHOLDS["small-collectives"].limit and step.hardware is not None:
            table = KINDS[kind].measured
            fixed = perf_tables.collective_us(step.hardware.measured_as, table, group, 1) or LAUNCH_US
            launches = sum(item.count for item in items) - max(item.count for item in items)
            saved = min(launches * fixed, sum(item.transfer_exposed_us for item in items))
            size = sum(item.link.payload_bytes for item in items if item.link) / len(items) / 1024
            rows.append(Evidence(f"{len(items)} × {kind}", saved, f"{size:.3g} KiB each, in {computation}"))
    share = sum(row.us for row in rows) / step.breakdown.step_us
    if share < LEAST_SAVED:
        return None
    return Finding(
        "small-collectives",
        share,
        f"small collectives that could be combined: {share:.1%} of the step is their latency",
        tuple(sorted(rows, key=lambda row: -row.us)[:ROWS]),
        "raise --xla_gpu_{all_gather,all_reduce,reduce_scatter}_combine_threshold_bytes; 'pgle tune' tries them",
    )


def _copies(step: MeasuredStep) -> Finding | None:
    share = step.breakdown.exposed_copy_us / step.breakdown.step_us
    if share < THRESHOLDS["exposed-copies"].limit:
        return None
    time: dict[int, int] = defaultdict(int)
    for window in step.windows:
        rows = window.rows[window.stream == Stream.COPY]
        for code, ns in zip(step.trace.instruction[rows].tolist(), step.trace.duration_ns[rows].tolist(), strict=True):
            time[code] += ns
    longest = sorted(time, key=lambda code: -time[code])[:ROWS]
    return Finding(
        "exposed-copies",
        share,
        f"copies with nothing beside them: {share:.1%} of the step",
        tuple(Evidence(step.trace.instructions[code], time[code] / 1e3 / step.steps, "copied") for code in longest),
        "keep what the step needs on the device, donate its arguments (donate_argnums); offloaded values want "
        "asynchronous copies: 'pgle rehearse' shows where they stand",
    )


def _short_kernels(step: MeasuredStep) -> Finding | None:
    time: dict[int, float] = defaultdict(float)
    kernels = 0
    for window in step.windows:
        length = window.end - window.start
        short = (length < SHORT_NS) & (window.stream == Stream.COMPUTE)
        kernels += int(short.sum())
        gap = window.gaps.end - window.gaps.start
        near = window.inside & (gap <= LAUNCH_GAP_NS) & np.isin(window.after_gap, window.rows[short])
        for rows, values in ((window.rows[short], length[short]), (window.after_gap[near], gap[near])):
            for code, ns in zip(step.trace.instruction[rows].tolist(), values.tolist(), strict=True):
                time[code] += ns
    share = sum(time.values()) / 1e3 / step.steps / step.breakdown.step_us
    if share < THRESHOLDS["short-kernels"].limit:
        return None
    longest = sorted(time, key=lambda code: -time[code])[:ROWS]
    return Finding(
        "short-kernels",
        share,
        f"{kernels / step.steps:.4g} kernels below 3 µs in a step, with the gaps before them {share:.1%} of it",
        tuple(Evidence(step.trace.instructions[code], time[code] / 1e3 / step.steps, "with gaps") for code in longest),
        "let CUDA graphs launch them (--xla_gpu_enable_command_buffer), fuse them, or make the work per step larger",
    )


def _window(step: MeasuredStep) -> Finding | None:
    dropped = [why for why in step.costs.window.dropped.values() if why.startswith("warm-up")]
    tuned = sum(item.duration_ns for item in step.trace.unresolved if item.reason == Reason.AUTOTUNER.word)
    share = tuned / max(int(step.trace.duration_ns.sum()) + tuned, 1)
    rows = [Evidence(f"execution {number}", 0.0, why) for number, why in step.costs.window.dropped.items()]
    if share >= THRESHOLDS["window"].limit:
        rows.append(Evidence("autotuning", tuned / 1e3, f"{share:.1%} of the trace's GPU time"))
    elif not dropped:
        return None
    return Finding(
        "window",
        0.0,
        f"the trace begins before the steps are steady: {_many(len(dropped), 'execution')} of warm-up left out",
        tuple(rows[:ROWS]),
        "nothing is lost here, they are left out; trace later steps to have more of them ('pgle profile' does)",
    )


RULES: Sequence[Callable[[MeasuredStep], Finding | None]] = (
    _synchronous, _exposed, _skew, _scatters, _slow_matmuls, _idle, _gaps_before_custom_calls, _slow_collectives,
    _small_collectives, _copies, _short_kernels, _window,
)  # fmt: skip
"""One function per finding."""


def _of_compute(items: Iterable[MeasuredInstruction]) -> tuple[Evidence, ...]:
    return tuple(Evidence(item.cost.name, item.step_us, item.cost.shape, item.op_name) for item in items)[:ROWS]


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
