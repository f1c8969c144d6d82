"""What the program, its memory, its profile and the recording itself cost: one function per finding."""

from __future__ import annotations

from collections import Counter

from pgle.analyze.analysis import MeasuredInstruction, MeasuredStep, total_us
from pgle.analyze.findings import ROWS, THRESHOLDS, Evidence, Finding, evidence_of, in_percent, in_words
from pgle.analyze.layers import Phase
from pgle.costs.profile.value import has_remat
from pgle.errors import many
from pgle.next import PROFILE
from pgle.trace.table import Reason, distinct

SPACIOUS = 0.5  # of the memory limit; a program that needs less has room to keep what it computes again


_LOWER = "compute them in bf16, or in f32 with TF32 (jax_default_matmul_precision=tensorfloat32), if the model bears it"
_UNASKED = (
    "the HLO allows them there: let XLA choose other kernels (--xla_gpu_autotune_level=4), and pad odd sides to 8"
)


def off_tensor_cores(step: MeasuredStep) -> Finding | None:
    """Matrix products that keep off the Tensor Cores, by their kernels' names, else by type and precision."""
    off = [item for item in step.compute if item.multiplying.tensor_cores is False]
    share = total_us(off) / step.step_us
    if share < THRESHOLDS["off-tensor-cores"].limit:
        return None
    faster = 0.0 if step.hardware is None else step.hardware.tflops["f32"] / step.hardware.tflops["tf32"]
    off.sort(key=lambda item: -item.us)
    unasked = [item for item in off if item.work is not None and item.work.tensor_cores]
    on = "" if step.hardware is None else f" of {step.hardware.name}"
    return Finding(
        "off-tensor-cores",
        share * (1 - faster),
        f"{many(len(off), 'matrix product')} off the Tensor Cores{on}: {in_percent(share)} of the step",
        tuple(Evidence(item.cost.name, item.us, _precision(item), item.op_name) for item in off[:ROWS]),
        _UNASKED if total_us(unasked) > 0.5 * total_us(off) else _LOWER,
    )


def _precision(item: MeasuredInstruction) -> str:
    """What it multiplied in, and what the HLO asks for where that is something else."""
    if item.ran is None:
        return f"{item.multiplying.dtype} in full precision"
    kernel = f"{item.multiplying.dtype} by {item.ran.kernel}" * (item.ran.kernel != item.cost.name)
    asked = f"the HLO asks for {item.work.dtype}" if item.work is not None and item.work.tensor_cores else ""
    return "; ".join(filter(None, (asked, kernel))) or f"{item.multiplying.dtype}"


def memory_limit(step: MeasuredStep) -> Finding | None:
    """The program nearly fills the memory that it can have."""
    memory = step.memory
    if memory is None or memory.used_share is None or memory.limit_bytes is None:
        return None
    if memory.used_share < THRESHOLDS["memory"].limit:
        return None
    return Finding(
        "memory",
        0.0,
        f"{memory.peak_bytes / 2**30:.3g} GiB of the {memory.limit_bytes / 2**30:.3g} GiB that a program can have: "
        f"{in_percent(memory.used_share)}",
        tuple(
            Evidence(item.name, 0.0, f"{item.size_bytes / 2**30:.3g} GiB, {item.shape}", item.op_name)
            for item in memory.live[:ROWS]
        ),
        "near the limit XLA computes values again and overlaps less: raise XLA_PYTHON_CLIENT_MEM_FRACTION if it is at "
        "its default, shard or offload what lives longest, or rematerialise what is cheap",
    )


def rematerialised_by_xla(step: MeasuredStep) -> Finding | None:
    """Instructions that XLA runs twice because memory is short."""
    ours = _again_by_xla(step)
    share = total_us(ours) / step.step_us
    if share < THRESHOLDS["rematerialised-by-xla"].limit:
        return None
    return Finding(
        "rematerialised-by-xla",
        share,
        f"XLA computes {many(len(ours), 'instruction')} again to save memory: {in_percent(share)} of the step",
        evidence_of(ours),
        "give it more memory (XLA_PYTHON_CLIENT_MEM_FRACTION, --xla_gpu_memory_limit_slop_factor), or choose yourself "
        "what is cheap to compute again (jax.checkpoint)",
    )


def _again_by_xla(step: MeasuredStep) -> list[MeasuredInstruction]:
    return [item for item in step.compute if item.instruction is not None and has_remat(item.instruction.name)]


