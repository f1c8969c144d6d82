"""A stored history of step times: entries, series by key, change points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from pgle.errors import UserError
from pgle.steps.change_points import change_points, robust_noise
from pgle.steps.methods.method import LaunchSpread
from pgle.steps.series import unfit
from pgle.steps.side import Side, check_runs

NEAR = 0.2  # step times of a trend within this share of a run's may be those of the same program


@dataclass(frozen=True, slots=True)
class Entry:
    """One run, or several of one state, as kept."""

    time: str  # ISO 8601
    name: str  # of the workload
    hardware: str  # what it ran on; series of different hardware are never joined
    commit: str  # of the program; empty where unknown
    median_s: float  # median step time
    spread: float  # half the distance of the quartiles, relative
    runs: int  # how many
    steps: int  # steady steps in all
    simulated: bool = False  # on the simulated GPU
    note: str = ""  # free text


@dataclass(frozen=True, slots=True)
class Change:
    """A change point of a trend."""

    index: int  # of the first entry of the new level
    before_s: float  # median of the level before
    after_s: float  # median of the level after

    @property
    def change(self) -> float:
        """Relative; positive is slower."""
        return self.after_s / self.before_s - 1


@dataclass(frozen=True)
class Trend:
    """The entries of one name and hardware in order of time, and where their level changed."""

    name: str
    hardware: str
    entries: tuple[Entry, ...]
    changes: tuple[Change, ...]
    noise: float  # standard deviation between entries of one level, relative

    @property
    def level_s(self) -> float:
        """The present level: median step time since the last change."""
        return (
            self.changes[-1].after_s if self.changes else float(np.median([entry.median_s for entry in self.entries]))
        )


@dataclass(frozen=True)
class History:
    """All trends."""

    trends: tuple[Trend, ...]  # by name, then hardware
    warnings: tuple[str, ...] = field(default=())  # what could not be read, one line each


def make_entry(side: Side, *, time: str, name: str, hardware: str, commit: str = "", note: str = "") -> Entry:
    """The entry of the runs of a side.

    Raises:
        UserError: a run has no steady step, or runs are in other units.
    """
    check_runs(side.runs)
    return Entry(
        time=time,
        name=name,
        hardware=hardware,
        commit=commit,
        median_s=side.median_s,
        spread=side.spread,
        runs=len(side.runs),
        steps=side.steps,
        simulated=side.simulated,
        note=note,
    )


def parse_entry(row: Mapping[str, Any]) -> Entry:
    """An entry from a record.

    Raises:
        ValueError: a field is missing or of the wrong kind.
    """
    try:
        median = float(row["median_s"])
        spread = float(row.get("spread") or 0.0)
        if reason := unfit(median):
            raise ValueError(f"median_s {reason}")
        if not 0 <= spread < float("inf"):
            raise ValueError("spread is not a positive number")
        runs, steps = int(row.get("runs") or 1), int(row.get("steps") or 0)
        if not (0 < runs < 1e12 and 0 <= steps < 1e12):
            raise ValueError("runs or steps are no possible number")
        return Entry(
            time=str(row["time"]),
            name=str(row["name"]),
            hardware=str(row["hardware"]),
            commit=str(row.get("commit") or ""),
            median_s=median,
            spread=spread,
            runs=runs,
            steps=steps,
            simulated=bool(row.get("simulated")),
            note=str(row.get("note") or ""),
        )
    except KeyError as error:
        raise ValueError(f"no {error.args[0]}") from None
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def make_history(
    entries: Iterable[Entry], *, name: str | None = None, hardware: str | None = None, warnings: Iterable[str] = ()
) -> History:
    """Trends of the entries, in order of time (as recorded where equal), with change points of the log medians.

    Raises:
        UserError: nothing matches `name` and `hardware`.
    """
    chosen = [
        entry
        for entry in entries
        if (name is None or entry.name == name) and (hardware is None or entry.hardware == hardware)
    ]
    if not chosen:
        raise UserError("no entry matches", where="--name, --hardware", remedy="see pgle history show without them")
    chosen.sort(key=lambda entry: (entry.name, entry.hardware, entry.time))
    groups = groupby(chosen, key=lambda entry: (entry.name, entry.hardware))
    return History(tuple(_trend(*key, tuple(group)) for key, group in groups), tuple(warnings))


def launch_spread(history: History, median_s: float, *, simulated: bool, source: str) -> LaunchSpread:
    """By how much launches differ, from the trend whose present level is nearest to `median_s`.

    It is the scatter of the entries about the levels between change points, pooled; an entry of several runs counts as
    often. It includes what commits changed, too little to be a change point: rather too large than too small.

    Raises:
        UserError: no trend has such step times, or the nearest has too few entries.
    """
    trends = [trend for trend in history.trends if trend.entries[-1].simulated == simulated]
    distance = {trend: abs(math.log(median_s / trend.level_s)) for trend in trends}
    nearest = min(trends, key=lambda trend: distance[trend], default=None)
    if nearest is None or distance[nearest] > math.log1p(NEAR):
        known = ", ".join(f"{trend.name} on {trend.hardware} ({trend.level_s:.4g} s)" for trend in trends) or "none"
        what = f"no trend has step times near {median_s:.4g} s (it has: {known})"
        raise UserError(what, where=source, remedy="add runs of this program with pgle history add")
    bounds = [change.index for change in nearest.changes]
    logs = np.split(np.log([entry.median_s for entry in nearest.entries]), bounds)
    runs = np.split(np.array([entry.runs for entry in nearest.entries], float), bounds)
    freedom = len(nearest.entries) - len(logs)
    if freedom < 1:
        what = f"{nearest.name} has too few entries at one level to show how launches differ"
        raise UserError(what, where=source, remedy="add more runs with pgle history add")
    means = [np.average(values, weights=weights) for values, weights in zip(logs, runs, strict=True)]
    squares = sum(
        float((weights * (values - mean) ** 2).sum()) for values, weights, mean in zip(logs, runs, means, strict=True)
    )
    what = f"{len(nearest.entries)} entries of {nearest.name} on {nearest.hardware} in {source}"
    return LaunchSpread(math.sqrt(squares / freedom), freedom, what)


def _trend(name: str, hardware: str, entries: tuple[Entry, ...]) -> Trend:
    logs = np.log([entry.median_s for entry in entries])
    points = change_points(logs)
    levels = [float(np.exp(np.median(part))) for part in np.split(logs, points)]
    changes = tuple(Change(at, before, after) for at, (before, after) in zip(points, pairwise(levels), strict=True))
    return Trend(name, hardware, entries, changes, robust_noise(logs))
