"""`pgle history` as users call it."""

import json
from pathlib import Path

import numpy as np
import pytest

from pgle.cli.main import run
from pgle.run.directory.manifest import StageRecord, extend_manifest


def write_log(path: Path, level: float) -> str:
    path.write_text(
        "".join(
            f"step {i}: {level * (1 + 0.001 * (i * 7 % 5)):.6f} s\n" for i in range(30)
        )
    )
    return str(path)


def add(path: Path, log: str, day: int, *more: str, hardware: str = "h100") -> int:
    named = ["--name", "llama", "--hardware", hardware, "--commit", f"c{day}"]
    when = ["--time", f"2026-01-{day:02d}T00:00:00"]
    return run(["history", "add", log, *named, *when, "--file", str(path), *more])


def fill(path: Path, levels: list[float], *more: str, hardware: str = "h100") -> None:
    """Add a run a day; `more` are options of the last addition, whose output stays."""
    days = len(levels)
    for day, level in enumerate(levels, 1):
        log = write_log(path.with_name(f"{day}.log"), level)
        assert (
            add(path, log, day, *(more if day == days else ("-q",)), hardware=hardware)
            == 0
        )


LEVELS = [1.0, 1.001, 0.999, 1.0, 1.001, 1.0, 1.041, 1.04, 1.039, 1.04, 1.041]


def test_entries_are_listed_and_the_spread_is_that_since_the_level_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, LEVELS[:-1], "-q")
    capsys.readouterr()
    assert add(path, write_log(tmp_path / "11.log", LEVELS[-1]), 11, "--all") == 0
    out = capsys.readouterr().out
    assert all(f"c{number}" in out for number in range(1, 12))
    assert (
        "Launches differ by 0.08 % (standard deviation of 5 entries since 2026-01-07T00:00, "
        "when the level changed)." in " ".join(out.split())
    )
    done = f"Now: give it to a comparison with `--history {path}`"
    assert done in " ".join(out.split())
    without_path = out.splitlines()[1:-1]  # the first and the last line hold it
    assert max(map(len, without_path)) <= 100


def test_the_newest_entries_come_first_and_fit_a_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, LEVELS[:-1], "-q")
    capsys.readouterr()
    assert add(path, write_log(tmp_path / "11.log", LEVELS[-1]), 11) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 14
    assert "c11" in lines[4]
    assert any(line.startswith("… and 6 more") for line in lines)


def test_json_of_a_trend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, LEVELS[:-1], "-q")
    capsys.readouterr()
    assert add(path, write_log(tmp_path / "11.log", LEVELS[-1]), 11, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "pgle.history/1"
    trend = result["trend"]
    assert len(trend["entries"]) == 11
    assert trend["level_s"] == pytest.approx(1.04 * 1.002, rel=1e-3)
    assert trend["noise"] == pytest.approx(np.std(np.log(LEVELS[6:]), ddof=1), rel=0.01)


def test_hardware_is_never_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, [1.0] * 4, "-q")
    capsys.readouterr()
    assert (
        add(path, write_log(tmp_path / "b.log", 0.5), 9, "--json", hardware="b200") == 0
    )
    trend = json.loads(capsys.readouterr().out)["trend"]
    assert (trend["hardware"], len(trend["entries"])) == ("b200", 1)


def test_the_commit_of_a_recorded_run_is_that_of_its_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "perf").mkdir()
    steps = (
        f'{{"step": {step}, "step_time_s": {0.2 + step % 3 / 1e3}}}\n'
        for step in range(20)
    )
    (tmp_path / "perf" / "steps.jsonl").write_text("".join(steps))
    extend_manifest(
        tmp_path,
        StageRecord(
            "perf", started="2026-01-01T00:00:00", commit="c0ffee123456+", exit_code=0
        ),
    )
    path = tmp_path / "h.jsonl"
    assert (
        run(
            [
                "history",
                "add",
                str(tmp_path / "perf"),
                "--name",
                "x",
                "--hardware",
                "h",
                "--file",
                str(path),
            ]
        )
        == 0
    )
    assert json.loads(path.read_text())["commit"] == "c0ffee123456+"


def test_a_damaged_line_is_said_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, [1.0], "-q")
    path.write_text(path.read_text() + '{"time": "x", "name": "n", "hardware": "h"}\n')
    assert add(path, write_log(tmp_path / "b.log", 1.0), 2) == 0
    assert (
        "entry 2 could not be read (Object missing required field `median_s`)"
        in " ".join(capsys.readouterr().out.split())
    )


def test_no_history_names_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "a.log", 1.0)
    assert run(["compare", log, log, "--history", str(tmp_path / "none.jsonl")]) == 2
    assert "pgle history add RUN" in capsys.readouterr().err


def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.jsonl", "a.sqlite"):
        (tmp_path / name).write_text("hello\n" * 200)
        assert add(tmp_path / name, write_log(tmp_path / "a.log", 1.0), 1) == 2
        assert "is not a history of pgle" in capsys.readouterr().err
    (tmp_path / "b.sqlite").write_bytes(b"SQLite format 3\0" + bytes(999))
    assert add(tmp_path / "b.sqlite", write_log(tmp_path / "a.log", 1.0), 1) == 2
    assert (
        "is not text; a history is JSON lines; choose another --file"
        in capsys.readouterr().err
    )


def test_runs_in_other_units_and_runs_without_steady_steps_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.jsonl"
    words = ["--name", "llama", "--hardware", "h100", "--file", str(path)]
    logs = [write_log(tmp_path / "s.log", 0.2), write_log(tmp_path / "ms.log", 200)]
    assert run(["history", "add", *logs, *words]) == 2
    assert "other units" in capsys.readouterr().err
    profiled = tmp_path / "p.jsonl"
    profiled.write_text('{"step": 1, "step_time_s": 0.2, "profiled": true}\n')
    assert run(["history", "add", str(profiled), *words]) == 2
    assert "no steady step among 1 (1 profiled)" in capsys.readouterr().err
    assert not path.exists()
