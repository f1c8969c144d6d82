"""What a reader of a comparison should know: one line each, made from the data, printed by every renderer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pgle.steps.interval import Estimate

if TYPE_CHECKING:
    from pgle.steps.compare import Design, Side

STALL_DIFFERENCE = 0.01
"""A difference of the share of time lost in stalls from which it is said."""
FEW_STEPS = 10


def notes(
    base: Side, new: Side, estimate: Estimate | None, design: Design, noise: float, alpha: float
) -> Iterator[str]:
    """The footnotes of a comparison."""
    if base.simulated or new.simulated:
        yield "simulated: step times come from the simulated GPU, no hardware was measured"
        if estimate is not None and design.name != "BLOCKS" and estimate.half_width == 0:
            yield "repeated simulations are identical: their spread says nothing about noise"
    if base.runs[0].series.format == "trace":
        yield "times are spans of the main module in a profiler trace: profilers inflate them by some per cent"
    if estimate is None and min(len(run) for side in (base, new) for run in side.runs) >= FEW_STEPS:
        yield (
            "the steps of a run follow each other so closely (autocorrelation) that too few independent blocks remain; "
            "record more steps, or several runs per side"
        )
    elif estimate is None:
        pass  # said of each short run below
    elif design.name == "BLOCKS":
        yield from _of_single_runs(estimate, noise, alpha)
    elif estimate.least_p > alpha:
        needed = _fewest_pairs(alpha) if design.name == "PAIRS" else f"{_fewest_runs(alpha)} runs per side"
        yield (
            f"too few runs for the rank test ({estimate.n[0]} and {estimate.n[1]}; it needs {needed}): the verdict "
            "rests on the t interval, which takes run medians to be normally distributed"
        )
    for side in (base, new):
        short = [run for run in side.runs if len(run) < FEW_STEPS]
        if short:
            steps = "1 steady step" if len(short[0]) == 1 else f"{len(short[0])} steady steps"
            yield f"{side.label}: only {steps} in {short[0].series.source}; record more"
    change = new.stall_share - base.stall_share
    if abs(change) > STALL_DIFFERENCE:
        yield (
            f"stalls take {base.stall_share:.1%} of the time of {base.label} and {new.stall_share:.1%} of {new.label}: "
            "medians do not see them (--keep-stalls counts them)"
        )
    for side in (base, new):
        for run in side.runs:
            yield from run.warnings


def _of_single_runs(estimate: Estimate, noise: float, alpha: float) -> Iterator[str]:
    if noise:
        yield (
            f"one run per side: {noise:.2%} of noise between launches is assumed (--run-noise); "
            "several runs per side (--abba) measure it"
        )
    else:
        yield "one run per side: differences between launches (placement, clocks) are not in the interval"
    significant = estimate.p is not None and estimate.p <= alpha
    if noise and significant and abs(estimate.difference) <= estimate.half_width:
        yield (
            f"the steps do differ (p = {estimate.p:.2g}), but by no more than two launches of one program may; "
            "repeat the runs"
        )
    if estimate.drift:
        yield (
            f"the runs drift apart by {abs(math.expm1(estimate.drift)):.1%} over their length: "
            "the interval spans the ratio at the start and at the end"
        )


def _fewest_runs(alpha: float) -> int:
    """The least n per side for which 2 / C(2n, n) reaches alpha."""
    count = 2
    while 2 / math.comb(2 * count, count) > alpha:
        count += 1
    return count


def _fewest_pairs(alpha: float) -> str:
    return f"{math.ceil(1 + math.log2(1 / alpha))} pairs"
