"""What a measured step loses: every rule with its limit and its source, and the findings of a
step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median

import numpy as np

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.findings import ROWS, EvidenceRow, StepFinding
from pgle.analyze.layers import MeasuredInstruction, TrainingPhase
from pgle.analyze.pauses import HostPause, find_pauses
from pgle.analyze.recording import (
    MUCH_OTHER,
    other_work,
    recompilation,
    untimed_records,
    window_remarks,
)
from pgle.analyze.slow_links import LEAST_SLOWED, SLOW_TRANSFER
from pgle.analyze.uneven import SlowGpu, find_slow_gpus, slow_gpu_rows, slow_link
from pgle.analyze.window import RowGroup
from pgle.costs.estimate.estimate import compute_us
from pgle.costs.profile.value import has_remat
from pgle.errors import in_percent, in_words, many
from pgle.next import DOCTOR, PROFILE, REHEARSE, RUN, TUNE
from pgle.schedule.placements import DISABLE_ASYNC
from pgle.schedule.simulate import Stream
from pgle.steps.patterns import LEAST_LOST, PatternKind
from pgle.trace.columns import totals
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Hardware
from pgle.xla.vendors import maker_of

LEAST_SAVED = 0.01
"""Of the step. What could be saved by faster matrix products or collectives is a finding from here
on.
"""
LEAST_HIDDEN = 0.001  # of the step; less is no reason for another profile
LEAST_LATE = 0.1  # of the wait for other ranks; what explains less is not shown
SLOW_PRODUCT = 0.5  # of the expected speed; a matrix product that is slower is slow
SPARE_MEMORY = 0.5  # of the memory limit; a program that needs less can keep what it computes again


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; it is a finding where what it finds reaches the limit."""

    find: Callable[[MeasuredStep], StepFinding | None]
    title: str  # what the finding is called
    todo: str  # what to do about it, if it saves time
    limit: float  # what the number must reach; a share of the step where `rule` says nothing else
    rule: str  # in words
    source: str  # who says so
    # False: the simulated GPU makes it up (a host that pauses, ranks that differ, its costs)
    simulated: bool = True


def find_findings(step: MeasuredStep) -> tuple[StepFinding, ...]:
    """Every finding that is the program's own, the one that could save most first."""
    if step.step_us <= 0:
        return ()
    findings = []
    for name, rule in RULES.items():
        if (
            found := rule.find(step)
            if rule.simulated or not step.trace.simulated
            else None
        ) is not None:
            share = found.lost_us / step.step_us
            if (share if found.reached is None else found.reached) >= rule.limit:
                findings.append(
                    replace(
                        found,
                        id=name,
                        title=rule.title,
                        todo=rule.todo,
                        share=0.0 if found.unclaimed else share,
                    )
                )
    findings.sort(key=lambda finding: -finding.share)
    return tuple(_worded(finding, step.hardware) for finding in findings)


def _worded(finding: StepFinding, hardware: Hardware | None) -> StepFinding:
    """A finding in the words of the GPU's vendor."""
    if hardware is None:
        return finding
    maker = maker_of(hardware)
    return replace(
        finding,
        number=maker.worded(finding.number),
        remedy=maker.worded(finding.remedy),
        title=maker.worded(finding.title),
        todo=maker.worded(finding.todo),
    )


def evidence_of(
    rows: Iterable[tuple[MeasuredInstruction | MeasuredCollective, float, str]],
) -> tuple[EvidenceRow, ...]:
    """The first of some instructions as evidence, each with its microseconds in a step and a
    note.
    """
    return tuple(
        EvidenceRow(item.name, us, note, item.op_name)
        for item, us, note in islice(rows, ROWS)
    )


def total_us(items: Iterable[MeasuredInstruction]) -> float:
    """Time of some instructions in a step."""
    return sum(item.us for item in items)


def synchronous(step: MeasuredStep) -> StepFinding | None:
    """Collectives in turn with compute, unless the recording itself keeps them so."""
    if step.measures_alone:
        return None
    ours = [item for item in _most_exposed(step) if item.sync]
    stuck = bool(step.exposed_collectives) and not any(
        item.hideable_us for item in ours
    )
    return StepFinding(
        sum(item.transfer_exposed_us for item in ours),
        many(len(ours), "synchronous collective"),
        _exposed_rows(
            (item, "; ".join(filter(None, (item.kind, item.why)))) for item in ours
        ),
        _NOTHING_BESIDE if stuck else _MAKE_ASYNC,
    )


