"""One rule for all outputs: a name says its form, and what cannot be written is said before the
work.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pgle.cli.main import run

TRACE = "nsys_synthetic/synthetic_cases.sqlite"
FOLDERS = [["init", "slurm", "-o"], ["tune", "x.mlir", "-o"], ["rehearse", "x.mlir", "-o"], ["doctor", "--run-dir"],
           ["run", "--run-dir"], ["auto", "--cache"], ["compare", "--abba", "1", "--run-dir"]]  # fmt: skip


@pytest.mark.parametrize("where", ["-", "gs://bucket/runs/a", "/dev/null"])
@pytest.mark.parametrize("words", FOLDERS, ids=" ".join)
def test_a_folder_is_one_of_this_machine(
    words: list[str],
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*words, where]) == 2
    assert capsys.readouterr().err.startswith(f"pgle: {where}: is ")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "a", "b", "--html", "x.txt"], "choose a name that ends in .html"),
        (["convert", "x.sqlite", "-o", "x.xplane.pb"], "is the name of a recording"),
        (
            ["compare", "--abba", "1", "--html", "taken.html", "--", "touch", "ran"],
            "taken.html: already exists",
        ),
        (
            ["compare", "--abba", "1", "--html", "folder.html", "--", "touch", "ran"],
            "folder.html: is a directory",
        ),
        (
            ["compare", "a", "b", "--html", "taken.html/x.html"],
            "is a file, not a directory",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_written_is_said_before_anything_is_read_or_run(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.html").touch()
    Path("folder.html").mkdir()
    assert run(words) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "folder.html",
        "taken.html",
    ]


def test_an_experiment_without_a_compiler_is_refused_before_its_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pgle.run.ask.jax_private._folders", lambda _: [])
    monkeypatch.setattr("pgle.run.process.compilers.compiler_of", lambda *_: (None, ()))
    monkeypatch.chdir(tmp_path)
    program = ["--", sys.executable, "-c", "open('ran', 'w')"]
    for words in (
        ["run", "--capture", "simulated"],
        ["rehearse"],
        ["tune", "-o", "tuned"],
    ):
        assert run([*words, *program]) == 2
        assert "the CUDA plugin of jax is not installed" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_profile_goes_here_if_nobody_says_where(
    testdata: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = testdata / "nsys_synthetic" / "synthetic_cases.sqlite"
    assert run(["convert", str(trace)]) == 0
    assert (tmp_path / "profile.pbtxt").is_file()


def test_a_trace_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["convert", "nothere.sqlite"]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["complete", "--hlo", "HLO"], "complete.pbtxt"),
        (["carry", "--from", "HLO", "--to", "HLO"], "carried.pbtxt"),
    ],
)
def test_a_profile_that_is_filled_or_carried_goes_here_and_over_no_other(
    words: list[str],
    made: str,
    tmp_path: Path,
    testdata: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("half.pbtxt").write_text(
        'costs { name: "input_reduce_fusion.1" cost_us: 9 }\n'
    )
    dump = str(testdata / "pax_fsdp4/proc0/dump")
    command, *rest = [dump if word == "HLO" else word for word in words]
    assert run([command, "half.pbtxt", *rest]) == 0
    first = Path(made).read_bytes()
    assert run([command, "half.pbtxt", *rest]) == 2
    assert "--force" in capsys.readouterr().err
    assert Path(made).read_bytes() == first
