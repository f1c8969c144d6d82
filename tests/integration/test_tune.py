"""`pgle tune` with the real compiler: what is accepted was compiled, confirmed and written down."""

import json
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run.ask.jaxlib import installed

PROGRAM = (
    Path(__file__).parents[2]
    / f"testdata/stablehlo/fsdp_mlp_jax_{installed().jaxlib}.mlir"
)
pytestmark = [
    pytest.mark.rehearse,
    pytest.mark.usefixtures("plugin_loaded_once"),
    pytest.mark.skipif(
        not PROGRAM.exists(), reason="no program recorded with this jax"
    ),
]


STEP = """
import jax, jax.numpy as jnp
step = jax.jit(lambda w: jax.tree.map(lambda a, g: a - g, w, jax.grad(lambda w: jnp.sum((w @ w) ** 2))(w)))
w = jnp.ones((256, 256))
for _ in range(3):
    w = step(w)
"""


def tuned(
    capsys: pytest.CaptureFixture[str],
    out: Path,
    *more: str,
    program: str = str(PROGRAM),
) -> dict[str, object]:
    assert run(["tune", program, "-o", str(out), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_answer_is_proven_or_says_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tuned(capsys, tmp_path / "out", "--budget", "3")
    assert found["verdict"] in ("better", "no-room", "not-better")
    assert found["step_us"].keys() == {"baseline", "pgle", "tuned", "ceiling"}
    assert found["step_us"]["ceiling"] <= found["step_us"]["tuned"]
    assert len(found["trials"]) <= 3
    assert found["costs_are"] == "estimated"
    assert (tmp_path / "out" / "timeline.html").exists()
    assert (tmp_path / "out" / "flags.txt").exists() == (found["verdict"] == "better")
    if found["verdict"] == "better":
        assert found["used"]
        assert found["worlds"]["won"] >= 18
    else:
        assert not found["flags"]


def test_a_search_that_was_cut_short_goes_on_and_ends_as_one_that_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tuned(capsys, tmp_path / "whole", "--budget", "3")
    tuned(capsys, tmp_path / "cut", "--budget", "2")
    (tmp_path / "cut" / "flags.txt").touch()
    again = tuned(capsys, tmp_path / "cut", "--budget", "3")
    assert [trial["step_us"] for trial in again["trials"]] == [
        trial["step_us"] for trial in whole["trials"]
    ]
    assert again["verdict"] == whole["verdict"]
    assert (tmp_path / "cut" / "flags.txt").exists() == (again["verdict"] == "better")


def test_the_folder_of_another_search_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(capsys, tmp_path / "out", "--budget", "1")
    assert (
        run(["tune", str(PROGRAM), "-o", str(tmp_path / "out"), "--target", "a100"])
        == 2
    )
    assert (
        "holds the trials of another search (target differs)" in capsys.readouterr().err
    )
    assert (tmp_path / "out" / "search.json").exists()


def test_the_folder_of_another_program_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "step.py", str(tmp_path / "out")
    words = [
        "tune",
        "-o",
        out,
        "--budget",
        "1",
        "--devices",
        "2",
        "--",
        sys.executable,
        str(script),
    ]
    script.write_text(STEP)
    assert run(words) == 0
    script.write_text(STEP.replace("256", "128"))
    assert run(words) == 2
    assert (
        "holds the trials of another search (program differs)"
        in capsys.readouterr().err
    )
    script.write_text(STEP)
    assert run(words) == 0


def test_the_folder_of_a_modules_search_is_refused_before_a_program_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, ran = tmp_path / "out", tmp_path / "ran"
    tuned(capsys, out, "--budget", "1")
    before = sorted(out.iterdir())
    assert (
        run(
            [
                "tune",
                "-o",
                str(out),
                "--",
                sys.executable,
                "-c",
                f"open({str(ran)!r}, 'w')",
            ]
        )
        == 2
    )
    assert (
        "holds the trials of another search (program differs)"
        in capsys.readouterr().err
    )
    assert not ran.exists()
    assert sorted(out.iterdir()) == before


def test_what_is_no_module_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.hlo").write_text("hello")
    assert run(["tune", str(tmp_path / "x.hlo"), "-o", str(tmp_path / "out")]) == 2
    assert "not an HLO dump" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["x.hlo"]


def test_a_module_that_is_not_there_is_said_in_the_folder_of_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "search.json").write_text('{"schema": "pgle.search/1", "program": ""}')
    assert run(["tune", str(tmp_path / "none.mlir"), "-o", str(tmp_path)]) == 2
    assert "no such file" in capsys.readouterr().err
