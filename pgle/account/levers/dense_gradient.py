"""Gradients of lookups that devices reduce as whole tables, though each looked up only few rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum

from pgle.account.levers.flow import RESHAPED, Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import least_saved_us
from pgle.account.levers.scatter import sorted_us
from pgle.account.levers.softmax import joined
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.communication import group_of, group_us
from pgle.costs.estimate.scatters import overwrites, places_of, rows_of, width_of
from pgle.errors import in_words, many
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import BITS, Instruction

_REDUCING = ("all-reduce", "reduce-scatter")
_ZEROS = ("broadcast", "constant")  # opcodes of the zeros that a gradient is added to
_INDEX_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Dense:
    """One table whose whole gradient a collective reduces."""

    collective: str
    scatter: str  # the kernel of the scatter that makes the gradient
    table: int  # rows of the table
    rows: int  # rows that all devices of the group look up
    now_us: float  # exposed time of the collective in a step
    other_us: float  # time in a step to exchange only these rows, and to add them
    divided_us: float  # compute saved in a step if each device has only its part


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if devices exchange only the rows that they looked up, not whole tables."""
    found = [item for item in _dense(step, flow) if item.other_us < item.now_us]
    if not found:
        return None
    now_us = fsum(item.now_us for item in found)
    divided_us = fsum(item.divided_us for item in found)
    other_us = fsum(item.other_us for item in found)
    names = frozenset(item.collective for item in found)
    scatters = frozenset(item.scatter for item in found)
    return Opportunity(
        kind=OpportunityKind.DENSE_GRADIENT,
        expected_us=now_us - other_us,
        least_us=least_saved_us(now_us, other_us),
        most_us=now_us + divided_us,
        part=StepPart.COMMUNICATION,
        basis=Basis.ESTIMATED,
        title="Shard the table whose whole gradient is reduced",
        why=_why(found, now_us, other_us),
        edit=_EDIT,
        where=places(step, names),
        instructions=names | scatters,  # sorting the indices is an edit of the scatter
    )


_EDIT = (
    "Shard the table and its optimizer state by rows over the mesh axis of the batch, "
    'as data here: NamedSharding(mesh, P("data", None)); or sort the indices of the '
    "lookup, so that only its rows are exchanged."
)


def _why(found: list[_Dense], now_us: float, other_us: float) -> str:
    largest = max(found, key=lambda item: item.now_us)
    rows = f"{largest.rows:,} rows of {largest.table:,} looked up"
    what = f"{many(len(found), 'gradient')} of a lookup, a whole table each ({rows})"
    return f"{what}: {in_words(now_us)} a step exposed, the rows alone {in_words(other_us)}"


def _dense(step: StepCosts, flow: Flow) -> Iterator[_Dense]:
    module = step.module
    for name, exposed_us in step.exposed_us.items():
        item = module.instructions[name]
        if collective_kind(module, item) not in _REDUCING or not exposed_us:
            continue
        sizes = {each: flow.shape(each).size_bytes for each in item.operands}
        for given, size in sizes.items():
            scatter = _scatter(flow, given)
            if scatter is not None:
                now_us = exposed_us * size / sum(sizes.values())
                yield _priced(step, flow, item, scatter, now_us)


def _scatter(flow: Flow, name: str) -> Instruction | None:
    """The scatter that makes a value by adding rows to zeros; None if something else makes it."""
    for each in flow.looked_at(flow.made_by(name), RESHAPED):
        if flow.opcode(each) == "scatter":
            node = flow.nodes[each]
            is_new = flow.comes_from(flow.inputs[each][0], _ZEROS, RESHAPED)
            return node if is_new and not overwrites(flow.module, node) else None
    return None


def _priced(
    step: StepCosts,
    flow: Flow,
    collective: Instruction,
    scatter: Instruction,
    now_us: float,
) -> _Dense:
    module, hardware = step.module, step.hardware
    group = group_of(module, collective, hardware)
    rows = rows_of(module, scatter) * group.size
    number_bytes = BITS.get(flow.shape(scatter.name).dtype, 32) // 8
    row_bytes = width_of(module, scatter) * number_bytes
    exchanged_bytes = rows * (row_bytes + _INDEX_BYTES)
    exchange_us = group_us("all-gather", group, exchanged_bytes, hardware)
    added_us = sorted_us(hardware, rows, rows * row_bytes, 0)
    times = step.count.get(collective.name, 1.0)
    alike = joined(flow, [scatter.name])
    whole_us = taken_us(step, {flow.kernel[each] for each in alike})
    return _Dense(
        collective=collective.name,
        scatter=flow.kernel[scatter.name],
        table=places_of(module, scatter),
        rows=rows,
        now_us=now_us,
        other_us=times * (exchange_us + added_us),
        divided_us=whole_us * (1 - 1 / group.size),
    )
