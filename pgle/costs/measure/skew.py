"""How much longer a step takes because compute differs between ranks, by its critical path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pgle.costs.measure.samples import Samples, sample_chunks
from pgle.trace.columns import (
    NO_ROWS,
    Codes,
    Flags,
    Floats,
    Ints,
    changes,
    distinct,
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
    computing = _computing(samples, compute, devices, names)
    complete = computing.complete
    if not complete.any():
        return unknown
    ends = _waited_ends(samples, ~compute, complete)
    # An overlapping kernel may begin before an end on one rank and after it on another, but its
    # stretch must be the same on all. So kernels and ends are placed by the mean number of
    # collectives that ended.
    stretch = np.searchsorted(ends.place, computing.ended_before() + 0.5)
    shape = (len(complete), int(stretch.max()) + 1, len(devices))

    def cell(rows: Ints) -> Ints:
        """Return the index into `sums` of each occurrence's execution, stretch and device."""
        place = (
            samples.execution[rows],
            stretch[computing.place(rows)],
            np.searchsorted(devices, samples.device[rows]),
        )
        cells: Ints = np.ravel_multi_index(place, shape)
        return cells

    sums = np.zeros(np.prod(shape))  # ns of compute in each cell
    for rows in computing.chunks():
        # times are whole nanoseconds, so their sum does not depend on the order
        time_ns = samples.time_ns[rows]
        sums += np.bincount(cell(rows), weights=time_ns, minlength=len(sums))
    sums = sums.reshape(shape)
    met = groups[ends.name][:, devices]
    weight = _critical_less_median(sums, met)
    skew_ns = (weight * sums).sum(axis=(1, 2))
    counted = complete.copy()
    counted[complete] = usual_values(skew_ns[complete])
    weight[~counted] = 0.0
    weight_of_cell = weight.reshape(-1)
    total_ns = np.zeros(names)
    for rows in computing.chunks():
        weighted_ns = weight_of_cell[cell(rows)] * samples.time_ns[rows]
        total_ns += np.bincount(
            samples.name[rows], weights=weighted_ns, minlength=names
        )
    many = computing.many
    seen = many * np.count_nonzero(counted)
    skew_us: Floats = np.divide(total_ns / 1e3, seen, out=unknown, where=many > 0)
    return skew_us


@dataclass(frozen=True, eq=False)
class _Computing:
    """The compute of the executions that every device recorded.

    An occurrence of an instruction has one place in all executions and on all devices.
    """

    samples: Samples
    compute: Flags  # bool[samples], True for samples of compute
    complete: Flags  # bool[executions], whether every device recorded it
    many: Ints  # int64[names], the occurrences of each name in an execution

    def chunks(self) -> Iterator[Ints]:
        """Yield the samples in batches of rows."""
        return sample_chunks(self.samples, self.compute, self.complete)

    def place(self, rows: Ints) -> Ints:
        """Return the place of each sample's occurrence."""
        first = np.cumsum(self.many) - self.many
        return first[self.samples.name[rows]] + self.samples.occurrence[rows]

    def ended_before(self) -> Floats:
        """Return float64[places]: how many collectives have ended when an occurrence begins, as a
        mean.
        """
        places = int(self.many.sum())
        ended = np.zeros(places)
        seen = np.zeros(places, np.int64)
        for rows in self.chunks():
            place = self.place(rows)
            weights = self.samples.ended[rows]
            ended += np.bincount(place, weights=weights, minlength=places)
            seen += np.bincount(place, minlength=places)
        return ended / np.maximum(seen, 1)


def _computing(
    samples: Samples, compute: Flags, devices: Ints, names: int
) -> _Computing:
    """Find the executions in which every one of the devices computed."""
    # Count all executions. The last may hold only collectives, so that no rank computed in it.
    executions = int(samples.execution.max()) + 1
    recorded = np.zeros((executions, len(devices)), np.bool_)
    last = np.full(names, -1, np.int64)  # the last occurrence of each name
    for rows in sample_chunks(samples, compute):
        device = np.searchsorted(devices, samples.device[rows])
        recorded[samples.execution[rows], device] = True
        np.maximum.at(last, samples.name[rows], samples.occurrence[rows])
    complete = np.logical_and.reduce(recorded, axis=1)
    return _Computing(samples, compute, complete, many=last + 1)


class _Ends(NamedTuple):
    """The ends of collectives that compute waits for, in their order."""

    place: Floats  # the mean number of collectives that have ended by then
    name: Ints  # the collective, as an index into the names


def _waited_ends(samples: Samples, collective: Flags, complete: Flags) -> _Ends:
    """Return the ends of the collectives that some rank waits for in most executions."""
    rows = np.flatnonzero(collective)
    rows = rows[complete[samples.execution[rows]]]
    if len(rows) == 0:
        return _Ends(np.empty(0), NO_ROWS)
    by = (samples.execution[rows], samples.occurrence[rows], samples.name[rows])
    rows = rows[np.lexsort(by)]
    name = samples.name[rows].astype(np.int64)
    is_next = changes(name, samples.occurrence[rows])  # another end than the row before
    # the first row of each end in each execution
    first = np.flatnonzero(is_next | changes(samples.execution[rows]))
    has_waited = np.maximum.reduceat(samples.waited[rows], first)
    waits = _means(has_waited, is_next[first])
    place = _means(samples.ended[rows], is_next)
    waited = np.flatnonzero(waits > 0.5)
    waited = waited[np.argsort(place[waited], kind="stable")]
    return _Ends(place[waited], name[is_next][waited])


def _means(values: Codes, begins: Flags) -> Floats:
    """Return the mean of each run of values; a run begins wherever `begins` is True."""
    run = np.cumsum(begins) - 1
    return np.bincount(run, weights=values) / np.bincount(run)


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
    # the median of an even count is the mean of the two devices in the middle
    _add(weight, order[:, :, (count - 1) // 2], -0.5)
    _add(weight, order[:, :, count // 2], -0.5)
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
    for stretch in range(stretches - 1):
        reached += sums[:, stretch]
        for group in distinct(met[stretch]).tolist():
            members = np.flatnonzero(met[stretch] == group)
            of_members = reached[:, members]
            last = members[of_members.argmax(axis=1)]
            waited_for[stretch][:, members] = last[:, None]
            reached[:, members] = of_members.max(axis=1, keepdims=True)
    reached += sums[:, -1]
    path = np.zeros((executions, stretches), np.int64)
    path[:, -1] = reached.argmax(axis=1)
    each = np.arange(executions)
    for stretch in reversed(range(stretches - 1)):
        path[:, stretch] = waited_for[stretch][each, path[:, stretch + 1]]
    return path
