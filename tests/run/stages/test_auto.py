"""What AutoPGLE came to, from what the hook saw."""

from __future__ import annotations

import pytest

from pgle.errors import UserError
from pgle.requests.stages import Auto
from pgle.run.directory.directory import RunDirectory
from pgle.run.stages.auto import _outcome, run_auto
from pgle.run.stages.stage import StageRequest

GPU = {"compilations": 3, "platform": "gpu"}
EMPTY = "x.py:1: RuntimeWarning: PGLE collected an empty trace, may be due to contention with another tool\n"


@pytest.mark.parametrize(
    ("facts", "log", "outcome"),
    [
        ({}, "", "nothing-compiled"),
        ({"compilations": 2, "platform": "cpu"}, EMPTY, "no-gpu"),
        (GPU | {"auto_pgle": {"recompiled": {"jit_step": 812}}}, "", "recompiled"),
        (GPU | {"auto_pgle": {"recompiled": {"jit_step": 0}}}, "", "too-few-runs"),
        (GPU | {"auto_pgle": {"found_optimised": 1}}, "", "loaded"),
        (GPU | {"auto_pgle": {"ahead_of_time": 1}}, "", "ahead-of-time"),
        (GPU | {"auto_pgle": {"ahead_of_time": 1}}, EMPTY, "empty-trace"),
        (GPU, "", "too-few-runs"),
    ],
)
def test_outcomes(tmp_path, facts, log, outcome):
    path = tmp_path / "output.log"
    path.write_text(log)
    assert _outcome(3, path, facts)[0] == outcome


def test_a_function_compiled_ahead_of_time_is_said_to_be_out_of_reach(tmp_path):
    path = tmp_path / "output.log"
    path.write_text("")
    assert (
        "lower().compile()"
        in _outcome(3, path, GPU | {"auto_pgle": {"ahead_of_time": 2}})[1]
    )


def test_without_a_gpu_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr("pgle.run.stages.auto.has_driver", lambda: False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.raises(UserError, match="no driver of a GPU"):
        words = ("python", "-c", "raise SystemExit('ran')")
        run = RunDirectory(tmp_path / "run")
        run_auto(StageRequest("auto", words, run, "baseline"), Auto())
    assert not (tmp_path / "run").exists()
