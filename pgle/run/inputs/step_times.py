"""Step times on disk: what a path names, and reading it as one or several runs."""

from __future__ import annotations

import glob
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pgle.errors import UserError
from pgle.next import Next
from pgle.run.experiment.directory import COMPARED, LOG, STEP_FILES
from pgle.run.inputs.texts import TextLines
from pgle.steps.collect_console import read_console
from pgle.steps.collect_records import read_csv, read_json_lines
from pgle.steps.series import MOST_STEPS, Series, check_count, once_per_step, slowest_rank
from pgle.steps.side import Side
from pgle.steps.steady import Rules, steady

JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv")
LOGS = (".log", ".txt", ".out", ".err")
TRACES = (".nsys-rep", ".sqlite", ".qdrep", ".pb")


def read_side(label: str, paths: Sequence[str], *, rules: Rules, pattern: str | None = None) -> Side:
    """The runs of one side, steady steps chosen.

    Args:
        label: name of the side in the output.
        paths: files, run directories, directories of runs, or glob patterns.
        rules: which steps to leave out.
        pattern: regular expression for console logs.

    Raises:
        UserError: nothing there, or it cannot be read.
    """
    runs = [series for path in paths for series in read_runs(path, pattern=pattern)]
    if not runs:
        raise UserError("no run given", where=label)
    return Side(label, tuple(steady(series, rules) for series in runs))


def read_runs(path: str, *, pattern: str | None = None) -> list[Series]:
    """The runs that a path names.

    A run directory is one run (of its ranks the slowest, step by step); a directory of runs, one each; a glob pattern,
    the runs of each match in order of name.
    """
    if not Path(path).exists() and any(sign in path for sign in "*?["):
        matches = sorted(glob.glob(path))  # noqa: PTH207 - the pattern may be absolute
        if not matches:
            raise UserError("matches nothing", where=path, remedy="quote the pattern and check it with ls")
        return [series for match in matches for series in read_runs(match, pattern=pattern)]
    if not path:
        raise UserError("an empty path", remedy="is a variable of the command line not set?")
    where = Path(path)
    if not where.exists():
        raise UserError("no such file or directory", where=path, remedy="check the path")
    return _read_directory(where, pattern) if where.is_dir() else [_read_file(where, pattern)]


def _read_directory(folder: Path, pattern: str | None) -> list[Series]:
    ranks = sorted(folder.glob(STEP_FILES))
    if ranks:
        return [replace(slowest_rank([_read_file(file, pattern) for file in ranks]), about=_about(folder))]
    children = sorted(item for item in folder.iterdir() if not item.name.startswith("."))
    if all(folder / stage in children for stage in COMPARED):
        each = Next.of("compare", *(folder / stage for stage in COMPARED))
        raise UserError("holds several stages of one experiment, not one side", where=folder, remedy=each)
    runs = [item for item in children if _is_run(item)]
    if runs:
        return [_read_directory(item, pattern)[0] if item.is_dir() else _read_file(item, pattern) for item in runs]
    if next(folder.rglob("*.xplane.pb"), None) or next(folder.glob("*.parquet"), None):
        return [_read_trace(folder)]
    remedy = "give a run directory, a log, CSV or JSON lines; 'pgle perf', also with --baseline, records steps.jsonl"
    raise UserError("holds no step times", where=folder, remedy=remedy)


def _about(folder: Path) -> dict[str, str]:
    """Place, date, versions and commit of a stage of a run directory, as its manifest has them.

    Hosts and GPUs are hashed: they tell two runs apart, and a page that is passed on names no machine.
    """
    from pgle.run.experiment.manifest import read_manifest

    try:
        records = read_manifest(folder.parent).of(folder.name)
    except UserError:
        return {}
    gpus = [gpu for record in records for gpu in record.gpus]
    names = Counter(gpu.name for gpu in gpus)
    found = {"hardware": ", ".join(f"{count} × {name}" for name, count in names.items())}
    for record in records[:1]:
        found |= {"started": record.started[:16], "commit": record.commit}
        found |= {name: version for name, version in sorted(record.versions.items()) if name.startswith("jax")}
        found["command"] = " ".join(record.argv)
    found["driver"] = ", ".join(sorted({gpu.driver for gpu in gpus}))
    if records and len(records) == records[0].ranks and all(record.host for record in records):
        found["hosts"] = _hashed(record.host for record in records)
        if gpus and all(gpu.uuid for gpu in gpus):
            chosen = (record.environment.get("CUDA_VISIBLE_DEVICES", "") for record in records)
            found["gpus"] = _hashed((*chosen, *(gpu.uuid for gpu in gpus)))
    return {name: value for name, value in found.items() if value}


def _hashed(parts: Iterable[str]) -> str:
    """One short hash of what the ranks of a run had, whichever rank had it."""
    return hashlib.sha256("\n".join(sorted(parts)).encode(errors="backslashreplace")).hexdigest()[:12]


def _is_run(path: Path) -> bool:
    if path.is_dir():
        return next(path.glob(STEP_FILES), None) is not None or (path / LOG).is_file()
    return _suffix(path) in (*JSON_LINES, *TABLES, *LOGS) and not path.name.startswith("manifest")


def _suffix(path: Path) -> str:
    """The suffix that says the format, under one of compression."""
    name = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    return name.suffix.lower()


def _read_file(path: Path, pattern: str | None) -> Series:
    suffix = _suffix(path)
    if suffix in TRACES:
        return _read_trace(path)
    lines = TextLines(path)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise UserError("is empty", where=path, remedy="did the run end before its first step?")
    if suffix in (*TABLES, *JSON_LINES) and lines.has_more_than(MOST_STEPS):
        check_count(str(path), MOST_STEPS + 1)  # before hours of it are parsed: each line is a step
    if suffix in TABLES:
        series = read_csv(lines, str(path))
    elif suffix in JSON_LINES or (pattern is None and first.lstrip().startswith("{")):
        series = read_json_lines(lines, str(path))
    else:
        series = read_console(lines, str(path), pattern=pattern)
    if len(series) == 0:
        item = series.malformed[0] if series.malformed else None
        what = "holds no step time" if item is None else f"holds no step time (line {item.line}: {item.reason})"
        raise UserError(what, where=path, remedy='write lines such as {"step": 7, "step_time_s": 0.2013}')
    return once_per_step(series)


def _read_trace(path: Path) -> Series:
    from pgle.run.inputs.traces import read_traces
    from pgle.steps.executions import execution_series

    return execution_series(read_traces([path]), str(path))
