"""What a measured step loses but to communication: its kernels and gaps, the program, memory, profile, recording."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from statistics import median

import numpy as np
import numpy.typing as npt

from pgle.analyze.analysis import (
    ROWS,
    Evidence,
    Found,
    MeasuredInstruction,
    MeasuredStep,
    evidence_of,
    in_percent,
    in_words,
    total_us,
)
from pgle.analyze.layers import Phase
from pgle.analyze.window import LAUNCH_GAP_NS, Group
from pgle.costs.estimate.kernels import compute_us
from pgle.costs.profile.value import has_remat
from pgle.errors import many
from pgle.next import PROFILE, REHEARSE
from pgle.schedule.program import Stream
from pgle.trace.table import Reason
from pgle.xla.hlo.module import Instruction, Module

_MOVES = frozenset(("parameter", "copy", "bitcast", "transpose", "reshape", "tuple", "get-tuple-element"))
SHORT_NS = 3_000
"""A kernel that is shorter than its launch: 2.9 µs on the GPU, 3.8 with its launch ("Getting Started with CUDA Graphs",
NVIDIA technical blog, 2019)."""
SLOW_SHARE = 0.5  # of the expected speed; a matrix product that is slower is slow
MANY_GAPS = 3  # before custom calls in a step, from which on they are looked at apart from other gaps


def scatters(step: MeasuredStep) -> Found:
    """Scatters, which write row by row."""
    ours = [item for item in step.compute if _is_scatter(step.module, item)]
    return Found(
        total_us(ours),
        f"{many(len(ours), 'scatter')}, {in_words(total_us(ours))} a step; what replaces them takes time too",
        by_shape(ours),
        "write the gradient of the lookup as a matrix product with one-hot rows, or sort the indices first "
        "(indices_are_sorted, unique_indices)",
    )


def by_shape(items: Iterable[MeasuredInstruction]) -> tuple[Evidence, ...]:
    """Some instructions as evidence, with their shapes."""
    return evidence_of((item, item.us, item.cost.shape) for item in items)


def _is_scatter(module: Module | None, item: MeasuredInstruction) -> bool:
    """By its HLO: a scatter, alone or in a fusion; without, by its name."""
    if module is None or item.instruction is None:
        return "scatter" in item.cost.name
    return any(inner.opcode == "scatter" for inner in (item.instruction, *_inside(module, item.instruction)))


def _inside(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    for name in instruction.called if instruction.opcode == "fusion" else ():
        if name in module.computations:
            yield from module.computations[name].instructions


def slow_matmuls(step: MeasuredStep) -> Found | None:
    """Matrix products below half of what XLA measured for their shape."""
    module, hardware = step.module, step.hardware
    if module is None or hardware is None:
        return None
    products = (
        (item, compute_us(module, item.instruction, hardware))
        for item in step.compute
        if item.instruction is not None and item.work is not None and item.work.tensor_cores
    )
    slow = [
        (item, (item.cost.cost_us - best) * item.count, f"{in_words(item.cost.cost_us)}, expected {in_words(best)}")
        for item, best in products
        if best < SLOW_SHARE * item.cost.cost_us
    ]
    slow.sort(key=lambda row: -row[1])
    return Found(
        sum(us for _, us, _ in slow),
        f"{many(len(slow), 'matrix product')} at less than half the speed expected on {hardware.name.upper()}",
        evidence_of(slow),
        "check layouts and sides that are no multiple of 8, and what overlaps them; let XLA autotune them "
        "(--xla_gpu_autotune_level=4)",
    )


def input_bound(step: MeasuredStep) -> Found:
    """The device has nothing to do between steps; what only slow steps lose there is theirs to save."""
    us, in_all_us = sum(step.parts.of(Group.BETWEEN).values()), step.idle_us["between steps"]
    usual = f", {step.percent(us)} without the slow steps" if step.percent(us) != step.percent(in_all_us) else ""
    gaps = [length for window in step.windows for length in window.waits.length[~window.waits.inside].tolist()]
    longest = in_words(max(gaps, default=0.0) / 1e3)
    return Found(
        us,
        f"no GPU work between steps for {step.percent(in_all_us)} of the time{usual}",
        (Evidence("between steps", us, f"{many(len(gaps), 'gap')}, longest {longest}"),),
        "prefetch input to the device and let steps be dispatched ahead: no block_until_ready, print or device_get "
        "in the loop; synthetic input instead shows what that brings",
    )


def idle(step: MeasuredStep) -> Found:
    """Nothing runs inside steps because the host is late."""
    special = _before_custom_calls(step)
    found = {name: us for name, us in step.parts.of(Group.HOST).items() if name not in special}
    us = sum(found.values())
    return Found(
        us,
        f"gaps over 20 µs inside steps: {step.percent(us)} of the step ({in_words(us)})",
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


def launch_gaps(step: MeasuredStep) -> Found:
    """The GPU waits between kernels that are launched one after the other."""
    us = sum(step.parts.of(Group.LAUNCH).values())
    kernels = sum(len(window.rows) for window in step.windows) / step.steps
    return Found(
        us,
        f"gaps of up to 20 µs between kernels: {step.percent(us)} of the step",
        (Evidence("launch gaps", us, f"{kernels:.4g} kernels and copies in a step"),),
        "let CUDA graphs launch the kernels (--xla_gpu_enable_command_buffer=FUSION,CUBLAS; not while a profile is "
        "recorded), or fuse them",
    )


def slow_steps(step: MeasuredStep) -> Found | None:
    """A few steps are much longer than the others, on all ranks."""
    steps, us = step.parts.steps, step.parts.slow_us
    slow = [item for item in steps if item.is_slow]
    if not slow:
        return None
    usual = median([item.step_us for item in steps if not item.is_slow])
    listed = ", ".join(f"execution {item.execution} by {in_words(item.step_us - usual)}" for item in slow[:ROWS])
    groups: dict[Group, list[tuple[str, float]]] = defaultdict(list)
    for group, name, more_us in step.parts.excess():
        groups[group].append((name, more_us))
    rows = []
    for group, found in groups.items():
        name, most_us = found[0]
        most = f"most: {name}" if group in (Group.LAUNCH, Group.BETWEEN) else f"most: {in_words(most_us)}, {name}"
        most = f"most before {name}" if group == Group.HOST else most
        total = sum(row[1] for row in found)
        in_mean = total * (len(slow) / len(steps))
        rows.append(Evidence(str(group), in_mean, f"{in_words(total)} more in each slow step; {most}"))
    return Found(
        us,
        f"{len(slow)} of {many(len(steps), 'step')} longer than the others, {listed}: {step.percent(us)} of the mean "
        "step",
        tuple(sorted(rows, key=lambda row: -row.us)[:ROWS]),
        "look at what happens in those steps: checkpoints, evaluation, garbage collection, another job on the node",
    )


def other_modules(step: MeasuredStep) -> Found:
    """Modules but the main one run between or inside its steps."""
    found, runs = step.parts.of(Group.MODULE), Counter[str]()
    for number, count in step.runs_of_others().items():
        runs[step.trace.modules[number].name] += count
    us = sum(found.values())
    return Found(
        us,
        f"other modules run for {step.percent(us)} of the step ({in_words(us)})",
        tuple(
            Evidence(name, each_us, f"{runs[name] / step.steps:.3g} × a step")
            for name, each_us in islice(found.items(), ROWS)
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
    return found if sum(counts[name] for name in found) >= MANY_GAPS * step.steps else {}


def gaps_before_custom_calls(step: MeasuredStep) -> Found | None:
    """The device waits while a library prepares its call."""
    found, module = _before_custom_calls(step), step.module
    if module is None or not found:
        return None
    counts = _gap_counts(step)
    us, a_step = sum(found.values()), sum(counts[name] for name in found) / step.steps
    targets = (module.instructions[name].custom_call_target for name in found)
    return Found(
        us,
        f"{a_step:.3g} gaps over 20 µs before custom calls in a step, {in_words(us)}",
        tuple(
            replace(row, note=f"{row.note}; {target}")
            for row, target in zip(_gap_rows(step, found), targets, strict=False)
        ),
        "the host prepares these calls while the GPU waits: update the library behind the target, or let XLA's own "
        "kernels replace it",
        reached=a_step,
    )


def copies(step: MeasuredStep) -> Found:
    """Transfers that no compute overlaps."""
    us = step.breakdown.exposed_copy_us
    time = step.time_by_instruction((window.rows[window.stream == Stream.COPY], None) for window in step.windows)
    return Found(
        us,
        f"copies that no compute overlaps: {step.percent(us)} of the step",
        tuple(Evidence(name, each_us, "copied") for name, each_us in islice(time.items(), ROWS)),
        "keep what the step needs on the device and donate its arguments (donate_argnums); what must be copied wants "
        f"pinned memory and a stream of its own: '{REHEARSE}' shows what a program's own offloading costs",
    )


def excessive_copies(step: MeasuredStep) -> Found:
    """Kernels that only move values from one layout to another, and transfers, hidden ones too."""
    kernels = [item for item in step.compute if _only_copies(step.module, item)]
    us, transfers_us = total_us(kernels), step.breakdown.copy_us
    return Found(
        us,
        f"{many(len(kernels), 'kernel')} that only copy, {in_words(us)}, and {in_words(transfers_us)} of "
        f"transfers: {step.percent(us + transfers_us)} of the step",
        by_shape(kernels),
        "donate updated arguments (donate_argnums), and let neighbours agree on a layout: transposed operands, "
        "sharding constraints and scans over stacked weights are what asks for copies",
        reached=(us + transfers_us) / step.step_us if us else 0.0,
    )


def _only_copies(module: Module | None, item: MeasuredInstruction) -> bool:
    made = item.instruction
    if module is None or made is None:
        return False
    inside = {inner.opcode for inner in _inside(module, made)} or {made.opcode}
    return bool(inside & {"copy", "transpose"}) and inside <= _MOVES


def short_kernels(step: MeasuredStep) -> Found:
    """Kernels that take less time than launching them."""
    parts: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]] = []
    kernels = 0
    for window in step.windows:
        length, gaps = window.end - window.start, window.gaps
        short = (length < SHORT_NS) & (window.stream == Stream.COMPUTE)
        kernels += int(short.sum())
        near = gaps.inside & (gaps.length <= LAUNCH_GAP_NS) & np.isin(gaps.after, window.rows[short])
        parts += [(window.rows[short], length[short]), (gaps.after[near], gaps.length[near])]
    time = step.time_by_instruction(parts)
    us = sum(float(ns.sum()) for _, ns in parts) / 1e3 / step.steps
    return Found(
        us,
        f"{kernels / step.steps:.4g} kernels below 3 µs in a step, with the gaps before them {step.percent(us)} of it",
        tuple(Evidence(name, each_us, "with gaps") for name, each_us in islice(time.items(), ROWS)),
        "let CUDA graphs launch them (--xla_gpu_enable_command_buffer), fuse them, or make the work per step larger",
    )


SPACIOUS = 0.5  # of the memory limit; a program that needs less has room to keep what it computes again
TUNED_SHARE = 0.01  # of the GPU time in the trace; less autotuning is not worth a word


_LOWER = "compute them in bf16, or in f32 with TF32 (jax_default_matmul_precision=tensorfloat32), if the model bears it"
_UNASKED = (
    "the HLO allows them there: let XLA choose other kernels (--xla_gpu_autotune_level=4), and pad odd sides to 8"
)


def off_tensor_cores(step: MeasuredStep) -> Found:
    """Matrix products that keep off the Tensor Cores, by their kernels' names, else by type and precision."""
    off = [item for item in step.compute if item.tensor_cores is False]
    us, peaks = total_us(off), {} if step.hardware is None else step.hardware.tflops
    unasked = [item for item in off if item.work is not None and item.work.tensor_cores]
    on = "" if step.hardware is None else f" of {step.hardware.name}"
    return Found(
        us * (1 - (peaks["f32"] / peaks["tf32"] if peaks else 0.0)),
        f"{many(len(off), 'matrix product')} off the Tensor Cores{on}: {step.percent(us)} of the step",
        evidence_of((item, item.us, _precision(item)) for item in sorted(off, key=lambda item: -item.us)),
        _UNASKED if total_us(unasked) > 0.5 * us else _LOWER,
        reached=us / step.step_us,
    )


