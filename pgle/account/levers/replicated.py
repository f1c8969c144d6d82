"""Products that several devices compute from the same inputs, such as a layer whose batch lost its
sharding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import fsum

from pgle.account.levers.alike import Alike
from pgle.account.levers.flow import Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import between_kernels_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import (
    LARGE,
    Basis,
    Opportunity,
    OpportunityKind,
    StepPart,
)
from pgle.errors import in_words, many
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import Module, Shape
from pgle.xla.matrix_products import is_product


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if devices divide the work that several of them do with the same inputs.

    The expected saving counts all repeated work in the computations with such products, except
    updates of state. The lower bound is 0, since pgle does not price added communication. The upper
    bound is all repeated work and all time between kernels, since communication may go away.
    """
    copies = _copies(step, flow)
    module = step.module
    products = [name for name in copies if _is_by_compiler(module, name)]
    if not products:
        return None
    bodies = {module.instructions[name].computation for name in products}
    state = _state_sizes(module)
    divided = list(products)
    for name in copies.keys() - {*products}:
        item = module.instructions[name]
        if item.computation in bodies and state.isdisjoint(_sizes(item.shape)):
            divided.append(name)
    expected_us = _saved_us(step, copies, divided)
    where = places(step, products)
    count = copies[where[0].instruction]
    return Opportunity(
        kind=OpportunityKind.REPLICATED,
        expected_us=expected_us,
        least_us=0.0,
        most_us=_saved_us(step, copies, list(copies)) + between_kernels_us(step),
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title="Divide the work that every device repeats",
        why=_why(step, products, count, module.num_devices),
        edit=_EDIT,
        where=where,
        instructions=frozenset(divided),
    )


def _is_by_compiler(module: Module, name: str) -> bool:
    """Whether the compiler divides a product among devices. Within `shard_map` the program itself
    does so, and no constraint is possible.
    """
    item = module.instructions[name]
    scopes = item.op_name.split("/")
    return is_product(module, item) and "shard_map" not in scopes


_EDIT = (
    "Constrain the activations that the product takes, in a scan its carry, to the mesh axis of "
    'the batch, as data here: x = jax.lax.with_sharding_constraint(x, P("data")).'
)


def is_undivided(step: StepCosts, levers: Iterable[Opportunity]) -> bool:
    """Whether dividing activations in another way may be worth a trial. It may if devices repeat
    each other's work, or if collectives in loops move activations for `LARGE` of the step.

    Args:
        levers: the opportunities found in the step.
    """
    if any(item.kind is OpportunityKind.REPLICATED for item in levers):
        return True
    return sum(_moving_us(step)) >= LARGE * step.step_us


def _moving_us(step: StepCosts) -> Iterator[float]:
    """Exposed microseconds of each collective in a loop that divides activations in another way.
    Collectives that gather weights or reduce do not count.
    """
    module = step.module
    exposed = {
        name: us
        for name, us in step.exposed_us.items()
        if module.instructions[name].computation != module.entry
    }
    if not exposed:
        return
    flow = Flow(module)
    for name, us in exposed.items():
        item = module.instructions[name]
        if collective_kind(module, item) in ("all-gather", "all-to-all"):
            given = map(flow.made_by, item.operands)
            if not all(map(flow.is_weight, given)):
                yield us


def _why(step: StepCosts, products: list[str], count: int, devices: int) -> str:
    now_us = taken_us(step, products)
    among = f"{count} of {devices}" if count < devices else f"all {devices}"
    found = f"{many(len(products), 'product')} of the same values on {among} devices"
    cost = "of communication, what it adds is not counted, what it saves only at most"
    return f"{found}: {in_words(now_us)} a step on each; {cost}"


def _copies(step: StepCosts, flow: Flow) -> Mapping[str, int]:
    """How many devices compute the same, by kernel. Kernels without copies are left out."""
    alike = Alike(flow)
    found: dict[str, int] = {}
    for name, kernel in flow.kernel.items():
        if kernel in step.us:
            count = alike.copies(name)
            found[kernel] = min(count, found.get(kernel, count))
    return {kernel: count for kernel, count in found.items() if count > 1}


def _saved_us(step: StepCosts, copies: Mapping[str, int], kernels: list[str]) -> float:
    """Microseconds of a step that are saved if each device computes only its own part."""
    return fsum(step.us[name] * (1 - 1 / copies[name]) for name in kernels)


def _state_sizes(module: Module) -> set[tuple[int, ...]]:
    """The dimensions of arrays that the step both takes and returns. Gradients have them, too."""
    entry = module.entry_computation
    taken: set[tuple[int, ...]] = set()
    for item in entry.instructions:
        if item.opcode == "parameter":
            taken.update(_sizes(item.shape))
    return taken.intersection(_sizes(module.instructions[entry.root].shape))


def _sizes(shape: Shape) -> Iterator[tuple[int, ...]]:
    """The dimensions of an array, or of the arrays in a tuple, without scalars."""
    for each in shape.arrays:
        if each.dimensions:
            yield each.dimensions
