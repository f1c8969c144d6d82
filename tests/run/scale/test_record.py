"""Rows on disk: taken again where nothing changed, refused where they are another program's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.run.scale.record import NAME, Record, begun, digests
from pgle.scale.plan import Trial
from pgle.scale.row import Row

EIGHT, MORE = Trial(8, 8), Trial(64, 8)


def kept(folder: Path, **about: object) -> Record:
    return Record(folder, {"command": ["python"], **about})


def row(folder: Path) -> Row:
    (folder / "module.pb").touch()
    return Row(8, step_us=1.5, scheduled="module.pb")


def test_a_row_is_there_again(tmp_path: Path) -> None:
    assert not begun(tmp_path)
    kept(tmp_path).add(EIGHT, row(tmp_path))
    assert begun(tmp_path)
    assert kept(tmp_path).known(EIGHT) == row(tmp_path)
    assert kept(tmp_path).known(MORE) is None


def test_a_size_without_a_step_is_tried_again(tmp_path: Path) -> None:
    kept(tmp_path).add(EIGHT, Row(8, failure="killed"))
    assert kept(tmp_path).resumed == 0


def test_a_row_without_its_module_is_made_again(tmp_path: Path) -> None:
    kept(tmp_path).add(EIGHT, Row(8, step_us=1.5, scheduled="gone.pb"))
    assert kept(tmp_path).known(EIGHT) is None


def test_rows_of_another_program_are_refused(tmp_path: Path) -> None:
    kept(tmp_path, target="a")
    with pytest.raises(UserError, match=r"another program or setting \(target\)"):
        kept(tmp_path, target="b")


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    kept(tmp_path).add(EIGHT, row(tmp_path))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'"64"\t{"devi')
    assert kept(tmp_path).resumed == 1
    assert (tmp_path / NAME).read_bytes().endswith(b"}\n")


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    kept(tmp_path)
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'"64"\tnonsense\n')
    with pytest.raises(UserError, match="holds a line that is no row"):
        kept(tmp_path)


def test_a_script_that_was_edited_is_another_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("1")
    before = digests(("python", str(script)))
    script.write_text("2")
    assert before != digests(("python", str(script)))
