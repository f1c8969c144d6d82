"""A kept history of step times: entries, trends, and by how much launches of one program differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from pgle.errors import UserError
from pgle.next import HISTORY_ADD, HISTORY_SHOW
from pgle.steps.series import LONGEST_S, SHORTEST_S, Series, Side, check_runs, level_shift


@dataclass(frozen=True, slots=True)
class LaunchSpread:
    """By how much launches of one program differ."""

    share: float  # standard deviation of step time between launches, relative
    freedom: float  # degrees of freedom of that figure; infinite where the user gave it
    source: str  # where it comes from, in words


NO_SPREAD = LaunchSpread(0.0, math.inf, "")
"""Of simulated runs."""
SAME_PLACE = LaunchSpread(
    0.0021, 5, "five public pairs of control runs, marin-community/marin#7012, #7912, #8277 and #8822"
)
"""Of launches on the same hosts within hours: the pooled differences of those pairs."""
UNKNOWN_PLACE = LaunchSpread(0.0015, 1, "control runs of a 64-GPU job, marin-community/marin#7012")
"""Where the place is not known: those controls differed by 0.03 points of 22.2 % model FLOPs utilisation. It is another
job's figure, so it counts as one pair of launches: with one degree of freedom."""
ELSEWHERE = (
    "launches on other nodes or days differ by 1.6 to 3% in public (reframe-hpc/reframe#1345, iree-org/iree#24257)"
)
WITHIN_HOURS = 6.0
"""Between the starts of two runs "within hours". The sources give no exact time: this bound is our reading of them."""
PLACE = {"hosts": "hosts", "gpus": "GPUs", "driver": "driver"}
"""What a recording knows of the place, by its name in `Series.about`."""


def launch_spread(base: Side, new: Side) -> tuple[LaunchSpread, str]:
    """The spread to take for two single runs of which none was given, and why it is no smaller; empty: it is proven."""
    if base.simulated or new.simulated:
        return NO_SPREAD, ""
    doubt = next(_doubts(base.runs[0].series, new.runs[0].series), "")
    return (UNKNOWN_PLACE if doubt else SAME_PLACE), doubt


def _doubts(base: Series, new: Series) -> Iterator[str]:
    """Why the records do not prove that two runs had the same hosts, GPUs and versions, within hours."""
    versions = {name: name for name in (*base.about, *new.about) if name.startswith("jax")} or {"jax": "jax version"}
    for name, what in {**PLACE, **versions}.items():
        one, two = base.about.get(name), new.about.get(name)
        if one is None or two is None:
            yield f"{(base if one is None else new).source} records no {what}"
        elif one != two:
            yield f"the two runs had different {what}, and {ELSEWHERE}"
    started = [series.about.get("started", "") for series in (base, new)]
    try:
        hours = abs((datetime.fromisoformat(started[1]) - datetime.fromisoformat(started[0])).total_seconds()) / 3600
    except (ValueError, TypeError):
        yield "the records hold no start time"
        return
    if hours > WITHIN_HOURS:
        yield f"the two runs started {hours:.0f} hours apart, and {ELSEWHERE}"


