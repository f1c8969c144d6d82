"""Findings on the recording itself: what it shows besides steady steps, and what it cannot tell."""

from __future__ import annotations

from collections import Counter

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.findings import ROWS, EvidenceRow, StepFinding, in_percent, in_words
from pgle.analyze.other_work import TO_TELL, OtherKind
from pgle.analyze.window import RowGroup
from pgle.errors import many
from pgle.trace.table import LeftOutReason

TUNED_SHARE = 0.01  # of the GPU time in the trace; less autotuning is not named
MUCH_OTHER = 0.05  # of the step; with more work of no instruction, XLA's share of it cannot be told


def other_work(step: MeasuredStep) -> StepFinding | None:
    """Work that belongs to no instruction, while nothing else runs."""
    found = step.parts.of(RowGroup.OTHER)
    us = step.breakdown.other_us
    if not found:
        return None
    rows = (
        EvidenceRow(name, each_us, TO_TELL[OtherKind(name)])
        for name, each_us in found.items()
    )
    most = next(iter(found))
    return StepFinding(
        0.0,
        f"{step.percent(us)} of the step is GPU work of no instruction, most in {most}",
        tuple(rows)[:ROWS],
        TO_TELL[OtherKind(most)],
        reached=us / step.step_us,
    )


def recompilation(step: MeasuredStep) -> StepFinding | None:
    """Other versions of the main program run between its steps, and XLA compiles: shapes or types
    that change.
    """
    if not any(len(window.compiling) for window in step.windows):
        # versions that were compiled before take turns, as eager operations of several shapes do
        return None
    main, modules = step.costs.program.key.name, step.trace.modules
    runs = Counter(
        {
            at: count
            for at, count in step.runs_of_others().items()
            if modules[at].name == main
        }
    )
    return StepFinding(
        step.idle_us["while compiling"],
        f"{many(len(runs), 'other version')} of {main} ran between its steps: it is compiled again and again",
        tuple(
            EvidenceRow(
                f"program {modules[at].program_id}", 0.0, many(count, "execution")
            )
            for at, count in runs.most_common(ROWS)
        ),
        "give the step the same shapes, types and static arguments each time: pad the input; jax_log_compiles=1 says "
        "what changed",
        reached=len(runs),
    )


def window_remarks(step: MeasuredStep) -> StepFinding:
    """The recording shows another step than a plain run."""
    dropped = [
        why for why in step.costs.window.dropped.values() if why.startswith("warm-up")
    ]
    tuned = sum(
        item.duration_ns
        for item in step.trace.unresolved
        if item.reason == LeftOutReason.AUTOTUNER.word
    )
    share = tuned / max(int(step.trace.duration_ns.sum()) + tuned, 1)
    rows = [
        EvidenceRow(f"execution {number}", 0.0, why)
        for number, why in step.costs.window.dropped.items()
    ]
    found: dict[str, str] = {}  # what it is, and what to do
    if dropped:
        found[
            f"{many(len(dropped), 'execution')} of warm-up, left out of all figures here"
        ] = (
            "start the trace some steps later"
            if share < TUNED_SHARE
            else ""  # what autotuning needs is late enough
        )
    if step.costs.window.lost:
        count = many(len(step.costs.window.lost), "execution")
        found[f"{count} with lost records, left out of all figures here"] = (
            "record fewer steps"
        )
    if share >= TUNED_SHARE:
        of = f"{in_words(tuned / 1e3)}, {in_percent(share)} of the trace's GPU time"
        rows.append(EvidenceRow("autotuning", 0.0, of))
        found["kernels that XLA tries while it compiles"] = (
            "start the trace some steps after compilation"
        )
    if hidden := step.costs.left_out.get("command buffer", ()):
        rows.append(
            EvidenceRow(
                "command buffers",
                0.0,
                f"{many(len(hidden), 'CUDA graph')} hide what runs in them",
            )
        )
        found["CUDA graphs, whose kernels have no names"] = (
            "trace without graphs (--xla_gpu_enable_command_buffer=)"
        )
    if (versions := len(step.costs.program.fingerprints)) > 1:
        rows.append(
            EvidenceRow(
                "fingerprints", 0.0, f"the ranks compiled {versions} different programs"
            )
        )
        one = "give all ranks one autotuning result (--xla_gpu_load_autotune_results_from)"
        found["ranks that ran different programs"] = one
    remedy = "; ".join(filter(None, found.values()))
    number = f"besides steady steps the trace holds {'; '.join(found)}"
    return StepFinding(0.0, number, tuple(rows[-ROWS:]), remedy, reached=len(found))
