"""`pgle history` as users call it."""

import json
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run.experiment.manifest import StageRecord, extend_manifest


def write_log(path: Path, level: float) -> str:
    path.write_text("".join(f"step {i}: {level * (1 + 0.001 * (i * 7 % 5)):.6f} s\n" for i in range(30)))
    return str(path)


def fill(path: Path, tmp_path: Path, levels: list[float], hardware: str = "h100") -> None:
    for day, level in enumerate(levels, 1):
        log = write_log(tmp_path / f"{day}.log", level)
        words = ["history", "add", log, "--name", "llama", "--hardware", hardware, "--file", str(path)]
        assert run([*words, "--time", f"2026-01-{day:02d}T00:00:00", "--commit", f"c{day}"]) == 0


LEVELS = [1.0, 1.001, 0.999, 1.0, 1.001, 1.0, 1.031, 1.03, 1.029, 1.03, 1.031]


@pytest.mark.parametrize("name", ["history.jsonl", "history.sqlite"])
def test_a_lasting_change_is_marked_at_its_commit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    fill(path, tmp_path, LEVELS)
    capsys.readouterr()
    assert run(["history", "show", "--file", str(path)]) == 0
    out = capsys.readouterr().out
    marked = [line for line in out.splitlines() if "▲" in line]
    assert len(marked) == 1
    assert "c7" in marked[0]
    assert "+3.0" in marked[0]
    assert max(map(len, out.splitlines())) <= 100


def test_json_of_a_trend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, tmp_path, LEVELS)
    capsys.readouterr()
    assert run(["history", "show", "--file", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "pgle.history/1"
    assert [change["index"] for change in result["trends"][0]["changes"]] == [6]


def test_hardware_is_never_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, tmp_path, [1.0] * 4)
    fill(path, tmp_path, [0.5] * 4, hardware="b200")
    capsys.readouterr()
    run(["history", "show", "--file", str(path), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert [trend["hardware"] for trend in result["trends"]] == ["b200", "h100"]
    assert all(trend["changes"] == [] for trend in result["trends"])


def test_plot_is_the_same_bytes_each_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, tmp_path, LEVELS)
    assert run(["history", "plot", "--file", str(path), "-o", str(tmp_path / "a.svg")]) == 0
    assert run(["history", "plot", "--file", str(path), "-o", str(tmp_path / "b.svg")]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert run(["history", "plot", "--file", str(path), "-o", str(tmp_path / "a.svg")]) == 2


def test_a_page_says_first_what_is_slower_than_before(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, tmp_path, LEVELS)
    assert run(["history", "plot", "--file", str(path), "-o", str(tmp_path / "a.html")]) == 0
    page = (tmp_path / "a.html").read_text()
    assert page.index("Slower since the last change") < page.index("<svg") < page.index("<table")
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_the_commit_of_a_recorded_run_is_that_of_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "perf").mkdir()
    steps = (f'{{"step": {step}, "step_time_s": {0.2 + step % 3 / 1e3}}}\n' for step in range(20))
    (tmp_path / "perf" / "steps.jsonl").write_text("".join(steps))
    extend_manifest(tmp_path, StageRecord("perf", started="2026-01-01T00:00:00", commit="c0ffee123456+", exit_code=0))
    path = tmp_path / "h.jsonl"
    assert run(["history", "add", str(tmp_path / "perf"), "--name", "x", "--hardware", "h", "--file", str(path)]) == 0
    assert json.loads(path.read_text())["commit"] == "c0ffee123456+"


def test_a_damaged_line_is_said_and_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.jsonl"
    fill(path, tmp_path, [1.0])
    path.write_text(path.read_text() + '{"time": "x"}\n')
    assert run(["history", "show", "--file", str(path)]) == 0
    assert "entry 2 could not be read (no median_s)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["none.jsonl", "none.sqlite"])
def test_no_history_names_the_command(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "show", "--file", str(tmp_path / name)]) == 2
    assert "pgle history add RUN" in capsys.readouterr().err


def test_a_file_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.jsonl", "a.sqlite"):
        (tmp_path / name).write_text("hello\n" * 200)
        assert run(["history", "show", "--file", str(tmp_path / name)]) == 2
        assert "is not a history of pgle" in capsys.readouterr().err


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
