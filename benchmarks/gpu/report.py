"""Predicted against measured, from the archives of a run: ``python -m benchmarks.gpu.report
FOLDER``.

A measured run also renews the table of docs/evidence/gpu.md, and its trimmed archives go to
testdata/gpu.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.gpu.autotuning import choices
from benchmarks.gpu.bench import ROOT
from benchmarks.gpu.results import Archive, Results, Row, read_archive
from pgle.errors import UserError
from pgle.files import write_files
from pgle.schedule.predict import predict
from pgle.xla.hlo.proto import module_from_bytes
from pgle.xla.targets import find_hardware

MEASURED = ("steps", "kernels")
PRODUCT = "product"
PAGE = ROOT / "docs/evidence/gpu.md"
RECORDINGS = ROOT / "testdata/gpu"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
SAME = 0.01
"""Part of a step: two medians that are nearer have no sign. Launches of one program differ by as
much.
"""
MOST_KEPT = 20_000_000  # bytes of the trimmed archives of one GPU together
HLO = ".hlo.pb"
Archives: TypeAlias = Mapping[str, Archive]


@dataclass(frozen=True)
class Predicted:
    """A prediction of one execution."""

    us: float
    range_us: tuple[float, float]
    planned_bytes: int | None = None

    def holds(self, us: float) -> bool:
        """Whether its range holds a time."""
        return self.range_us[0] <= us <= self.range_us[1]


@dataclass(frozen=True)
class Compared:
    """A row with what was predicted for it."""

    row: Row
    compiled: Predicted | None  # from the module that the GPU ran; None: not recorded
    rehearsed: Predicted | None  # from the module that was compiled without a device


@dataclass(frozen=True)
class Edit:
    """A change of a program, and what it does to the step, as a share of the step before."""

    name: str
    base: str
    measured: float
    compiled: float | None
    rehearsed: float | None


def read_run(folder: Path) -> Archives:
    """The archives of a folder by the name of their part."""
    found = {path.stem: read_archive(path) for path in sorted(folder.glob("*.zip"))}
    if not found:
        remedy = "give the folder that 'make gpu' wrote"
        raise UserError("holds no result of a GPU", where=folder, remedy=remedy)
    return found


def compared(archives: Archives) -> tuple[Compared, ...]:
    """Every row that was measured, with its predictions."""
    rehearsals = _rehearsals(archives)
    found = []
    for part in MEASURED:
        archive = archives.get(part)
        for row in archive.rows if archive else ():
            if archive and row.us is not None:
                compiled = _predicted(archive, row.name)
                found.append(Compared(row, compiled, rehearsals.get(row.name)))
    return tuple(found)


def _rehearsals(archives: Archives) -> Mapping[str, Predicted]:
    """Predictions of the modules that were compiled without a device, by row."""
    archive = archives.get("rehearsals")
    found = {}
    for row in archive.rows if archive else ():
        if row.us is not None and row.range_us is not None:
            found[row.name] = Predicted(row.us, row.range_us, row.planned_bytes)
    return found


def _predicted(archive: Archive, name: str) -> Predicted | None:
    """The prediction of a recorded module."""
    data = archive.recordings.get(f"{name}{HLO}")
    if data is None:
        return None
    module = module_from_bytes(data, name)
    prediction = predict(module, None, find_hardware(archive.header.target))
    return Predicted(prediction.step_us, prediction.interval_us)


def edits(rows: Iterable[Compared]) -> tuple[Edit, ...]:
    """What each edit changed."""
    by_name = {item.row.name: item for item in rows}
    found = []
    for item in by_name.values():
        base = by_name.get(item.row.base)
        if base is not None and item.row.us and base.row.us:
            measured = item.row.us / base.row.us - 1
            compiled = _change(base.compiled, item.compiled)
            rehearsed = _change(base.rehearsed, item.rehearsed)
            found.append(
                Edit(item.row.name, item.row.base, measured, compiled, rehearsed)
            )
    return tuple(found)


def _change(before: Predicted | None, after: Predicted | None) -> float | None:
    return None if before is None or after is None else after.us / before.us - 1


def same_sign(measured: float, predicted: float | None) -> bool | None:
    """Whether a prediction has the sign of a measured change; None if one of both is too small or
    missing.
    """
    if predicted is None or abs(measured) < SAME or abs(predicted) < SAME:
        return None
    return (measured > 0) == (predicted > 0)


def page(archives: Archives) -> str:
    """The answer as Markdown: misses before hits."""
    rows = compared(archives)
    header = next(iter(archives.values())).header
    simulated = any(archive.header.simulated for archive in archives.values())
    first = (
        "Simulated: no GPU was measured."
        if simulated
        else f"Measured on one {header.chip}."
    )
    unfinished = [name for name, archive in archives.items() if not archive.complete]
    cut = f"Cut short: {', '.join(unfinished)}." if unfinished else ""
    parts = (
        f"{first} Versions: {header.jax}. {cut}".strip(),
        _kinds(rows),
        _edits(edits(rows)),
        _rows(rows),
        _memory(rows),
        _choices(archives),
        _facts(archives, ("chain", "offload", "records")),
        _errors(archives),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table under a title; empty without rows."""
    if not rows:
        return ""
    lines = [
        f"### {title}",
        "",
        _line(heads),
        _line(["---"] * len(heads)),
        *map(_line, rows),
    ]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