def _precision(item: MeasuredInstruction) -> str:
    """What it multiplied in, and what the HLO asks for where that is something else."""
    if item.ran is None:
        return f"{item.dtype} in full precision"
    kernel = f"{item.dtype} by {item.ran.kernel}" * (item.ran.kernel != item.cost.name)
    asked = f"the HLO asks for {item.work.dtype}" if item.work is not None and item.work.tensor_cores else ""
    return "; ".join(filter(None, (asked, kernel))) or f"{item.dtype}"


def memory_limit(step: MeasuredStep) -> Found | None:
    """The program nearly fills the memory that it can have."""
    memory = step.memory
    if memory is None or memory.used_share is None or memory.limit_bytes is None:
        return None
    return Found(
        0.0,
        f"{memory.peak_bytes / 2**30:.3g} GiB of the {memory.limit_bytes / 2**30:.3g} GiB that a program can have: "
        f"{in_percent(memory.used_share)}",
        evidence_of((item, 0.0, f"{item.size_bytes / 2**30:.3g} GiB, {item.shape}") for item in memory.live),
        "near the limit XLA computes values again and overlaps less: raise XLA_PYTHON_CLIENT_MEM_FRACTION if it is at "
        "its default, shard or offload the longest-lived values, or rematerialise cheap ones",
        reached=memory.used_share,
    )


