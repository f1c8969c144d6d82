"""Products that several devices compute from the same inputs, such as a layer whose batch lost its
sharding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import fsum

from pgle.account.levers.alike import Alike
from pgle.account.levers.divided import (
    Batch,
    Division,
    sizes_of,
    sizes_of_state,
    whole_batch,
)
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
from pgle.xla.hlo.module import Module
from pgle.xla.matrix_products import is_product


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if devices divide the work that several of them do with the same inputs.

    The expected saving counts all repeated work in the computations with products, except updates
    of state. If the batch is known, pgle prices the communication that comes and goes. The lower
    bound is 0. The upper bound is all repeated work and all time between kernels, since
    communication may go away.
    """
    alike = Alike(flow)
    copies = _copies(step, flow, alike)
    batch = whole_batch(flow, alike)
    if batch is None:
        return _of_products(step, copies)
    return _of_batch(step, flow, Division(step, flow, alike, batch, copies), copies)


def _of_products(step: StepCosts, copies: Mapping[str, int]) -> Opportunity | None:
    """The saving in the computations that repeat products, if the batch is unknown."""
    module = step.module
    products = _products(module, copies)
    if not products:
        return None
    divided = _divided(module, copies, products)
    where = places(step, products)
    count = copies[where[0].instruction]
    expected_us = _saved_us(step, copies, divided)
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
        code=_CONSTRAINT.format(name="x", spec='"data"'),
        where=where,
        instructions=frozenset(divided),
    )


def _of_batch(
    step: StepCosts, flow: Flow, division: Division, copies: Mapping[str, int]
) -> Opportunity | None:
    """The saving if devices divide a batch that each of them has whole."""
    module = step.module
    by_compiler = _products(module, dict.fromkeys(flow.kernel.values()))
    repeated = [name for name in by_compiler if name in copies]
    divided = _divided(module, copies, by_compiler)
    idle_us = between_kernels_us(step)
    exposed_us = min(fsum(step.exposed_us.values()), idle_us)
    kernels_us = division.saved_us(divided)
    moved_us = exposed_us - division.exposed_us
    if not by_compiler or kernels_us + moved_us <= 0:
        return None
    all_us = _saved_us(step, copies, list(copies))
    most_us = max(division.saved_us(copies), all_us) + idle_us
    is_moved = moved_us > kernels_us
    moving = [name for name, us in step.exposed_us.items() if us > 0]
    where = places(step, moving if is_moved else repeated or divided)
    why = _why_divided(step, division, divided, moved_us)
    return Opportunity(
        kind=OpportunityKind.REPLICATED,
        expected_us=min(kernels_us + moved_us, most_us),
        least_us=0.0,
        most_us=most_us,
        part=StepPart.COMMUNICATION if is_moved else StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title="Divide the batch that every device has whole",
        why=why,
        edit=_EDIT_OF_BATCH,
        code=_CONSTRAINT.format(name="batch", spec=_spec(division.batch)),
        where=where,
        instructions=frozenset(divided),
    )


def _products(module: Module, kernels: Iterable[str]) -> list[str]:
    return [name for name in kernels if _is_by_compiler(module, name)]


def _divided(
    module: Module, copies: Mapping[str, int], products: list[str]
) -> list[str]:
    """Names of repeated kernels in the computations of some products, except updates of state."""
    bodies = {module.instructions[name].computation for name in products}
    state = sizes_of_state(module)
    found = [name for name in products if name in copies]
    for name in copies.keys() - {*products}:
        item = module.instructions[name]
        if item.computation in bodies and state.isdisjoint(sizes_of(item.shape)):
            found.append(name)
    return found


def _is_by_compiler(module: Module, name: str) -> bool:
    """Whether the compiler divides a product among devices. Within `shard_map` the program itself
    does so, and no constraint is possible.
    """
    item = module.instructions[name]
    scopes = item.op_name.split("/")
    return is_product(module, item) and "shard_map" not in scopes


_CONSTRAINT = (
    "{name} = jax.lax.with_sharding_constraint({name}, "
    "jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec({spec})))"
)

_EDIT = (
    "Write this for the activations x that the product takes, in a scan for its carry. mesh is "
    "the mesh of the step's arguments, data its axis of the batch. If its axes are explicit, take "
    "jax.reshard, for the activation whose jax.typeof lacks this axis, such as the result of "
    "cuDNN's attention."
)


_EDIT_OF_BATCH = (
    "Write this first in the step, and for the carry of a scan, too. mesh is the mesh of the "
    "step's arguments, data the axes that have the batch whole. If its axes are explicit, take "
    "jax.reshard. Place the batch so with jax.device_put, too, and each device loads its part "
    "alone."
)


def _spec(batch: Batch) -> str:
    """The axes of a sharding in which a mesh axis called data divides the batch."""
    return f'{"None, " * batch.axis}"data"'


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


def _why_divided(
    step: StepCosts, division: Division, divided: list[str], moved_us: float
) -> str:
    batch = division.batch
    what = f"{batch.count} devices have all {many(batch.rows, 'row')} of the batch"
    repeated = f"they repeat {in_words(taken_us(step, divided))} of a step"
    less = "less" if moved_us >= 0 else "more"
    moved = f"{in_words(abs(moved_us))} {less} exposed communication if they divide it"
    return f"{what}: {repeated}; {moved}"


def _copies(step: StepCosts, flow: Flow, alike: Alike) -> Mapping[str, int]:
    """How many devices compute the same, by kernel. Kernels without copies are left out."""
    found: dict[str, int] = {}
    for name, kernel in flow.kernel.items():
        if kernel in step.us:
            count = alike.copies(name)
            found[kernel] = min(count, found.get(kernel, count))
    return {kernel: count for kernel, count in found.items() if count > 1}


def _saved_us(step: StepCosts, copies: Mapping[str, int], kernels: list[str]) -> float:
    """Microseconds of a step that are saved if each device computes only its own part."""
    return fsum(step.us[name] * (1 - 1 / copies[name]) for name in kernels)
