"""What a measured step loses on its devices: one function per finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from pgle.analyze.analysis import MeasuredInstruction, MeasuredStep, total_us
from pgle.analyze.findings import LEAST_SAVED, ROWS, THRESHOLDS, Evidence, Finding, evidence_of, in_words
from pgle.analyze.window import LAUNCH_GAP_NS, LONG_GAP_NS
from pgle.costs.estimate.kernels import compute_us
from pgle.errors import many
from pgle.schedule.timeline import Stream
from pgle.xla.hlo.module import Instruction, Module

LONG_GAPS = 3
LAUNCHES = "launch gaps"
_MOVES = frozenset(("parameter", "copy", "bitcast", "transpose", "reshape", "tuple", "get-tuple-element"))
SHORT_NS = 3_000
"""A kernel that is shorter than its launch: 2.9 µs on the GPU, 3.8 with its launch ("Getting Started with CUDA Graphs",
NVIDIA technical blog, 2019)."""


def scatters(step: MeasuredStep) -> Finding | None:
    """Scatters, which write row by row."""
    ours = [item for item in step.compute if _is_scatter(step.module, item)]
    share = total_us(ours) / step.step_us
    if share < THRESHOLDS["scatter-add"].limit:
        return None
    return Finding(
        "scatter-add",
        share,
        f"{many(len(ours), 'scatter')}: {share:.1%} of the step",
        evidence_of(ours),
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


def slow_matmuls(step: MeasuredStep) -> Finding | None:
    """Matrix products below half of what XLA measured for their shape."""
    module, hardware = step.module, step.hardware
    if module is None or hardware is None:
        return None
    slow: list[tuple[float, MeasuredInstruction, float]] = []
    for item in step.compute:
        if item.instruction is not None and item.work is not None and item.work.tensor_cores:
            expected = compute_us(module, item.instruction, hardware)
            if expected < THRESHOLDS["slow-matmul"].limit * item.cost.cost_us:
                slow.append(((item.cost.cost_us - expected) * item.count, item, expected))
    slow.sort(key=lambda row: -row[0])
    share = sum(row[0] for row in slow) / step.step_us
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
        "check layouts and sides that are no multiple of 8, and what runs beside them; let XLA autotune them "
        "(--xla_gpu_autotune_level=4)",
    )


def input_bound(step: MeasuredStep) -> Finding | None:
    """The device has nothing to do between steps."""
    between_us = step.idle_us["between steps"]
    share = between_us / step.step_us
    if share < THRESHOLDS["input-bound"].limit:
        return None
    gaps = [length for window in step.windows for length in window.waits.length[~window.waits.inside].tolist()]
    return Finding(
        "input-bound",
        share,
        f"no GPU work between steps for {share:.1%} of the time",
        (Evidence("between steps", between_us, f"{many(len(gaps), 'gap')}, longest {in_words(max(gaps) / 1e3)}"),),
        "prefetch input to the device and let steps be dispatched ahead: no block_until_ready, print or device_get "
        "in the loop; synthetic input instead shows what that brings",
    )


def _idle_us(step: MeasuredStep) -> dict[str, float]:
    """Idle time inside a step by the length of its gaps."""
    idle = step.idle_us
    return {"gaps over 1 ms": idle["long waits"], "20 µs to 1 ms": idle["waits for the host"], LAUNCHES: idle[LAUNCHES]}


def is_launch_bound(step: MeasuredStep) -> bool:
    """Whether most idle time inside steps is in gaps as short as those between two launches."""
    rows = _idle_us(step)
    return max(rows, key=rows.__getitem__) == LAUNCHES


def idle(step: MeasuredStep) -> Finding | None:
    """Nothing runs inside steps; where one device idles longest, the others wait for it as well."""
    rows = _idle_us(step)
    waits = [window.waits.length[window.waits.inside] for window in step.windows]
    of_device = [float(length.sum()) / window.steps / 1e3 for length, window in zip(waits, step.windows, strict=True)]
    waited = min(step.waiting_us, max(of_device) - float(np.mean(of_device)))
    share = (sum(rows.values()) + waited) / step.step_us
    most = max((int((length > LONG_GAP_NS).sum()) for length in waits), default=0)
    if share <= THRESHOLDS["idle"].limit and most < LONG_GAPS:
        return None
    evidence = [Evidence(name, us) for name, us in sorted(rows.items(), key=lambda row: -row[1]) if us]
    if waited > LEAST_SAVED * step.step_us:
        idlest = step.trace.devices[step.windows[int(np.argmax(of_device))].device]
        evidence.insert(
            0,
            Evidence(
                f"device {idlest.ordinal} of {idlest.process}", waited, "idles longest: the other ranks wait for it"
            ),
        )
    return Finding(
        "idle",
        share,
        f"no GPU work for {sum(rows.values()) / step.step_us:.1%} of the time, inside steps; "
        f"{many(most, 'gap')} over 1 ms on one device",
        (*evidence, *_before(step)[: ROWS - len(evidence)]),
        "let CUDA graphs launch the kernels (--xla_gpu_enable_command_buffer=FUSION,CUBLAS; not while a profile "
        "is recorded), or fuse them"
        if is_launch_bound(step)
        else "take the host off the step: callbacks, transfers and eager operations inside it",
    )


def _before(step: MeasuredStep) -> list[Evidence]:
    """What waited longest in gaps inside steps that are no launch gaps."""
    time: dict[int, float] = defaultdict(float)
    count: dict[int, int] = defaultdict(int)
    for window in step.windows:
        waits, here = window.waits, window.waits.inside
        for row, ns in zip(waits.after[here].tolist(), waits.length[here].tolist(), strict=True):
            code = int(step.trace.instruction[row])
            time[code] += ns
            count[code] += 1
    order = sorted(time, key=lambda code: -time[code])
    return [
        Evidence(
            f"before {step.trace.instructions[code]}",
            time[code] / 1e3 / step.steps,
            f"{count[code] / step.steps:.3g} × a step, {in_words(time[code] / count[code] / 1e3)} each",
        )
        for code in order
    ]


def gaps_before_custom_calls(step: MeasuredStep) -> Finding | None:
    """The device waits while a library prepares its call."""
    if step.module is None:
        return None
    targets = {item.name: item.custom_call_target for item in step.module.walk() if item.opcode == "custom-call"}
    rows = [row for row in _before(step) if row.name[len("before ") :] in targets]
    codes = np.array([name in targets for name in step.trace.instructions] or [False])
    count = sum(
        int((codes[step.trace.instruction[window.waits.after]] & window.waits.inside).sum()) for window in step.windows
    )
    if count < THRESHOLDS["gaps-before-custom-calls"].limit * step.steps:
        return None
    us = sum(row.us for row in rows)
    return Finding(
        "gaps-before-custom-calls",
        us / step.step_us,
        f"{count / step.steps:.3g} gaps over 20 µs before custom calls in a step, {in_words(us)}",
        tuple(Evidence(row.name, row.us, f"{row.note}; {targets[row.name[len('before ') :]]}") for row in rows[:ROWS]),
        "the host prepares these calls while the GPU waits: update the library behind the target, or let XLA's own "
        "kernels replace it",
    )  # fmt: skip


def copies(step: MeasuredStep) -> Finding | None:
    """Transfers with nothing beside them."""
    share = step.breakdown.exposed_copy_us / step.step_us
    if share < THRESHOLDS["exposed-copies"].limit:
        return None
    return Finding(
        "exposed-copies",
        share,
        f"copies with nothing beside them: {share:.1%} of the step",
        _transfers(step)[:ROWS],
        "keep what the step needs on the device and donate its arguments (donate_argnums); what must be copied wants "
        "pinned memory and a stream of its own: 'pgle rehearse' shows where a program's own offloading stands",
    )


def _transfers(step: MeasuredStep) -> tuple[Evidence, ...]:
    """Time of copies in a step by name, hidden or not, longest first."""
    time = np.zeros(len(step.trace.instructions))
    for window in step.windows:
        rows = window.rows[window.stream == Stream.COPY]
        time += np.bincount(step.trace.instruction[rows], weights=step.trace.duration_ns[rows], minlength=len(time))
    longest = np.argsort(-time, kind="stable")[: int((time > 0).sum())].tolist()
    return tuple(Evidence(step.trace.instructions[code], time[code] / 1e3 / step.steps, "copied") for code in longest)


def excessive_copies(step: MeasuredStep) -> Finding | None:
    """Kernels that only move values from one layout to another, and transfers, hidden ones too."""
    kernels = [item for item in step.compute if _only_copies(step.module, item)]
    kernels_us, transfers_us = total_us(kernels), step.breakdown.copy_us
    of_step = (kernels_us + transfers_us) / step.step_us
    if kernels_us == 0 or of_step < THRESHOLDS["excessive-copies"].limit:
        return None
    return Finding(
        "excessive-copies",
        kernels_us / step.step_us,
        f"{many(len(kernels), 'kernel')} that only copy, {in_words(kernels_us)}, and {in_words(transfers_us)} of "
        f"transfers: {of_step:.1%} of the step",
        evidence_of(kernels),
        "donate what is updated (donate_argnums), and let neighbours agree on a layout: transposed operands, "
        "sharding constraints and scans over stacked weights are what asks for copies",
    )


def _only_copies(module: Module | None, item: MeasuredInstruction) -> bool:
    made = item.instruction
    if module is None or made is None:
        return False
    inside = {inner.opcode for inner in _inside(module, made)} or {made.opcode}
    return bool(inside & {"copy", "transpose"}) and inside <= _MOVES


def short_kernels(step: MeasuredStep) -> Finding | None:
    """Kernels that take less time than launching them."""
    time, kernels = np.zeros(len(step.trace.instructions)), 0
    for window in step.windows:
        length, gaps = window.end - window.start, window.gaps
        short = (length < SHORT_NS) & (window.stream == Stream.COMPUTE)
        kernels += int(short.sum())
        near = gaps.inside & (gaps.length <= LAUNCH_GAP_NS) & np.isin(gaps.after, window.rows[short])
        for rows, values in ((window.rows[short], length[short]), (gaps.after[near], gaps.length[near])):
            time += np.bincount(step.trace.instruction[rows], weights=values, minlength=len(time))
    share = float(time.sum()) / 1e3 / step.steps / step.step_us
    if share < THRESHOLDS["short-kernels"].limit:
        return None
    longest = np.argsort(-time, kind="stable")[:ROWS].tolist()
    return Finding(
        "short-kernels",
        share,
        f"{kernels / step.steps:.4g} kernels below 3 µs in a step, with the gaps before them {share:.1%} of it",
        tuple(
            Evidence(step.trace.instructions[code], time[code] / 1e3 / step.steps, "with gaps")
            for code in longest
            if time[code] > 0
        ),
        "let CUDA graphs launch them (--xla_gpu_enable_command_buffer), fuse them, or make the work per step larger",
    )
