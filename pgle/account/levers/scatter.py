"""Scatters that add, such as the gradient of a lookup. Rows that are added to the same place wait
for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgle.account.levers.flow import Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import bound_alone, least_saved_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.products import Matmul, least_product_us, matmul_us
from pgle.costs.estimate.scatters import overwrites, places_of, rows_of, width_of
from pgle.errors import in_words, many
from pgle.xla.hlo.module import BITS
from pgle.xla.targets import KERNEL_US, Hardware

_WORTH = 0.5
"""A replacement may take at most this share of a scatter's time. A smaller gain is unsure, since
both times are estimates.
"""

_SORT_PASSES = 4  # CUB sorts 32-bit indices in passes of 8 bits
_INDEX_BYTES = 8  # an index, and its place before the sort


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Another way to compute the result of a scatter."""

    us: float  # estimated time per execution
    least_us: float  # the same at the GPU's peaks
    is_product: bool  # a product with one-hot rows; else the indices are sorted first


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if products with one-hot rows, or sorted indices, replace scatters."""
    found: dict[str, _Replacement] = {}
    for name, node in flow.nodes.items():
        kernel = flow.kernel[name]
        count = step.count.get(kernel, 0.0)
        if node.opcode != "scatter" or not count or overwrites(step.module, node):
            continue
        other = _replacement(step, flow, name)
        if other.us <= _WORTH * step.us.get(kernel, 0.0) / count:
            found[kernel] = other
    if not found:
        return None
    now_us = taken_us(step, found)
    likely = sum(step.count[name] * other.us for name, other in found.items())
    least = sum(step.count[name] * other.least_us for name, other in found.items())
    is_sure = all(other.is_product for other in found.values())
    surely = least_saved_us(now_us, likely)
    why = _why(len(found), now_us, likely, is_sure)
    known = Opportunity(
        kind=OpportunityKind.SCATTER,
        expected_us=now_us - likely,
        least_us=surely,
        most_us=now_us - least,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title=_title(step, found, is_sure),
        why=why,
        edit=_PRODUCT if is_sure else _SORTED,
        code=_PRODUCT_CODE if is_sure else "",
        where=places(step, found),
        instructions=frozenset(found),
    )
    return known if is_sure else bound_alone(known)


_PRODUCT_CODE = "jax.nn.one_hot(ids, len(table), dtype=table.dtype) @ table"
_PRODUCT = (
    "Write this in place of table[ids], so that the gradient is a product too. "
    "Ids outside of the table, negative ones too, then give zeros; f32 is multiplied as "
    "TF32 unless precision='highest' is given. A NaN or an infinity in one row reaches all."
)
_SORTED = (
    "Sort the indices first (jnp.argsort), and add the rows in that order with "
    ".at[ids].add(rows, indices_are_sorted=True)."
)


def _title(step: StepCosts, found: dict[str, _Replacement], is_sure: bool) -> str:
    if not is_sure:
        return "Sort what the scatter adds"
    names = (step.module.instructions[name].op_name for name in found)
    is_gradient = any("transpose(" in name for name in names)
    what = "the lookup's gradient" if is_gradient else "the sum by index"
    return f"Write {what} as a one-hot product, not as a scatter"


def _why(count: int, now_us: float, likely: float, is_sure: bool) -> str:
    other = "one-hot products" if is_sure else "sorted rows"
    found = f"{many(count, 'scatter')}: {in_words(now_us)} a step"
    return f"{found}, as {other} {in_words(likely)}"


def _replacement(step: StepCosts, flow: Flow, name: str) -> _Replacement:
    """A product with one-hot rows if it takes at most `_WORTH` of the scatter, else sorted rows.

    XLA's kernel for sorted indices is sometimes slow (openxla/xla issue 22233), so only a trial
    decides about sorted rows.
    """
    module, hardware = step.module, step.hardware
    node = flow.nodes[name]
    rows = rows_of(module, node)
    places = places_of(module, node)
    width = width_of(module, node)
    dtype = flow.shape(name).dtype
    item = BITS.get(dtype, 32) / 8
    product = Matmul(batch=1, m=places, n=width, k=rows, dtype=dtype)
    # the one-hot rows are written and read, unless XLA fuses them
    hot_us = _memory_us(hardware, 2 * rows * places * item)
    product_us = matmul_us(product, hardware) + hot_us
    kernel = flow.kernel[name]
    now_us = step.us.get(kernel, 0.0) / step.count[kernel]
    if product_us <= _WORTH * now_us:
        return _Replacement(product_us, least_product_us(product, hardware), True)
    given, kept = rows * width * item, places * width * item
    likely_us = sorted_us(hardware, rows, given, kept)
    least_us = (3 * given + kept) / (hardware.memory_gb_s * 1e3)
    return _Replacement(likely_us, least_us, False)


def sorted_us(hardware: Hardware, rows: int, given: float, kept: float) -> float:
    """Microseconds to sort indices and to add their rows in that order.

    Args:
        rows: number of rows.
        given: bytes of all rows.
        kept: bytes of the sums.
    """
    sort_us = _SORT_PASSES * _memory_us(hardware, 2 * rows * _INDEX_BYTES)
    return sort_us + KERNEL_US + _memory_us(hardware, 3 * given + kept)


def _memory_us(hardware: Hardware, size: float) -> float:
    """Microseconds of a kernel that moves `size` bytes."""
    return KERNEL_US + hardware.memory_us(size)
