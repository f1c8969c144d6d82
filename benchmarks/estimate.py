"""How far estimates are from measurements: the real 4 × A100 step of testdata/, by kind of instruction.

python benchmarks/estimate.py
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from pgle.costs.fit.estimate import estimator
from pgle.costs.measure.aggregate import aggregate
from pgle.costs.measure.programs import find_programs
from pgle.trace.nsys.read import read_nsys
from pgle.xla.hardware import find_hardware
from pgle.xla.hlo.reader import read_module

DATA = Path(__file__).parent.parent / "testdata" / "pax_fsdp4"


def main() -> None:
    module = read_module(next((DATA / "proc0" / "dump").glob("module_0040*after_optimizations*")))
    trace = read_nsys(DATA / "proc0.sqlite")
    program = find_programs(trace, [module])[0]
    estimate = estimator(module, find_hardware("a100-40gb"))
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for cost in aggregate(trace, [program])[0].costs:
        instruction = module.instructions[cost.name]
        label = f"{cost.opcode} {instruction.fusion_kind}".strip()
        for key in (label, "all"):
            pairs[key].append((cost.cost_us, estimate(instruction)))
    print(f"{'':20}{'n':>6}{'measured ms':>13}{'estimated ms':>14}{'ratio':>15}{'p10':>7}{'p90':>7}{'within 2x':>11}")
    for key, values in sorted(pairs.items()):
        measured, estimated = np.array(values).T
        ratio = estimated / measured
        low, middle, high = np.percentile(ratio, [10, 50, 90])
        near = np.mean((ratio > 0.5) & (ratio < 2))
        print(
            f"{key:20}{len(values):6}{measured.sum() / 1e3:13.2f}{estimated.sum() / 1e3:14.2f}"
            f"{middle:15.2f}{low:7.2f}{high:7.2f}{near:11.0%}"
        )


if __name__ == "__main__":
    main()
