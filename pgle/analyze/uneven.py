"""Findings on ranks that differ: a link that is slow, a GPU whose compute is slow as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pgle.analyze.alike import common_ratio
from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.findings import ROWS, EvidenceRow, StepFinding
from pgle.errors import in_percent, in_words, many
from pgle.schedule.simulate import Stream
from pgle.trace.columns import Floats

FEWEST_RANKS = 2  # of one, nothing says what is usual
MOST_RANKS = 4  # of a slow link, by name; more are counted


@dataclass(frozen=True, slots=True)
class SlowGpu:
    """A rank on which all compute takes longer by one factor."""

    device: int  # index into the trace's devices
    share: float  # by which its instructions take longer than on the typical other rank
    us: float  # what that adds to a step of it
    instructions: int  # how many


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
    """float64[windows, instructions]: compute of the main module in a step."""
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


def slow_link(step: MeasuredStep) -> StepFinding | None:
    """Collectives that take longer on some ranks after all have started."""
    links = step.slow_links
    if not links:
        return None
    first = links[0]
    rows = (
        EvidenceRow(
            link.name,
            link.us,
            f"{in_words(link.each_us)} on {_ranks(step, link.devices)}, "
            f"{in_words(link.usual_us)} on the others",
        )
        for link in links[:ROWS]
    )
    rest = f"; {many(len(links) - 1, 'more collective')}" if len(links) > 1 else ""
    return StepFinding(
        sum(link.us for link in links),
        f"{first.name} takes {in_words(first.each_us)} on {_ranks(step, first.devices)}, "
        f"{in_words(first.usual_us)} on the others, after all ranks have started{rest}",
        tuple(rows),
        _CHECK_LINKS,
    )


def _ranks(step: MeasuredStep, devices: Sequence[int]) -> str:
    """Devices by name, or how many they are."""
    if len(devices) > MOST_RANKS:
        return many(len(devices), "rank")
    return " and ".join(step.rank_name(device) for device in devices)


def slow_gpu_rows(
    gpus: Sequence[SlowGpu], step: MeasuredStep
) -> tuple[EvidenceRow, ...]:
    """A row for each GPU whose compute is slow as a whole."""
    return tuple(
        EvidenceRow(
            f"all compute on {step.rank_name(gpu.device)}",
            gpu.us,
            f"{in_percent(gpu.share)} slower than on the other ranks, "
            f"all {many(gpu.instructions, 'instruction')} alike",
        )
        for gpu in gpus
    )
