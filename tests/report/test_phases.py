"""What is said of a compilation that takes long."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgle.report import phases as report
from pgle.run.rehearse.compiler.request import Phase, RehearsalRequest

REQUEST = RehearsalRequest(Path("m.mlir"), "", Path("out/baseline"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    return now


def test_what_is_quick_is_not_spoken_of(clock: list[float]) -> None:
    compilations = report._Compilations()
    compilations.note(Phase(REQUEST, "reading"))
    clock[0] = 1.9
    assert compilations.lines() == []


def test_a_line_says_which_schedule_module_devices_phase_and_time(clock: list[float]) -> None:
    compilations = report._Compilations()
    compilations.note(Phase(REQUEST, "reading"))
    clock[0] = 7.0
    compilations.note(Phase(REQUEST, "optimising", "jit_step", 128))
    assert compilations.lines() == ["baseline, jit_step for 128 devices: optimising, 7 s"]


def test_the_next_takes_about_as_long_as_the_last(clock: list[float]) -> None:
    compilations = report._Compilations()
    compilations.note(Phase(REQUEST, "optimising", "jit_step", 4))
    clock[0] = 40.0
    compilations.note(Phase(REQUEST, "done"))
    compilations.note(Phase(REQUEST, "optimising", "jit_step", 4))
    clock[0] = 50.0
    assert compilations.lines() == ["baseline, jit_step for 4 devices: optimising, 10 s of about 40 s"]


def test_a_log_gets_a_line_for_each_phase_that_lasts(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    compilations = report._Compilations()
    compilations.note(Phase(REQUEST, "reading"))
    clock[0] = 3.0

    class Twice:
        """An event that is set at the third question; meanwhile a second has passed."""

        left = 2

        def wait(self, seconds: float) -> bool:
            self.left -= 1
            clock[0] += 1
            return self.left < 0

    report._logged(compilations, Twice())  # type: ignore[arg-type]
    assert capsys.readouterr().err == "pgle: baseline: reading, 4 s\n"
