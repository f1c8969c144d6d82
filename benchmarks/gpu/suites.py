"""The parts that measure a list of cases."""

from __future__ import annotations

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.kernels import kernels as all_kernels
from benchmarks.gpu.meters import measure_all
from benchmarks.gpu.results import Results
from benchmarks.gpu.steps import steps as all_steps

GROUP_OF_STEPS = 3
GROUP_OF_KERNELS = 8


def steps(bench: Bench, results: Results) -> None:
    """Whole steps and edits of them."""
    measure_all(
        all_steps(small=bench.simulated), bench.meter(), results, GROUP_OF_STEPS
    )


def kernels(bench: Bench, results: Results) -> None:
    """Single kernels."""
    measure_all(
        all_kernels(small=bench.simulated), bench.meter(), results, GROUP_OF_KERNELS
    )
