"""Exposed copies between device and host memory (offload)."""

from __future__ import annotations

from collections.abc import Sequence

from pgle.account.levers.flow import Flow
from pgle.account.levers.places import in_gib, places, room_bytes
from pgle.account.levers.savings import bound_alone
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.estimate import transferred_bytes
from pgle.errors import in_words, many
from pgle.xla.hlo.module import HOST_MEMORY_SPACE
from pgle.xla.host_copies import is_host_copy
from pgle.xla.targets import HOST_LINK_EFFICIENCY


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if arrays stay in device memory that the step copies from or to the host.

    If they do not fit, only the upper bound is known.
    """
    found = _host_copies(step, flow)
    exposed = sum(step.exposed_us[name] for name in found)
    now_us = min(exposed, step.exposed_copies_us)
    if not now_us:
        return None
    needed = _kept_bytes(step, found)
    room = room_bytes(step)
    fits = room is not None and needed <= room
    surely = now_us
    if step.basis is Basis.ESTIMATED:
        surely *= HOST_LINK_EFFICIENCY
    why = _why(len(found), now_us, needed, room)
    known = Opportunity(
        kind=OpportunityKind.COPIES,
        expected_us=now_us,
        least_us=surely,
        most_us=now_us,
        part=StepPart.COPIES,
        basis=step.basis,
        title=_FITS_TITLE if fits else _TOO_LARGE_TITLE,
        why=why,
        edit=_FITS if fits else _TOO_LARGE,
        where=places(step, found),
        instructions=frozenset(found),
    )
    return known if fits else bound_alone(known)


_FITS_TITLE = "Keep in device memory what the step copies from and to the host"
_FITS = (
    "Leave these arrays in device memory: remove memory_kind='pinned_host' from their "
    "sharding, or the offload from the checkpoint policy."
)
_TOO_LARGE_TITLE = "Copy less from and to the host"
_TOO_LARGE = (
    "Offload fewer arrays, or start the copy to the device a layer before its use and "
    "the copy to the host right after it is computed."
)


def _why(count: int, now_us: float, needed: int, room: int | None) -> str:
    what = f"{in_gib(needed)} GiB from and to the host"
    found = f"{many(count, 'transfer')} of {what} stay exposed for {in_words(now_us)}"
    if room is None:
        return found
    return f"{found}; {in_gib(room)} GiB of device memory are free"


def _host_copies(step: StepCosts, flow: Flow) -> Sequence[str]:
    """Names of the exposed copies from and to the host, the most exposed first."""
    found = [
        name
        for name, us in step.exposed_us.items()
        if us > 0 and is_host_copy(flow.module, flow.module.instructions[name])
    ]
    return sorted(found, key=lambda name: -step.exposed_us[name])


def _kept_bytes(step: StepCosts, copies: Sequence[str]) -> int:
    """Bytes that need device memory if nothing is copied: those from the host or those to the host,
    whichever are more.
    """
    module = step.module
    to_device = to_host = 0
    for name in copies:
        item = module.instructions[name]
        size = transferred_bytes(module, item) * int(step.count.get(name, 1))
        sources = (module.instructions[each].shape for each in item.operands)
        if any(shape.memory_space == HOST_MEMORY_SPACE for shape in sources):
            to_device += size
        else:
            to_host += size
    return max(to_device, to_host)
