"""Circular block bootstrap of a median, seeded: the same steps give the same interval."""

from __future__ import annotations

import numpy as np

from pgle.steps.series import Floats

RESAMPLES = 500
SEED = 20240306
_CHUNK = 4_000_000
"""Values resampled at once, to bound memory."""


def bootstrap_medians(values: Floats, block: int, *, resamples: int = RESAMPLES, seed: int = SEED) -> Floats:
    """float64[resamples], medians of series resampled in blocks of `block` steps.

    Circular block bootstrap: Politis and Romano, "A circular block-resampling procedure for stationary data", in
    Exploring the Limits of Bootstrap, 1992.
    """
    count = len(values)
    per_series = -(-count // block)
    generator = np.random.default_rng(seed)
    result = np.empty(resamples)
    step = max(1, _CHUNK // (per_series * block))
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        starts = generator.integers(0, count, (size, per_series, 1))
        index = (starts + np.arange(block)) % count
        result[begin : begin + size] = np.median(values[index.reshape(size, -1)[:, :count]], axis=1)
    return result
