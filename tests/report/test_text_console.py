"""What a console does to text: nothing."""

from __future__ import annotations

import pytest

from pgle.report.text import console


@pytest.mark.parametrize("text", ["wrote runs/[red]/profile.pbtxt", "runs/:smile:/profile.pbtxt", "x[/bold]"])
def test_paths_and_names_are_printed_as_they_are(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    console().print(text)
    assert capsys.readouterr().out == f"{text}\n"
