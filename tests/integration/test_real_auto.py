"""`pgle auto` with JAX's own machinery on CPU devices; their traces give no costs, so the program
puts some in.

Everything else is jax: tracing each run, aggregation, recompilation, both keys of the compilation
cache.
"""

from __future__ import annotations

import json

import pytest
from documents import AUTO

from pgle.cli.main import run
from pgle.run.directory.manifest import read_manifest


@pytest.fixture
def auto(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)

    def start(
        *options: str, costs: bool = True, ahead: bool = False
    ) -> tuple[int, dict]:
        how = ["costs"] * costs + ["ahead"] * ahead
        code = run(
            [
                "auto",
                "--run-dir",
                str(tmp_path / "run"),
                "--json",
                *options,
                *AUTO,
                *how,
            ]
        )
        captured = capfd.readouterr()
        assert captured.out, captured.err
        return code, json.loads(captured.out)

    return start


def test_a_function_is_compiled_again_after_its_runs_and_a_second_run_takes_it_from_the_cache(
    auto, tmp_path
):
    code, result = auto("--runs", "2")
    assert (code, result["outcome"]) == (0, "recompiled")
    assert result["recompiled"]["jit__lambda"] > 0
    record = read_manifest(tmp_path / "run").last("auto")
    assert record is not None
    assert record.exit_code == 0
    assert record.environment["JAX_PGLE_PROFILING_RUNS"] == "2"
    code, result = auto("--runs", "2", "--force")
    assert (code, result["outcome"]) == (0, "loaded")
    assert "jit__lambda" in result["loaded"]


def test_more_runs_than_steps_are_said(auto):
    code, result = auto("--runs", "50")
    assert code == 1
    assert result["recompiled"] == {}


def test_cpu_devices_are_said(auto):
    code, result = auto(costs=False)
    assert (code, result["outcome"]) == (1, "no-gpu")
    assert not any("CUPTI" in line for line in result["warnings"])


def test_functions_compiled_ahead_of_time_are_counted(auto, tmp_path):
    code, _ = auto(costs=False, ahead=True)
    assert code == 1
    facts = json.loads((tmp_path / "run/auto/facts.json").read_text())
    assert facts["auto_pgle"]["ahead_of_time"] == 1


@pytest.mark.nsys
def test_the_optimised_program_is_handed_over_to_nsys(auto, tmp_path):
    code, result = auto("--then-nsys")
    assert code == 0, result
    assert "jit__lambda" in result["handed_over"]
    record = read_manifest(tmp_path / "run").last("auto-nsys")
    assert record is not None
    assert record.environment["JAX_COMPILATION_CACHE_EXPECT_PGLE"] == "true"
    assert any(
        "no trace: " in line for line in result["warnings"]
    )  # there is no GPU here to trace
