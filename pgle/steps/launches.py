"""By how much launches of one program differ: what pgle takes for it where each side has one run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pgle.steps.series import Series
from pgle.steps.side import Side


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
