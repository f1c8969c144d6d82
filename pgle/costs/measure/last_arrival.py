"""What a collective costs: its time on the last rank to arrive, which waits for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.naming import Filed
from pgle.costs.measure.samples import Samples, heads
from pgle.trace.table import Device

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reduced:
    """Occurrences of collectives after the minimum over the devices of a group, n rows."""

    name: Codes
    group: Codes
    execution: Codes
    occurrence: Codes
    time_us: Floats


def after_last_arrival(
    samples: Samples, use: npt.NDArray[np.bool_], filed: Sequence[Filed], devices: Sequence[Device]
) -> Reduced:
    """The minimum over the devices of each replica group, per (name, execution, occurrence).

    What fewer devices recorded than other occurrences of the same collective is left out: the last rank to arrive may
    be the one whose window ended early.
    """
    name, device = samples.name[use].astype(np.int64), samples.device[use]
    group = group_of_device(filed, devices)[name, device] if len(name) else np.empty(0, np.int64)
    execution, occurrence = samples.execution[use].astype(np.int64), samples.occurrence[use].astype(np.int64)
    order = np.lexsort((occurrence, execution, group, name))
    name, group, execution, occurrence = name[order], group[order], execution[order], occurrence[order]
    first = heads(name, group, execution, occurrence)
    time = samples.time_ns[use][order] / 1e3
    if len(first) == 0:
        return Reduced(name, group, execution, occurrence, time)
    shortest = np.minimum.reduceat(time, first)
    seen = np.diff(np.append(first, len(order)))
    key = name[first] * (int(group.max()) + 1) + group[first]
    most = np.zeros(int(key.max()) + 1, np.int64)
    np.maximum.at(most, key, seen)
    whole = seen == most[key]
    first = first[whole]
    return Reduced(name[first], group[first], execution[first], occurrence[first], shortest[whole])


def group_of_device(filed: Sequence[Filed], devices: Sequence[Device]) -> Codes:
    """int64[names, devices]: the replica group that a device is in, for each collective; 0 where unknown."""
    table = np.zeros((max(len(filed), 1), max(len(devices), 1)), dtype=np.int64)
    ids = [device.global_id for device in devices]
    if len({device.process for device in devices}) == 1 and all(number is None for number in ids):
        # JAX numbers the devices of a lone process as CUDA does
        members = {number for item in filed for group in item.groups for number in group}
        ids = [device.ordinal for device in devices]
        if members != set(ids):
            return table
    if any(number is None for number in ids):
        return table
    for row, item in enumerate(filed):
        member = {number: index for index, group in enumerate(item.groups) for number in group}
        table[row] = [member.get(number, 0) if number is not None else 0 for number in ids]
    return table