def rematerialised_for_nothing(step: MeasuredStep) -> Finding | None:
    """What the program computes again though there is memory to keep it."""
    layers, memory = step.layers, step.memory
    if layers is None or memory is None or memory.used_share is None or memory.limit_bytes is None:
        return None
    ours = sorted((layer for layer in layers.scopes if layer.phase == Phase.REMATERIALISED), key=lambda item: -item.us)
    share = (layers.phase_us(Phase.REMATERIALISED) - total_us(_again_by_xla(step))) / step.step_us
    if share < THRESHOLDS["needless-rematerialisation"].limit or memory.used_share > SPACIOUS:
        return None
    return Finding(
        "needless-rematerialisation",
        share,
        f"{in_percent(share)} of the step computes values again, and the program needs "
        f"{in_percent(memory.used_share, 0)} of the {memory.limit_bytes / 2**30:.3g} GiB that it can have",
        tuple(
            Evidence(layer.name or "(no scope)", layer.us, f"{many(layer.instructions, 'kernel')}")
            for layer in ours[:ROWS]
        ),
        "keep more: another jax.checkpoint policy, or none",
    )


def stale_profile(step: MeasuredStep) -> Finding | None:
    """The scheduler's profile has other costs than this run measured."""
    use = None if step.overlap is None else step.overlap.use
    if use is None or step.overlap is None:
        return None
    wrong = [row for row in use.rows if row.profile_us is not None and row.error_us]
    share = sum(abs(row.error_us) for row in wrong) / step.step_us
    if share < THRESHOLDS["stale-profile"].limit:
        return None
    return Finding(
        "stale-profile",
        min(step.overlap.hideable_us / step.step_us, share),
        f"the profile's costs are off by {in_percent(use.off)}: {in_percent(share)} of the step",
        tuple(
            Evidence(row.name, row.error_us * (1 if row.error_us > 0 else -1),
                     f"{in_words(row.profile_us or 0.0)} in the profile, {in_words(row.measured_us)} measured")
            for row in wrong[:ROWS]
        ),
        f"profile this program on this hardware again ('{PROFILE}'): its shapes, flags or clocks differ from "
        "the profile run",
    )  # fmt: skip


def recompilation(step: MeasuredStep) -> Finding | None:
    """Other versions of the main program run between its steps, and XLA compiles: shapes or types that change."""
    if not any(len(window.compiling) for window in step.windows):
        return None  # versions that were compiled before take turns, as eager operations of several shapes do
    main = step.costs.program.key
    others = {number for number, key in enumerate(step.trace.modules) if key.name == main.name}
    others.discard(step.costs.program.index)
    runs: Counter[int] = Counter()
    for window in step.windows:
        module = step.trace.module[window.rows]
        for number in others:
            runs[number] += len(distinct(step.trace.execution[window.rows[module == number]]))
    runs = +runs
    if len(runs) < THRESHOLDS["recompilation"].limit:
        return None
    return Finding(
        "recompilation",
        step.idle_us["while compiling"] / step.step_us,
        f"{many(len(runs), 'other version')} of {main.name} ran between its steps: it is compiled again and again",
        tuple(
            Evidence(f"program {step.trace.modules[number].program_id}", 0.0, many(count, "execution"))
            for number, count in runs.most_common(ROWS)
        ),
        "give the step the same shapes, types and static arguments each time: pad the input; jax_log_compiles=1 says "
        "what changed",
    )


def window(step: MeasuredStep) -> Finding | None:
    """The recording shows another step than a plain run."""
    dropped = [why for why in step.costs.window.dropped.values() if why.startswith("warm-up")]
    tuned = sum(item.duration_ns for item in step.trace.unresolved if item.reason == Reason.AUTOTUNER.word)
    share = tuned / max(int(step.trace.duration_ns.sum()) + tuned, 1)
    rows = [Evidence(f"execution {number}", 0.0, why) for number, why in step.costs.window.dropped.items()]
    number: list[str] = []
    remedy: list[str] = []
    if dropped:
        number.append(f"{many(len(dropped), 'execution')} of warm-up, left out of all figures here")
        remedy.append("start the trace some steps later")
    if share >= THRESHOLDS["window"].limit:
        rows.append(
            Evidence("autotuning", 0.0, f"{in_words(tuned / 1e3)}, {in_percent(share)} of the trace's GPU time")
        )
        number.append("kernels that XLA tries while it compiles")
        remedy = ["start the trace some steps after compilation"]
    if hidden := step.costs.left_out.get("command buffer", ()):
        rows.append(Evidence("command buffers", 0.0, f"{many(len(hidden), 'CUDA graph')} hide what runs in them"))
        number.append("CUDA graphs, whose kernels have no names")
        remedy.append("trace without graphs (--xla_gpu_enable_command_buffer=)")
    versions = len(step.costs.program.fingerprints)
    if versions > 1:
        rows.append(Evidence("fingerprints", 0.0, f"the ranks compiled {versions} different programs"))
        number.append("ranks that ran different programs")
        remedy.append("give all ranks one autotuning result (--xla_gpu_load_autotune_results_from)")
    if not number:
        return None
    return Finding(
        "window",
        0.0,
        f"besides steady steps the trace holds {'; '.join(number)}",
        tuple(rows[-ROWS:]),
        "; ".join(remedy),
    )
