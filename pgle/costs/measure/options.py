"""What a user may choose about a conversion."""

from __future__ import annotations

from dataclasses import dataclass, field

from pgle.costs.measure.statistic import Statistic, parse_statistic


@dataclass(frozen=True)
class AggregateOptions:
    """How samples become costs.

    Attributes:
        stat: over the executions, devices and loop iterations of a compute instruction.
        collective_stat: over executions, of the time after the last rank arrived.
        keep_all: use warm-up and truncated executions too.
    """

    stat: Statistic = field(default_factory=lambda: parse_statistic("median"))
    collective_stat: Statistic = field(default_factory=lambda: parse_statistic("median"))
    keep_all: bool = False