_AS_THEY_ARE = (
    f"these collectives as they are: '{TUNE}' tries combined, split and pipelined ones"
)
_NOTHING_BESIDE = (
    f"no compute is independent of them, so no schedule hides {_AS_THEY_ARE}"
)
_MAKE_ASYNC = (
    f"make them asynchronous: see that {DISABLE_ASYNC} does not name their kind, then '{REHEARSE}' says whether "
    "the scheduler finds compute to overlap them with"
)


def _most_exposed(step: MeasuredStep) -> list[MeasuredCollective]:
    return sorted(step.collectives, key=lambda item: -item.transfer_exposed_us)


def _exposed_rows(
    of: Iterable[tuple[MeasuredCollective, str]],
) -> tuple[EvidenceRow, ...]:
    """The first of some exposed collectives, each with a note."""
    return evidence_of(
        (item, item.transfer_exposed_us, note)
        for item, note in of
        if item.transfer_exposed_us > 0
    )


def exposed(step: MeasuredStep) -> StepFinding:
    """Asynchronous collectives that no compute overlaps, after the last rank arrived."""
    ours = [item for item in _most_exposed(step) if not item.sync]
    return StepFinding(
        step.async_exposed_us,
        "asynchronous collectives run while nothing computes",
        _exposed_rows((item, item.kind) for item in ours),
        _hide(step, ours),
    )


def _hide(step: MeasuredStep, ours: Iterable[MeasuredCollective]) -> str:
    """A profile where a schedule could hide it, other flags where none can."""
    overlap = step.overlap
    if overlap is None:
        return f"give the scheduler measured costs ('{RUN}'), or search flags without a GPU ('{TUNE}')"
    judged = [
        (item.transfer_exposed_us, item.hideable_us)
        for item in ours
        if item.hideable_us is not None
    ]
    hideable = sum(hideable_us for _, hideable_us in judged) / step.step_us
    stuck = sum(exposed_us for exposed_us, _ in judged) / step.step_us - hideable
    profile = (
        f"a profile of this program ('{RUN}')"
        if overlap.profile is None
        else f"a fresh profile ('{PROFILE}')"
    )
    if hideable < LEAST_HIDDEN:
        return f"no schedule hides {_AS_THEY_ARE}"
    return (
        f"there is compute to hide {in_percent(hideable)} of the step behind: {profile} lets the scheduler see it; the "
        f"other {in_percent(stuck)} no schedule hides: '{TUNE}' tries combined and pipelined collectives"
    )


def rank_skew(step: MeasuredStep) -> StepFinding | None:
    """A rank that arrives later at collectives than the others, which wait for it.

    Even ranks save no more than the time in which the mean rank does not compute.
    """
    late = step.late
    if not late.devices:
        return None
    of_one, enough_us = late.devices[0][1], LEAST_LATE * late.us
    waited_us = of_one if of_one >= (1 - LEAST_LATE) * late.us else late.us
    ranks = [
        EvidenceRow(
            step.rank_name(device),
            us,
            f"the others wait for it; last in {count} of {late.steps} steps",
        )
        for device, us, count in late.devices
        if us >= enough_us
    ]
    gpus = [gpu for gpu in find_slow_gpus(step) if gpu.us >= enough_us]
    longer = slow_gpu_rows(gpus, step) or _longer_rows(step, enough_us)
    idlest, more_us = _idlest(step)
    if more_us >= enough_us:
        longer = (
            EvidenceRow(f"idle on {idlest}", more_us, "more than on the other ranks"),
            *longer,
        )
    who = _late_ranks(step, enough_us)
    waits = sorted(step.collectives, key=lambda item: -item.wait_us)[:1]
    most = evidence_of(
        (item, item.wait_us, "waits here, mean over ranks") for item in waits
    )
    return StepFinding(
        min(waited_us, step.step_us - step.breakdown.compute_us),
        f"the other ranks wait {in_words(waited_us)} a step {who}{_why_slow(gpus, step)}",
        (*ranks[:ROWS], *longer[:ROWS], *most),
        "even out these instructions: alike data on each rank, or an algorithm whose time does not hang on the data; "
        f"if all of them are slow on one rank, check its clocks ('{DOCTOR}' there); if it is idle, check its host",
    )


