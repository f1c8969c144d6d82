"""What a command prints that is hidden, as with -q on GPUs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pgle.run.process.process import launch


@pytest.mark.parametrize(("code", "shown"), [(0, ""), (3, "step 1\n")])
def test_hidden_output_is_shown_only_if_the_command_fails(
    code: int, shown: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = f"print('step 1'); raise SystemExit({code})"
    command = [sys.executable, "-c", program]
    log = tmp_path / "output.log"
    assert launch(command, os.environ, log, is_shown=False) == code
    printed = capfd.readouterr()
    assert printed.out + printed.err == shown
    assert log.read_text() == "step 1\n"
