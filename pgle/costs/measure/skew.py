"""How much longer a step takes because compute differs between ranks: the critical path."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pgle.costs.measure.samples import Samples, sample_chunks
from pgle.trace.columns import (
    NO_ROWS,
    Flags,
    Floats,
    Ints,
    changes,
    distinct,
    heads,
    usual_values,
)


def rank_skew_us(samples: Samples, compute: Flags, groups: Ints) -> Floats:
    """How much longer compute takes on the slowest rank than on the median rank, per occurrence of
    an instruction.

    Between two collectives that it waits for, every rank computes on its own; the second one then
    waits for the slowest rank of its group. A collective that ends while something computes makes
    nobody wait. So each execution has a critical path through the stretches between the ends that
    compute waits for. It ends on the rank that is last, and goes back to the rank for which that
    one waited. In each stretch, the sum of compute of the rank on the path is compared with the
    median over the ranks (of an even number, the mean of the middle two). Ranks are compared only
    within an execution: a step that is longer on all of them is no skew. Executions whose skew is
    unusual are left out, then the mean counts.

    Args:
        groups: int64[names, devices], the replica group of a device in each collective.

    Returns:
        float64[names] in microseconds; over all occurrences of an execution they add up to its
        skew. NaN where fewer than two devices recorded the same execution, or where no collective
        makes them wait.
    """
    names = len(groups)
    unknown: Floats = np.full(names, np.nan)
    ran = np.zeros(int(samples.device.max(initial=0)) + 1, np.bool_)
    ran[samples.device[compute]] = True
    devices = np.flatnonzero(ran)
    if len(devices) < 2 or compute.all():
        return unknown
    # as many as there are: a last execution of collectives alone is one that no rank computed in
    executions = int(samples.execution.max()) + 1
    recorded = np.zeros((executions, len(devices)), np.bool_)
    many = np.full(names, -1, np.int64)
    for rows in sample_chunks(samples, compute):
        recorded[
            samples.execution[rows], np.searchsorted(devices, samples.device[rows])
        ] = True
        np.maximum.at(many, samples.name[rows], samples.occurrence[rows])
    many += 1
    complete: Flags = np.asarray(recorded.all(axis=1))
    if not complete.any():
        return unknown
    first = np.cumsum(many) - many

    def place(rows: Ints) -> Ints:
        """Of each occurrence, the same in all executions and on all devices."""
        return first[samples.name[rows]] + samples.occurrence[rows]

    ends = _waited_ends(samples, ~compute, complete)
    before = _ended_before(samples, compute, complete, place, int(many.sum()))
    # An overlapping kernel begins before an end on one rank and after it on another; the stretch
    # is the same for all. So both are placed by the mean number of collectives that ended.
    stretch = np.searchsorted(ends.place, before + 0.5)
    shape = (len(complete), int(stretch.max()) + 1, len(devices))
    sums = np.zeros(np.prod(shape))

    def cell(rows: Ints) -> Ints:
        """Execution, stretch and device of each occurrence, as an index into `sums`."""
        at = (
            samples.execution[rows],
            stretch[place(rows)],
            np.searchsorted(devices, samples.device[rows]),
        )
        return np.asarray(np.ravel_multi_index(at, shape))

    for rows in sample_chunks(samples, compute, complete):
        # times are whole nanoseconds: their sum does not depend on the order
        sums += np.bincount(
            cell(rows), weights=samples.time_ns[rows], minlength=len(sums)
        )
    met = groups[ends.name][:, devices]
    weight = _critical_less_median(sums.reshape(shape), met)
    usual = usual_values((weight * sums.reshape(shape)).sum(axis=(1, 2))[complete])
    counted = np.flatnonzero(complete)[usual]
    unusual = np.ones(len(complete), dtype=bool)
    unusual[counted] = False
    weight[unusual] = 0.0
    total_ns = np.zeros(names)
    for rows in sample_chunks(samples, compute, complete):
        weights = weight.reshape(-1)[cell(rows)] * samples.time_ns[rows]
        total_ns += np.bincount(samples.name[rows], weights=weights, minlength=names)
    return np.divide(total_ns / 1e3, many * len(counted), out=unknown, where=many > 0)


def _ended_before(
    samples: Samples,
    compute: Flags,
    complete: Flags,
    place: Callable[[Ints], Ints],
    places: int,
) -> Floats:
    """float64[places]: how many collectives have ended when each occurrence begins, in the mean."""
    before = np.zeros(places)
    seen = np.zeros(places, np.int64)
    for rows in sample_chunks(samples, compute, complete):
        before += np.bincount(
            place(rows), weights=samples.ended[rows], minlength=places
        )
        seen += np.bincount(place(rows), minlength=places)
    return before / np.maximum(seen, 1)


class _Ends(NamedTuple):
    """The ends of collectives that compute waits for, in their order."""

    place: Floats  # the mean number of collectives that have ended by then
    name: Ints  # of the collective


def _waited_ends(samples: Samples, collective: Flags, complete: Flags) -> _Ends:
    """Where the collectives end for which some rank waits in most executions."""
    rows = np.flatnonzero(collective)
    rows = rows[complete[samples.execution[rows]]]
    name = samples.name[rows].astype(np.int64)
    occurrence = samples.occurrence[rows]
    key = name * (int(occurrence.max(initial=0)) + 1) + occurrence
    order = np.lexsort((samples.execution[rows], key))
    rows, key = rows[order], key[order]
    if len(rows) == 0:
        return _Ends(np.empty(0), NO_ROWS)
    first = heads(key, samples.execution[rows])  # of each collective in each execution
    some = np.maximum.reduceat(samples.waited[rows], first)
    number = np.cumsum(changes(key[first])) - 1
    waits = np.bincount(number, weights=some) / np.bincount(number)
    of_row = np.cumsum(changes(key)) - 1
    ends = np.bincount(of_row, weights=samples.ended[rows]) / np.bincount(of_row)
    of_key = samples.name[rows[heads(key)]].astype(np.int64)
    waited = np.flatnonzero(waits > 0.5)
    waited = waited[np.argsort(ends[waited], kind="stable")]
    return _Ends(ends[waited], of_key[waited])


def _critical_less_median(sums: Floats, met: Ints) -> Floats:
    """The weight of each device's time in the critical path less the median of its stretch.

    Args:
        sums: float64[executions, stretches, devices], nanoseconds of compute.
        met: int64[ends, devices], the group of a device in the collective that ends a stretch.

    Returns:
        float64 of the shape of `sums`.
    """
    weight = np.zeros(sums.shape)
    order = np.argsort(sums, axis=2, kind="stable")
    count = sums.shape[2]
    for place in ((count - 1) // 2, count // 2):
        _add(weight, order[:, :, place], -0.5)
    _add(weight, _critical_path(sums, met), 1.0)
    return weight


def _add(weight: Floats, device: Ints, by: float) -> None:
    """Add to the weight of one device in each stretch of each execution."""
    executions, stretches = np.indices(device.shape)
    weight[executions, stretches, device] += by


def _critical_path(sums: Floats, met: Ints) -> Ints:
    """int64[executions, stretches], the device for which the last one has waited, itself or in
    turn.
    """
    executions, stretches, devices = sums.shape
    reached = np.zeros((executions, devices))
    waited_for = np.tile(np.arange(devices), (stretches, executions, 1))
    for stretch in range(stretches):
        reached += sums[:, stretch]
        if stretch == stretches - 1:
            break
        for group in distinct(met[stretch]).tolist():
            members = np.flatnonzero(met[stretch] == group)
            last = reached[:, members].argmax(axis=1)
            waited_for[stretch][:, members] = members[last][:, None]
            reached[:, members] = reached[:, members].max(axis=1, keepdims=True)
    path = np.zeros((executions, stretches), np.int64)
    device = reached.argmax(axis=1)
    each = np.arange(executions)
    for stretch in range(stretches - 1, -1, -1):
        if stretch < stretches - 1:
            device = waited_for[stretch][each, device]
        path[:, stretch] = device
    return path