def _why_slow(gpus: Sequence[SlowGpu], step: MeasuredStep) -> str:
    """That all compute of a rank is slower, in words; empty if that is not so."""
    if not gpus:
        return ""
    slowest = gpus[0]
    slower = f"all compute is {in_percent(slowest.share)} slower"
    return f"; {slower} on {step.rank_name(slowest.device)}"


def _longer_rows(step: MeasuredStep, enough_us: float) -> tuple[EvidenceRow, ...]:
    """The instructions that take longer on the slowest rank."""
    skew = sorted(
        ((item, (item.cost.skew_us or 0.0) * item.count) for item in step.compute),
        key=lambda row: -row[1],
    )
    return evidence_of(
        (item, us, "longer on the slowest rank") for item, us in skew if us >= enough_us
    )


MOST_NAMED = 3  # late ranks in one line; more are "the last one, which differs"


def _late_ranks(step: MeasuredStep, enough_us: float) -> str:
    """The ranks that the others wait for, in words, with the time of each if they are several."""
    late = [
        (step.rank_name(at), us) for at, us, _ in step.late.devices if us >= enough_us
    ]
    if len(late) == 1:
        return f"for {late[0][0]}"
    if len(late) > MOST_NAMED:
        return "for the last one, which differs"
    return f"for {' and '.join(f'{name} ({in_words(us)})' for name, us in late)}"


def _idlest(step: MeasuredStep) -> tuple[str, float]:
    """The device with most gaps over 20 µs inside steps, and how much more that is than on the
    typical other one.
    """
    if len(step.windows) < 2:
        return "", 0.0
    us = [
        float(item.waits.times.lengths[item.waits.inside].sum()) / item.steps / 1e3
        for item in step.windows
    ]
    most = max(range(len(us)), key=us.__getitem__)
    return step.rank_name(step.windows[most].device), us[most] - median(
        us[:most] + us[most + 1 :]
    )


_CHECK_LINKS = "check NVLink and NCCL's choice (NCCL_DEBUG=INFO), and the kernels that overlap them, which take bandwidth and SMs"
_ALONE = "a profile run exposes every collective to measure it alone; the trace of a plain run shows what stays exposed"


def slow_collectives(step: MeasuredStep) -> StepFinding | None:
    """Collectives slower than XLA's table; only their exposed time counts, which a profile run
    alone does not show.
    """
    if step.hardware is None:
        return None
    slow = [
        (
            item,
            min(
                (item.time_us - item.link.estimate_us) * item.count,
                item.transfer_exposed_us,
            ),
            f"{in_words(item.time_us)}, expected {in_words(item.link.estimate_us)}",
        )
        for item in step.collectives
        if item.link is not None
        and item.link.estimate_us < SLOW_TRANSFER * item.time_us
    ]
    slow.sort(key=lambda row: -row[1])
    partly, remedy = "", _CHECK_LINKS
    if len(step.windows) < max(step.costs.ranks, 2):
        partly = " (waits for the ranks that are missing count as transfer)"
        remedy = f"trace all ranks first: that separates waiting from transfer; if they are still slow: {_CHECK_LINKS}"
    return StepFinding(
        sum(lost for _, lost, _ in slow),
        f"{many(len(slow), 'collective')} run at less than 70 % of the speed expected on "
        f"{step.hardware.name.upper()}{partly}",
        evidence_of(slow),
        remedy,
        unclaimed=_ALONE if step.measures_alone else "",
    )


def slow_steps(step: MeasuredStep) -> StepFinding | None:
    """A few steps are much longer than the others, on all ranks or on one."""
    steps, us = step.parts.steps, step.parts.slow_us
    slow = [item for item in steps if item.is_slow]
    pauses = find_pauses(step.windows)[:ROWS]
    if not slow:
        return _paused(step, pauses)
    usual = median([item.step_us for item in steps if not item.is_slow])
    listed = ", ".join(
        f"execution {item.execution} by {in_words(item.step_us - usual)}"
        for item in slow[:ROWS]
    )
    us = max(us, _pauses_us(step, pauses))
    share = len(slow) / len(steps)
    rows = _rows_of_groups(step.parts.excess(), share, "in each slow step")
    return StepFinding(
        us,
        f"{len(slow)} of {many(len(steps), 'step')} longer than the others, {listed}: {step.percent(us)} of the mean "
        "step",
        (*_rows_of_pauses(step, pauses), *rows),
        "look at what happens in those steps: checkpoints, evaluation, garbage collection, another job on the node",
    )


