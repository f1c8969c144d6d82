"""How far estimates are from measurements that they were not made on, by kind of instruction.

python benchmarks/estimate.py                                   the real 4 × A100 step of testdata/
python benchmarks/estimate.py TRACE... --hlo MODULE --target h100   any other job
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from pgle.costs.estimate.estimate import estimator
from pgle.costs.measure.aggregate import aggregate
from pgle.costs.measure.programs import find_programs
from pgle.run.inputs.traces import read_traces
from pgle.xla.hardware import find_hardware
from pgle.xla.hlo.reader import read_module

DATA = Path(__file__).parent.parent / "testdata" / "pax_fsdp4"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="*", type=Path, default=[DATA / "proc0.sqlite", DATA / "proc3.sqlite"])
    parser.add_argument("--hlo", type=Path, default=next((DATA / "proc0/dump").glob("module_0040*after_opt*")))
    parser.add_argument("--target", default="a100-40gb")
    given = parser.parse_args()
    module, trace = read_module(given.hlo), read_traces(given.traces)
    program = next(item for item in find_programs(trace, [module]) if item.hlo is not None)
    estimate = estimator(module, find_hardware(given.target))
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for cost in aggregate(trace, [program])[0].costs:
        instruction = module.instructions.get(cost.name)
        if instruction is None or cost.cost_us <= 0 or cost.opcode == "while":
            continue
        label = f"{cost.opcode} {instruction.fusion_kind}".strip()
        for key in (label, f"all {cost.kind}"):
            pairs[key].append((cost.cost_us, estimate(instruction)))
    print(f"{'':22}{'n':>6}{'measured ms':>13}{'estimated ms':>14}{'ratio':>15}{'p10':>7}{'p90':>7}{'within 2x':>11}")
    for key, values in sorted(pairs.items()):
        measured, estimated = np.array(values).T
        ratio = estimated / measured
        low, middle, high = np.percentile(ratio, [10, 50, 90])
        near = np.mean((ratio > 0.5) & (ratio < 2))
        print(
            f"{key:22}{len(values):6}{measured.sum() / 1e3:13.2f}{estimated.sum() / 1e3:14.2f}"
            f"{middle:15.2f}{low:7.2f}{high:7.2f}{near:11.0%}"
        )


if __name__ == "__main__":
    main()
