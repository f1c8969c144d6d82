"""How much longer a step takes because compute differs between ranks, by its critical path."""

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
    """Return how much longer compute takes on the slowest rank than on the median rank, per
    occurrence of an instruction.

    Between two collectives that compute waits for, every rank computes on its own. The second
    collective then waits for the slowest rank of its group. A collective that ends while something
    computes makes no rank wait. So the ends that compute waits for divide each execution into
    stretches, and the critical path runs through them. The path ends on the last rank, and goes
    back to the rank that this one waited for. In each stretch, the summed compute of the rank on
    the path is compared with the median over ranks.

    Ranks are compared only within an execution: a step that is longer on all ranks has no skew.
    Executions with unusual skew are left out; the mean over the others counts.

    Args:
        samples: the occurrences of one program.
        compute: bool[n], True for samples of compute.
        groups: int64[names, devices], the replica group of a device in each collective.

    Returns:
        float64[names] in µs; NaN for names without compute. Over all occurrences of an execution
        the values add up to its skew. All are NaN if fewer than two devices recorded a common
        execution, or if there is no collective.
    """
    names = len(groups)
    unknown: Floats = np.full(names, np.nan)
    ran = np.zeros(int(samples.device.max(initial=0)) + 1, np.bool_)
    ran[samples.device[compute]] = True
    devices = np.flatnonzero(ran)
    if len(devices) < 2 or compute.all():
        return unknown
    # Count all executions. The last may hold only collectives, so that no rank computed in it.
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
        """Return a number for each occurrence that is the same in all executions and on all
        devices.
        """
        return first[samples.name[rows]] + samples.occurrence[rows]

    ends = _waited_ends(samples, ~compute, complete)
    before = _ended_before(samples, compute, complete, place, int(many.sum()))
    # An overlapping kernel may begin before an end on one rank and after it on another, but its
    # stretch must be the same on all. So kernels and ends are placed by the mean number of
    # collectives that ended.
    stretch = np.searchsorted(ends.place, before + 0.5)
    shape = (len(complete), int(stretch.max()) + 1, len(devices))
    sums = np.zeros(np.prod(shape))

    def cell(rows: Ints) -> Ints:
        """Return the index into `sums` of each occurrence's execution, stretch and device."""
        at = (
            samples.execution[rows],
            stretch[place(rows)],
            np.searchsorted(devices, samples.device[rows]),
        )
        return np.asarray(np.ravel_multi_index(at, shape))

    for rows in sample_chunks(samples, compute, complete):
        # times are whole nanoseconds, so their sum does not depend on the order
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
    """Return float64[places]: how many collectives have ended when an occurrence begins, as a
    mean.
    """
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
    name: Ints  # the collective, as an index into the names


def _waited_ends(samples: Samples, collective: Flags, complete: Flags) -> _Ends:
    """Return the ends of the collectives that some rank waits for in most executions."""
    rows = np.flatnonzero(collective)
    rows = rows[complete[samples.execution[rows]]]
    name = samples.name[rows].astype(np.int64)
    occurrence = samples.occurrence[rows]
    key = name * (int(occurrence.max(initial=0)) + 1) + occurrence
    order = np.lexsort((samples.execution[rows], key))
    rows, key = rows[order], key[order]
    if len(rows) == 0:
        return _Ends(np.empty(0), NO_ROWS)
    # the first row of each collective in each execution
    first = heads(key, samples.execution[rows])
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
    """Return the weight of each device's time in the difference of critical path and median.

    Args:
        sums: float64[executions, stretches, devices], ns of compute.
        met: int64[ends, devices], the group of a device in the collective that ends a stretch.

    Returns:
        float64 in the shape of `sums`.
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
    """Return int64[executions, stretches]: the device on the critical path.

    The last device waited for it, directly or through other devices.
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
