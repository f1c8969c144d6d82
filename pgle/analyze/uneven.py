"""Findings about ranks that differ: a late rank, a slow link, a GPU that computes slowly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from pgle.analyze.alike import common_ratio
from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.findings import ROWS, EvidenceRow, Observation, evidence_of
from pgle.analyze.slow_links import SlowLink
from pgle.analyze.window import DeviceWindow
from pgle.errors import in_percent, in_words, many
from pgle.next import DOCTOR
from pgle.schedule.simulate import Stream
from pgle.trace.columns import Floats

FEWEST_RANKS = 2  # a single rank does not show which time is usual
MOST_RANKS = 4  # at most so many ranks of a slow link are named; more are only counted
LEAST_LATE = 0.1  # share of the wait for other ranks; smaller causes are skipped
MOST_NAMED = 3  # late ranks in one line; more are "the last one, which differs"


@dataclass(frozen=True, slots=True)
class SlowGpu:
    """A rank on which all compute takes longer by one factor."""

    device: int  # index into the trace's devices
    share: float  # how much longer its instructions take than on the typical other rank
    us: float  # how much that adds to its step
    instructions: int  # number of instructions that ran


def find_slow_gpus(step: MeasuredStep) -> tuple[SlowGpu, ...]:
    """The ranks whose compute takes longer by one factor, the slowest first."""
    windows = step.windows
    if len(windows) < FEWEST_RANKS:
        return ()
    times = _compute_us(step)
    found = []
    for number, window in enumerate(windows):
        others = np.delete(times, number, axis=0)
        usual = np.median(others, axis=0)
        ratio = common_ratio(usual, times[number])
        if ratio > 1:
            us = (ratio - 1) * float(usual.sum())
            ran = int((usual > 0).sum())
            found.append(SlowGpu(window.device, ratio - 1, us, ran))
    return tuple(sorted(found, key=lambda gpu: -gpu.share))


def _compute_us(step: MeasuredStep) -> Floats:
    """float64[windows, instructions], microseconds of the main module's compute in a step."""
    trace, main = step.trace, step.costs.program.index
    times = np.zeros((len(step.windows), len(trace.instructions)))
    for number, window in enumerate(step.windows):
        computes = window.stream == Stream.COMPUTE
        rows = window.rows[computes & (trace.module[window.rows] == main)]
        ns = np.bincount(
            trace.instruction[rows],
            weights=trace.duration_ns[rows],
            minlength=len(trace.instructions),
        )
        times[number] = ns / window.steps / 1e3
    return times


_CHECK_LINKS = (
    "check the links of these ranks: error counters (nvidia-smi nvlink -e, ibstat), the topology "
    "(nvidia-smi topo -m), and which way NCCL takes (NCCL_DEBUG=INFO)"
)


def slow_link(step: MeasuredStep) -> Observation | None:
    """Find collectives that take longer on some ranks after all ranks have started."""
    links = step.slow_links
    if not links:
        return None
    first, *more = links
    shown = links[:ROWS]
    rest = f"; {many(len(more), 'more collective')}" if more else ""
    return Observation(
        sum(link.us for link in links),
        f"{first.name} takes {_times(step, first)}, after all ranks have started{rest}",
        tuple(EvidenceRow(link.name, link.us, _times(step, link)) for link in shown),
        _CHECK_LINKS,
    )


def _times(step: MeasuredStep, link: SlowLink) -> str:
    """How long a collective takes on the slow ranks and on the others, in words."""
    slow = many(len(link.devices), "rank")
    if len(link.devices) <= MOST_RANKS:
        slow = " and ".join(map(step.rank_name, link.devices))
    usual = f"{in_words(link.usual_us)} on the others"
    return f"{in_words(link.each_us)} on {slow}, {usual}"


_EVEN_OUT = (
    "even out these instructions: alike data on each rank, or an algorithm whose time does "
    "not hang on the data; if all of them are slow on one rank, check its clocks "
    f"('{DOCTOR}' there); if it is idle, check its host"
)