def rematerialised_by_xla(step: MeasuredStep) -> Found:
    """Instructions that XLA runs twice because memory is short."""
    ours = _again_by_xla(step)
    return Found(
        total_us(ours),
        f"XLA computes {many(len(ours), 'instruction')} again to save memory: {step.percent(total_us(ours))} of the "
        "step",
        by_shape(ours),
        "give it more memory (XLA_PYTHON_CLIENT_MEM_FRACTION, --xla_gpu_memory_limit_slop_factor), or choose yourself "
        "values that are cheap to compute again (jax.checkpoint)",
    )


def _again_by_xla(step: MeasuredStep) -> list[MeasuredInstruction]:
    return [item for item in step.compute if item.instruction is not None and has_remat(item.instruction.name)]


def rematerialised_for_nothing(step: MeasuredStep) -> Found | None:
    """What the program computes again though there is memory to keep it."""
    layers, memory = step.layers, step.memory
    if layers is None or memory is None or memory.used_share is None or memory.limit_bytes is None:
        return None
    if memory.used_share > SPACIOUS:
        return None
    ours = sorted((layer for layer in layers.scopes if layer.phase == Phase.REMATERIALISED), key=lambda item: -item.us)
    us = layers.phase_us(Phase.REMATERIALISED) - total_us(_again_by_xla(step))
    return Found(
        us,
        f"{step.percent(us)} of the step computes values again, and the program needs "
        f"{in_percent(memory.used_share, 0)} of the {memory.limit_bytes / 2**30:.3g} GiB that it can have",
        tuple(
            Evidence(layer.name or "(no scope)", layer.us, f"{many(layer.instructions, 'kernel')}")
            for layer in ours[:ROWS]
        ),
        "keep more: another jax.checkpoint policy, or none",
    )


