"""`pgle tune` with the real compiler: what is accepted was compiled, confirmed and written down."""

import io
import json
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run.ask.flag_probe import installed

PROGRAM = Path(__file__).parents[2] / f"testdata/stablehlo/fsdp_mlp_jax_{installed().jaxlib}.mlir"
pytestmark = [
    pytest.mark.rehearse,
    pytest.mark.skipif(not PROGRAM.exists(), reason="no program recorded with this jax"),
]


def tuned(capsys: pytest.CaptureFixture[str], out: Path, *more: str, program: str = str(PROGRAM)) -> dict[str, object]:
    assert run(["tune", program, "-o", str(out), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_answer_is_proven_or_says_that_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tuned(capsys, tmp_path / "out", "--budget", "3", "--worlds", "10")
    assert found["verdict"] in ("better", "no-room", "not-better")
    assert found["step_us"].keys() == {"baseline", "pgle", "tuned", "ceiling"}
    assert found["step_us"]["ceiling"] <= found["step_us"]["tuned"]
    assert len(found["trials"]) <= 3
    assert found["costs_are"] == "estimated"
    assert (tmp_path / "out" / "timeline.html").exists()
    assert (tmp_path / "out" / "flags.txt").exists() == (found["verdict"] == "better")
    if found["verdict"] == "better":
        assert found["used"]
        assert found["worlds"]["won"] >= 9
    else:
        assert not found["flags"]


def test_the_same_input_gives_the_same_answer_from_a_pipe_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--budget", "1", "--worlds", "3")
    first = tuned(capsys, tmp_path / "a", *options)
    with PROGRAM.open() as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        second = tuned(capsys, tmp_path / "b", *options, program="-")
    for key in ("verdict", "flags", "step_us", "worlds", "trials"):
        assert first[key] == second[key]
    assert all(word != "-" for word in second["next"].split())
    kept = tmp_path / "b" / "captured" / "stdin.mlir"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROGRAM.read_bytes() + b"\n")))
    assert run(["tune", "-", "-o", str(tmp_path / "b"), *options]) == 2
    assert "holds the search of another module" in capsys.readouterr().err
    assert kept.read_bytes() == PROGRAM.read_bytes()


def test_a_search_that_was_cut_short_goes_on_and_ends_as_one_that_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tuned(capsys, tmp_path / "whole", "--budget", "3", "--worlds", "3")
    tuned(capsys, tmp_path / "cut", "--budget", "2", "--worlds", "3")
    (tmp_path / "cut" / "flags.txt").touch()
    again = tuned(capsys, tmp_path / "cut", "--budget", "3", "--worlds", "3")
    assert [trial["step_us"] for trial in again["trials"]] == [trial["step_us"] for trial in whole["trials"]]
    assert again["verdict"] == whole["verdict"]
    assert (tmp_path / "cut" / "flags.txt").exists() == (again["verdict"] == "better")


def test_the_folder_of_another_search_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned(capsys, tmp_path / "out", "--budget", "1", "--worlds", "3")
    assert run(["tune", str(PROGRAM), "-o", str(tmp_path / "out"), "--worlds", "4"]) == 2
    assert "holds the trials of another search (worlds differs)" in capsys.readouterr().err
    assert (tmp_path / "out" / "search.json").exists()


def test_a_memory_limit_that_is_no_size_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", str(PROGRAM), "-o", str(tmp_path / "out"), "--memory-limit", "much"]) == 2
    assert "say 70GiB" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_is_no_module_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.hlo").write_text("hello")
    assert run(["tune", str(tmp_path / "x.hlo"), "-o", str(tmp_path / "out")]) == 2
    assert "not an HLO dump" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["x.hlo"]
