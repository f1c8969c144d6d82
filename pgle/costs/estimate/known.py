"""Decide what is known of each instruction's cost: a model, only a bound, or nothing. No other file
decides this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from pgle.costs.estimate.estimate import estimator, least_us
from pgle.costs.estimate.linear_algebra import routine_of
from pgle.costs.estimate.products import attention_operations
from pgle.costs.estimate.unknown import Range, range_of
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.host_copies import crosses_host_link
from pgle.xla.instruction_kinds import FREE_TARGETS
from pgle.xla.matrix_products import is_attention
from pgle.xla.targets import Hardware

PARTITIONED_LATER = "CustomSPMDPartitioning"
_PRICED = (
    "__cublas",
    "__cudnn$conv",
    "__cub$",
    "xla.gpu.ext.cub_",
    "__triton",
    "__gpu$TopK",
)
"""Targets of custom calls that belong to XLA's own libraries. Their shapes determine the
estimates.
"""


class Basis(Enum):
    """The source of an estimate."""

    STATED = "stated"  # the program states the cost
    MODEL = "model"  # shapes determine it, within the error of estimates
    BOUND = "bound"  # only a bound: the time of its least operations at the GPU's peak
    UNKNOWN = "unknown"  # nothing is known; the time to move its bytes counts

    @property
    def is_model(self) -> bool:
        """Whether the estimate has an upper end."""
        return self in (Basis.STATED, Basis.MODEL)


@dataclass(frozen=True, slots=True)
class KnownCost:
    """The cost of one execution of an instruction, in microseconds."""

    us: float  # the likely cost; a lower bound if `basis.is_model` is False
    least_us: float  # no execution can be shorter
    basis: Basis
    # the range, if data or a choice made on the GPU decides the cost
    range: Range | None = None
    bound_why: str = ""  # why there is no upper end; empty if there is one

    @property
    def most_us(self) -> float | None:
        """The upper end of the cost; None if there is none."""
        if not self.basis.is_model:
            return None
        return self.us if self.range is None else self.range.most_us


def estimates(module: Module, hardware: Hardware) -> Callable[[Instruction], KnownCost]:
    """Return a function from an instruction of `module` to what is known of its cost on
    `hardware`.
    """
    cost_us = estimator(module, hardware)
    fastest, _ = (
        hardware.ends
        # the least time does not depend on the assumed network, so the fastest one counts
    )

    def estimate(instruction: Instruction) -> KnownCost:
        """Return the estimated cost of an instruction, with its bound and its range."""
        least = least_us(module, instruction, fastest)
        us = max(cost_us(instruction), least)
        basis = basis_of(module, instruction)
        if not basis.is_model:
            return KnownCost(
                us, least, basis, bound_why=_bound_why(module, instruction)
            )
        known = (
            range_of(module, instruction, hardware, us)
            if basis is Basis.MODEL
            else None
        )
        return KnownCost(us, least, basis, known)

    return estimate


def basis_of(module: Module, instruction: Instruction) -> Basis:
    """Return the source of an instruction's estimate; for a fusion or an asynchronous call, the
    weakest source among its parts.
    """
    if instruction.latency_ns is not None:
        return Basis.STATED
    is_transfer = crosses_host_link(module, instruction)
    if is_transfer or collective_kind(module, instruction) is not None:
        return Basis.MODEL
    found = {_own_basis(module, item) for item in _held(module, instruction)}
    return next(
        (basis for basis in (Basis.UNKNOWN, Basis.BOUND) if basis in found), Basis.MODEL
    )


def _bound_why(module: Module, instruction: Instruction) -> str:
    """Return why an instruction has only a bound, naming its target; empty if it has a model."""
    for item in _held(module, instruction):
        target = item.custom_call_target or item.opcode
        basis = _own_basis(module, item)
        if basis is Basis.UNKNOWN:
            return f"no cost is known for the custom call {target}"
        if basis is Basis.BOUND:
            return f"only a bound is known for {target}"
    return ""


def _held(module: Module, instruction: Instruction) -> tuple[Instruction, ...]:
    """Return the instruction; for a fusion or an asynchronous call, also the instructions that it
    runs.
    """
    return module.parts(module.operation(instruction))


def _own_basis(module: Module, item: Instruction) -> Basis:
    """Return what an instruction's cost is based on, without what it calls."""
    target = item.custom_call_target
    if item.latency_ns is not None:
        return Basis.STATED
    if routine_of(item):
        return Basis.BOUND
    if item.opcode != "custom-call" or target in (PARTITIONED_LATER, *FREE_TARGETS):
        return Basis.MODEL
    if is_attention(item) and attention_operations(module, item):
        return Basis.MODEL
    return Basis.MODEL if target.startswith(_PRICED) else Basis.UNKNOWN


def unmodelled(
    module: Module, measured: Collection[str]
) -> Mapping[Basis, Mapping[str, int]]:
    """Count the instructions without a cost model: by `Basis` (`UNKNOWN`, `BOUND`), then by
    custom-call target or opcode.

    Args:
        measured: names of instructions with a measured cost; they are not counted.
    """
    found: dict[Basis, Counter[str]] = {
        Basis.UNKNOWN: Counter(),
        Basis.BOUND: Counter(),
    }
    for item in module.walk():
        basis = _own_basis(module, item)
        if basis in found and item.name not in measured:
            found[basis][item.custom_call_target or item.opcode] += 1
    return found


_REMEDY = (
    "measure them and give the costs with --profile, or state them in the program, for XLA too: "
    "'with "
    'jax.experimental.xla_metadata.set_xla_metadata(latency_metadata="NANOSECONDS"):\' around the '
    "call"
)


def unmodelled_warnings(module: Module, measured: Collection[str]) -> list[str]:
    """Return a line for each `Basis` in `unmodelled`: how pgle counts these instructions, and what
    to do.
    """
    counts_as = {
        Basis.UNKNOWN: (
            "no cost is known for custom calls ({}): they count as the time that "
            "moving their bytes takes"
        ),
        Basis.BOUND: (
            "only a bound is known for linear algebra ({}): it counts as its least "
            "operations at the GPU's peak"
        ),
    }
    found = unmodelled(module, measured)
    lines = []
    for basis, words in counts_as.items():
        targets = sorted(found[basis].items(), key=lambda pair: (-pair[1], pair[0]))
        if targets:
            named = ", ".join(f"{target} × {count}" for target, count in targets)
            lines.append(f"{words.format(named)}; the step is a lower bound; {_REMEDY}")
    return lines
