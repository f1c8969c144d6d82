"""`pgle complete` from the command line."""

import json
from pathlib import Path

import pytest

from pgle.cli.main import run

pytestmark = pytest.mark.usefixtures("read_once")

DUMP = "pax_fsdp4/proc0/dump"
HALF = 'costs { name: "input_reduce_fusion.1" cost_us: 9 }\ncosts { name: "all-gather-start" cost_us: 400 }\n'


@pytest.fixture
def half(tmp_path: Path) -> Path:
    path = tmp_path / "half.pbtxt"
    path.write_text(HALF)
    return path


def test_json_tells_what_was_filled(
    half: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = half.with_name("full.pbtxt")
    arguments = [
        "complete",
        str(half),
        "--hlo",
        str(testdata / DUMP),
        "--target",
        "a100",
        "-o",
        str(out),
        "--json",
    ]
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    (module,) = found["modules"]
    assert found["schema"] == "pgle.complete/1"
    assert (module["name"], module["measured"]) == ("pjit__wrapped_step_fn", 2)
    assert (
        module["same_shape"] + module["estimated"]
        == module["wanted"] - 2
        == len(module["filled"])
    )
    assert found["written"]["names"] == module["wanted"]


def test_the_text_says_where_costs_come_from(
    half: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = half.with_name("full.pbtxt")
    assert (
        run(
            [
                "complete",
                str(half),
                "--hlo",
                str(testdata / DUMP),
                "--target",
                "a100",
                "-o",
                str(out),
            ]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "estimated for a100-40gb" in text
    assert text.splitlines()[1].startswith("✓ wrote ")


def test_an_existing_file_is_not_overwritten(
    half: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = half.with_name("kept.pbtxt")
    kept.write_text("kept")
    words = ["complete", str(half), "--hlo", str(testdata / DUMP), "-o", str(kept)]
    assert run(words) == 2
    assert "--force" in capsys.readouterr().err
    assert kept.read_text() == "kept"


def test_a_bad_target_and_a_bad_expression_are_one_line(
    half: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        "complete",
        str(half),
        "--hlo",
        str(testdata / DUMP),
        "-o",
        str(half.with_name("x.pbtxt")),
    ]
    for extra in (["--target", "tpu"], ["--module", "("]):
        assert run([*common, *extra]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_estimates_are_for_the_gpu_of_the_dump_and_no_other_generation(
    half: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dump's file names say sm_8.0."""
    words = [
        "complete",
        str(half),
        "--hlo",
        str(testdata / DUMP),
        "-o",
        str(half.parent / "o.pbtxt"),
    ]
    assert run([*words, "--json"]) == 0
    (module,) = json.loads(capsys.readouterr().out)["modules"]
    assert module["target"].startswith("a100")
    assert run([*words, "--force", "--target", "h100"]) == 2
    assert "was compiled for sm_8.0" in capsys.readouterr().err


def test_estimates_lead_to_a_measurement_and_not_to_a_check_that_fails(
    half: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = half.with_name("full.pbtxt")
    dump = str(testdata / DUMP)
    assert run(["complete", str(half), "--hlo", dump, "-o", str(out)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Now: measure this program with `pgle profile -- COMMAND`: measured" in text
    assert run(["verify", str(out), "--hlo", dump]) == 1
    text = capsys.readouterr().out
    assert "FAILED: measured costs cover" in text
    assert "pgle complete" not in text
