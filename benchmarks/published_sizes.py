"""Published steps at several sizes against the range that the other programs give, programs or
publishers left out.

    python benchmarks/published_sizes.py

Prints the rows of docs/evidence/scale.md, misses first.
"""

from math import exp, log2

from pgle.costs.estimate.unknown import growth, published, size_spread


def main() -> None:
    rows = []
    first: dict[str, tuple[int, float]] = {}
    for row in published():
        devices, step = first.setdefault(row.series, (row.devices, row.step))
        if devices != row.devices:
            ranges = [
                size_spread(devices, row.devices, without=left)
                for left in ([row.series], [])
            ]
            rows.append((row.series, devices, row.devices, row.step / step, ranges))

    def outside(ratio: float, ends: tuple[float, float]) -> float:
        return max(ends[0] / ratio, ratio / ends[1], 1) - 1

    print(
        "| program | GPUs | published | flat errs by | range from the other programs | |\n|---|---|---|---|---|---|"
    )
    for series, before, after, ratio, ranges in sorted(
        rows, key=lambda row: -outside(row[3], row[4][0])
    ):
        (low, high), _ = ranges
        off = outside(ratio, ranges[0])
        verdict = f"missed by {off:.1%}" if off else "held"
        flat = f"{1 / ratio - 1:+.1%}".replace("-", "−")
        print(
            f"| {series} | {before} → {after} | {ratio:.3f} | {flat} | {low:.3f} … {high:.3f} | {verdict} |"
        )
    for place, name in enumerate(("program left out", "nothing left out")):
        held = [row for row in rows if not outside(row[3], row[4][place])]
        whole = {row[0] for row in rows} - {
            row[0] for row in rows if outside(row[3], row[4][place])
        }
        print(
            f"\n{name}: held {len(held)} of {len(rows)} rows; all rows of {len(whole)} of {len(growth())} programs"
        )
    by_source = {
        row.series: row.source.partition("@")[0].partition("#")[0]
        for row in published()
    }
    for source in sorted(set(by_source.values())):
        own = [name for name, of in by_source.items() if of == source]
        mine = [
            not outside(ratio, size_spread(before, after, without=own))
            for series, before, after, ratio, _ in rows
            if series in own
        ]
        print(f"{source} left out: held {sum(mine)} of {len(mine)} rows")
    print("\nall programs, from 8 GPUs:", end=" ")
    for devices in (16, 64, 512, 2048):
        low, high = size_spread(8, devices)
        print(
            f"{devices}: {low:.2f} … {high:.2f} ({log2(devices / 8):.0f} doublings);",
            end=" ",
        )
    print(
        f"\nlargest growth published: {exp(max(rise for series in growth().values() for _, rise in series)):.3f}"
    )


if __name__ == "__main__":
    main()
