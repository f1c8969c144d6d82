"""Records of real runs: before the command starts and after it has ended."""

import sys

import pytest

from pgle.run.ask.jaxlib import installed
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import read_manifest
from pgle.run.process.environment import build_environment
from pgle.run.stages.stage import StageRequest, begin_record, end_record


@pytest.fixture
def begun(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment = build_environment(
        "async", environ={"XLA_FLAGS": "--xla_gpu_autotune_level=0", "HOME": "/home/me"}
    )
    words = ("python", "t.py", "--api-key=x")
    request = StageRequest("profile", words, RunDirectory(tmp_path / "run"), "async")
    return request, begin_record(
        request, request.plan(installed().versions), environment
    )


def test_a_stage_that_is_running_is_in_the_manifest(begun):
    request, record = begun
    assert read_manifest(request.run.path).stages == (record,)
    assert (record.exit_code, record.ended) == (None, "")


def test_the_record_holds_what_decides_how_the_program_compiles(begun):
    _, record = begun
    assert record.versions["python"] == sys.version.split()[0]
    assert "jaxlib" in record.versions
    assert record.xla_flags.endswith("--xla_gpu_autotune_level=0")
    assert record.mode == "async"


def test_nothing_private_is_recorded(begun):
    _, record = begun
    assert record.argv == ("python", "t.py", "--api-key=***")
    assert "HOME" not in record.environment


def test_the_end_completes_the_record(begun):
    request, record = begun
    trace = request.run.path / "trace.pb"
    trace.write_bytes(b"abc")
    end_record(
        request.run, record, 3, outputs=[trace], warnings=["slow"], facts={"steps": 5}
    )
    (ended,) = read_manifest(request.run.path).stages
    assert (ended.exit_code, ended.outputs[0].path, ended.warnings[-1]) == (
        3,
        "trace.pb",
        "slow",
    )
    assert ended.facts == {"steps": 5}
    assert ended.ended > ended.started
