"""What a stage says when it has ended."""

from pathlib import Path

import pytest

from pgle.report.stage import show_text
from pgle.run.experiment.directory import RunDirectory
from pgle.run.experiment.stage import StageName, StageRequest, StageResult

NEXT = [
    ("profile", [], "next: pgle convert {run}"),
    ("perf", ["perf"], "next: pgle perf --baseline --run-dir {run} -- COMMAND"),
    ("perf", ["baseline", "perf"], "next: pgle compare {run}/baseline {run}/perf"),
    ("baseline", ["baseline"], "next: pgle perf --run-dir {run} -- COMMAND"),
    ("baseline", ["baseline", "perf"], "next: pgle compare {run}/baseline {run}/perf"),
]


@pytest.mark.parametrize(("stage", "there", "said"), NEXT)
def test_the_next_command_can_be_run(
    stage: StageName,
    there: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    request = StageRequest(stage, ("python",), RunDirectory(tmp_path), "perf")
    show_text(StageResult(request, simulated=True, exit_code=0))
    assert capsys.readouterr().out.splitlines()[-1] == said.format(run=tmp_path)
