"""Step times on disk or from a running program: what a path names, and one or several runs read
from it.
"""

from __future__ import annotations

import glob
import json
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pgle.errors import UserError, with_counts
from pgle.files import NO_PIPE, Json, TextLines, sha256, write_files
from pgle.next import Next
from pgle.run.directory.directory import COMPARED, LOG, STEP_FILES
from pgle.run.directory.manifest import StageRecord, read_manifest
from pgle.run.inputs.event_files import (
    event_points,
    holds_events,
    is_event_file,
    is_of_evaluation,
)
from pgle.run.inputs.traces import is_trace, read_traces
from pgle.steps.collect import (
    read_console,
    read_csv,
    read_json_lines,
    read_points,
    step_number,
)
from pgle.steps.series import (
    MOST_STEPS,
    Rules,
    Series,
    Side,
    check_count,
    once_per_step,
    slowest_rank,
    steady,
)
from pgle.trace.unread import check_is_read

if TYPE_CHECKING:
    from pgle.run.directory.facts import HookFacts

JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv")
LOGS = (".log", ".txt", ".out", ".err")
EVENTS = "events"  # the format of TensorBoard's files


def read_side(
    label: str, paths: Sequence[str], *, rules: Rules, pattern: str | None = None
) -> Side:
    """Read the runs of one side, and choose steady steps. `paths` as in `read_runs`; `pattern` is
    for console logs.
    """
    runs = _runs_of(paths, pattern)
    if not runs:
        raise UserError("no run given", where=label)
    return Side(label, tuple(steady(series, rules) for series in runs))


def _runs_of(paths: Iterable[str], pattern: str | None) -> list[Series]:
    """The runs of several paths, in their order."""
    each = (read_runs(path, pattern=pattern) for path in paths)
    return list(chain.from_iterable(each))


def read_runs(path: str, *, pattern: str | None = None) -> list[Series]:
    """Read the runs that a path names.

    A run directory is one run (of its ranks the slowest, step by step); a directory of runs, one
    each; a glob pattern, the runs of each match in order of name.
    """
    if not Path(path).exists() and any(sign in path for sign in "*?["):
        matches = sorted(glob.glob(path))  # noqa: PTH207 - the pattern may be absolute
        if not matches:
            raise UserError(
                "matches nothing",
                where=path,
                remedy="quote the pattern and check it with ls",
            )
        return _runs_of(matches, pattern)
    if not path:
        raise UserError(
            "an empty path", remedy="is a variable of the command line not set?"
        )
    if path == "-":
        raise UserError(NO_PIPE, where=path, remedy="name one")
    where = Path(path)
    if not where.exists():
        raise UserError(
            "no such file or directory", where=path, remedy="check the path"
        )
    if where.is_dir():
        return _read_directory(where, pattern)
    return [_read_file(where, pattern)]


def _read_directory(folder: Path, pattern: str | None) -> list[Series]:
    ranks = sorted(folder.glob(STEP_FILES))
    if ranks:
        slowest = slowest_rank([_read_file(file, pattern) for file in ranks])
        modelled_us = _modelled_us(folder)
        return [replace(slowest, about=_about(folder), modelled_us=modelled_us)]
    if holds_events(folder) and not _holds_trace(folder):
        return [_read_events(folder)]
    children = sorted(
        item for item in folder.iterdir() if not item.name.startswith(".")
    )
    if all(folder / stage in children for stage in COMPARED):
        each = Next.of("compare", *(folder / stage for stage in COMPARED))
        raise UserError(
            "holds several stages of one experiment, not one side",
            where=folder,
            remedy=each,
        )
    runs = [item for item in children if _is_run(item)]
    trained = [item for item in runs if not is_of_evaluation(item)]
    if trained:
        left_out = tuple(
            f"{item}: events of evaluation are left out"
            for item in runs
            if item not in trained
        )
        found = [_read_run(item, pattern) for item in trained]
        return [replace(run, warnings=(*left_out, *run.warnings)) for run in found]
    if runs:
        return [_read_run(item, pattern) for item in runs]
    if _holds_trace(folder):
        return [_read_trace(folder)]
    raise UserError(
        "holds no step times",
        where=folder,
        remedy=(
            "give a run directory, a log, CSV or JSON lines; 'pgle perf', also with "
            "--baseline, records steps.jsonl"
        ),
    )


def _read_run(path: Path, pattern: str | None) -> Series:
    """Read one run of a directory of runs: a file, or a run directory."""
    if path.is_dir():
        return _read_directory(path, pattern)[0]
    return _read_file(path, pattern)


def _about(folder: Path) -> dict[str, str]:
    """Return place, date, versions and commit of a stage, from its run directory's manifest.

    Hosts and GPUs are hashed, so that runs can be told apart, but shared pages name no machine.
    """
    records: Sequence[StageRecord] = ()
    with suppress(UserError):
        records = read_manifest(folder.parent).of(folder.name)
    if not records:
        return {}
    first = records[0]
    gpus = list(chain.from_iterable(record.gpus for record in records))
    found = {
        "hardware": with_counts((gpu.name for gpu in gpus), "×"),
        "module": str(first.facts.get("module", "")),
        "started": first.started[:16],
        "commit": first.commit,
    }
    found |= {
        name: version
        for name, version in sorted(first.versions.items())
        if name.startswith("jax")
    }
    found["command"] = " ".join(first.argv)
    found["driver"] = ", ".join(sorted({gpu.driver for gpu in gpus}))
    topology = first.topology
    if topology.get("simulated") and topology.get("devices"):
        found["hardware"] = f"{topology['devices']} × {topology['target']}"
    if len(records) == first.ranks and all(record.host for record in records):
        found["hosts"] = _hashed(record.host for record in records)
        if gpus and all(gpu.uuid for gpu in gpus):
            chosen = (
                record.environment.get("CUDA_VISIBLE_DEVICES", "") for record in records
            )
            found["gpus"] = _hashed((*chosen, *(gpu.uuid for gpu in gpus)))
    return {name: value for name, value in found.items() if value}


