"""The file of a history under many writers."""

import multiprocessing
from pathlib import Path

import pytest

from pgle.run.history import add, read
from pgle.steps.history import Entry, parse_entry

WRITERS, EACH = 8, 12


def entry(commit: str) -> Entry:
    record = {"time": "2026-01-01T00:00:00", "name": "n", "hardware": "h", "commit": commit, "median_s": 0.2}
    return parse_entry({**record, "spread": 0.01, "runs": 1, "steps": 60, "note": "", "simulated": 0})


def write(path: Path, writer: int) -> None:
    for number in range(EACH):
        add(path, entry(f"{writer}.{number}"))


@pytest.mark.parametrize("name", ["h.jsonl", "h.sqlite"])
def test_nothing_of_eight_writers_is_lost_or_torn(name: str, tmp_path: Path) -> None:
    path = tmp_path / "perf" / name
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=write, args=(path, writer)) for writer in range(WRITERS)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    entries, warnings = read(path)
    assert warnings == []
    assert sorted(item.commit for item in entries) == sorted(f"{w}.{n}" for w in range(WRITERS) for n in range(EACH))
    assert [file.name for file in path.parent.iterdir()] == [name]
