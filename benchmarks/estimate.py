"""How far estimates are from measurements that they were not made on, by kind of instruction.

Kernels that ran beside collectives are estimated with the model's contention, for as much of their
time.

python benchmarks/estimate.py                                   the real 4 × A100 step of testdata/
python benchmarks/estimate.py TRACE... --hlo DUMP --target h100   any other job
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from pgle.costs.estimate.estimate import estimator
from pgle.costs.measure.contention import ASSUMED
from pgle.costs.measure.measured import measure
from pgle.run.inputs.traces import read_traces
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.matrix_products import is_product
from pgle.xla.targets import find_hardware

DATA = Path(__file__).parent.parent / "testdata" / "pax_fsdp4"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "traces",
        nargs="*",
        type=Path,
        default=[DATA / "proc0.sqlite", DATA / "proc3.sqlite"],
    )
    parser.add_argument("--hlo", type=Path, default=DATA / "proc0/dump")
    parser.add_argument("--target", default="a100-40gb")
    parser.add_argument(
        "--nccl", default="2.21", help="release of NCCL that the job used"
    )
    given = parser.parse_args()
    costs = measure(read_traces(given.traces), read_dumps([given.hlo])).costs[0]
    major, minor = map(int, given.nccl.split("."))
    module, hardware = (
        costs.program.hlo,
        replace(find_hardware(given.target), nccl=(major, minor)),
    )
    assert module is not None
    estimate, slower = estimator(module, hardware), ASSUMED.likely
    beside = {} if costs.contention is None else costs.contention.beside or {}
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    missed: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for cost in costs.costs:
        instruction = module.instructions.get(cost.trace_name or cost.name)
        if instruction is None or cost.cost_us <= 0 or cost.opcode == "while":
            continue
        factor = slower.of(product=is_product(module, instruction))
        guess = estimate(instruction) * (1 + beside.get(cost.name, 0.0) * (factor - 1))
        label = f"{cost.opcode} {instruction.fusion_kind}".strip()
        for key in (label, f"all {cost.kind}"):
            pairs[key].append((cost.cost_us, guess))
        if not 0.5 < guess / cost.cost_us < 2:
            missed[label].append((cost.cost_us, guess))
    print(
        f"{'':22}{'n':>6}{'measured ms':>13}{'estimated ms':>14}{'ratio':>15}{'p10':>7}{'p90':>7}{'within 2x':>11}"
    )
    for key, values in sorted(pairs.items()):
        measured, estimated = np.array(values).T
        ratio = estimated / measured
        low, middle, high = np.percentile(ratio, [10, 50, 90])
        near = np.mean((ratio > 0.5) & (ratio < 2))
        print(
            f"{key:22}{len(values):6}{measured.sum() / 1e3:13.2f}{estimated.sum() / 1e3:14.2f}"
            f"{middle:15.2f}{low:7.2f}{high:7.2f}{near:11.0%}"
        )
    print("\nbeyond 2x, by kind, the most expensive first")
    for key, values in sorted(
        missed.items(), key=lambda item: -sum(cost for cost, _ in item[1])
    ):
        measured, estimated = np.array(values).T
        ratio = estimated / measured
        print(
            f"{key:22}{len(values):6}{measured.sum() / 1e3:13.2f}{estimated.sum() / 1e3:14.2f}"
            f"{ratio.min():15.2f} to {ratio.max():.2f}"
        )


if __name__ == "__main__":
    main()