def stale_profile(step: MeasuredStep) -> Found | None:
    """The scheduler's profile has other costs than this run measured."""
    use = None if step.overlap is None else step.overlap.use
    if use is None or step.overlap is None:
        return None
    wrong = [row for row in use.rows if row.profile_us is not None and row.error_us]
    us = sum(abs(row.error_us) for row in wrong)
    return Found(
        min(step.overlap.hideable_us, us),
        f"the profile's costs are off by {in_percent(use.off)}: {step.percent(us)} of the step",
        tuple(
            Evidence(row.name, abs(row.error_us),
                     f"{in_words(row.profile_us or 0.0)} in the profile, {in_words(row.measured_us)} measured")
            for row in wrong[:ROWS]
        ),
        f"profile this program on this hardware again ('{PROFILE}'): its shapes, flags or clocks differ from "
        "the profile run",
        reached=us / step.step_us,
    )  # fmt: skip


def recompilation(step: MeasuredStep) -> Found | None:
    """Other versions of the main program run between its steps, and XLA compiles: shapes or types that change."""
    if not any(len(window.compiling) for window in step.windows):
        return None  # versions that were compiled before take turns, as eager operations of several shapes do
    main, modules = step.costs.program.key.name, step.trace.modules
    runs = Counter({at: count for at, count in step.runs_of_others().items() if modules[at].name == main})
    return Found(
        step.idle_us["while compiling"],
        f"{many(len(runs), 'other version')} of {main} ran between its steps: it is compiled again and again",
        tuple(
            Evidence(f"program {modules[at].program_id}", 0.0, many(count, "execution"))
            for at, count in runs.most_common(ROWS)
        ),
        "give the step the same shapes, types and static arguments each time: pad the input; jax_log_compiles=1 says "
        "what changed",
        reached=len(runs),
    )


