"""Values that the backward pass computes again although there is memory to keep them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgle.account.levers.flow import AGAIN, Flow
from pgle.account.levers.places import in_gib, places, room_bytes, taken_us
from pgle.account.levers.savings import bound_alone, least_saved_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.errors import in_words, many
from pgle.xla.targets import KERNEL_US

_NEARLY_FULL = 0.95  # share of the memory that a program can have


@dataclass(frozen=True, slots=True)
class _Repeated:
    """One product that the backward pass computes again."""

    kernel: str
    us: float  # its time in a step
    kept_us: float  # time in a step to write its result and read it again instead
    size_bytes: int  # all its results in a step

    @property
    def gain_us(self) -> float:
        """Microseconds of a step that keeping the result saves."""
        return self.us - self.kept_us


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if the step keeps results of products, as many as fit into free memory.

    If free memory is unknown, only the upper bound is known.
    """
    worth = [item for item in _repeated(step, flow) if item.gain_us > 0]
    room = room_bytes(step)
    kept = worth if room is None else list(_fitting(worth, room))
    if not kept:
        return None
    kernels = [item.kernel for item in kept]
    now_us = taken_us(step, kernels)
    keeping_us = sum(item.kept_us for item in kept)
    size = sum(item.size_bytes for item in kept)
    known = Opportunity(
        kind=OpportunityKind.REMAT,
        expected_us=now_us - keeping_us,
        least_us=least_saved_us(now_us, keeping_us),
        most_us=now_us,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title="Keep the results of products for the backward pass",
        why=_why(len(kept), now_us, size, room),
        edit=_EDIT,
        code=_POLICY,
        where=places(step, kernels),
        instructions=frozenset(kernels),
    )
    return bound_alone(known) if room is None else known


_EDIT = "Pass this to jax.checkpoint (nn.remat)."
_POLICY = "policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable"


def _why(count: int, now_us: float, size: int, room: int | None) -> str:
    again = f"{many(count, 'product')} computed again: {in_words(now_us)} a step"
    kept = f"their results need {in_gib(size)} GiB"
    if room is None:
        return f"{again}; {kept}"
    return f"{again}; {kept}, {in_gib(room)} are free"


def find_room(step: StepCosts, flow: Flow) -> Opportunity | None:
    """Find that memory is nearly full although nothing is computed again. The edit saves memory,
    not time.
    """
    if step.peak_bytes is None or step.limit_bytes is None:
        return None
    is_full = step.peak_bytes >= _NEARLY_FULL * step.limit_bytes
    names = (node.op_name for node in flow.nodes.values())
    if not is_full or any(AGAIN in name for name in names):
        return None
    used = f"{in_gib(step.peak_bytes)} of {in_gib(step.limit_bytes)} GiB"
    return Opportunity(
        kind=OpportunityKind.KEEP_LESS,
        expected_us=None,
        least_us=0.0,
        most_us=0.0,
        part=StepPart.COMPUTE,
        basis=step.basis,
        title="Make room by computing activations again",
        why=f"the step needs {used}, and the backward pass computes nothing again",
        edit="Wrap the layers in jax.checkpoint (nn.remat); steps get longer, memory less.",
    )


def _repeated(step: StepCosts, flow: Flow) -> Iterator[_Repeated]:
    """Products with weights (without batch dimensions) that the backward pass computes again,
    except those that another edit removes.
    """
    for name, product in flow.products.items():
        kernel = flow.kernel[name]
        if AGAIN not in flow.nodes[name].op_name or product.batch > 1:
            continue
        if kernel in step.us:
            times = step.count.get(kernel, 1.0)
            kept_us = times * _kept_us(step, flow, name)
            size = round(times * flow.shape(name).size_bytes)
            yield _Repeated(kernel, step.us[kernel], kept_us, size)


def _kept_us(step: StepCosts, flow: Flow, name: str) -> float:
    """Microseconds to keep one result for the backward pass, and to read it there.

    In the entry it costs nothing: the result stays in its buffer. A loop writes it into a buffer
    for all iterations, which a kernel filled with zeros before. The backward pass copies it from
    there.
    """
    if flow.computation[name] == flow.module.entry:
        return 0.0
    pass_us = step.hardware.memory_us(flow.shape(name).size_bytes)
    return 2 * KERNEL_US + 5 * pass_us


def _fitting(found: Iterable[_Repeated], room: int) -> Iterator[_Repeated]:
    """As many as fit into `room` bytes. Those that save most per byte come first."""
    for item in sorted(found, key=lambda item: -item.gain_us / max(item.size_bytes, 1)):
        if item.size_bytes <= room:
            room -= item.size_bytes
            yield item
