"""What XLA planned to hold in device memory: the buffer assignment that its HLO dumps embed.

The messages come from `xla/service/hlo.proto`. The heap simulator's trace lists, in the order of the schedule, when
each temporary buffer is allocated and freed; buffers that share memory are one group, freed with its last member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from pgle.xla.protos import hlo_pb2

_Event = hlo_pb2.HeapSimulatorTrace.Event


@dataclass(frozen=True, slots=True)
class Buffer:
    """One value in memory."""

    instruction: str  # that makes it
    shape_index: tuple[int, ...]  # which element of its result, empty for all of it
    size_bytes: int  # in memory


@dataclass(frozen=True)
class BufferPlan:
    """Device memory of one execution of a module; the four sizes add up to what it needs."""

    arguments_bytes: int  # parameters; results that take their place (donation) are in here
    outputs_bytes: int  # other results
    constants_bytes: int  # constants
    temporary_bytes: int  # the rest, with what fragmentation wastes
    live: tuple[Buffer, ...]  # temporary buffers at the peak, the largest first
    live_bytes: int  # their sum
    peak_at: str  # instruction at which the temporary buffers are most; empty where unknown

    @property
    def peak_bytes(self) -> int:
        """All of it."""
        return self.arguments_bytes + self.outputs_bytes + self.constants_bytes + self.temporary_bytes


def buffers_from_bytes(data: bytes) -> BufferPlan | None:
    """The plan in a serialized `HloProto`; None where it is something else or holds none."""
    proto = hlo_pb2.HloBuffersProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        return None
    plan = proto.buffer_assignment
    if not plan.buffer_allocations:
        return None
    sizes = {"arguments": 0, "outputs": 0, "constants": 0, "temporary": 0}
    for item in plan.buffer_allocations:
        if not item.is_thread_local and item.color == 0:  # other colours are other memories
            sizes[_kind(item)] += item.size
    names = {item.id: item.name for group in proto.hlo_module.computations for item in group.instructions}
    buffers = {
        item.id: Buffer(names.get(item.defined_at.instruction_id, ""), tuple(item.defined_at.shape_index), item.size)
        for item in plan.logical_buffers
    }
    live: list[int] = []
    at = ""
    for trace in plan.heap_simulator_traces:
        found, where = _peak(trace, buffers)
        if sum(buffers[key].size_bytes for key in found) >= sum(buffers[key].size_bytes for key in live):
            live, at = found, where
    largest = sorted((buffers[key] for key in live), key=lambda item: (-item.size_bytes, item.instruction))
    return BufferPlan(
        arguments_bytes=sizes["arguments"],
        outputs_bytes=sizes["outputs"],
        constants_bytes=sizes["constants"],
        temporary_bytes=sizes["temporary"],
        live=tuple(largest),
        live_bytes=sum(item.size_bytes for item in largest),
        peak_at=at,
    )


def _kind(item: hlo_pb2.BufferAllocationProto) -> str:
    if item.is_entry_computation_parameter:
        return "arguments"
    if item.is_constant:
        return "constants"
    return "outputs" if item.maybe_live_out else "temporary"


def _peak(trace: hlo_pb2.HeapSimulatorTrace, buffers: Mapping[int, Buffer]) -> tuple[list[int], str]:
    """The buffers that hold memory when most is held, one per group that shares it, and the instruction."""
    events = [event for event in trace.events if event.buffer_id in buffers]
    _, peak_at = _played(events, buffers)
    held, _ = _played(events[: peak_at + 1], buffers)
    return held, events[peak_at].instruction_name if events else ""


def _played(events: Sequence[_Event], buffers: Mapping[int, Buffer]) -> tuple[list[int], int]:
    """The buffers that hold memory after some events, one per group, and the number of the event with most of it."""
    group: dict[int, int] = {}
    members: Counter[int] = Counter()
    now = peak = peak_at = 0
    for number, event in enumerate(events):
        if event.kind == _Event.FREE:
            root = group.get(event.buffer_id, event.buffer_id)
            members[root] -= 1
            now -= buffers[root].size_bytes if members[root] == 0 else 0
        else:
            other = event.share_with_canonical_id if event.kind == _Event.SHARE_WITH else event.buffer_id
            root = group.get(other, other if other in buffers else event.buffer_id)
            group[event.buffer_id] = root
            members[root] += 1
            now += buffers[root].size_bytes if members[root] == 1 else 0
        if now > peak:
            peak, peak_at = now, number
    return [root for root, count in members.items() if count > 0], peak_at