def window(step: MeasuredStep) -> Found:
    """The recording shows another step than a plain run."""
    dropped = [why for why in step.costs.window.dropped.values() if why.startswith("warm-up")]
    tuned = sum(item.duration_ns for item in step.trace.unresolved if item.reason == Reason.AUTOTUNER.word)
    share = tuned / max(int(step.trace.duration_ns.sum()) + tuned, 1)
    rows = [Evidence(f"execution {number}", 0.0, why) for number, why in step.costs.window.dropped.items()]
    found: list[tuple[str, str]] = []  # what it is, and what to do
    if dropped:
        later = "start the trace some steps later"
        found.append((f"{many(len(dropped), 'execution')} of warm-up, left out of all figures here", later))
    if share >= TUNED_SHARE:
        of = f"{in_words(tuned / 1e3)}, {in_percent(share)} of the trace's GPU time"
        rows.append(Evidence("autotuning", 0.0, of))
        found = [(what, "") for what, _ in found]  # that is late enough for both
        found.append(("kernels that XLA tries while it compiles", "start the trace some steps after compilation"))
    if hidden := step.costs.left_out.get("command buffer", ()):
        rows.append(Evidence("command buffers", 0.0, f"{many(len(hidden), 'CUDA graph')} hide what runs in them"))
        without = "trace without graphs (--xla_gpu_enable_command_buffer=)"
        found.append(("CUDA graphs, whose kernels have no names", without))
    if (versions := len(step.costs.program.fingerprints)) > 1:
        rows.append(Evidence("fingerprints", 0.0, f"the ranks compiled {versions} different programs"))
        one = "give all ranks one autotuning result (--xla_gpu_load_autotune_results_from)"
        found.append(("ranks that ran different programs", one))
    return Found(
        0.0,
        f"besides steady steps the trace holds {'; '.join(what for what, _ in found)}",
        tuple(rows[-ROWS:]),
        "; ".join(filter(None, (remedy for _, remedy in found))),
        reached=len(found),
    )