def _kinds(rows: Sequence[Compared]) -> str:
    """For each kind the median ratio and how many ranges hold the measurement."""
    kinds: dict[str, list[Compared]] = {}
    for item in rows:
        kinds.setdefault(item.row.kind, []).append(item)
    cells = []
    for kind, items in kinds.items():
        compiled = [(item.row, item.compiled) for item in items]
        rehearsed = [(item.row, item.rehearsed) for item in items]
        cells.append([kind, str(len(items)), *_held(compiled), *_held(rehearsed)])
    heads = (
        "kind",
        "rows",
        "predicted / measured",
        "in range",
        "rehearsed / measured",
        "in range",
    )
    return table("By kind", heads, cells)


def _held(pairs: Sequence[tuple[Row, Predicted | None]]) -> tuple[str, str]:
    """The median ratio of predictions to measurements, and the number of ranges that hold them."""
    known = [(row.us, found) for row, found in pairs if row.us and found]
    if not known:
        return "–", "–"
    ratio = statistics.median(found.us / us for us, found in known)
    held = sum(found.holds(us) for us, found in known)
    return f"{ratio:.2f}", f"{held} of {len(known)}"


def _edits(found: Sequence[Edit]) -> str:
    cells = []
    for edit in found:
        signs = [
            same_sign(edit.measured, edit.compiled),
            same_sign(edit.measured, edit.rehearsed),
        ]
        changes = [
            _percent(edit.measured),
            _percent(edit.compiled),
            _percent(edit.rehearsed),
        ]
        cells.append([edit.name, edit.base, *changes, *map(_sign, signs)])
    heads = (
        "edit",
        "of",
        "measured",
        "predicted",
        "rehearsed",
        "sign",
        "sign, rehearsed",
    )
    return table("Edits of programs", heads, cells)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:+.1%}"


def _sign(is_right: bool | None) -> str:
    if is_right is None:
        return "–"
    return "right" if is_right else "wrong"


def _rows(rows: Sequence[Compared]) -> str:
    """All rows, those whose range does not hold the measurement first."""

    def is_held(item: Compared) -> bool:
        found = item.compiled or item.rehearsed
        return bool(found and item.row.us and found.holds(item.row.us))

    cells = [
        [item.row.name, _us(item.row.us), _range(item.compiled), _range(item.rehearsed)]
        for item in sorted(rows, key=is_held)
    ]
    heads = ("", "measured (µs)", "predicted (µs)", "rehearsed (µs)")
    return table("Rows, misses first", heads, cells)


