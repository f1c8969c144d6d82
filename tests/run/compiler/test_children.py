"""What a compilation says while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgle.run.compiler.worker import crash, folds_slowly


@pytest.mark.parametrize(
    ("log", "slow"),
    [
        (None, False),
        (
            "E1123 10:09:12.216730 17876 slow_operation_alarm.cc:73] Constant folding an instruction is taking > 1s:",
            True,
        ),
        (
            "E1123 10:09:12.216730 17876 slow_operation_alarm.cc:73] Compiling module jit_f is taking > 1s:",
            False,
        ),
    ],
)
def test_slow_folding_of_constants_is_seen_in_the_log(
    log: str | None, slow: bool, tmp_path: Path
) -> None:
    path = tmp_path / "xla.log"
    if log is not None:
        path.write_text(
            f"I0000 begin\n{log}\n\n  %reduce_window_sum.8 = f32[3000,3000]{{1,0}}\n"
        )
    assert folds_slowly(path) == slow


def test_a_compiler_that_is_killed_before_it_opens_its_log(tmp_path: Path) -> None:
    error = crash(-9, tmp_path / "xla.log", ())
    assert error.what == "the compiler was killed, most likely for memory"
    assert error.where == str(tmp_path)
    assert "signal 11): no output" in crash(-11, tmp_path / "xla.log", ()).what
