"""A cost profile as a value: what each instruction costs, and how well that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Origin(StrEnum):
    """Where a cost comes from; anything but `MEASURED` is labelled in every output."""

    MEASURED = "measured"
    SAME_SHAPE = "same-shape"
    """Taken from measured instructions of the same opcode and shapes."""
    ESTIMATED = "estimated"
    """From the roofline and the communication model of a target."""
    SIMULATED = "simulated"
    """Measured on the simulated GPU."""


class CostKind(StrEnum):
    """What the scheduler does with a cost."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    COPY = "copy"
    LOOP = "loop"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Series:
    """How long the occurrences of one collective took in one replica group, so that ranks can be merged exactly.

    A collective's time on one device includes waiting for the last one to arrive; the least over the devices of a
    group does not. Each profile holds the least over the devices that it saw.

    Attributes:
        group: index into the replica groups of the instruction; -1 where all devices are one group or it is unknown.
        executions: numbers of the module's executions in the trace window, ascending.
        times_ns: by (execution, occurrence); each execution has ``len(times_ns) / len(executions)`` occurrences.
    """

    group: int
    executions: tuple[int, ...]
    times_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one instruction.

    Attributes:
        name: the instruction's name when LHS ran, without a fingerprint.
        cost_us: microseconds per execution of the instruction.
        fingerprint: the module it is meant for; empty: every module.
        kind: compute, collective, copy or loop.
        opcode: HLO opcode (of a collective: the wrapped one, ``all-gather``); empty where unknown.
        shape: result shape as text (of a collective: of the wrapped op); empty where unknown.
        samples: executions that the statistic stands on; 0 where unknown.
        min_us: smallest sample.
        max_us: largest sample.
        spread: (p90 - p10) / median of the samples; 0 where there is one.
        trace_name: the name in the trace where it differs from `name`.
        origin: measured or filled in.
        series: of a collective, its occurrences by replica group; empty where not kept.
    """

    name: str
    cost_us: float
    fingerprint: str = ""
    kind: CostKind = CostKind.UNKNOWN
    opcode: str = ""
    shape: str = ""
    samples: int = 0
    min_us: float = 0.0
    max_us: float = 0.0
    spread: float = 0.0
    trace_name: str = ""
    origin: Origin = Origin.MEASURED
    series: tuple[Series, ...] = ()

    @property
    def full_name(self) -> str:
        """The name as a profile file spells it: ``fingerprint::name``, or the bare name."""
        return f"{self.fingerprint}::{self.name}" if self.fingerprint else self.name


@dataclass(frozen=True)
class Profile:
    """Costs of one or several modules.

    Attributes:
        costs: in file order. XLA takes the last of equal names (`effective` says which).
        provenance: what the sidecar records: inputs, statistics, versions, flags.
        warnings: what the user should know, one line each.
    """

    costs: tuple[Cost, ...]
    provenance: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.costs)
