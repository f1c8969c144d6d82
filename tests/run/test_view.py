"""`pgle view`: what XProf is given, and what is said where it cannot be."""

import os
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run.xprof import find_xplanes, log_directory

ROOT = Path(__file__).parents[2]
XPLANE = ROOT / "testdata/jax_xplane/jax08_gemm.xplane.pb"


@pytest.fixture
def xprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in XProf's place that writes down what it was started with, and what it then finds."""
    said, folder = tmp_path / "said", tmp_path / "bin"
    folder.mkdir()
    program = folder / "xprof"
    program.write_text(f'#!/bin/sh\necho "$@" > {said}\nls ${{1#--logdir=}}/plugins/profile/run >> {said}\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    monkeypatch.setenv("PATH", os.defpath)
    return said


def test_xprof_is_started_on_the_traces_of_a_run(xprof: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["view", str(XPLANE), "--port", "7007"]) == 0
    words, listed = xprof.read_text().splitlines()
    assert words.endswith("--port=7007")
    assert listed == XPLANE.name
    assert "http://localhost:7007/" in capsys.readouterr().err


def test_without_xprof_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["view", str(XPLANE)]) == 2
    assert "XProf is not installed; pip install 'pgle[xprof]'" in capsys.readouterr().err


def test_a_trace_of_nsys_is_for_another_command(xprof: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["view", str(ROOT / "testdata/pax_fsdp4/proc0.sqlite")]) == 2
    assert "XProf reads no other; look at it with: pgle report" in capsys.readouterr().err


def test_the_traces_of_a_run_directory_are_those_of_its_profile_stage(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": "pgle.manifest/1", "stages": []}')
    for rank in ("rank0000", "rank0001"):
        folder = tmp_path / "profile/trace" / rank / "plugins/profile/now"
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb").write_bytes(b"")
    found = find_xplanes(tmp_path)
    assert len(found) == 2
    with log_directory(found) as folder:
        assert {file.name for file in folder.rglob("*.pb")} == {"host.xplane.pb", "host-2.xplane.pb"}
