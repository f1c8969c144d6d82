"""What the program, its memory, its profile and the recording itself cost: one function per finding."""

from __future__ import annotations

from collections import Counter

from pgle.analyze.analysis import MeasuredInstruction, MeasuredStep, total_us
from pgle.analyze.findings import ROWS, Evidence, Found, evidence_of, in_percent, in_words
from pgle.analyze.layers import Phase
from pgle.analyze.rules.device import by_shape
from pgle.costs.profile.value import has_remat
from pgle.errors import many
from pgle.next import PROFILE
from pgle.trace.table import Reason

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
