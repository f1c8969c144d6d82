"""Findings about time in which the GPU does not compute for a step: idle, copies, other modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.findings import ROWS, EvidenceRow, Observation
from pgle.analyze.other_work import TO_TELL, OtherKind
from pgle.analyze.window import RowGroup
from pgle.errors import in_words, many
from pgle.next import REHEARSE
from pgle.schedule.simulate import Stream
from pgle.trace.columns import totals

_NO_GRAPHS = (
    "a profile run has CUDA graphs off, as its trace needs; a plain run may have them"
)


def other_modules(step: MeasuredStep) -> Observation:
    """Find modules other than the main one that run between or inside its steps."""
    found = step.parts.of(RowGroup.MODULE)
    us = sum(found.values())
    runs = Counter[str]()
    for number, count in step.runs_of_others().items():
        runs[step.trace.modules[number].name] += count
    rows = (
        EvidenceRow(name, each_us, f"{runs[name] / step.steps:.3g} × a step")
        for name, each_us in islice(found.items(), ROWS)
    )
    return Observation(
        us,
        f"other modules run for {step.percent(us)} of the step ({in_words(us)})",
        tuple(rows),
        "put this work into the step, or run it less often: each jit-compiled function and "
        "each operation outside of jit is a module of its own",
    )


def input_bound(step: MeasuredStep) -> Observation:
    """Find idle time between steps. The loss excludes slow steps, which have a finding of their
    own.
    """
    us = sum(step.parts.of(RowGroup.BETWEEN).values())
    share = step.percent(us)
    share_of_all = step.percent(step.idle_us["between steps"])
    usual = f", {share} without the slow steps" if share != share_of_all else ""
    waits = [window.waits for window in step.windows]
    gaps_ns = np.concatenate([gaps.times.lengths[~gaps.inside] for gaps in waits])
    longest = in_words(float(gaps_ns.max(initial=0)) / 1e3)
    note = f"{many(len(gaps_ns), 'gap')}, longest {longest}"
    return Observation(
        us,
        f"no GPU work between steps for {share_of_all} of the time{usual}",
        (EvidenceRow("between steps", us, note),),
        "prefetch input to the device and let steps be dispatched ahead: no "
        "block_until_ready, print or device_get in the loop; synthetic input instead shows "
        "what that brings",
    )


def host_gaps(step: MeasuredStep) -> Observation:
    """Find gaps inside steps in which nothing runs because the host is late."""
    found = step.parts.of(RowGroup.HOST)
    us = sum(found.values())
    gaps = _gaps_before(step)
    evidence = []
    for name, each_us in islice(found.items(), ROWS):
        count = max(gaps[name], 1) / step.steps
        note = f"{count:.3g} × a step, {in_words(each_us / count)} each"
        evidence.append(EvidenceRow(f"before {name}", each_us, note))
    return Observation(
        us,
        f"gaps over 20 µs inside steps: {step.percent(us)} of the step ({in_words(us)})",
        tuple(evidence),
        "take the host off the step: callbacks, transfers and eager operations inside it; "
        "before a custom call a library prepares it: update that, or let XLA's own kernels "
        "replace it",
    )


def _gaps_before(step: MeasuredStep) -> Counter[str]:
    """How many long gaps end in each instruction, over all steps and devices."""
    gaps = Counter[str]()
    for window in step.windows:
        rows = window.waits.after[window.waits.inside]
        codes = step.trace.instruction[rows].tolist()
        gaps.update(step.trace.instructions[code] for code in codes)
    return gaps


def launch_gaps(step: MeasuredStep) -> Observation:
    """Find short gaps between kernels that are launched one after another."""
    us = sum(step.parts.of(RowGroup.LAUNCH).values())
    kernels = sum(len(window.rows) for window in step.windows) / step.steps
    note = f"{kernels:.4g} kernels and copies in a step"
    return Observation(
        us,
        f"gaps of up to 20 µs between kernels: {step.percent(us)} of the step",
        (EvidenceRow("launch gaps", us, note),),
        "let CUDA graphs launch the kernels "
        "(--xla_gpu_enable_command_buffer=FUSION,CUBLAS; not while a profile is recorded), "
        "or fuse them",
        unclaimed=_NO_GRAPHS if step.mode else "",
    )


def copies(step: MeasuredStep) -> Observation:
    """Find copies that no compute overlaps."""
    us = step.breakdown.exposed_copy_us
    return Observation(
        us,
        f"copies that no compute overlaps: {step.percent(us)} of the step",
        tuple(_longest_copies(step)),
        "keep what the step needs on the device and donate its arguments (donate_argnums); "
        f"what must be copied wants pinned memory and a stream of its own: '{REHEARSE}' "
        "shows what a program's own offloading costs",
    )


def outside_copies(step: MeasuredStep) -> Observation | None:
    """Find copies of no instruction that run while nothing else runs."""
    us = step.parts.of(RowGroup.OTHER).get(OtherKind.COPIES, 0.0)
    if not us:
        return None
    return Observation(
        us,
        f"copies outside of XLA's instructions, while nothing else runs: "
        f"{step.percent(us)} of the step",
        (EvidenceRow(OtherKind.COPIES, us, TO_TELL[OtherKind.COPIES]),),
        "copy the next batch while the step runs (device_put before the step's result is "
        "read), keep data on the device, and read results less often",
    )


def _longest_copies(step: MeasuredStep) -> Iterator[EvidenceRow]:
    """An evidence row for each of the instructions that copy longest."""
    trace = step.trace
    rows = np.concatenate(
        [window.rows[window.stream == Stream.COPY] for window in step.windows]
    )
    instructions = trace.instructions
    ns = totals(trace.instruction[rows], trace.duration_ns[rows], len(instructions))
    for code in np.argsort(-ns, kind="stable")[:ROWS].tolist():
        if ns[code]:
            us = ns[code] / 1e3 / step.steps
            yield EvidenceRow(instructions[code], us, "copied")


def contending_copies(step: MeasuredStep) -> Observation | None:
    """Find copies and memsets that slow kernels and collectives at the same time."""
    if not step.contention:
        return None
    first = step.contention[0]
    steps = many(len(step.parts.steps), "step")
    rows = []
    for item in step.contention[:ROWS]:
        copied = f"{in_words(item.copied_us)} of copies a step"
        where = f"in {len(item.executions)} of {steps}"
        kernels = many(item.launches, "kernel")
        note = f"{copied}, {where}; {kernels} take {item.ratio:.2f} times as long"
        rows.append(EvidenceRow(item.name, item.us, note))
    return Observation(
        sum(item.us for item in step.contention),
        f"{first.name} overlap the step and lengthen it by {in_words(first.us)}: what runs "
        f"next to them takes {first.ratio:.2f} times as long",
        tuple(rows),
        "move these copies away from what is bound by memory: copy between steps, less at "
        "a time, or less often; host memory should be pinned",
    )
