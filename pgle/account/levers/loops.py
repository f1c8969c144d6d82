"""A loop whose iterations run small kernels, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import fsum

from pgle.account.levers.flow import Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.errors import in_words, many
from pgle.xla.hlo.module import Instruction

_SMALL_US = 10.0  # of the mean kernel; most of a smaller one is its launch
_MANY = 64  # iterations in a step; a loop over the layers of a model has fewer

_EDIT = (
    "Compute several iterations at once: jax.lax.associative_scan or chunks if the mathematics "
    "allows it, else jax.lax.scan(…, unroll=…); or give each iteration more work: a larger batch"
)


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """What loops of small kernels take. Nobody knows how much of it an edit saves."""
    loops = [kernels for kernels in _innermost(step, flow) if _is_slow(step, kernels)]
    names = list(chain.from_iterable(loops))
    if not names:
        return None
    times = max(step.count[name] for name in names)
    now_us = taken_us(step, names)
    why = (
        f"{many(len(names), 'kernel')} in {many(len(loops), 'loop')}, {times:,.0f} iterations "
        f"a step, {in_words(_mean_us(step, names))} each: {in_words(now_us)} a step"
    )
    return Opportunity(
        kind=OpportunityKind.UNROLL,
        expected_us=None,
        least_us=0.0,
        most_us=now_us,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title="Run fewer small kernels in loops",
        why=why,
        edit=_EDIT,
        where=places(step, names),
        instructions=frozenset(names),
    )


def _innermost(step: StepCosts, flow: Flow) -> Iterator[list[str]]:
    """The kernels with a cost of each loop that has no other loop in it."""
    inside: dict[str, list[Instruction]] = {}
    for name in dict.fromkeys(flow.kernel.values()):
        item = step.module.instructions[name]
        inside.setdefault(item.computation, []).append(item)
    for loop in step.module.walk():
        if loop.opcode != "while":
            continue
        parts = (inside.get(name, []) for name in loop.called)
        body = list(chain.from_iterable(parts))
        if any(item.opcode == "while" for item in body):
            continue
        yield [item.name for item in body if step.us.get(item.name, 0.0) > 0]


def _is_slow(step: StepCosts, kernels: list[str]) -> bool:
    """Whether a loop has many iterations, and small kernels."""
    times = max((step.count.get(name, 0.0) for name in kernels), default=0.0)
    return times >= _MANY and _mean_us(step, kernels) < _SMALL_US


def _mean_us(step: StepCosts, kernels: list[str]) -> float:
    """Microseconds of one execution of a kernel, on average."""
    executions = fsum(step.count.get(name, 0.0) for name in kernels)
    return taken_us(step, kernels) / max(executions, 1.0)
