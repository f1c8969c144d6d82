"""What a stage can be asked for."""

from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.requests.stages import ProfileStage
from pgle.run.directory.directory import RunDirectory
from pgle.run.process.process import program_of
from pgle.run.rounds import _inputs
from pgle.run.stages.pipeline import choose_back_end, content_addressed
from pgle.run.stages.stage import StageRequest

WINDOWS = ["auto", "all", "steps:5", "steps:5-10", "seconds:10", "seconds:0.5"]


@pytest.mark.parametrize("window", WINDOWS)
def test_windows(window: str) -> None:
    assert choose_back_end(ProfileStage(capture="jax", window=window)).plan  # no error


@pytest.mark.parametrize("capture", ["jax", "simulated"])
@pytest.mark.parametrize(
    "window", ["", "foo", "steps:", "steps:10-5", "seconds:-1", "steps:5-10 "]
)
def test_other_windows_are_refused_before_anything_runs(window: str, capture) -> None:
    with pytest.raises(UserError, match="no such window"):
        choose_back_end(ProfileStage(capture=capture, window=window))


def test_a_profile_that_was_changed_under_its_hash_is_not_given_to_xla(
    tmp_path: Path,
) -> None:
    profile = tmp_path / "profile.pbtxt"
    profile.write_text('costs { name: "dot" cost_us: 7 }\n')
    named = content_addressed(profile, RunDirectory(tmp_path))
    named.write_text('costs { name: "dot" cost_us: 9 }\n')
    assert (
        content_addressed(profile, RunDirectory(tmp_path)).read_bytes()
        == profile.read_bytes()
    )


def test_the_code_of_a_shell_is_no_file_however_long(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(7)\n")
    command = ("bash", "-c", f"export X={'a' * 300} && python train.py", str(script))
    planned = StageRequest(
        "profile", command, RunDirectory(tmp_path / "run"), "sync"
    ).plan({})
    assert [item.path for item in planned.inputs] == [str(script)]
    assert list(program_of(command)["files"]) == [str(script)]
    assert set(_inputs([command])) == {str(script), "XLA_FLAGS"}
