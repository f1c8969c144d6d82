"""Why values of a program were not compared."""

from __future__ import annotations

from pathlib import Path

from pgle.run.capture.capture import _why_not_compared
from pgle.run.capture.running import STOPPED


def test_a_program_that_pgle_stopped_did_not_end_by_itself(tmp_path: Path) -> None:
    assert "ended" in _why_not_compared(tmp_path, 0)
    assert "failed" in _why_not_compared(tmp_path, 1)
    (tmp_path / STOPPED).touch()
    assert "pgle stopped the program" in _why_not_compared(tmp_path, 0)
