"""The table of docs/evidence/planted-faults.md: faults of known size, and what `analyze` says.

    python benchmarks/planted_faults.py > table.md

The faults and the recordings are those of `tests/analyze/test_planted.py`, which holds the same
sizes to 10 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import Faulty, repeat

from pgle.analyze import analysis
from pgle.analyze.differences import Differences, find_differences
from pgle.analyze.findings import StepFinding
from pgle.analyze.rules import find_findings
from pgle.run.analyze import measured_step
from tests.analyze.test_planted import FAULTS, MAIN, MANY, STEADY, Fault, exports, side

HEAD = (
    "planted",
    "size",
    "`analyze` finds",
    "size",
    "row of `--against`",
    "size",
    "verdict",
)


def grown_ms(fault: Fault, against: Differences) -> float:
    """By how much the rows that the fault belongs to grew."""
    if fault.row == "late":
        return (against.late_us[1] - against.late_us[0]) / 1e3
    wanted = {fault.row, fault.also} - {""}
    rows = (one for one in against.changes if wanted & {one.group, one.name})
    return sum(one.delta_us for one in rows) / 1e3


def named(fault: Fault, findings: tuple[StepFinding, ...]) -> StepFinding | None:
    """The finding that names the fault; None if it is no finding."""
    found = (one for one in findings if one.id == fault.finding)
    return next(found, None)


def longer_recording(folder: Path) -> list[Path]:
    """The recording with more executions, as the tests make it."""
    files = Faulty(exports(), folder, MAIN).paths
    for path in files:
        repeat(path, MAIN, MANY - len(STEADY), jitter=0.0005)
    return files


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    # what a schedule could hide, which no fault is about, takes most of the time
    with patch.object(analysis, "find_overlap", _no_overlap):
        _print_table()


def _no_overlap(_: Any, __: Any, found: Any, *___: Any, **____: Any) -> Any:
    """What `find_overlap` returns if no schedule is looked at."""
    return None, found


def _print_table() -> None:
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        longer = longer_recording(folder / "longer")
        recordings = {False: exports(), True: longer}
        clean = {
            is_many: measured_step(side(paths)) for is_many, paths in recordings.items()
        }
        for is_many, step in clean.items():
            said = ", ".join(one.title for one in find_findings(step))
            kind = " (long)" if is_many else ""
            print(f"| nothing{kind} | – | {said} | – | – | – | – |", flush=True)
        for number, (name, fault) in enumerate(FAULTS.items()):
            faulty = Faulty(recordings[fault.is_many], folder / str(number), MAIN)
            planted = fault.plant(faulty)
            step = measured_step(side(faulty.write()))
            finding = named(fault, find_findings(step))
            against = find_differences(clean[fault.is_many], step)
            words, found = "–", "–"
            if finding is not None:
                words = f"{finding.title}: {finding.number}"
                found = f"{finding.share * step.step_us / 1e3:.2f}"
            kind = " (long)" if fault.is_many else ""
            grown = f"{grown_ms(fault, against):+.2f}" if fault.row else "–"
            row = " and ".join(filter(None, (fault.row, fault.also))) or "–"
            cells = (f"{name}{kind}", f"{planted:.2f}", words, found, row, grown)
            print(f"| {' | '.join(cells)} | {against.verdict} |", flush=True)


if __name__ == "__main__":
    main()
