"""How much slower kernels run beside a collective: the same work that ran alone is what they are held against.

python benchmarks/contention.py                                    the real 4 × A100 step of testdata/
python benchmarks/contention.py TRACE... --hlo DUMP --target h100   any other job
"""

import argparse
from pathlib import Path

from pgle.costs.fit.contention import contention_on
from pgle.costs.measure.measured import measure
from pgle.run.inputs.traces import read_traces
from pgle.xla.hardware import find_hardware
from pgle.xla.hlo.dumps import read_dumps

DATA = Path(__file__).parent.parent / "testdata" / "pax_fsdp4"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="*", type=Path, default=[DATA / "proc0.sqlite", DATA / "proc3.sqlite"])
    parser.add_argument("--hlo", type=Path, default=DATA / "proc0/dump")
    parser.add_argument("--target", default="a100-40gb")
    given = parser.parse_args()
    found = measure(read_traces(given.traces), read_dumps([given.hlo])).costs[0].contention
    if found is None:
        raise SystemExit("no collective ran beside a kernel")
    model = contention_on(find_hardware(given.target)).at(1)
    print(f"{'':10}{'samples':>9}{'slower':>9}{'half of it':>14}{'model':>8}")
    for kind in ("product", "other"):
        item = getattr(found, kind)
        half = f"{item.low:.2f} … {item.high:.2f}"
        print(f"{kind:10}{item.samples:9}{item.likely:8.2f}×{half:>14}{getattr(model, kind):7.2f}×")


if __name__ == "__main__":
    main()
