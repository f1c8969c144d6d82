"""What compute takes on the rank for which the others wait.

Between two collectives every rank computes on its own; the next one then waits for the slowest. So of each stretch
between collectives, in each execution, the device with the longest sum of compute counts, and an instruction takes what
it took there. Summed over a stretch that is the wait itself, which a maximum per instruction would overstate.
Where one instruction makes a rank slow, it is the mean over executions of the maximum over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.samples import CHUNK_ROWS, Samples
from pgle.trace.column import distinct

Floats = npt.NDArray[np.float64]


def slowest_rank_us(samples: Samples, compute: npt.NDArray[np.bool_], names: int) -> Floats:
    """The mean time of an occurrence on the slowest device of its stretch between collectives.

    Args:
        samples: n occurrences. All collectives are taken to wait for all devices.
        compute: bool[n], those that are no collectives.
        names: how many there are.

    Returns:
        float64[names] in microseconds; NaN where fewer than two devices recorded the same execution, or where no
        collective makes them wait.
    """
    unknown: Floats = np.full(names, np.nan)
    devices = distinct(samples.device[compute])
    if len(devices) < 2 or compute.all():
        return unknown
    recorded = np.zeros((int(samples.execution[compute].max()) + 1, len(devices)), np.bool_)
    many = np.zeros(names, np.int64)
    for rows in _chunks(samples, compute):
        recorded[samples.execution[rows], np.searchsorted(devices, samples.device[rows])] = True
        np.maximum.at(many, samples.name[rows], samples.occurrence[rows] + 1)
    complete: npt.NDArray[np.bool_] = np.asarray(recorded.all(axis=1))
    if not complete.any():
        return unknown
    first = np.cumsum(many) - many

    def place(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Of each occurrence, the same in all executions and on all devices."""
        found: npt.NDArray[np.int64] = first[samples.name[rows]] + samples.occurrence[rows]
        return found

    # Collectives begun before each occurrence, as most executions and devices saw it: kernels beside a collective begin
    # before it on one rank and after it on another; the stretch is the same for all.
    begun, seen = np.zeros(int(many.sum())), np.zeros(int(many.sum()), np.int64)
    for rows in _chunks(samples, compute, complete):
        begun += np.bincount(place(rows), weights=samples.segment[rows], minlength=len(begun))
        seen += np.bincount(place(rows), minlength=len(seen))
    stretch = np.rint(begun / np.maximum(seen, 1)).astype(np.int64)
    shape = (len(complete), int(stretch.max()) + 1, len(devices))
    sums = np.zeros(np.prod(shape))
    for rows in _chunks(samples, compute, complete):
        at = samples.execution[rows], stretch[place(rows)], np.searchsorted(devices, samples.device[rows])
        # times are whole nanoseconds: their sum does not depend on the order
        np.add.at(sums, np.ravel_multi_index(at, shape), samples.time_ns[rows])
    slowest = devices[sums.reshape(shape).argmax(axis=2)]
    counts, total_ns = np.zeros(names, np.int64), np.zeros(names)
    for rows in _chunks(samples, compute, complete):
        chosen = rows[slowest[samples.execution[rows], stretch[place(rows)]] == samples.device[rows]]
        counts += np.bincount(samples.name[chosen], minlength=names)
        total_ns += np.bincount(samples.name[chosen], weights=samples.time_ns[chosen], minlength=names)
    return np.divide(total_ns / 1e3, counts, out=unknown, where=counts > 0)


def _chunks(
    samples: Samples, use: npt.NDArray[np.bool_], complete: npt.NDArray[np.bool_] | None = None
) -> Iterator[npt.NDArray[np.int64]]:
    """The rows to use, of complete executions where those are told, some at a time."""
    for first in range(0, len(samples), CHUNK_ROWS):
        rows = np.flatnonzero(use[first : first + CHUNK_ROWS]) + first
        if complete is not None:
            rows = rows[complete[samples.execution[rows]]]
        if len(rows):
            yield rows