def _paused(step: MeasuredStep, pauses: Sequence[HostPause]) -> StepFinding | None:
    """Ranks whose host pauses in single steps, though the mean step of all ranks shows none that is
    slow.
    """
    if not pauses:
        return None
    first = pauses[0]
    return StepFinding(
        _pauses_us(step, pauses),
        f"the host of {step.rank_name(first.device)} pauses for {in_words(first.us)} in execution {first.execution}, "
        f"{_who_waits(step, first)}",
        _rows_of_pauses(step, pauses),
        "look at this host in those steps: garbage collection, input, logging, another process on its cores",
    )


def _pauses_us(step: MeasuredStep, pauses: Sequence[HostPause]) -> float:
    """Pauses in a mean step of the rank that pauses longest: the job is not done before it."""
    of_rank: dict[int, float] = defaultdict(float)
    for pause in pauses:
        of_rank[pause.device] += pause.us / len(step.parts.steps)
    return max(of_rank.values(), default=0.0)


def _who_waits(step: MeasuredStep, pause: HostPause) -> str:
    """Whether the other ranks wait for a pause, in words."""
    if len(step.windows) < 2:
        return "no other rank is in the trace"
    if pause.paused == len(step.windows):
        return "as all ranks do"
    return "the other ranks wait" if pause.is_waited_for else "no other rank waits"


def _rows_of_pauses(
    step: MeasuredStep, pauses: Sequence[HostPause]
) -> tuple[EvidenceRow, ...]:
    """A row for each pause: the host, the execution, and who waits."""
    return tuple(
        EvidenceRow(
            f"host of {step.rank_name(pause.device)}",
            pause.us / len(step.parts.steps),
            f"pauses for {in_words(pause.us)} in execution {pause.execution}, {_who_waits(step, pause)}",
        )
        for pause in pauses
    )


def _rows_of_groups(
    more: Iterable[tuple[RowGroup, str, float]], share: float, where: str
) -> tuple[EvidenceRow, ...]:
    """What some steps have more of, by group, with the row of each group that has most.

    Args:
        more: group, name and microseconds more, the largest first.
        share: of the steps that have it.
        where: in words.
    """
    groups: dict[RowGroup, list[tuple[str, float]]] = defaultdict(list)
    for group, name, more_us in more:
        groups[group].append((name, more_us))
    rows = []
    for group, found in groups.items():
        name, most_us = found[0]
        most = f"most: {in_words(most_us)}, {name}"
        if group in (RowGroup.LAUNCH, RowGroup.BETWEEN):
            most = f"most: {name}"
        if group == RowGroup.HOST:
            most = f"most before {name}"
        us = sum(row[1] for row in found)
        rows.append(
            EvidenceRow(str(group), us * share, f"{in_words(us)} more {where}; {most}")
        )
    return tuple(sorted(rows, key=lambda row: -row.us)[:ROWS])


_CHANGES = {
    PatternKind.GROWTH: "find what grows with the steps: lists and caches of the host, the input's length, falling "
    "clocks (nvidia-smi -q -d PERFORMANCE)",
    PatternKind.LEVEL: "find what changed at that step: clocks (nvidia-smi -q -d PERFORMANCE), another job on the "
    "node, the input, a second compilation",
    PatternKind.SPAN: "find what ran meanwhile: clocks (nvidia-smi -q -d PERFORMANCE), another job on the node, a "
    "checkpoint that is written in the background",
    PatternKind.PERIOD: "find what only these steps do: gradient accumulation, logging, input of two sizes",
}
"""What to do about steps that change over time."""


def changing_steps(step: MeasuredStep) -> StepFinding | None:
    """Steps that get longer, change level, or take turns."""
    patterns = step.parts.patterns
    if not patterns:
        return None
    numbers = [item.execution for item in step.parts.steps]
    first = patterns[0]
    falls = first.change < 0 and first.kind in (PatternKind.GROWTH, PatternKind.LEVEL)
    return StepFinding(
        first.lost * step.step_us,
        "; ".join(item.describe(numbers, "execution") for item in patterns),
        _rows_of_groups(
            step.parts.along(first), 1.0, "in the mean step than in the shortest ones"
        ),
        _START_LATER if falls else _CHANGES[first.kind],
        unclaimed=_SETTLES if falls else "",
    )


_START_LATER = "start the trace later, when steps have settled"
_SETTLES = "steps get shorter by themselves"