def rank_skew(step: MeasuredStep) -> Observation | None:
    """Find ranks that arrive late at collectives, so that the others wait.

    Even ranks would save at most the time in which the mean rank does not compute.
    """
    late = step.late
    if not late.devices:
        return None
    waited_us = _waited_us(step)
    enough_us = LEAST_LATE * late.us
    gpus = [gpu for gpu in find_slow_gpus(step) if gpu.us >= enough_us]
    longer = (
        *_idle_rows(step, enough_us),
        *(slow_gpu_rows(gpus, step) or _longer_rows(step, enough_us)),
    )
    waits = sorted(step.collectives, key=lambda item: -item.wait_us)
    most = evidence_of(
        (item, item.wait_us, "waits here, mean over ranks") for item in waits[:1]
    )
    who = f"{_late_ranks(step, enough_us)}{_why_slow(gpus, step)}"
    return Observation(
        min(waited_us, step.step_us - step.breakdown.compute_us),
        f"the other ranks wait {in_words(waited_us)} a step {who}",
        (*_late_rows(step, enough_us), *longer[:ROWS], *most),
        _EVEN_OUT,
    )


def _waited_us(step: MeasuredStep) -> float:
    """Microseconds in a step that the others wait. If nearly all of it is for one rank, only the
    wait for that rank counts.
    """
    of_one_us = step.late.devices[0][1]
    is_for_one = of_one_us >= (1 - LEAST_LATE) * step.late.us
    return of_one_us if is_for_one else step.late.us


def _late_rows(step: MeasuredStep, enough_us: float) -> tuple[EvidenceRow, ...]:
    """An evidence row for each of the first ranks that the others wait for."""
    rows = []
    for device, us, count in step.late.devices[:ROWS]:
        if us >= enough_us:
            last = f"last in {count} of {step.late.steps} steps"
            note = f"the others wait for it; {last}"
            rows.append(EvidenceRow(step.rank_name(device), us, note))
    return tuple(rows)


def _why_slow(gpus: Sequence[SlowGpu], step: MeasuredStep) -> str:
    """Words that all compute of a rank is slower; empty if no rank is."""
    if not gpus:
        return ""
    slowest = gpus[0]
    slower = f"all compute is {in_percent(slowest.share)} slower"
    return f"; {slower} on {step.rank_name(slowest.device)}"


def _longer_rows(step: MeasuredStep, enough_us: float) -> tuple[EvidenceRow, ...]:
    """Evidence rows for instructions that take longer on the slowest rank."""
    skew = [(item, (item.cost.skew_us or 0.0) * item.count) for item in step.compute]
    skew.sort(key=lambda row: -row[1])
    return evidence_of(
        (item, us, "longer on the slowest rank") for item, us in skew if us >= enough_us
    )


def _late_ranks(step: MeasuredStep, enough_us: float) -> str:
    """The ranks that the others wait for, in words, with the time of each if they are several."""
    late = {
        step.rank_name(device): us
        for device, us, _ in step.late.devices
        if us >= enough_us
    }
    if len(late) == 1:
        return f"for {next(iter(late))}"
    if len(late) > MOST_NAMED:
        return "for the last one, which differs"
    return "for " + " and ".join(
        f"{name} ({in_words(us)})" for name, us in late.items()
    )


def _idle_rows(step: MeasuredStep, enough_us: float) -> Iterator[EvidenceRow]:
    """An evidence row for the device with most gaps over 20 µs inside steps, if it has clearly more
    than the typical other one.
    """
    if len(step.windows) < FEWEST_RANKS:
        return
    idle_us = {window.device: _idle_us(window) for window in step.windows}
    idlest = max(idle_us, key=idle_us.__getitem__)
    most_us = idle_us.pop(idlest)
    more_us = most_us - median(idle_us.values())
    if more_us >= enough_us:
        name = f"idle on {step.rank_name(idlest)}"
        yield EvidenceRow(name, more_us, "more than on the other ranks")


def _idle_us(window: DeviceWindow) -> float:
    """Microseconds of gaps over 20 µs inside a step of one device."""
    inside = window.waits.times.lengths[window.waits.inside]
    return float(inside.sum()) / window.steps / 1e3


def slow_gpu_rows(
    gpus: Sequence[SlowGpu], step: MeasuredStep
) -> tuple[EvidenceRow, ...]:
    """An evidence row for each GPU whose whole compute is slow."""
    rows = []
    for gpu in gpus:
        name = f"all compute on {step.rank_name(gpu.device)}"
        slower = f"{in_percent(gpu.share)} slower than on the other ranks"
        alike = f"all {many(gpu.instructions, 'instruction')} alike"
        rows.append(EvidenceRow(name, gpu.us, f"{slower}, {alike}"))
    return tuple(rows)
