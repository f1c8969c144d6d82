"""Which module execution and which launch a GPU activity of an xplane belongs to.

Two sources, the better first:

1. **Scope ranges** (CUDA, jaxlib ≥ 0.4.36): each annotation has a number. A kernel holds the number
   of its annotation in the stat ``scope_range_id``. The plane ``/host:__ScopeRangeCallStack__``
   maps it to the number of the enclosing annotation. Activities of one number are one launch. An
   outermost number is one execution of the module.
2. **Restart of the order** (ROCm, older releases): activities of one module on one device are put
   in launch order (by ``correlation_id``, else by start). Neighbours of one instruction are one
   launch until a kernel name repeats. An execution begins where the order goes back to an earlier
   instruction of the embedded HLO's schedule. In a module of one instruction, every launch is an
   execution. Instructions inside a ``while`` have the position of their loop. Without HLO, the
   order of first appearance replaces the schedule. Instructions launched more often than the rarest
   tenth then count as loop bodies. If the window cuts the first execution, it is counted from the
   instruction at the cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from pgle.trace.columns import (
    Flags,
    Ints,
    changes,
    heads,
    run_lengths,
    running_numbers,
)
from pgle.xla.protos import hlo_pb2

# without HLO, this share of a module's instructions, the rarest ones, count as outside of loops
_RARE_SHARE = 0.1
# limit on nested annotations (real files nest a handful), so a cycle in a damaged file ends
_MAX_DEPTH = 64


@dataclass(frozen=True)
class LaunchRows:
    """The rows in which executions are searched, n rows ordered by (device, start)."""

    # device, module, instruction: int32[n] codes
    device: npt.NDArray[np.int32]
    module: npt.NDArray[np.int32]
    instruction: npt.NDArray[np.int32]
    start_ns: Ints  # int64[n]
    kernel: npt.NDArray[np.int32]  # int32[n], id of the kernel's name
    correlation: Ints  # int64[n], 0 where absent
    scope: Ints  # int64[n], scope range; 0 if absent
    # int64[n], outermost scope range, or another number of the execution; 0 if unknown
    top: Ints


class Scopes:
    """The tree of scope ranges of one file.

    Args:
        child, parent: int64[m], m scope ranges and their enclosing scope ranges.
    """

    def __init__(self, child: Ints, parent: Ints) -> None:
        order = np.argsort(child, kind="stable")
        self._child, self._parent = child[order], parent[order]

    def outermost(self, scope: Ints) -> Ints:
        """Return int64[n]: the outermost scope range around each given one; 0 without a tree."""
        if len(self._child) == 0:
            return np.zeros_like(scope)
        top = scope
        for _ in range(_MAX_DEPTH):
            at = np.minimum(np.searchsorted(self._child, top), len(self._child) - 1)
            above = np.where(
                (self._child[at] == top) & (self._parent[at] > 0), self._parent[at], top
            )
            if np.array_equal(above, top):
                break
            top = above
        return top


def number_launches(
    rows: LaunchRows, instructions: Sequence[str], hlo: Mapping[int, bytes]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the execution number and the launch number of each row, int32[n], as in `Trace`.

    Args:
        rows: n activities.
        instructions: instruction names by code.
        hlo: HloProto by module code.
    """
    execution = np.full(len(rows.scope), -1, np.int32)
    instance = np.full(len(rows.scope), -1, np.int32)
    if len(rows.scope) == 0:
        return execution, instance
    scoped = rows.scope > 0
    if scoped.any():
        instance[scoped] = _dense(rows.scope[scoped])
    topped = np.flatnonzero(rows.top > 0)
    if len(topped):
        execution[topped] = _rank_by_time(
            rows.device[topped], rows.module[topped], rows.top[topped]
        )
    has_scopes = np.zeros(int(rows.device.max()) + 1, bool)
    has_scopes[rows.device[topped]] = True
    rest = np.flatnonzero(~has_scopes[rows.device])
    if len(rest):
        order = np.lexsort(
            (
                rows.start_ns[rest],
                rows.correlation[rest],
                rows.module[rest],
                rows.device[rest],
            )
        )
        rest = rest[order]
        next_launch = int(instance.max()) + 1
        for part in np.split(rest, heads(rows.device[rest], rows.module[rest])[1:]):
            starts = _launch_starts(rows, part)
            launch = np.cumsum(starts) - 1 + next_launch
            next_launch = int(launch[-1]) + 1
            instance[part] = np.where(scoped[part], instance[part], launch)
            module = int(rows.module[part[0]])
            execution[part] = _restarts(
                rows.instruction[part], starts, instructions, hlo.get(module)
            )
    return execution, instance