def other_modules(step: MeasuredStep) -> StepFinding:
    """Modules but the main one run between or inside its steps."""
    found, runs = step.parts.of(RowGroup.MODULE), Counter[str]()
    for number, count in step.runs_of_others().items():
        runs[step.trace.modules[number].name] += count
    us, most = sum(found.values()), islice(found.items(), ROWS)
    return StepFinding(
        us,
        f"other modules run for {step.percent(us)} of the step ({in_words(us)})",
        tuple(
            EvidenceRow(name, each_us, f"{runs[name] / step.steps:.3g} × a step")
            for name, each_us in most
        ),
        "put this work into the step, or run it less often: each jit-compiled function and each operation outside of "
        "jit is a module of its own",
    )


def scatters(step: MeasuredStep) -> StepFinding:
    """Scatters, which write row by row: by the HLO, alone or in a fusion; without, by name."""
    ours = [item for item in step.compute if _is_scatter(step.module, item)]
    return StepFinding(
        total_us(ours),
        f"{many(len(ours), 'scatter')}, {in_words(total_us(ours))} a step; what replaces them takes time too",
        evidence_of((item, item.us, item.cost.shape) for item in ours),
        "write the gradient of the lookup as a matrix product with one-hot rows, or sort the indices first "
        "(indices_are_sorted, unique_indices)",
    )


def _is_scatter(module: Module | None, item: MeasuredInstruction) -> bool:
    if module is None or (made := item.instruction) is None:
        return "scatter" in item.cost.name
    fused = (
        module.computations[name]
        for name in made.called
        if made.opcode == "fusion" and name in module.computations
    )
    return made.opcode == "scatter" or any(
        inner.opcode == "scatter" for of in fused for inner in of.instructions
    )


def slow_matmuls(step: MeasuredStep) -> StepFinding | None:
    """Matrix products below half of what XLA measured for their shape."""
    module, hardware = step.module, step.hardware
    if module is None or hardware is None:
        return None
    products = (
        (item, compute_us(module, item.instruction, hardware))
        for item in step.compute
        if item.instruction is not None
        and item.work is not None
        and item.work.tensor_cores
    )
    slow = [
        (
            item,
            (item.cost.cost_us - best) * item.count,
            f"{in_words(item.cost.cost_us)}, expected {in_words(best)}",
        )
        for item, best in products
        if best < SLOW_PRODUCT * item.cost.cost_us
    ]
    slow.sort(key=lambda row: -row[1])
    return StepFinding(
        sum(us for _, us, _ in slow),
        f"{many(len(slow), 'matrix product')} at less than half the speed expected on {hardware.name.upper()}",
        evidence_of(slow),
        "check layouts and sides that are no multiple of 8, and what overlaps them; let XLA autotune them "
        "(--xla_gpu_autotune_level=4)",
    )


_LOWER = "compute them in bf16, or in f32 with TF32 (jax_default_matmul_precision=tensorfloat32), if the model bears it"
_UNASKED = "the HLO allows them there: let XLA choose other kernels (--xla_gpu_autotune_level=4), and pad odd sides to 8"


def off_tensor_cores(step: MeasuredStep) -> StepFinding:
    """Matrix products that keep off the Tensor Cores, by their kernels' names, else by type and
    precision.
    """
    off = [item for item in step.compute if item.tensor_cores is False]
    us, peaks = total_us(off), {} if step.hardware is None else step.hardware.tflops
    unasked = [item for item in off if item.work is not None and item.work.tensor_cores]
    on = "" if step.hardware is None else f" of {step.hardware.name}"
    return StepFinding(
        us * (1 - (peaks["f32"] / peaks["tf32"] if peaks else 0.0)),
        f"{many(len(off), 'matrix product')} off the Tensor Cores{on}: {step.percent(us)} of the step",
        evidence_of(
            (item, item.us, _precision(item))
            for item in sorted(off, key=lambda item: -item.us)
        ),
        _UNASKED if total_us(unasked) > 0.5 * us else _LOWER,
        reached=us / step.step_us,
    )


def _precision(item: MeasuredInstruction) -> str:
    """What it multiplied in, and what the HLO asks for where that is something else."""
    if item.ran is None:
        return f"{item.dtype} in full precision"
    kernel = f"{item.dtype} by {item.ran.kernel}" * (item.ran.kernel != item.cost.name)
    asked = (
        f"the HLO asks for {item.work.dtype}"
        if item.work is not None and item.work.tensor_cores
        else ""
    )
    return "; ".join(filter(None, (asked, kernel))) or f"{item.dtype}"


