"""What a measured table holds, and whether XLA takes it, as text and JSON."""

from __future__ import annotations

from pgle.report import json
from pgle.report.text import console, duration, table, warn
from pgle.run.perf_table import COLLECTIVES_FLAG, MATMULS_FLAG, PerfTable
from pgle.schedule.predict import Gain
from pgle.schedule.verdict import LEAST_GAIN


def show_text(found: PerfTable) -> None:
    """Tables on stdout, warnings on stderr."""
    screen = console()
    rows = [
        (
            f"{item.kind}, {item.group} devices",
            _size(item.size_bytes),
            duration(us),
            f"{item.size_bytes / us / 1e3:,.1f} GB/s",
            "no" if item in found.ignored else "yes",
        )
        for item, us in found.transfers.items()
    ]
    if rows:
        columns = ("measured collective", "bytes", "time", "throughput", "XLA takes it")
        screen.print(table(columns, rows, right="bytes|time|throughput", whole="bytes|time|throughput"))
    if found.products:
        taken = len(found.products) - len(found.ignored_products)
        screen.print(f"{len(found.products)} matrix products measured, {taken} taken by XLA")
    screen.print(f"{found.filled} points of other sizes from XLA's own table")
    if found.key:
        screen.print(f"tried on jaxlib {found.jaxlib}, which calls the GPU {found.key}")
    if found.steps:
        screen.print()
        steps = [(step.label, duration(step.step_us), duration(step.exposed_us)) for step in found.steps]
        screen.print(table(("scheduled with", "predicted step", "exposed"), steps, right="predicted step|exposed"))
        if (share := found.steps[0].estimated_share) > 0:
            screen.print(f"{share:.0%} of the time is estimated: this jaxlib makes other kernels than were measured")
    for path in found.written:
        screen.print(f"wrote {path}", soft_wrap=True)
    screen.print(advice(found), style="bold", soft_wrap=True)
    warn(found.warnings)


def _range(found: Gain) -> str:
    return f"{found.share:.1%} ({100 * found.low:.1f} … {found.high:.1%})"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.2f} MiB" if size_bytes >= 1 << 16 else f"{size_bytes:,} B"


def advice(found: PerfTable) -> str:
    """What to do next, and what it would bring."""
    flags = " ".join(f"{MATMULS_FLAG if '.matmul' in path.name else COLLECTIVES_FLAG}={path}" for path in found.written)
    if not found.key:
        return "XLA would ignore this table: give it a cost profile instead, 'pgle convert'."
    if not found.steps:
        return f"Use it: XLA_FLAGS='{flags}'; --rehearse says first what it brings to the measured program."
    _, given, profile = (step.gain for step in found.steps)
    said = (
        f"against XLA's own table the predicted step gets {_range(given)} shorter, with a profile {_range(profile)}; "
        "ranges by how much kernels beside collectives slow down"
    )
    if given.low < LEAST_GAIN:
        return f"Not worth it for this program: {said}. It may be for others on this cluster; a profile is exact."
    return f"Use it: {said}. XLA_FLAGS='{flags}'"


def show_json(found: PerfTable) -> None:
    """``pgle.perf-table/1``."""
    json.show(
        "pgle.perf-table/1",
        {
            **json.picked(found, "key jaxlib"),
            "collectives": [
                {**json.plain(item), "time_us": us, "taken": item not in found.ignored}
                for item, us in found.transfers.items()
            ],
            "matmuls": [
                {**json.picked(item, "m n k dtype"), "time_us": us, "taken": item not in found.ignored_products}
                for item, us in found.products.items()
            ],
            **json.picked(found, "filled steps written"),
            "next": advice(found),
            "warnings": found.warnings,
        },
    )
