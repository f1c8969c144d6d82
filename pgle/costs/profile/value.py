"""A cost profile as a value: what each instruction costs, how well that is known, and all of it at a glance.

A name is ``FINGERPRINT::NAME`` or a bare name, and XLA cuts ``.remat`` off. Source: ``FilterWithFingerprint`` in
openxla/xla ``xla/service/gpu/gpu_hlo_schedule.cc``: exactly two parts are a fingerprint and a name; a name with any
other ``::`` matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, cast

from pgle.xla.collectives import guess_kind

Entry = tuple[str, float]  # name as written in a file, with any ``fingerprint::``, and µs
_REMAT_SUFFIX = re.compile(r"\.remat[0-9]*\Z")


def split_name(written: str) -> tuple[str, str]:
    """Fingerprint (empty: every module) and instruction name; any other ``::`` than one in the middle stays in it."""
    if "::" not in written:
        return "", written
    fingerprint, between, name = written.partition("::")
    return (fingerprint, name) if between and fingerprint and "::" not in name else ("", written)


def join_name(fingerprint: str, name: str) -> str:
    """The inverse of `split_name`."""
    return f"{fingerprint}::{name}" if fingerprint else name


def strip_remat(name: str) -> str:
    """The name without a ``.remat`` or ``.remat7`` at its end, which marks a copy made by rematerialisation."""
    return _REMAT_SUFFIX.sub("", name) if has_remat(name) else name


def has_remat(name: str) -> bool:
    """Whether a name of a profile makes XLA strip all its names and average equal ones: it need not be at the end."""
    return ".remat" in name


MAX_COST_US = 1e15  # thirty years; a longer cost is no measurement, and sums of such costs are no numbers.


class Origin(StrEnum):
    """Where a cost comes from; anything but `MEASURED` is labelled in every output."""

    MEASURED = "measured"
    UNKNOWN = "unknown"  # read from a profile without sidecar
    SAME_SHAPE = "same-shape"  # taken from measured instructions of the same opcode and shapes
    ESTIMATED = "estimated"  # from the roofline and the communication model of a target
    SIMULATED = "simulated"  # measured on the simulated GPU


class CostKind(StrEnum):
    """What the scheduler does with a cost."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    COPY = "copy"
    LOOP = "loop"
    UNKNOWN = ""


@lru_cache(maxsize=1 << 14)
def _guessed(name: str) -> CostKind:
    return CostKind(guess_kind(name))


DIGITS = "0123456789"  # the number behind the last dot of a name says nothing of the kind; without it few names remain


def likely_kind(name: str) -> CostKind:
    """What an instruction of this name does, by the usual names."""
    stem = name.rstrip(DIGITS)
    return _guessed(f"{stem}1" if stem.endswith(".") else name)


class Cost(NamedTuple):
    """The cost of one instruction. A tuple: the million of a large profile are made in a quarter of the time."""

    name: str  # the instruction's name when LHS ran, without a fingerprint
    cost_us: float  # microseconds per execution of the instruction
    fingerprint: str = ""  # the module it is meant for; empty: every module
    kind: CostKind = CostKind.UNKNOWN  # compute, collective, copy or loop
    opcode: str = ""  # HLO opcode (of a collective: the wrapped one, ``all-gather``); empty where unknown
    shape: str = ""  # result shape as text (of a collective: of the wrapped op); empty where unknown
    samples: int = 0  # executions in the statistic; 0 if unknown
    min_us: float = 0.0  # smallest sample
    max_us: float = 0.0  # largest sample
    spread: float = 0.0  # (p90 - p10) / median of the samples; 0 where there is one
    # of compute, on the rank for which the others wait: the cost and what `rank_skew_us` adds; None where ranks were
    # not compared. The cost given to XLA stays the typical one.
    slowest_us: float | None = None
    trace_name: str = ""  # the name in the trace where it differs from `name`; empty where it does not
    origin: Origin = Origin.MEASURED  # measured or filled in

    @property
    def full_name(self) -> str:
        """The name as a profile file spells it: ``fingerprint::name``, or the bare name."""
        return join_name(self.fingerprint, self.name)

    @property
    def traced(self) -> str:
        """The name in the trace."""
        return self.trace_name or self.name

    @property
    def is_valid(self) -> bool:
        """Whether the cost is a time: 0 to `MAX_COST_US`. XLA takes any number, and its schedule then means nothing."""
        return 0 <= self.cost_us <= MAX_COST_US  # NaN is neither

    @property
    def skew_us(self) -> float | None:
        """How much longer it takes on the slowest rank than the cost says; None where that is unknown."""
        return None if self.slowest_us is None else self.slowest_us - self.cost_us

    @property
    def likely_kind(self) -> CostKind:
        """The kind; where it is unknown, a guess by name."""
        return self.kind or likely_kind(self.name)


def most_skewed(costs: Sequence[Cost]) -> tuple[Cost, ...]:
    """The five costs that take most longer on the slowest rank, the largest first."""
    slower = [cost for cost in costs if cost.skew_us is not None and cost.skew_us > 0]
    return tuple(sorted(slower, key=lambda cost: (-(cost.skew_us or 0.0), cost.full_name))[:5])


@dataclass(frozen=True)
class Profile:
    """Costs of one or several modules."""

    costs: tuple[Cost, ...]  # in file order. XLA takes the last of equal names (`effective` says which).
    # what the sidecar records: inputs, statistics, versions, flags
    provenance: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what the user should know, one line each

    def __len__(self) -> int:
        return len(self.costs)


def module_records(provenance: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    """What the provenance of a profile says of each of its modules, as far as it does."""
    return tuple(cast(Iterable[Mapping[str, Any]], provenance.get("modules", ())))