def input_bound(step: MeasuredStep) -> StepFinding:
    """The device has nothing to do between steps; what only slow steps lose there is theirs to
    save.
    """
    us, in_all_us = (
        sum(step.parts.of(RowGroup.BETWEEN).values()),
        step.idle_us["between steps"],
    )
    usual = (
        f", {step.percent(us)} without the slow steps"
        if step.percent(us) != step.percent(in_all_us)
        else ""
    )
    gaps = [
        length
        for window in step.windows
        for length in window.waits.times.lengths[~window.waits.inside].tolist()
    ]
    longest = in_words(max(gaps, default=0.0) / 1e3)
    return StepFinding(
        us,
        f"no GPU work between steps for {step.percent(in_all_us)} of the time{usual}",
        (
            EvidenceRow(
                "between steps", us, f"{many(len(gaps), 'gap')}, longest {longest}"
            ),
        ),
        "prefetch input to the device and let steps be dispatched ahead: no block_until_ready, print or device_get "
        "in the loop; synthetic input instead shows what that brings",
    )


def host_gaps(step: MeasuredStep) -> StepFinding:
    """Nothing runs inside steps because the host is late."""
    found = step.parts.of(RowGroup.HOST)
    us = sum(found.values())
    counts: Counter[str] = (
        Counter()
    )  # gaps that end in an instruction, over all steps and devices
    for window in step.windows:
        rows = window.waits.after[window.waits.inside]
        counts.update(
            step.trace.instructions[code]
            for code in step.trace.instruction[rows].tolist()
        )
    evidence = []
    for name, each_us in islice(found.items(), ROWS):
        count = max(counts[name], 1) / step.steps
        note = f"{count:.3g} × a step, {in_words(each_us / count)} each"
        evidence.append(EvidenceRow(f"before {name}", each_us, note))
    return StepFinding(
        us,
        f"gaps over 20 µs inside steps: {step.percent(us)} of the step ({in_words(us)})",
        tuple(evidence),
        "take the host off the step: callbacks, transfers and eager operations inside it; before a custom call a "
        "library prepares it: update that, or let XLA's own kernels replace it",
    )


_NO_GRAPHS = (
    "a profile run has CUDA graphs off, as its trace needs; a plain run may have them"
)


def launch_gaps(step: MeasuredStep) -> StepFinding:
    """The GPU waits between kernels that are launched one after the other."""
    us = sum(step.parts.of(RowGroup.LAUNCH).values())
    kernels = sum(len(window.rows) for window in step.windows) / step.steps
    return StepFinding(
        us,
        f"gaps of up to 20 µs between kernels: {step.percent(us)} of the step",
        (
            EvidenceRow(
                "launch gaps", us, f"{kernels:.4g} kernels and copies in a step"
            ),
        ),
        "let CUDA graphs launch the kernels (--xla_gpu_enable_command_buffer=FUSION,CUBLAS; not while a profile is "
        "recorded), or fuse them",
        unclaimed=_NO_GRAPHS if step.mode else "",
    )


def copies(step: MeasuredStep) -> StepFinding:
    """Transfers that no compute overlaps."""
    us, trace = step.breakdown.exposed_copy_us, step.trace
    rows = np.concatenate(
        [window.rows[window.stream == Stream.COPY] for window in step.windows]
    )
    ns = totals(
        trace.instruction[rows], trace.duration_ns[rows], len(trace.instructions)
    )
    longest = [
        code for code in np.argsort(-ns, kind="stable")[:ROWS].tolist() if ns[code]
    ]
    return StepFinding(
        us,
        f"copies that no compute overlaps: {step.percent(us)} of the step",
        tuple(
            EvidenceRow(trace.instructions[at], ns[at] / 1e3 / step.steps, "copied")
            for at in longest
        ),
        "keep what the step needs on the device and donate its arguments (donate_argnums); what must be copied wants "
        f"pinned memory and a stream of its own: '{REHEARSE}' shows what a program's own offloading costs",
    )


