"""The facts of a compiled step that a test keeps: step, memory, collectives, and their order.

A snapshot is compared with the one of an earlier commit. The same program, flags and jaxlib give
the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from pgle.account.value import StepPart
from pgle.errors import UserError, as_change, many
from pgle.files import sha256
from pgle.schedule.launch_order import launch_order
from pgle.xla.async_opcodes import is_done
from pgle.xla.async_pairs import result_shape
from pgle.xla.collectives import group_size, walk_collectives
from pgle.xla.hlo.module import Module
from pgle.xla.owners import known_times

SCHEMA = "pgle.snapshot/1"
MIB = 1 << 20
SAME_WITHIN = 0.01  # share of a kept figure by which two compilations may differ
LEAST_MIB = 0.1  # smaller sizes are shown in bytes
LEAST_TIMES = 10.0  # from here on a change is shown as a ratio, not as a share


class CollectiveFacts(msgspec.Struct, frozen=True):
    """The collectives of one step with the same kind and group size."""

    count: int  # how many a step starts
    bytes: int  # of all their results together


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled step."""

    schema: str = SCHEMA
    module: str
    target: str
    devices: int
    jaxlib: str
    step_us: float  # predicted
    parts_us: dict[str, float]  # of its account; they add up to the step
    memory_bytes: int | None  # on each device; None if XLA wrote no report
    collectives: dict[str, CollectiveFacts]  # by kind and size of group
    order: str  # a digest of the order in which a rank starts them


def exposed_us(snapshot: Snapshot) -> float:
    """Exposed communication in microseconds."""
    return snapshot.parts_us.get(StepPart.COMMUNICATION.value, 0.0)


def collectives_of(module: Module) -> dict[str, CollectiveFacts]:
    """The collectives of a step by kind and group size (``all-gather over 8``). Loops of unknown
    length count once.
    """
    counts = Counter[str]()
    sizes = Counter[str]()
    for item, kind in walk_collectives(module):
        if is_done(item):
            continue
        name = f"{kind} over {group_size(module, item)}"
        times = known_times(module, item.name)
        counts[name] += times
        sizes[name] += result_shape(module, item).size_bytes * times
    return {name: CollectiveFacts(counts[name], sizes[name]) for name in sorted(counts)}


def started(module: Module) -> list[str]:
    """The collectives that a rank starts in a step, in order, in words without the program's
    names.
    """
    order = launch_order(module)
    return [str(order.collectives[start]) for start in order.starts]


def order_of(module: Module) -> str:
    """A digest (16 hexadecimal digits) of the order in which a rank starts collectives."""
    lines = "\n".join(started(module))
    return sha256(lines.encode())[:16]


def to_text(snapshot: Snapshot) -> str:
    """JSON that a person can read."""
    data = msgspec.json.encode(snapshot)
    return msgspec.json.format(data, indent=1).decode() + "\n"


def from_text(text: str, where: str) -> Snapshot:
    """Read what `to_text` wrote.

    Args:
        where: the file, for the error.

    Raises:
        UserError: the text has another format.
    """
    try:
        found = msgspec.json.decode(text, type=Snapshot)
    except msgspec.MsgspecError as error:
        what = f"is not a baseline of pgle ({error})"
        raise UserError(
            what, where=where, remedy="write it again: --pgle-update"
        ) from None
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """One fact that differs."""

    fact: str
    before: str
    after: str
    note: str = ""  # the size of the change, or its consequence


def changes(before: Snapshot, after: Snapshot) -> tuple[Change, ...]:
    """All facts that differ, the likely causes first.

    Times are equal if they differ by at most `SAME_WITHIN` of the step, memory by that share of it.
    """
    return (*_of_setting(before, after), *_of_program(before, after))


def _of_setting(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    for fact in ("jaxlib", "target", "devices", "module"):
        one = str(getattr(before, fact))
        other = str(getattr(after, fact))
        if one != other:
            yield Change(fact, one, other)


def _of_program(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    none = CollectiveFacts(0, 0)
    names = sorted({*before.collectives, *after.collectives})
    for name in names:
        one = before.collectives.get(name, none)
        other = after.collectives.get(name, none)
        if one != other:
            yield Change(
                name, _words(one), _words(other), _relative(one.bytes, other.bytes)
            )
    if before.order != after.order:
        note = "ranks of both versions cannot run together"
        yield Change("order of collectives", "as kept", "another", note)
    figures = [
        (part, before.parts_us.get(part, 0.0), after.parts_us.get(part, 0.0))
        for part in dict.fromkeys((*before.parts_us, *after.parts_us))
    ]
    for fact, was_us, is_us in (*figures, ("step", before.step_us, after.step_us)):
        if abs(is_us - was_us) > SAME_WITHIN * before.step_us:
            yield Change(fact, _ms(was_us), _ms(is_us), _relative(was_us, is_us))
    was = before.memory_bytes or 0
    now = after.memory_bytes or 0
    if abs(now - was) > SAME_WITHIN * was:
        yield Change("memory", _size(was), _size(now), _relative(was, now))


def _words(facts: CollectiveFacts) -> str:
    return f"{facts.count}, {_size(facts.bytes)}" if facts.count else "none"


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f} ms"


def _size(count: int) -> str:
    mib = count / MIB
    return f"{mib:,.1f} MiB" if mib >= LEAST_MIB else many(count, "byte")


def _relative(before: float, after: float) -> str:
    if not before:
        return "new"
    ratio = after / before
    return as_change(ratio - 1) if ratio < LEAST_TIMES else f"{ratio:,.0f} ×"
