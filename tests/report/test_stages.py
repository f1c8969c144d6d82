"""The line that `pgle run` prints for each stage."""

import pytest

from pgle.report import text
from pgle.report.stages import Stages


def test_a_skipped_stage_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Stages(simulated=False) as stages:
        stages.announce("convert: unchanged, skipped")
    assert capsys.readouterr().out == "[2/6] convert   unchanged\n"


def test_a_quiet_run_prints_no_stages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "quiet", True)
    Stages(simulated=False).announce("convert: unchanged, skipped")
    assert capsys.readouterr().out == ""


def test_a_stage_that_fails_keeps_the_warnings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = Stages(simulated=False)
    stages.warnings["4 devices (assumed)"] = None
    with pytest.raises(KeyError), stages:
        raise KeyError
    assert "warning: 4 devices (assumed)" in capsys.readouterr().err


def test_a_simulated_run_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Stages(simulated=True) as stages:
        for name in ("profile", "convert"):
            stages.announce(f"{name}: ")
    assert capsys.readouterr().out.splitlines() == ["Simulated: this run uses no GPU"]
