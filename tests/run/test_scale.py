"""What is asked for becomes rows, a refusal too. Rows on disk are taken again where nothing
changed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgle.errors import UserError
from pgle.requests.predictions import Scale
from pgle.run.directory.directory import asked_in
from pgle.run.scale import (
    NAME,
    ROW,
    KeptRows,
    _about,
    _doubt,
    _of_files,
    make_row,
)
from pgle.scale.answer import Exposed, ScaleRow
from pgle.scale.plan import SizeTrial

EIGHT, MORE = SizeTrial(8, 8), SizeTrial(64, 8)


def kept(folder: Path, **about: object) -> KeptRows:
    return KeptRows(folder, {"command": ["python"], **about})


def row(folder: Path) -> ScaleRow:
    (folder / "module.pb").touch()
    reduced = Exposed("all-reduce", 8, 1, "NVLink", 2.0, 1.0, 3)
    return ScaleRow(
        8,
        step_us=1.5,
        scheduled="module.pb",
        by_collective=(reduced,),
        tried={"4": None},
    )


def test_a_row_is_there_again(tmp_path: Path) -> None:
    assert not asked_in(tmp_path / NAME)
    kept(tmp_path).add(EIGHT, row(tmp_path))
    assert asked_in(tmp_path / NAME)
    assert kept(tmp_path).known(EIGHT) == row(tmp_path)
    assert kept(tmp_path).known(MORE) is None


def test_a_size_without_a_step_is_tried_again(tmp_path: Path) -> None:
    kept(tmp_path).add(EIGHT, ScaleRow(8, failure="killed"))
    assert kept(tmp_path).resumed == 0


def test_a_row_whose_folder_has_the_same_name_is_of_another_value(
    tmp_path: Path,
) -> None:
    one, other = (
        SizeTrial(8, 8, (("config", value),)) for value in ("a/b.yml", "a_b.yml")
    )
    kept(tmp_path).add(one, replace(row(tmp_path), values={"config": "a/b.yml"}))
    assert one.name == other.name
    assert kept(tmp_path).known(one)
    assert kept(tmp_path).known(other) is None


def test_a_row_without_its_module_is_made_again(tmp_path: Path) -> None:
    kept(tmp_path).add(EIGHT, ScaleRow(8, step_us=1.5, scheduled="gone.pb"))
    assert kept(tmp_path).known(EIGHT) is None


def test_rows_of_another_program_are_refused(tmp_path: Path) -> None:
    kept(tmp_path, target="a")
    with pytest.raises(
        UserError, match=r"another program or setting \(target differs\)"
    ):
        kept(tmp_path, target="b")


def test_the_number_of_rows_that_were_there_is_known(tmp_path: Path) -> None:
    kept(tmp_path).add(EIGHT, row(tmp_path))
    assert kept(tmp_path).resumed == 1


def test_a_file_that_is_no_row_is_named(tmp_path: Path) -> None:
    kept(tmp_path).add(EIGHT, row(tmp_path))
    (tmp_path / "rows/8" / ROW).write_text("nonsense")
    with pytest.raises(UserError, match=r"row\.json: is no row; delete it"):
        kept(tmp_path).known(EIGHT)


def test_a_script_that_was_edited_is_another_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("1")
    request = Scale(("python", str(script)), (8,), output=tmp_path)
    before = _about(request)
    script.write_text("2")
    assert before != _about(request)


def test_a_program_may_be_longer_than_a_name_and_no_credential_is_kept(
    tmp_path: Path,
) -> None:
    code = f"import jax  # {'x' * 300}"
    about = _about(
        Scale(("python", "-c", code, "--api-key=hunter2"), (8,), output=tmp_path)
    )
    assert (about["command"], about["files"]) == (
        ["python", "-c", code, "--api-key=***"],
        {},
    )


@pytest.mark.parametrize(
    ("code", "devices", "said"),
    [
        (
            "import sys; sys.exit('a batch of 3 is too small')",
            8,
            "the program ended with exit code 1; its last line: a batch",
        ),
        ("print(1)", 8, "the program compiled no jax module; it does not import jax"),
        ("import jax; raise ValueError('no')", 8, "ValueError: no"),
        (
            "import jax; raise ValueError('no')",
            4096,
            "ValueError: no",
        ),  # captured at 512 first
    ],
)
def test_a_program_that_fails_is_a_row_with_its_reason_first(
    tmp_path: Path, code: str, devices: int, said: str
) -> None:
    request = Scale((sys.executable, "-c", code), (devices,), output=tmp_path)
    row = make_row(request, SizeTrial(devices, 8))
    assert row.failure.startswith(said)


def test_hlo_text_of_which_only_shardings_say_for_how_many_it_is(
    tmp_path: Path,
) -> None:
    path = tmp_path / "step.hlo"
    path.write_text(
        "HloModule jit_step\n\nENTRY main {\n  p = f32[64]{0} parameter(0), sharding={devices=[16]<=[16]}\n"
        "  ROOT n = f32[64]{0} negate(p)\n}\n"
    )
    assert [trial.devices for trial in _of_files(Scale((str(path),)), {})] == [16]


def test_a_wide_range_says_what_nobody_measured() -> None:
    why = "no measurement of RCCL between hosts is public"
    made: Any = SimpleNamespace
    found = made(
        step_us=100.0,
        steps_us=made(most_data=200.0),
        uncertain=[made(range=made(why=why))],
    )
    (line,) = _doubt(found)
    assert line == f"ranges are wide: {why}; measure it, and give --profile"
