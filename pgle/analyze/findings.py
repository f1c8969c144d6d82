"""Why a step loses time: rule, number, evidence, remedy; and the limits of all rules in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgle.analyze.analysis import MeasuredInstruction

ROWS = 5  # evidence rows of a finding

LEAST_SAVED = 0.01
"""Of the step. What could be saved by faster matrix products or collectives is a finding from here on."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """From where on a number is a finding."""

    title: str  # what the finding is called
    limit: float  # what the number must reach; a share of the step where `rule` says nothing else
    rule: str  # in words
    source: str  # who says so


_OWN = "pgle's proposal"
_TENSORFLOW = "TensorFlow guide, Optimize GPU performance"
THRESHOLDS: Mapping[str, Threshold] = {
    "synchronous-collective": Threshold("synchronous collectives", 0.01,
        "exposed time of synchronous collectives above 1 % of the step", "marin-community/marin#8054"),
    "exposed-communication": Threshold("exposed communication", 0.03,
        "exposed asynchronous communication of at least 3 % of the step", f"{_OWN}: what PGLE can give"),
    "rank-skew": Threshold("waits for the slowest rank", 0.02,
        "ranks wait for the last one for at least 2 % of the step, compared within each step", _OWN),
    "slow-steps": Threshold("slow steps", 0.01,
        "steps that take 5 % longer than the median step, and lengthen the mean step by at least 1 %", _OWN),
    "other-modules": Threshold("other modules", 0.01,
        "modules but the main one run alone for at least 1 % of the step", _OWN),
    "scatter-add": Threshold("scatters", 0.05, "scatters of at least 5 % of the step", "openxla/xla#46225, #26371"),
    "slow-matmul": Threshold("slow matrix products", 0.5,
        "matrix products below 50 % of the speed that XLA's table and a roofline give", f"{_OWN}; XLA's table"),
    "off-tensor-cores": Threshold("matrix products off the Tensor Cores", 0.01,
        "matrix products of at least 1 % of the step off the Tensor Cores, by kernel name, else by type and precision",
        _TENSORFLOW),
    "input-bound": Threshold("idle between steps", 0.05,
        "idle between steps for at least 5 % of the time", f"{_OWN}; {_TENSORFLOW}"),
    "idle": Threshold("host gaps inside steps", 0.01,
        "gaps over 20 µs inside steps, for at least 1 % of the step", _OWN),
    "launch-gaps": Threshold("launch gaps", 0.05,
        "gaps of up to 20 µs inside steps, for at least 5 % of the step", _OWN),
    "gaps-before-custom-calls": Threshold("gaps before custom calls", 3,
        "at least 3 gaps over 20 µs before custom calls in a step", f"{_OWN}; 4 × H100 MaxText job of JAX-Toolbox"),
    "slow-collective": Threshold("slow collectives", 0.7,
        "collectives below 70 % of the speed that XLA's table gives for size and group", f"{_OWN}; XLA's table"),
    "small-collectives": Threshold("small collectives", 8,
        "at least 8 collectives of one kind in a computation, below 1 MiB each", "marin-community/marin: 1,009"),
    "gradient-reduction": Threshold("gradients reduced too often", 1.5,
        "gradients reduced at least 1.5 times the parameters' size at 4 bytes each", f"{_OWN}; {_TENSORFLOW}"),
    "exposed-copies": Threshold("exposed copies", 0.01,
        "exposed copies of at least 1 % of the step", "openxla/xla#45983"),
    "excessive-copies": Threshold("excessive copies", 0.1,
        "copies, hidden ones and kernels that only copy, of at least 10 % of the step", f"{_OWN}; {_TENSORFLOW}"),
    "short-kernels": Threshold("short kernels", 0.05,
        "kernels below 3 µs and the gaps before them take at least 5 % of the step", f"{_OWN}; NVIDIA blog: 2.9 µs"),
    "memory": Threshold("memory near its limit", 0.95, "peak memory within 5 % of what a program can have", _OWN),
    "rematerialised-by-xla": Threshold("rematerialisation by XLA", 0.01,
        "instructions that XLA computes again, of at least 1 % of the step", _OWN),
    "needless-rematerialisation": Threshold("needless rematerialisation", 0.03,
        "rematerialisation of at least 3 % of the step where half of the memory is free", _OWN),
    "stale-profile": Threshold("stale profile", 0.1,
        "costs of the scheduler's profile that are off by at least 10 % of the step", _OWN),
    "recompilation": Threshold("repeated compilation", 1,
        "another version of the main program between its steps, while XLA compiles", "Mocz, GPU/JAX Profiling"),
    "window": Threshold("more than steady steps in the trace", 0.01,
        "warm-up, CUDA graphs, several fingerprints, or autotuning of at least 1 % of GPU time in the trace", _OWN),
}  # fmt: skip
"""Every rule, by the id of its finding."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of a finding's evidence."""

    name: str  # an instruction, or what the row is of
    us: float  # microseconds in a step
    note: str = ""  # in words
    op_name: str = ""  # the framework's name; empty where unknown


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs time."""

    id: str  # of `THRESHOLDS`
    share: float  # of the step, what it could save at most; 0 where it saves nothing but spoils the measurement
    number: str  # what was found, in words
    evidence: tuple[Evidence, ...]  # rows, the most important first
    remedy: str  # what to do next
    unclaimed: str = ""  # why no saving is claimed, where the recording itself makes what was found; else empty

    @property
    def title(self) -> str:
        """What it is called."""
        return THRESHOLDS[self.id].title


def evidence_of(items: Sequence[MeasuredInstruction]) -> tuple[Evidence, ...]:
    """Some instructions as evidence: the first of them."""
    return tuple(Evidence(item.cost.name, item.us, item.cost.shape, item.op_name) for item in items[:ROWS])


def in_words(us: float) -> str:
    """A time in µs, ms or s."""
    if us < 1e3:
        return f"{us:.3g} µs"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def in_percent(share: float, decimals: int = 1) -> str:
    """A share of 0 to 1 as ``28.0 %``."""
    return f"{share * 100:.{decimals}f} %"