def _us(us: float | None) -> str:
    return "–" if us is None else f"{us:,.1f}"


def _range(found: Predicted | None) -> str:
    if found is None:
        return "–"
    low, high = found.range_us
    return f"{found.us:,.1f} ({low:,.1f} … {high:,.1f})"


def _memory(rows: Sequence[Compared]) -> str:
    """Peaks of device memory of rows that raised it."""
    cells = []
    for item in rows:
        row, rehearsed = item.row, item.rehearsed
        if row.memory_bytes:
            planned = rehearsed.planned_bytes if rehearsed else None
            cells.append(
                [row.name, *map(_gib, (row.memory_bytes, row.planned_bytes, planned))]
            )
    return table("Memory (GiB)", ("", "peak", "XLA planned", "rehearsed"), cells)


def _gib(count: int | None) -> str:
    return "–" if count is None else f"{count / 2**30:.2f}"


def _choices(archives: Archives) -> str:
    """What multiplies each product, on the GPU and without a device."""
    archive, rehearsals = archives.get("kernels"), archives.get("rehearsals")
    cells = []
    for row in archive.rows if archive else ():
        if row.kind == PRODUCT:
            here, alone = _chosen(archive, row.name), _chosen(rehearsals, row.name)
            cells.append([row.name, _us(row.us), here, alone])
    return table(
        "What multiplies", ("product", "µs", "chosen", "without a device"), cells
    )


def _chosen(archive: Archive | None, name: str) -> str:
    """What multiplies in a recorded module, in words."""
    data = archive.recordings.get(f"{name}{HLO}") if archive else None
    if data is None:
        return "–"
    found = choices(module_from_bytes(data, name))
    words = [f"{each['kind']} {each['configuration'] or ''}".strip() for each in found]
    return "; ".join(words) or "no product is left"


def _facts(archives: Archives, parts: Sequence[str]) -> str:
    """Rows whose answer is in words."""
    cells = []
    for part in parts:
        archive = archives.get(part)
        for row in archive.rows if archive else ():
            facts = {
                key: value for key, value in row.facts.items() if len(str(value)) < 100
            }
            words = ", ".join(f"{key} {value}" for key, value in facts.items())
            cells.append([part, row.name, _us(row.us), row.error or words])
    return table("Chain and records", ("part", "", "µs", ""), cells)


def _errors(archives: Archives) -> str:
    found = []
    for part, archive in archives.items():
        found += [[part, row.name, row.error] for row in archive.rows if row.error]
    return table("Not measured", ("part", "row", "why"), found)


def keep(archives: Archives, folder: Path) -> None:
    """Write trimmed archives: without sources, and without traces once they are `MOST_KEPT`
    together.
    """
    left = MOST_KEPT
    folder.mkdir(parents=True, exist_ok=True)
    for part, archive in archives.items():
        results = Results(folder / f"{part}.zip", archive.header)
        results.rows = list(archive.rows)
        by_size = sorted(archive.recordings.items(), key=lambda item: len(item[1]))
        for name, data in by_size:
            if not name.endswith(".mlir"):
                results.keep(name, data, most_bytes=left)
        results.write(complete=archive.complete)
        left -= results.path.stat().st_size


def main(arguments: Sequence[str]) -> int:
    """Print the page; of a measured run write it and its recordings, too."""
    try:
        archives = read_run(Path(arguments[0]))
    except UserError as error:
        print(f"pgle: {error}", file=sys.stderr)
        return 2
    text = page(archives)
    print(text, end="")
    headers = [archive.header for archive in archives.values()]
    if any(header.simulated for header in headers):
        print("Simulated: docs and testdata stay as they are.", file=sys.stderr)
        return 0
    keep(archives, RECORDINGS / headers[0].target)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_files({PAGE: f"{before}{BEGIN}\n\n{text}\n{END}{after}"}, force=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
