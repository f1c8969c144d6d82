"""Findings about the recording itself: what it contains besides steady steps, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.findings import ROWS, EvidenceRow, Observation
from pgle.analyze.other_work import TO_TELL, OtherKind
from pgle.analyze.untimed import untold_us
from pgle.analyze.versions import Version
from pgle.analyze.window import RowGroup
from pgle.errors import in_percent, in_words, many
from pgle.trace.table import LeftOutReason

TUNED_SHARE = 0.01  # share of the GPU time in the trace; less autotuning is skipped
# share of the step; if more work has no instruction, figures are incomplete
MUCH_OTHER = 0.05


def other_work(step: MeasuredStep) -> Observation | None:
    """Find kernels and graphs of no instruction that run while nothing else runs."""
    found = dict(step.parts.of(RowGroup.OTHER))
    found.pop(OtherKind.COPIES, None)  # copies have a finding of their own
    us = sum(found.values())
    if not found:
        return None
    rows = (
        EvidenceRow(name, each_us, TO_TELL[OtherKind(name)])
        for name, each_us in found.items()
    )
    most = next(iter(found))
    return Observation(
        0.0,
        f"{step.percent(us)} of the step is GPU work of no instruction, most in {most}",
        tuple(rows)[:ROWS],
        TO_TELL[OtherKind(most)],
        reached=us / step.step_us,
    )


def untimed_records(step: MeasuredStep) -> Observation | None:
    """Find work of the step that looks idle because its records have no time stamp."""
    found = untold_us(step.trace, step.windows, step.costs.program.index)
    if not found:
        return None
    us = sum(found.values())
    rows = (
        EvidenceRow(name, each_us, "as long as elsewhere")
        for name, each_us in found.items()
    )
    return Observation(
        0.0,
        f"{step.percent(us)} of the step cannot be told: records without a time stamp look idle",
        tuple(rows)[:ROWS],
        "record fewer steps, or update the driver and the profiler",
        reached=us / step.step_us,
    )


def recompilation(step: MeasuredStep) -> Observation | None:
    """Find that the main program was compiled more than once, or that XLA compiles during steps."""
    versions = step.versions if step.has_step else ()
    compiles = list(_compilations(step))
    if not versions and not compiles:
        return None
    main = step.costs.program.key.name
    found = []
    if versions:
        what = many(len(versions), "other version")
        found.append(f"{what} of {main} ran: {_about(versions[0])}")
    if compiles:
        us, where = compiles[0]
        found.append(f"XLA compiles for {in_words(us)} {where}")
    rows = [
        EvidenceRow(f"program {one.program_id}", 0.0, _about(one)) for one in versions
    ]
    rows += [
        EvidenceRow("XLA compiles", us / step.steps, f"for {in_words(us)} {where}")
        for us, where in compiles
    ]
    return Observation(
        step.idle_us["while compiling"],
        "; ".join(found),
        tuple(rows[:ROWS]),
        _remedy(versions),
        reached=len(versions) + len(compiles),
    )


def _about(version: Version) -> str:
    """Describe a version: how often it ran, when it ran first, and what differs."""
    ran = many(version.executions, "execution")
    usual = f"program {version.usual_id}"
    before = many(version.before, "execution")
    first = f"the first after {before} of {usual}" if version.before else "the first"
    why = "; ".join(version.changed)
    if version.is_same:
        why = f"the same program as {usual}"
    return "; ".join(filter(None, (f"{ran}, {first}", why)))


def _remedy(versions: Sequence[Version]) -> str:
    if any(version.is_same for version in versions):
        return (
            "jit the same function object each time: a new lambda or partial is compiled again; "
            "jax_explain_cache_misses=1 says why"
        )
    return (
        "give the step the same shapes, types and static arguments each time: pad the input; "
        "jax_explain_cache_misses=1 says what changed"
    )


def _compilations(step: MeasuredStep) -> Iterator[tuple[float, str]]:
    """Microseconds and place (in words) of each compilation within the steps. Each process counts
    once.
    """
    seen = set()
    for window in step.windows:
        process = step.trace.devices[window.device].process
        if process in seen:
            continue
        seen.add(process)
        times = window.compiling
        executions = window.numbers[window.steps_at(times.start)].tolist()
        for number, ns in zip(executions, times.lengths.tolist(), strict=True):
            yield ns / 1e3, f"in execution {number}, in process {process}"


def window_remarks(step: MeasuredStep) -> Observation:
    """Find what makes the recorded steps differ from those of a plain run."""
    window = step.costs.window
    tuned_ns = sum(
        item.duration_ns
        for item in step.trace.unresolved
        if item.reason == LeftOutReason.AUTOTUNER.word
    )
    share = tuned_ns / max(int(step.trace.duration_ns.sum()) + tuned_ns, 1)
    is_tuned = share >= TUNED_SHARE
    rows = [
        EvidenceRow(f"execution {number}", 0.0, why)
        for number, why in window.dropped.items()
    ]
    found: dict[str, str] = {}  # what it is, and what to do
    warm_up = sum(why.startswith("warm-up") for why in window.dropped.values())
    if warm_up:
        count = many(warm_up, "execution")
        # the remedy for autotuning already starts the trace later
        later = "" if is_tuned else "start the trace some steps later"
        found[f"{count} of warm-up, left out of all figures here"] = later
    if window.lost:
        count = many(len(window.lost), "execution")
        fewer = "record fewer steps"
        found[f"{count} with lost records, left out of all figures here"] = fewer
    if is_tuned:
        note = (
            f"{in_words(tuned_ns / 1e3)}, {in_percent(share)} of the trace's GPU time"
        )
        rows.append(EvidenceRow("autotuning", 0.0, note))
        after = "start the trace some steps after compilation"
        found["kernels that XLA tries while it compiles"] = after
    if hidden := step.costs.left_out.get("command buffer", ()):
        note = f"{many(len(hidden), 'CUDA graph')} hide what runs in them"
        rows.append(EvidenceRow("command buffers", 0.0, note))
        without = "trace without graphs (--xla_gpu_enable_command_buffer=)"
        found["CUDA graphs, whose kernels have no names"] = without
    if (versions := len(step.costs.program.fingerprints)) > 1:
        note = f"the ranks compiled {versions} different programs"
        rows.append(EvidenceRow("fingerprints", 0.0, note))
        one = "give all ranks one autotuning result (--xla_gpu_load_autotune_results_from)"
        found["ranks that ran different programs"] = one
    remedy = "; ".join(filter(None, found.values()))
    number = f"besides steady steps the trace holds {'; '.join(found)}"
    return Observation(0.0, number, tuple(rows[-ROWS:]), remedy, reached=len(found))
