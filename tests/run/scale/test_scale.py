"""What is asked for becomes rows; a size that the program cannot take says why in the program's own words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pgle.run.scale.row import RowRequest, ScaleRequest, make_row
from pgle.run.scale.scale import _of_files
from pgle.scale.plan import Trial


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import sys; sys.exit('a batch of 3 is too small')",
            "the program ended with exit code 1; its last line: a batch",
        ),
        ("print(1)", "the program compiled no jax module; does it call a jitted function?"),
        ("import jax; raise ValueError('no')", "ValueError: no"),
    ],
)
def test_a_program_that_fails_is_a_row_with_its_reason_first(tmp_path: Path, code: str, said: str) -> None:
    row = make_row(RowRequest((sys.executable, "-c", code), (8,), tmp_path, trial=Trial(8, 8)))
    assert row.failure.startswith(said)


def test_hlo_text_of_which_only_shardings_say_for_how_many_it_is(tmp_path: Path) -> None:
    path = tmp_path / "step.hlo"
    path.write_text(
        "HloModule jit_step\n\nENTRY main {\n  p = f32[64]{0} parameter(0), sharding={devices=[16]<=[16]}\n"
        "  ROOT n = f32[64]{0} negate(p)\n}\n"
    )
    assert [trial.devices for trial in _of_files(ScaleRequest((str(path),), (), tmp_path))] == [16]
