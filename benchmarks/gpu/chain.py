"""The chain from a trace to a proven profile, and what a profile brings on a step that copies to
the host.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import (
    ROOT,
    Bench,
    Done,
    last_line,
    pgle,
    record_folder,
    watched,
)
from benchmarks.gpu.results import Results, Row

ORDER = ("baseline", "perf", "auto", "auto", "perf", "baseline")
"""Launches in an order in which a drift of the machine meets all sides alike."""
ORDER_SIMULATED = ("baseline", "perf")
SMALL = ("--layers", "2", "--model-dim", "256", "--batch", "256")


def prove(bench: Bench, results: Results) -> None:
    """`pgle doctor --prove`: a row for each link."""
    folder = bench.work / "proof"
    words = ("doctor", "--prove", "--capture", bench.capture, "--target", bench.target)
    command = (*words, "--run-dir", str(folder), "--json")

    def record() -> None:
        record_folder(folder, "proof", results)

    done = watched(command, record, folder / "manifest.json")
    for link in _document(done).get("links", ()):
        facts = {key: link[key] for key in ("ok", "proves", "found")}
        results.add(
            Row(link["name"], "link", facts=facts, error="" if link["ok"] else "broken")
        )
    if not results.rows:
        results.add(Row("proof", "link", error=last_line(done)))


def _document(done: Done) -> Any:
    """The JSON object that a command printed; empty if it printed none."""
    try:
        return json.loads(done.output)
    except json.JSONDecodeError:
        return {}


def offload(bench: Bench, results: Results) -> None:
    """The offload workload without a profile, with one, and with AutoPGLE: a row for each
    launch.
    """
    folder = bench.work / "offload"
    program = (
        sys.executable,
        str(ROOT / "benchmarks/programs/offload.py"),
        "--devices",
        "1",
    )
    command = (
        (*program, *SMALL, "--compile-only")
        if bench.simulated
        else (*program, "--steps", "30")
    )
    where = ("--run-dir", str(folder))
    how: tuple[str, ...] = ("--capture", bench.capture)
    if bench.simulated:
        how = (*how, "--target", bench.target, "--devices", "1")
    _stage(("profile", *where, *how), command, folder / "profile", "profile", results)
    record_folder(folder, "offload", results)
    converted = pgle(("convert", str(folder)))
    error = last_line(converted) if converted.code else ""
    results.add(Row("convert", "stage", error=error))
    seen: dict[str, int] = {}
    for stage in ORDER_SIMULATED if bench.simulated else ORDER:
        seen[stage] = seen.get(stage, 0) + 1
        name = f"{stage}_{seen[stage]}"
        if stage == "auto":
            place = bench.work / name
            words: tuple[str, ...] = ("auto", "--run-dir", str(place))
            _stage(words, command, place, name, results)
            record_folder(place, name, results)
            continue
        is_baseline = ("--baseline",) if stage == "baseline" else ()
        words = ("perf", *is_baseline, "--force", *where, *how)
        _stage(words, command, folder / stage, name, results)
        record_folder(folder, "offload", results)


def _stage(
    words: Sequence[str],
    command: Sequence[str],
    folder: Path,
    name: str,
    results: Results,
) -> None:
    """Run a stage; its row has the median of its step times."""
    done = pgle((*words, "--json", "--", *command))
    times_s = step_times(folder)
    us = statistics.median(times_s) * 1e6 if times_s else None
    document = _document(done)
    facts = {"step_times_s": times_s, "verdict": document.get("verdict")}
    failed = done.code != 0 and not times_s
    error = last_line(done) if failed else ""
    results.add(
        Row(
            name,
            "stage",
            us=us,
            how="steps of a launch; median",
            facts=facts,
            error=error,
        )
    )


def step_times(folder: Path) -> list[float]:
    """Seconds of each step in the step files of a stage's folder."""
    found = []
    for path in sorted(folder.rglob("steps*.jsonl")):
        for line in path.read_text().splitlines():
            value = json.loads(line).get("step_time_s")
            if value is not None:
                found.append(float(value))
    return found
