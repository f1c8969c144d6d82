"""How much slower kernels run beside a collective: those of equal shape that ran alone are what they are held against.

python benchmarks/contention.py                                    the real 4 × A100 step of testdata/
python benchmarks/contention.py TRACE... --hlo MODULE --target h100   any other job
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from pgle.costs.measure.programs import find_programs
from pgle.run.inputs import read_traces
from pgle.schedule.contention import contention_on
from pgle.schedule.intervals import covered, union
from pgle.schedule.program import kind_of
from pgle.xla.collectives import collective_kind
from pgle.xla.hardware import find_hardware
from pgle.xla.hlo.reader import read_module

DATA = Path(__file__).parent.parent / "testdata" / "pax_fsdp4"
WARM_UP = 2
BESIDE = 0.9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="*", type=Path, default=[DATA / "proc0.sqlite", DATA / "proc3.sqlite"])
    parser.add_argument("--hlo", type=Path, default=next((DATA / "proc0/dump").glob("module_0040*after_opt*")))
    parser.add_argument("--target", default="a100-40gb")
    given = parser.parse_args()
    module, trace = read_module(given.hlo), read_traces(given.traces)
    program = next(item for item in find_programs(trace, [module]) if item.hlo is not None)
    found = [module.instructions.get(name) for name in trace.instructions]
    collective = np.array([item is not None and collective_kind(module, item) is not None for item in found])
    alone, beside = defaultdict(list), defaultdict(list)
    for device in range(len(trace.devices)):
        here = (trace.device == device) & np.isin(trace.module, program.indices) & (trace.execution >= WARM_UP)
        start, end = trace.start_ns[here], trace.start_ns[here] + trace.duration_ns[here]
        communicates, codes = collective[trace.instruction[here]], trace.instruction[here]
        busy = union(start[communicates], end[communicates])
        share = covered(busy, start, end) / np.maximum(end - start, 1)
        for code, time, part in zip(codes.tolist(), (end - start).tolist(), share.tolist(), strict=True):
            item = found[code]
            if item is None or collective[code] or 0 < part < BESIDE:
                continue
            given_shapes = tuple(str(module.instructions[name].shape) for name in item.operands)
            twin = (kind_of(module, item), item.fusion_kind, item.custom_call_target, str(item.shape), given_shapes)
            (beside if part else alone)[twin].append(time)
    sums = defaultdict(lambda: np.zeros(3))
    for twin, times in beside.items():
        if len(alone[twin]) >= 3:
            kind = "product" if twin[0] == "matmul" else "other"
            sums[kind] += (len(times), sum(times), len(times) * float(np.median(alone[twin])))
    model = contention_on(find_hardware(given.target))
    print(f"{'':10}{'samples':>9}{'beside ms':>12}{'alone ms':>10}{'slower':>9}{'model':>8}")
    for kind, (count, slow, fast) in sorted(sums.items()):
        print(
            f"{kind:10}{int(count):9}{slow / 1e6:12.2f}{fast / 1e6:10.2f}{slow / fast:8.2f}×"
            f"{getattr(model, kind):7.2f}×"
        )


if __name__ == "__main__":
    main()
