"""What a measured step loses on its devices: one function per finding; `RULES` has those of collectives too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from pgle.analyze.analysis import MeasuredInstruction, MeasuredStep, total_us
from pgle.analyze.communication_rules import exposed, rank_skew, slow_collectives, small_collectives, synchronous
from pgle.analyze.findings import LEAST_SAVED, ROWS, THRESHOLDS, Evidence, Finding, in_words, many
from pgle.analyze.window import LAUNCH_GAP_NS, LONG_GAP_NS
from pgle.costs.estimate.kernels import compute_us
from pgle.costs.estimate.products import matmuls
from pgle.schedule.timeline import Stream
from pgle.trace.table import Reason
from pgle.xla.hlo.module import Instruction, Module

LONG_GAPS = 3
SHORT_NS = 3_000
"""A kernel that is shorter than its launch: 2.9 µs on the GPU, 3.8 with its launch ("Getting Started with CUDA Graphs",
NVIDIA technical blog, 2019)."""


def find_findings(step: MeasuredStep) -> tuple[Finding, ...]:
    """Every finding, the one that could save most first."""
    if step.breakdown.step_us <= 0:
        return ()
    found = [finding for rule in RULES if (finding := rule(step)) is not None]
    return tuple(sorted(found, key=lambda finding: -finding.share))


def _scatters(step: MeasuredStep) -> Finding | None:
    ours = [item for item in step.compute if _is_scatter(step.module, item)]
    share = total_us(ours) / step.breakdown.step_us
    if share < THRESHOLDS["scatter-add"].limit:
        return None
    return Finding(
        "scatter-add",
        share,
        f"{many(len(ours), 'scatter')}: {share:.1%} of the step",
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
        f"{many(len(slow), 'matrix product')} at less than half the speed expected on {hardware.name}: {share:.1%}",
        tuple(
            Evidence(
                item.cost.name, saved, f"{in_words(item.cost.cost_us)}, expected {in_words(expected)}", item.op_name
            )
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
        f"no GPU work for {share:.1%} of the window; {many(most, 'gap')} over 1 ms on one device",
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
            f"{count[code] / step.steps:.3g} gaps a step, {in_words(time[code] / count[code] / 1e3)} each",
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
        f"{count / step.steps:.3g} gaps over 20 µs before custom calls in a step, {in_words(us)}",
        tuple(Evidence(row.name, row.us, f"{row.note}; {targets[row.name[len('before ') :]]}") for row in rows[:ROWS]),
        "the host prepares these calls while the GPU waits: update the library behind the target, or let XLA's own "
        "kernels replace it",
    )  # fmt: skip


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
        f"the trace begins before the steps are steady: {many(len(dropped), 'execution')} of warm-up left out",
        tuple(rows[:ROWS]),
        "nothing is lost here, they are left out; trace later steps to have more of them ('pgle profile' does)",
    )


def _of_compute(items: Iterable[MeasuredInstruction]) -> tuple[Evidence, ...]:
    return tuple(Evidence(item.cost.name, item.step_us, item.cost.shape, item.op_name) for item in items)[:ROWS]


RULES: Sequence[Callable[[MeasuredStep], Finding | None]] = (
    synchronous, exposed, rank_skew, _scatters, _slow_matmuls, _idle, _gaps_before_custom_calls, slow_collectives,
    small_collectives, _copies, _short_kernels, _window,
)  # fmt: skip
"""One function per finding."""
