"""How much slower kernels run beside a collective: the same work that ran alone is what they are
held against.

Then the other way round: collectives of one kind and size, from the one that ran least beside
kernels to the one that did most, by what each took after its last rank arrived.

python benchmarks/contention.py                                    the real 4 × A100 step of
testdata/ python benchmarks/contention.py TRACE... --hlo DUMP --target h100   any other job
"""

import argparse
from itertools import groupby
from pathlib import Path

from pgle.analyze.collectives import MeasuredCollective
from pgle.costs.measure.contention import ASSUMED
from pgle.costs.measure.measured import measure
from pgle.run.analyze import StepInput, measured_step
from pgle.run.inputs.traces import read_traces
from pgle.xla.hlo.dumps import read_dumps

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
    given = parser.parse_args()
    found = (
        measure(read_traces(given.traces), read_dumps([given.hlo])).costs[0].contention
    )
    if found is None:
        raise SystemExit("no collective ran beside a kernel")
    assumed = ASSUMED.likely
    print(f"{'':10}{'samples':>9}{'slower':>9}{'half of it':>14}{'assumed':>9}")
    for kind in ("product", "other"):
        item = getattr(found, kind)
        half = f"{item.low:.2f} … {item.high:.2f}"
        print(
            f"{kind:10}{item.samples:9}{item.likely:8.2f}×{half:>14}{getattr(assumed, kind):8.2f}×"
        )
    print(
        "\ncollectives of one kind and size: microseconds at the share of their time beside kernels"
    )
    step = measured_step(
        StepInput(tuple(given.traces), (given.hlo,), target=given.target)
    )
    for kind, values in twins(step.collectives):
        print(
            f"{kind:30}"
            + ", ".join(f"{time_us:.0f} at {share:.0%}" for share, time_us in values)
        )


def twins(
    collectives: tuple[MeasuredCollective, ...],
) -> list[tuple[str, list[tuple[float, float]]]]:
    """Of each kind and size that occurs twice, share beside kernels and microseconds of each
    instruction.
    """
    found = sorted(
        (
            item.kind,
            item.link.payload_bytes,
            1 - item.transfer_exposed_us / item.time_us / item.count,
            item.time_us,
        )
        for item in collectives
        if item.link is not None and not item.sync
    )
    grouped = [
        (key, list(rows)) for key, rows in groupby(found, key=lambda row: row[:2])
    ]
    return [
        (f"{key[0]} {key[1]:,} B", [row[2:] for row in rows])
        for key, rows in grouped
        if len(rows) > 1
    ]


if __name__ == "__main__":
    main()
