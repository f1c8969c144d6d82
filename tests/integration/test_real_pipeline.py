"""`pgle run` with a real program on CPU devices: ended after every stage, and resumed where it
was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from pgle.run.directory.manifest import read_manifest

STAGES = ("profile", "convert", "baseline", "perf")

WORKLOAD = [sys.executable, "-m", "pgle.workloads", "overlap", "--steps", "40"]
SMALL = [
    "--devices",
    "2",
    "--big-rows",
    "64",
    "--small-rows",
    "8",
    "--width",
    "32",
    "--dim",
    "64",
]


def words(run_dir, *options: str) -> list[str]:
    pgle = [
        sys.executable,
        "-m",
        "pgle",
        "run",
        "--run-dir",
        str(run_dir),
        "--capture",
        "jax",
        *options,
    ]
    return [*pgle, "--", *WORKLOAD, *SMALL]


@pytest.fixture(scope="module")
def environ():
    return {
        name: value for name, value in os.environ.items() if name != "XLA_FLAGS"
    } | {"JAX_PLATFORMS": "cpu"}


def run_until_killed(run_dir, environ, announced: str) -> str:
    """Start `pgle run`; kill it and what it started, without a chance to tidy up, when it announces
    a stage.
    """
    child = subprocess.Popen(
        words(run_dir, "--json"), env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert child.stderr is not None
    seen = ""
    for line in child.stderr:
        seen += line
        if line == f"pgle: {announced}\n":
            os.killpg(child.pid, signal.SIGKILL)
            break
    child.stderr.close()
    child.wait(60)
    return seen


@pytest.mark.minutes
@pytest.mark.slow
def test_killed_after_each_stage_and_resumed(tmp_path, environ):
    run_dir = tmp_path / "run"
    for done, begun in enumerate((*STAGES[1:3], "perf")):
        seen = run_until_killed(run_dir, environ, begun)
        for stage in STAGES[:done]:
            assert f"pgle: {stage}: unchanged, skipped" in seen
    finished = subprocess.run(
        words(run_dir, "--json"),
        env=environ,
        capture_output=True,
        timeout=120,
        check=False,
    )
    result = json.loads(finished.stdout)
    assert result["skipped"] == ["profile", "convert", "baseline"], (
        finished.stderr.decode()[-2000:]
    )
    assert result["ran"] == ["perf"]
    assert finished.returncode == 1  # a CPU compiler uses no profile
    again = subprocess.run(
        words(run_dir, "--json"),
        env=environ,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert json.loads(again.stdout)["skipped"] == list(STAGES)
    records = read_manifest(run_dir)
    assert [
        record.exit_code
        for stage in ("profile", "baseline", "perf")
        for record in records.of(stage)
    ] == [0, 0, 0]


def test_a_program_that_fails_ends_the_pipeline_with_its_code(tmp_path, environ):
    run_dir = tmp_path / "run"
    pgle = [
        sys.executable,
        "-m",
        "pgle",
        "run",
        "--run-dir",
        str(run_dir),
        "--capture",
        "jax",
        "--",
    ]
    script = tmp_path / "fails.py"
    script.write_text("import sys; sys.exit(9)\n")
    done = subprocess.run(
        [*pgle, sys.executable, str(script)],
        env=environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 9
    assert done.stdout == b""
    record = read_manifest(run_dir).last("profile")
    assert record is not None
    assert record.exit_code == 9
