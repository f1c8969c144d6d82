"""What a compilation says while it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pgle.run.compiler.worker import crash, environment, folds_slowly


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


def test_what_reads_stablehlo_starts_no_thread_before_the_worker_forks() -> None:
    script = (
        "import os, pathlib, sys; from pgle.run.ask import jax_private; "
        "jax_private.import_reader(pathlib.Path('step.mlir.xz')); "
        "assert 'jax' in sys.modules; print(len(os.listdir('/proc/self/task')))"
    )
    told = [sys.executable, "-c", script]
    found = subprocess.run(told, env=environment(), capture_output=True, text=True)
    assert found.stdout == "1\n", found.stderr
