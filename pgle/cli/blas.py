"""numpy for commands that multiply no matrices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While numpy is imported, let its OpenBLAS start no threads; a number that the user set stays.

    It starts one per core, and each spins for some 25 ms in vain: half of the processor time of the import on two
    cores, more on a login node of a hundred, and wall time wherever the cores are busy. The variable is taken back at
    the end, so that the user's program, started later, does not inherit it.
    """
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]