MOST = 10**12  # runs or steps of an entry
NEAR = 0.2  # step times of a trend within this share of a run's may belong to the same program


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run, or several of one state, as kept."""

    time: str  # ISO 8601
    name: str  # of the workload
    hardware: str  # what it ran on; series of different hardware are never joined
    commit: str = ""  # of the program; empty if unknown
    median_s: Annotated[float, Meta(ge=SHORTEST_S, le=LONGEST_S)]  # median step time
    spread: Annotated[float, Meta(ge=0, le=1e9)] = 0.0  # half the distance of the quartiles, relative
    runs: Annotated[int, Meta(ge=1, le=MOST)] = 1  # how many
    steps: Annotated[int, Meta(ge=0, le=MOST)] = 0  # steady steps in all
    simulated: bool = False  # on the simulated GPU
    note: str = ""  # free text


@dataclass(frozen=True)
class Trend:
    """The entries of one name and hardware in order of time."""

    name: str
    hardware: str
    entries: tuple[Entry, ...]

    @property
    def present(self) -> tuple[Entry, ...]:
        """The entries since the last clear change of level."""
        entries = self.entries
        while (shift := level_shift(np.log([entry.median_s for entry in entries]))) is not None:
            entries = entries[shift[0] :]
        return entries

    @property
    def level_s(self) -> float:
        """The present level: the median of its step times."""
        return float(np.median([entry.median_s for entry in self.present]))

    @property
    def noise(self) -> float | None:
        """Standard deviation between launches at the present level, relative; None for a single entry.

        An entry of several runs counts as often. It includes what commits changed, if too little to be a change of
        level: rather too large than too small.
        """
        if len(self.present) < 2:
            return None
        logs = np.log([entry.median_s for entry in self.present])
        runs = np.array([entry.runs for entry in self.present], float)
        return math.sqrt(float((runs * (logs - np.average(logs, weights=runs)) ** 2).sum()) / (len(logs) - 1))


def make_entry(side: Side, **about: str) -> Entry:
    """The entry of the runs of a side.

    Args:
        about: its time, name and hardware, also commit and note.

    Raises:
        UserError: a run has no steady step, or runs are in other units.
    """
    check_runs(side.runs)
    figures = {"runs": len(side.runs), "steps": side.steps, "simulated": side.simulated}
    return Entry(median_s=side.median_s, spread=side.spread, **figures, **about)  # type: ignore[arg-type]


def parse_entry(row: object) -> Entry:
    """An entry from a record.

    Raises:
        ValueError: a field is missing, of the wrong kind or no possible number.
    """
    return msgspec.convert(row, Entry, strict=False)


def make_trends(entries: Iterable[Entry], *, name: str | None = None, hardware: str | None = None) -> tuple[Trend, ...]:
    """The entries by name and hardware, in order of time (as recorded where equal).

    Raises:
        UserError: nothing matches `name` and `hardware`.
    """
    chosen = [entry for entry in entries if name in (None, entry.name) and hardware in (None, entry.hardware)]
    if not chosen:
        raise UserError("no entry matches", where="--name, --hardware", remedy=f"see {HISTORY_SHOW} without them")
    chosen.sort(key=lambda entry: (entry.name, entry.hardware, entry.time))
    groups = groupby(chosen, key=lambda entry: (entry.name, entry.hardware))
    return tuple(Trend(*key, tuple(group)) for key, group in groups)


def measured_spread(trends: Iterable[Trend], median_s: float, *, simulated: bool, source: str) -> LaunchSpread:
    """By how much launches differ, from the trend whose present level is nearest to `median_s`.

    Raises:
        UserError: no trend has such step times, or the nearest has too few entries.
    """
    known = [trend for trend in trends if trend.entries[-1].simulated == simulated]
    nearest = min(known, key=lambda trend: abs(math.log(median_s / trend.level_s)), default=None)
    if nearest is None or abs(math.log(median_s / nearest.level_s)) > math.log1p(NEAR):
        listed = ", ".join(f"{trend.name} on {trend.hardware} ({trend.level_s:.4g} s)" for trend in known) or "none"
        what = f"no trend has step times near {median_s:.4g} s (it has: {listed})"
        raise UserError(what, where=source, remedy=f"add runs of this program with {HISTORY_ADD}")
    if nearest.noise is None:
        what = f"{nearest.name} has too few entries at one level to show how launches differ"
        raise UserError(what, where=source, remedy=f"add more runs with {HISTORY_ADD}")
    what = f"{len(nearest.present)} entries of {nearest.name} on {nearest.hardware} in {source}"
    return LaunchSpread(nearest.noise, len(nearest.present) - 1, what)
