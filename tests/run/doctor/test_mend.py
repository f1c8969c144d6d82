"""`pgle doctor --fix` and `--prove`."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A Python whose pip says what it is asked for; it has jax and no plugin."""
    packages = tmp_path / "packages"
    for name in ("jax", "jaxlib"):
        info = packages / f"{name}-0.8.3.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.8.3\n")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    (python.parent / "pip").touch()
    script = (
        f'#!/bin/sh\nif [ "$1" = -m ]; then echo "$@" >> {tmp_path}/asked; '
        f'for name in plugin pjrt; do mkdir -p "{packages}/jax_cuda13_$name-0.8.3.dist-info"; '
        f'printf "Metadata-Version: 2.1\\nName: jax-cuda13-$name\\nVersion: 0.8.3\\n" '
        f'> "{packages}/jax_cuda13_$name-0.8.3.dist-info/METADATA"; done; exit 0; fi\n'
        f'PYTHONPATH={packages} exec {sys.executable} -S "$@"\n'
    )
    python.write_text(script)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


def test_fix_shows_one_command_and_runs_nothing(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--fix", "--python", str(environment), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    command = f"{environment} -m pip install --no-deps jax-cuda13-plugin==0.8.3 jax-cuda13-pjrt==0.8.3"
    assert (found["schema"], found["command"]) == ("pgle.fix/1", command)
    assert not (tmp_path / "asked").exists()


def test_fix_with_yes_runs_it_and_says_what_changed(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--fix", "--yes", "--python", str(environment), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["before"] == {"jax": "0.8.3", "jaxlib": "0.8.3"}
    assert found["after"] == {**found["before"], "jax-cuda13-plugin": "0.8.3", "jax-cuda13-pjrt": "0.8.3"}
    asked = (tmp_path / "asked").read_text()
    assert asked == "-m pip install --no-deps jax-cuda13-plugin==0.8.3 jax-cuda13-pjrt==0.8.3\n"


@pytest.mark.rehearse
def test_prove_shows_every_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["doctor", "--prove", "--capture", "simulated", "--run-dir", "proof", "--json"]
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [link["name"] for link in found["links"]] == [
        *("capture", "conversion", "names", "coverage", "use", "step times"),
    ]
    assert all(link["ok"] for link in found["links"])
    assert found["simulated"]
