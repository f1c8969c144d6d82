"""What a measured step loses on its devices: one function per finding."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from statistics import median

import numpy as np

from pgle.analyze.analysis import MeasuredInstruction, MeasuredStep, total_us
from pgle.analyze.findings import LEAST_SAVED, ROWS, THRESHOLDS, Evidence, Finding, evidence_of, in_percent, in_words
from pgle.analyze.window import LAUNCH_GAP_NS, Group
from pgle.costs.estimate.kernels import compute_us
from pgle.errors import many
from pgle.next import REHEARSE
from pgle.schedule.timeline import Stream
from pgle.trace.table import distinct
from pgle.xla.hlo.module import Instruction, Module

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
        many(len(ours), "scatter"),
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
        f"{many(len(slow), 'matrix product')} at less than half the speed expected on {hardware.name.upper()}",
        tuple(
            Evidence(
                item.cost.name, saved, f"{in_words(item.cost.cost_us)}, expected {in_words(expected)}", item.op_name
            )
            for saved, item, expected in slow[:ROWS]
        ),
        "check layouts and sides that are no multiple of 8, and what overlaps them; let XLA autotune them "
        "(--xla_gpu_autotune_level=4)",
    )


def input_bound(step: MeasuredStep) -> Finding | None:
    """The device has nothing to do between steps."""
    between_us = sum(step.parts.of(Group.BETWEEN).values())
    share = between_us / step.step_us
    if share < THRESHOLDS["input-bound"].limit:
        return None
    gaps = [length for window in step.windows for length in window.waits.length[~window.waits.inside].tolist()]
    return Finding(
        "input-bound",
        share,
        f"no GPU work between steps for {in_percent(share)} of the time",
        (Evidence("between steps", between_us, f"{many(len(gaps), 'gap')}, longest {in_words(max(gaps) / 1e3)}"),),
        "prefetch input to the device and let steps be dispatched ahead: no block_until_ready, print or device_get "
        "in the loop; synthetic input instead shows what that brings",
    )


def idle(step: MeasuredStep) -> Finding | None:
    """Nothing runs inside steps because the host is late."""
    found = step.parts.of(Group.HOST)
    for name in _before_custom_calls(step):
        found.pop(name)
    share = sum(found.values()) / step.step_us
    if share < THRESHOLDS["idle"].limit:
        return None
    return Finding(
        "idle",
        share,
        f"gaps over 20 µs inside steps: {in_percent(share)} of the step ({in_words(sum(found.values()))})",
        _gap_rows(step, found),
        "take the host off the step: callbacks, transfers and eager operations inside it",
    )


def _gap_rows(step: MeasuredStep, found: Mapping[str, float]) -> tuple[Evidence, ...]:
    """Gaps before instructions, the longest first."""
    counts = _gap_counts(step)
    rows = []
    for name, us in islice(found.items(), ROWS):
        count = max(counts[name], 1) / step.steps
        rows.append(Evidence(f"before {name}", us, f"{count:.3g} × a step, {in_words(us / count)} each"))
    return tuple(rows)


def _gap_counts(step: MeasuredStep) -> Counter[str]:
    """How many gaps over 20 µs inside steps end in an instruction, over all steps and devices."""
    counts: Counter[str] = Counter()
    for window in step.windows:
        rows = window.waits.after[window.waits.inside]
        counts.update(step.trace.instructions[code] for code in step.trace.instruction[rows].tolist())
    return counts


def launch_gaps(step: MeasuredStep) -> Finding | None:
    """The GPU waits between kernels that are launched one after the other."""
    us = sum(step.parts.of(Group.LAUNCH).values())
    share = us / step.step_us
    if share < THRESHOLDS["launch-gaps"].limit:
        return None
    kernels = sum(len(window.rows) for window in step.windows) / step.steps
    return Finding(
        "launch-gaps",
        share,
        f"gaps of up to 20 µs between kernels: {in_percent(share)} of the step",
        (Evidence("launch gaps", us, f"{kernels:.4g} kernels and copies in a step"),),
        "let CUDA graphs launch the kernels (--xla_gpu_enable_command_buffer=FUSION,CUBLAS; not while a profile is "
        "recorded), or fuse them",
    )


def slow_steps(step: MeasuredStep) -> Finding | None:
    """A few steps are much longer than the others, on all ranks."""
    slow = [item for item in step.parts.steps if item.is_slow]
    share = step.parts.slow_us / step.step_us
    if share < THRESHOLDS["slow-steps"].limit:
        return None
    usual = median([item.step_us for item in step.parts.steps if not item.is_slow])
    listed = ", ".join(f"execution {item.execution} by {in_words(item.step_us - usual)}" for item in slow[:ROWS])
    groups: dict[Group, list[tuple[str, float]]] = defaultdict(list)
    for group, name, us in step.parts.excess():
        groups[group].append((name, us))
    part = len(slow) / len(step.parts.steps)
    rows = []
    for group, found in groups.items():
        name, us = found[0]
        most = f"most: {name}" if group in (Group.LAUNCH, Group.BETWEEN) else f"most: {in_words(us)}, {name}"
        most = f"most before {name}" if group == Group.HOST else most
        total = sum(row[1] for row in found)
        rows.append(Evidence(str(group), total * part, f"{in_words(total)} more in each slow step; {most}"))
    return Finding(
        "slow-steps",
        share,
        f"{len(slow)} of {many(len(step.parts.steps), 'step')} longer than the others, {listed}: "
        f"{in_percent(share)} of the mean step",
        tuple(sorted(rows, key=lambda row: -row.us)[:ROWS]),
        "look at what happens in those steps: checkpoints, evaluation, garbage collection, another job on the node",
    )


def other_modules(step: MeasuredStep) -> Finding | None:
    """Modules but the main one run between or inside its steps."""
    found = step.parts.of(Group.MODULE)
    share = sum(found.values()) / step.step_us
    if share < THRESHOLDS["other-modules"].limit:
        return None
    runs: Counter[str] = Counter()
    for window in step.windows:
        for module, key in enumerate(step.trace.modules):
            if module != step.costs.program.index:
                rows = window.rows[step.trace.module[window.rows] == module]
                runs[key.name] += len(distinct(step.trace.execution[rows]))
    return Finding(
        "other-modules",
        share,
        f"other modules run for {in_percent(share)} of the step ({in_words(sum(found.values()))})",
        tuple(
            Evidence(name, us, f"{runs[name] / step.steps:.3g} × a step") for name, us in islice(found.items(), ROWS)
        ),
        "put this work into the step, or run it less often: each jit-compiled function and each operation outside of "
        "jit is a module of its own",
    )


def _before_custom_calls(step: MeasuredStep) -> dict[str, float]:
    """Gaps over 20 µs before custom calls; empty where there are few."""
    if step.module is None:
        return {}
    targets = {item.name for item in step.module.walk() if item.opcode == "custom-call"}
    found = {name: us for name, us in step.parts.of(Group.HOST).items() if name in targets}
    counts = _gap_counts(step)
    enough = sum(counts[name] for name in found) >= THRESHOLDS["gaps-before-custom-calls"].limit * step.steps
    return found if enough else {}


def gaps_before_custom_calls(step: MeasuredStep) -> Finding | None:
    """The device waits while a library prepares its call."""
    found = _before_custom_calls(step)
    if step.module is None or not found:
        return None
    counts = _gap_counts(step)
    us = sum(found.values())
    rows = _gap_rows(step, found)
    targets = (step.module.instructions[row.name[len("before ") :]].custom_call_target for row in rows)
    return Finding(
        "gaps-before-custom-calls",
        us / step.step_us,
        f"{sum(counts[name] for name in found) / step.steps:.3g} gaps over 20 µs before custom calls in a step, "
        f"{in_words(us)}",
        tuple(Evidence(row.name, row.us, f"{row.note}; {target}") for row, target in zip(rows, targets, strict=True)),
        "the host prepares these calls while the GPU waits: update the library behind the target, or let XLA's own "
        "kernels replace it",
    )


def copies(step: MeasuredStep) -> Finding | None:
    """Transfers that no compute overlaps."""
    share = step.breakdown.exposed_copy_us / step.step_us
    if share < THRESHOLDS["exposed-copies"].limit:
        return None
    return Finding(
        "exposed-copies",
        share,
        f"copies that no compute overlaps: {in_percent(share)} of the step",
        _transfers(step)[:ROWS],
        "keep what the step needs on the device and donate its arguments (donate_argnums); what must be copied wants "
        f"pinned memory and a stream of its own: '{REHEARSE}' shows what a program's own offloading costs",
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
        f"transfers: {in_percent(of_step)} of the step",
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
        f"{kernels / step.steps:.4g} kernels below 3 µs in a step, with the gaps before them {in_percent(share)} of it",
        tuple(
            Evidence(step.trace.instructions[code], time[code] / 1e3 / step.steps, "with gaps")
            for code in longest
            if time[code] > 0
        ),
        "let CUDA graphs launch them (--xla_gpu_enable_command_buffer), fuse them, or make the work per step larger",
    )
