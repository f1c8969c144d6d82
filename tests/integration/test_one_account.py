"""One run directory, one number for each fact, whatever asks for it."""

import json
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run

pytestmark = [pytest.mark.rehearse, pytest.mark.usefixtures("plugin_loaded_once")]

WORDS = [sys.executable, "-m", "pgle.workloads", "overlap", "--compile-only"]
SIMULATED = ["--capture", "simulated", "--target", "a100"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "overlap"
    assert run(["run", "--run-dir", str(folder), *SIMULATED, "--", *WORDS]) == 0
    return folder


def answer(capsys, *words: object) -> dict:
    """The JSON of a command."""
    capsys.readouterr()
    assert run([*map(str, words), "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_timed_steps_and_their_change_are_the_same_in_every_answer(
    finished: Path, capsys
) -> None:
    compared = answer(capsys, "compare", finished)
    asked = (
        ("rehearse", finished),
        ("analyze", finished),
        ("analyze", finished / "perf"),
        ("analyze", finished / "baseline"),
    )
    for words in asked:
        timed = answer(capsys, *words)["account"]["timed"]
        assert timed["change"] == compared["ratio"] - 1, words
        assert timed["verdict"] == compared["verdict"], words


def test_the_exposed_share_of_a_stage_is_the_same_measured_and_predicted(
    finished: Path, capsys
) -> None:
    profile = ("--profile", finished / "profile.pbtxt")
    stage = finished / "perf"
    traced = answer(capsys, "analyze", stage)["account"]
    predicted = answer(capsys, "predict", stage / "hlo", *profile)["account"]
    shares = [
        item["parts"]["communication"] / item["step_us"] for item in (traced, predicted)
    ]
    assert abs(shares[0] - shares[1]) < 0.005


def test_a_profile_that_timed_steps_prove_has_their_gain(
    finished: Path, capsys
) -> None:
    account = answer(capsys, "rehearse", finished)["account"]
    (profile,) = (
        item for item in account["opportunities"] if item["kind"] == "profile"
    )
    assert account["timed"]["verdict"] == "faster"
    assert profile["basis"] == "simulated"