def _modelled_us(folder: Path) -> tuple[float, ...]:
    """Return the predicted step of a simulated stage, in µs, from the run directory's manifest."""
    with suppress(UserError):
        for record in read_manifest(folder.parent).of(folder.name):
            return record.modelled_us
    return ()


def _hashed(parts: Iterable[str]) -> str:
    """Hash the values of all ranks, in any order."""
    text = "\n".join(sorted(parts))
    return sha256(text.encode(errors="backslashreplace"))[:12]


def _is_run(path: Path) -> bool:
    if path.is_dir():
        has_steps = next(path.glob(STEP_FILES), None) is not None
        return has_steps or (path / LOG).is_file() or holds_events(path)
    is_manifest = path.name.startswith("manifest")
    return _suffix(path) in (*JSON_LINES, *TABLES, *LOGS) and not is_manifest


def _suffix(path: Path) -> str:
    """Return the suffix that tells the format, without a suffix of compression."""
    name = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    return name.suffix.lower()


def _read_file(path: Path, pattern: str | None) -> Series:
    suffix = _suffix(path)
    # not named like an xplane; the reader of traces lists valid names
    if is_trace(path) or suffix == ".pb":
        return _read_trace(path)
    if is_event_file(path):
        return _read_events(path)
    check_is_read(path)
    lines = TextLines(path)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise UserError(
            "is empty", where=path, remedy="did the run end before its first step?"
        )
    if suffix in (*TABLES, *JSON_LINES) and lines.has_more_than(MOST_STEPS):
        # check this before parsing for hours: each line is a step
        check_count(str(path), MOST_STEPS + 1)
    if suffix in TABLES:
        series = read_csv(lines, str(path))
    elif suffix in JSON_LINES or (pattern is None and first.lstrip().startswith("{")):
        series = read_json_lines(lines, str(path))
    else:
        series = read_console(lines, str(path), pattern=pattern)
    if len(series) == 0:
        what = "holds no step time"
        if series.malformed:
            item = series.malformed[0]
            what += f" (line {item.line}: {item.reason})"
        remedy = 'write lines such as {"step": 7, "step_time_s": 0.2013}'
        raise UserError(what, where=path, remedy=remedy)
    return once_per_step(series)


def _holds_trace(folder: Path) -> bool:
    return next(folder.rglob("*.xplane.pb"), None) is not None


def _read_events(path: Path) -> Series:
    """Read the run in an event file, or in a folder of them."""
    return once_per_step(read_points(event_points(path), str(path), EVENTS))


def _read_trace(path: Path) -> Series:
    from pgle.steps.executions import execution_series

    return execution_series(read_traces([path]), str(path))


STEP_WORDS = (b"step", b"iter", b"batch", b"epoch")
"""Every line that names a step or its time contains one of these words, in small or capital
letters.
"""

MAX_LINES = 1_000_000  # most step lines remembered with their times


class StepLine(NamedTuple):
    """A line of output with a step number, and its time in seconds since the epoch."""

    step: int
    at: float


class StepLines:
    """Watches the output for lines that name a step."""

    def __init__(self) -> None:
        self.lines: list[StepLine] = []

    def __call__(self, line: str) -> None:
        """Look at a line of output."""
        number = step_number(line)
        if number is not None and len(self.lines) < MAX_LINES:
            self.lines.append(StepLine(number, time.time()))


def console_records(
    log: Iterable[str], lines: Sequence[StepLine], facts: HookFacts
) -> list[Json]:
    """Make records for a steps file: times that the program printed in its log, else times between
    its step lines.

    The hook's facts say when the trace was open and when modules were compiled.
    """
    spans = {line.step: (before.at, line.at) for before, line in pairwise(lines)}
    times = _printed(log)
    how = "printed"
    if not times:
        times = _between(lines)
        how = "between_lines"
    return [
        {
            "step": step,
            "step_time_s": round(seconds, 9),
            how: True,
            **_marks(spans.get(step), facts),
        }
        for step, seconds in times
    ]


def _printed(log: Iterable[str]) -> list[tuple[int, float]]:
    """Return step numbers and seconds that the program printed; none if a progress bar shows
    smoothed rates.
    """
    try:
        series = read_console(log, "output")
    except UserError:
        return []
    if series.format == "tqdm":  # a steps file could not mark them as smoothed
        return []
    return list(zip(series.step.tolist(), series.step_time_s.tolist(), strict=True))


def write_steps(path: Path, records: Iterable[Json]) -> None:
    """Write a steps file."""
    write_files({path: "".join(json.dumps(record) + "\n" for record in records)})


def _between(lines: Sequence[StepLine]) -> list[tuple[int, float]]:
    """Return the time from line to line, divided by the number of steps if the program does not
    print each step. Repeated numbers count once.
    """
    found = []
    for before, line in pairwise(lines):
        steps = line.step - before.step
        seconds = line.at - before.at
        if steps > 0 and seconds > 0:
            found.append((line.step, seconds / steps))
    return found


def _marks(span: tuple[float, float] | None, facts: HookFacts) -> dict[str, bool]:
    if span is None:
        return {}
    begin, end = span
    opened = facts.get("window_opened", math.inf)
    closed = facts.get("window_closed", math.inf)
    marks = {}
    if opened < end and closed > begin:
        marks["profiled"] = True
    if any(begin < at <= end for at in facts.get("compiled_at", ())):
        marks["compiled"] = True
    return marks
