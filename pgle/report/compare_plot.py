"""Pictures of a comparison: the distributions and the steps in order, as SVG or PNG."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from pgle.report.compare import headline, pooled
from pgle.report.text import printable
from pgle.steps.compare import Comparison
from pgle.steps.side import Side

COLOURS = ("#4477aa", "#ee6677")
"""Blue and red of Paul Tol's bright scheme, told apart by colour-blind readers."""


def plot(found: Comparison, format: str) -> bytes:
    """The picture: histograms on one scale above, steps in order below. The same comparison gives the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pgle"
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6), layout="constrained")
    try:
        _histograms(above, found)
        _series(below, found)
        figure.suptitle(headline(found))
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, metadata={"Date": None} if format == "svg" else {"Software": None})
    finally:
        pyplot.close(figure)
    return buffer.getvalue()


def _histograms(axes: Any, found: Comparison) -> None:
    values = [pooled(side) * 1e3 for side in (found.base, found.new)]
    low, high = (float(np.quantile(np.concatenate(values), q)) for q in (0.005, 0.995))
    if low == high:
        low, high = low * 0.999, high * 1.001
    edges = np.linspace(low, high, 61)
    for side, times, colour in zip((found.base, found.new), values, COLOURS, strict=True):
        share = np.full(len(times), 1 / len(times))
        axes.hist(np.clip(times, low, high), edges, weights=share, alpha=0.5, color=colour, label=printable(side.label))
        axes.axvline(side.median_s * 1e3, color=colour)
    axes.set(xlabel="step time, ms (lines: medians)", ylabel="share of steady steps")
    axes.legend()


def _series(axes: Any, found: Comparison) -> None:
    for side, colour in zip((found.base, found.new), COLOURS, strict=True):
        for step, times in _in_order(side):
            axes.plot(step, times * 1e3, ".", markersize=3, color=colour, alpha=0.6)
    axes.set(xlabel="step", ylabel="step time, ms")


def _in_order(side: Side) -> list[tuple[Any, Any]]:
    return [(run.step, run.step_time_s) for run in side.runs]
