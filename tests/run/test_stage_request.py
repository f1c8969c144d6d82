"""What a stage can be asked for."""

from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.run.experiment.stage import StageRequest


@pytest.mark.parametrize("window", ["auto", "all", "steps:5", "steps:5-10", "seconds:10", "seconds:0.5"])
def test_windows(window: str) -> None:
    assert StageRequest("profile", (), Path("run"), "sync", window=window).window == window


@pytest.mark.parametrize("window", ["", "foo", "steps:", "steps:10-5", "seconds:-1", "steps:5-10 "])
def test_other_windows_are_refused_before_anything_runs(window: str) -> None:
    with pytest.raises(UserError, match="no such window"):
        StageRequest("profile", (), Path("run"), "sync", window=window)
