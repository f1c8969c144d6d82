"""How published steps grew with the number of GPUs, batch per GPU constant: the range of a step at another size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import exp, log, log2, sqrt
from statistics import fmean, stdev

from pgle.errors import UserError

HELD = 0.9  # share of programs whose step a range is meant to hold


@dataclass(frozen=True, slots=True)
class Published:
    """A program's step on some number of GPUs, as others published it."""

    series: str  # program and precision
    devices: int
    step: float  # in the unit of its series
    source: str  # public repository and commit, or issue


@cache
def published() -> tuple[Published, ...]:
    """The rows of `data/weak_scaling.tsv`; a published utilisation counts as its inverse."""
    text = resources.files("pgle.xla").joinpath("data/weak_scaling.tsv").read_text(encoding="utf-8")
    rows = []
    for line in text.splitlines()[1:]:
        program, precision, devices, step, unit, source = line.split("\t")
        value = 1 / float(step) if unit == "1/mfu" else float(step)
        rows.append(Published(f"{program} {precision}", int(devices), value, source))
    return tuple(rows)


def growth(without: Collection[str] = ()) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Doublings of GPUs and the logarithm of how much longer the step is, both from the series' smallest size.

    Args:
        without: series that are left out.
    """
    series: dict[str, list[Published]] = defaultdict(list)
    for row in published():
        if row.series not in without:
            series[row.series].append(row)
    return {
        name: tuple((log2(row.devices / rows[0].devices), log(row.step / rows[0].step)) for row in rows[1:])
        for name, rows in series.items()
    }


def size_spread(devices_from: int, devices_to: int, *, without: Collection[str] = ()) -> tuple[float, float]:
    """What a step, known at one size, may be multiplied by at another for what no compiler knows.

    Growth is taken as a random walk over doublings of GPUs: independent disturbances, so that it goes with the root of
    their number. Each published program has one rate, and a further one is in Student's prediction interval of them.
    How often programs that are left out lie in it: docs/evidence/scale.md.

    Args:
        devices_from: at which the step is known.
        devices_to: at which it is wanted.
        without: series of `published` that are left out.

    Returns:
        Factors (low, high), low ≤ 1 ≤ high; (1, 1) at the same size.

    Raises:
        UserError: a number of devices is not positive.
    """
    if devices_from < 1 or devices_to < 1:
        raise UserError("the number of devices must be positive", where=f"{devices_from}, {devices_to}")
    from scipy.special import stdtrit  # only here, since its import takes a tenth of a second

    rates = [fmean(rise / sqrt(doublings) for doublings, rise in rows) for rows in growth(without).values()]
    half = float(stdtrit(len(rates) - 1, (1 + HELD) / 2)) * stdev(rates) * sqrt(1 + 1 / len(rates))
    far = sqrt(abs(log2(devices_to / devices_from)))
    low, high = exp(min(fmean(rates) - half, 0) * far), exp(max(fmean(rates) + half, 0) * far)
    return (low, high) if devices_to >= devices_from else (1 / high, 1 / low)