def contending_copies(step: MeasuredStep) -> StepFinding | None:
    """Copies and memsets next to which kernels and collectives take longer than without them."""
    if not step.contention:
        return None
    first = step.contention[0]
    steps = len(step.parts.steps)
    rows = (
        EvidenceRow(
            item.name,
            item.us,
            f"{in_words(item.copied_us)} of copies a step, in {len(item.executions)} of {many(steps, 'step')}; "
            f"{many(item.launches, 'kernel')} take {item.ratio:.2f} times as long",
        )
        for item in step.contention[:ROWS]
    )
    return StepFinding(
        sum(item.us for item in step.contention),
        f"{first.name} overlap the step and lengthen it by {in_words(first.us)}: what runs next to them takes "
        f"{first.ratio:.2f} times as long",
        tuple(rows),
        "move these copies away from what is bound by memory: copy between steps, less at a time, or less often; "
        "host memory should be pinned",
    )


def rematerialised_for_nothing(step: MeasuredStep) -> StepFinding | None:
    """What the program computes again though there is memory to keep it."""
    layers, memory = step.layers, step.memory
    if (
        layers is None
        or memory is None
        or memory.used_share is None
        or memory.used_share > SPARE_MEMORY
    ):
        return None
    again = (
        layer for layer in layers.scopes if layer.phase == TrainingPhase.REMATERIALISED
    )
    ours = sorted(again, key=lambda item: -item.us)
    by_xla = (
        item
        for item in step.compute
        if item.instruction is not None and has_remat(item.instruction.name)
    )
    us = layers.phase_us(TrainingPhase.REMATERIALISED) - total_us(by_xla)
    return StepFinding(
        us,
        f"{step.percent(us)} of the step computes values again, and the program needs "
        f"{memory.used_share * 100:.0f} % of the {(memory.limit_bytes or 0) / 2**30:.3g} GiB that it can have",
        tuple(
            EvidenceRow(
                item.name or "(no scope)", item.us, many(item.instructions, "kernel")
            )
            for item in ours[:ROWS]
        ),
        "keep more: another jax.checkpoint policy, or none",
    )


def stale_profile(step: MeasuredStep) -> StepFinding | None:
    """The scheduler's profile has other costs than this run measured."""
    if step.overlap is None or (use := step.overlap.profile) is None:
        return None
    wrong = [row for row in use.rows if row.profile_us is not None and row.error_us]
    us = sum(abs(row.error_us) for row in wrong)
    return StepFinding(
        min(step.overlap.hideable_us, us),
        f"the profile's costs are off by {in_percent(use.off)}: {step.percent(us)} of the step",
        tuple(
            EvidenceRow(
                row.name,
                abs(row.error_us),
                f"{in_words(row.profile_us or 0.0)} in the profile, {in_words(row.measured_us)} measured",
            )
            for row in wrong[:ROWS]
        ),
        f"profile this program on this hardware again ('{PROFILE}'): its shapes, flags or clocks differ from "
        "the profile run",
        reached=us / step.step_us,
    )


