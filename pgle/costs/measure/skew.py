"""What compute takes on the rank for which the others wait.

Between two collectives every rank computes on its own; the next one then waits for the slowest. So of each stretch
between collectives, in each execution, the device with the longest sum of compute counts, and an instruction takes what
it took there. Summed over a stretch that is the wait itself, which a maximum per instruction would overstate.
Where one instruction makes a rank slow, it is the mean over executions of the maximum over ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.samples import Samples

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
    rows = np.flatnonzero(compute)
    devices, device = np.unique(samples.device[rows], return_inverse=True)
    execution = samples.execution[rows].astype(np.int64)
    if len(devices) < 2 or len(rows) == len(samples):
        return unknown
    recorded = np.zeros((int(execution.max()) + 1, len(devices)), np.bool_)
    recorded[execution, device] = True
    complete: npt.NDArray[np.bool_] = np.asarray(recorded.all(axis=1))
    whole = complete[execution]
    rows, device, execution = rows[whole], device[whole], execution[whole]
    if not len(rows):
        return unknown
    name, time_ns = samples.name[rows], samples.time_ns[rows]
    stretch = _stretch(name, samples.occurrence[rows], samples.segment[rows], names)
    shape = (int(execution.max()) + 1, int(stretch.max()) + 1, len(devices))
    place = np.ravel_multi_index((execution, stretch, device), shape)
    sums = np.bincount(place, weights=time_ns, minlength=int(np.prod(shape))).reshape(shape)
    chosen = sums.argmax(axis=2)[execution, stretch] == device
    counts = np.bincount(name[chosen], minlength=names)
    total_us = np.bincount(name[chosen], weights=time_ns[chosen], minlength=names) / 1e3
    return np.divide(total_us, counts, out=unknown, where=counts > 0)


def _stretch(
    name: npt.NDArray[np.int32], occurrence: npt.NDArray[np.int32], segment: npt.NDArray[np.int32], names: int
) -> npt.NDArray[np.int64]:
    """int64[n]: collectives begun before each occurrence, as most executions and devices saw it.

    Kernels beside a collective begin before it on one rank and after it on another; the stretch is the same for all.
    """
    many = np.zeros(names, np.int64)
    np.maximum.at(many, name, occurrence + 1)
    place = (np.cumsum(many) - many)[name] + occurrence
    mean = np.bincount(place, weights=segment) / np.maximum(np.bincount(place), 1)
    stretch: npt.NDArray[np.int64] = np.rint(mean).astype(np.int64)[place]
    return stretch
