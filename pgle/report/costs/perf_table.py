"""What a measured table holds, and whether XLA uses it, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.errors import many
from pgle.next import CONVERT, typed
from pgle.report import text
from pgle.report.page.value import Cell, Page, Section, table
from pgle.run.inputs.next_command import UNKNOWN
from pgle.run.perf_table import COLLECTIVES_FLAG, MATMULS_FLAG, PerfTable

SHOWN = 5  # transfers on the first screen


def perf_table_page(found: PerfTable) -> Page:
    """What the table gives on the measured program, else what was measured; each point in a section."""
    measured = (
        (f"{item.kind}, {item.group} devices", item.size_bytes, us, item.size_bytes / us / 1e3,
         Cell("no", "warn") if item in found.ignored else "yes")
        for item, us in found.transfers.items()
    )  # fmt: skip
    heads = "measured collective | size (size) | time (time) | GB/s (rate) | XLA uses it"
    transfers = table(heads, measured, shown=SHOWN)
    written = " and ".join(str(path) for path in found.written)
    return Page(
        title="pgle perf-table",
        identity=(found.key, f"jaxlib {found.jaxlib}" if found.jaxlib else ""),
        verdict=advice(found).partition(". ")[0],
        tone="good" if found.key else "warn",
        table=transfers if found.transfers else None,
        notes=tuple(_notes(found, written)),
        sections=(Section("collectives", "Measured collectives", (transfers,)),) if found.transfers else (),
        next=_next(found) if found.key else (str(CONVERT),),
        warnings=found.warnings,
    )


def _notes(found: PerfTable, written: str) -> Iterator[str]:
    taken = len(found.products) - len(found.ignored_products)
    products = f", {many(len(found.products), 'matrix product')} ({taken:,} used by XLA)" if found.products else ""
    measured = f"{many(len(found.transfers), 'collective')}{products}"
    yield f"measured: {measured}; {many(found.filled, 'point')} of other sizes from XLA's own table"
    if found.network_gb_s is not None:
        by = many(len(found.networks_gb_s), "collective")
        yield f"network: {found.network_gb_s:.3g} GB/s per GPU, by {by} across hosts; give it with --network"
    yield f"wrote {written}"
    if found.key:
        yield "add to XLA_FLAGS:"
        yield from _flags(found)


def _next(found: PerfTable) -> tuple[str, ...]:
    """Predict what it gives."""
    words = (*(f"--flag={flag}" for flag in _flags(found)), "--", *UNKNOWN)
    return (typed("pgle", "rehearse", *words),)


def _flags(found: PerfTable) -> list[str]:
    names = (MATMULS_FLAG if ".matmul" in path.name else COLLECTIVES_FLAG for path in found.written)
    return [f"{name}={path}" for name, path in zip(names, found.written, strict=True)]


def advice(found: PerfTable) -> str:
    """What to do next."""
    if not found.key:
        return "XLA would ignore this table. Give it a cost profile instead: 'pgle convert'."
    return f"XLA uses this table. Set XLA_FLAGS='{' '.join(_flags(found))}'; pgle rehearse predicts the gain first."


def document(found: PerfTable) -> dict[str, object]:
    """``pgle.perf-table/1``."""
    return {
        **text.picked(found, "key jaxlib"),
        "collectives": [
            {**text.plain(item), "time_us": us, "taken": item not in found.ignored}
            for item, us in found.transfers.items()
        ],
        "matmuls": [
            {**text.picked(item, "m n k dtype"), "time_us": us, "taken": item not in found.ignored_products}
            for item, us in found.products.items()
        ],
        **text.picked(found, "filled written network_gb_s"),
        "next": advice(found),
        "warnings": found.warnings,
    }