_OWN = "pgle's proposal"
_TENSORFLOW = "TensorFlow guide, Optimize GPU performance"
RULES: Mapping[str, Rule] = {
    "synchronous-collective": Rule(
        synchronous,
        "synchronous collectives",
        "Make collectives asynchronous",
        0.01,
        "exposed time of synchronous collectives above 1 % of the step",
        "marin-community/marin#8054",
    ),
    "exposed-communication": Rule(
        exposed,
        "exposed communication",
        "Hide exposed collectives",
        0.03,
        "exposed asynchronous communication of at least 3 % of the step",
        f"{_OWN}: what PGLE can give",
    ),
    "rank-skew": Rule(
        rank_skew,
        "waits for the slowest rank",
        "Even out the ranks",
        0.02,
        "ranks wait for the last one for at least 2 % of the step, compared within each step",
        _OWN,
        simulated=False,
    ),
    "slow-link": Rule(
        slow_link,
        "collectives slow on some ranks",
        "Check the links of the slow ranks",
        LEAST_SLOWED,
        "collectives below 70 % of their speed on the other ranks of the group, or in equal groups, after all have "
        "started, for at least 1 % of the step",
        _OWN,
        simulated=False,
    ),
    "slow-steps": Rule(
        slow_steps,
        "slow steps",
        "Find what slows single steps",
        0.01,
        "steps that take 5 % longer than the median step, or hosts that pause in single steps, by at least 1 % of the mean "
        "step",
        _OWN,
        simulated=False,
    ),
    "changing-steps": Rule(
        changing_steps,
        "steps that change over time",
        "Find why steps change over time",
        LEAST_LOST,
        "steps that grow, change level or take turns beyond chance (5 % of shuffled steps, F test at 1 %), and lengthen "
        "the mean step by at least 0.5 %",
        _OWN,
        simulated=False,
    ),
    "other-modules": Rule(
        other_modules,
        "other modules",
        "Merge other modules into the step",
        0.01,
        "modules but the main one run alone for at least 1 % of the step",
        _OWN,
        simulated=False,
    ),
    "scatter-add": Rule(
        scatters,
        "scatters",
        "Replace scatters",
        0.05,
        "scatters of at least 5 % of the step",
        "openxla/xla#46225, #26371",
    ),
    "slow-matmul": Rule(
        slow_matmuls,
        "slow matrix products",
        "Speed up slow matrix products",
        LEAST_SAVED,
        "matrix products below 50 % of the speed that XLA's table and a roofline give",
        f"{_OWN}; XLA's table",
        simulated=False,
    ),
    "off-tensor-cores": Rule(
        off_tensor_cores,
        "matrix products off the Tensor Cores",
        "Use the Tensor Cores",
        0.01,
        "matrix products of at least 1 % of the step off the Tensor Cores, by kernel name, else by type and precision",
        _TENSORFLOW,
    ),
    "input-bound": Rule(
        input_bound,
        "idle between steps",
        "Keep the GPU busy between steps",
        0.05,
        "idle between steps for at least 5 % of the time",
        f"{_OWN}; {_TENSORFLOW}",
        simulated=False,
    ),
    "idle": Rule(
        host_gaps,
        "host gaps inside steps",
        "Keep the host out of the step",
        0.01,
        "gaps over 20 µs inside steps, for at least 1 % of the step",
        _OWN,
    ),
    "launch-gaps": Rule(
        launch_gaps,
        "launch gaps",
        "Shorten launch gaps with CUDA graphs",
        0.05,
        "gaps of up to 20 µs inside steps, for at least 5 % of the step",
        _OWN,
        simulated=False,
    ),
    "slow-collective": Rule(
        slow_collectives,
        "slow collectives",
        "Check slow transfers",
        LEAST_SAVED,
        "collectives below 70 % of the speed that XLA's table gives for size and group",
        f"{_OWN}; XLA's table",
    ),
    "exposed-copies": Rule(
        copies,
        "exposed copies",
        "Hide or avoid exposed copies",
        0.01,
        "exposed copies of at least 1 % of the step",
        "openxla/xla#45983",
    ),
    "contending-copies": Rule(
        contending_copies,
        "copies that slow what they overlap",
        "Move copies away from compute",
        0.01,
        "kernels and collectives that take longer next to copies or memsets than in steps without (sign test at 1 %), by "
        "at least 1 % of the step",
        _OWN,
        simulated=False,
    ),
    "needless-rematerialisation": Rule(
        rematerialised_for_nothing,
        "needless rematerialisation",
        "Recompute less",
        0.03,
        "rematerialisation of at least 3 % of the step while half of the memory is free",
        _OWN,
    ),
    "stale-profile": Rule(
        stale_profile,
        "stale profile",
        "Record the profile again",
        0.1,
        "costs of the scheduler's profile that are off by at least 10 % of the step",
        _OWN,
        simulated=False,
    ),
    "other-work": Rule(
        other_work,
        "GPU work of no instruction",
        "Record so that all work has an instruction",
        MUCH_OTHER,
        "work of no instruction, while nothing else runs, for at least 5 % of the step",
        _OWN,
        simulated=False,
    ),
    "untimed-records": Rule(
        untimed_records,
        "records without a time stamp",
        "Record all times",
        LEAST_LOST,
        "records without a time stamp whose work takes at least 0.5 % of the step elsewhere",
        _OWN,
        simulated=False,
    ),
    "recompilation": Rule(
        recompilation,
        "repeated compilation",
        "Compile the step once",
        1,
        "two program ids of the main program on one device, or XLA compiles while the steps run",
        "Mocz, GPU/JAX Profiling",
        simulated=False,
    ),
    "window": Rule(
        window_remarks,
        "more than steady steps in the trace",
        "",
        1,
        "warm-up, CUDA graphs, several fingerprints, or autotuning of at least 1 % of GPU time in the trace",
        _OWN,
        simulated=False,
    ),
}
"""Every rule, by the id of its finding."""