def _dense(values: Ints) -> npt.NDArray[np.int32]:
    """Replace values by their ranks from 0. Values that are close together need no sorting."""
    low = int(values.min())
    high = int(values.max())
    if high - low > 8 * len(values) + 1_000_000:
        return np.unique(values, return_inverse=True)[1].astype(np.int32)
    present = np.zeros(high - low + 1, np.int32)
    present[values - low] = 1
    number = np.cumsum(present, dtype=np.int32) - 1
    return number[values - low]


def _rank_by_time(
    device: npt.NDArray[np.int32], module: npt.NDArray[np.int32], top: Ints
) -> npt.NDArray[np.int32]:
    """Number each `top` within its (device, module), in the order of first rows."""
    head = heads(top, module, device)
    group = device[head].astype(np.int64) * (int(module.max()) + 1) + module[head]
    return np.repeat(running_numbers(group, top[head]), run_lengths(head, len(top)))


def _launch_starts(rows: LaunchRows, part: Ints) -> Flags:
    """Return where a launch begins among the activities of one module on one device, in launch
    order.
    """
    instruction, kernel, scope = (
        rows.instruction[part],
        rows.kernel[part],
        rows.scope[part],
    )
    starts = changes(instruction, scope)
    seen: set[int] = set()
    last = -2
    for i in np.flatnonzero(~starts & (scope == 0)).tolist():
        if i != last + 1:
            seen = {int(kernel[i - 1])}
        name = int(kernel[i])
        if name in seen:
            starts[i] = True
            seen = set()
        seen.add(name)
        last = i
    return starts


_NO_PLACE = (-1, True)  # place of an instruction that is not in the schedule


def _restarts(
    instruction: npt.NDArray[np.int32],
    starts: Flags,
    names: Sequence[str],
    hlo: bytes | None,
) -> npt.NDArray[np.int32]:
    """Return execution numbers of the activities of one module on one device, in launch order."""
    codes, first, inverse = np.unique(
        instruction, return_index=True, return_inverse=True
    )
    places = schedule_places(hlo) if hlo is not None else {}
    known = [places.get(names[code], _NO_PLACE) for code in codes.tolist()]
    if any(item is not _NO_PLACE for item in known):
        place = np.array([at for at, _ in known])
        once = np.array([not is_repeated for _, is_repeated in known])
    else:
        counts = np.bincount(inverse[starts], minlength=len(codes))
        rare = np.sort(counts)[int(_RARE_SHARE * len(counts))]
        once = counts <= rare + 1
        place = np.where(once, first, -1)
    here = place[inverse]
    # An instruction without a place gets the place of the previous one.
    at = np.maximum.accumulate(np.where(here >= 0, np.arange(len(here)), 0))
    here = here[at]
    again = np.zeros(len(here), bool)
    again[1:] = here[1:] < here[:-1]
    # a module of one instruction: every launch is an execution
    if np.count_nonzero(once) == 1:
        again[1:] |= starts[1:] & once[inverse[1:]] & (np.diff(instruction) == 0)
    return np.cumsum(again).astype(np.int32)


def schedule_places(hlo: bytes) -> dict[str, tuple[int, bool]]:
    """Return each instruction's place in the entry computation's schedule, and whether a loop holds
    it.

    Instructions of called computations have the place of their caller. The result is empty if the
    proto is unreadable.
    """
    try:
        module = hlo_pb2.HloProto.FromString(hlo).hlo_module
    except DecodeError:
        return {}
    computations = {computation.id: computation for computation in module.computations}
    entry = computations.get(module.entry_computation_id)
    if entry is None:
        return {}
    order = {
        identity: place
        for place, identity in enumerate(
            module.schedule.sequences[entry.id].instruction_ids
        )
    }
    places: dict[str, tuple[int, bool]] = {}
    visited: set[int] = set()
    waiting = [
        (item, order.get(item.id, place), False)
        for place, item in enumerate(entry.instructions)
    ]
    while waiting:
        item, place, in_loop = waiting.pop()
        places.setdefault(item.name, (place, in_loop))
        for called in item.called_computation_ids:
            if called in computations and called not in visited:
                visited.add(called)
                looped = in_loop or item.opcode == "while"
                waiting.extend(
                    (inner, place, looped)
                    for inner in computations[called].instructions
                )
    return places
