"""What `pgle doctor` says of a missing plugin, and `--prove`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run import doctor


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A Python that has jax and no plugin."""
    packages = tmp_path / "packages"
    for name in ("jax", "jaxlib"):
        info = packages / f"{name}-0.8.3.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.8.3\n"
        )
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    (python.parent / "pip").touch()
    ours = shlex.quote(sys.executable)
    script = f'#!/bin/sh\nPYTHONPATH={packages} exec {ours} -S "$@"\n'
    python.write_text(script)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


def test_a_missing_plugin_is_named_with_the_command_that_installs_it(
    environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["doctor", "--python", str(environment), "--json"])
    remedies = [
        check["remedy"] for check in json.loads(capsys.readouterr().out)["checks"]
    ]
    line = f"{environment} -m pip install --no-deps jax-cuda13-plugin==0.8.3 jax-cuda13-pjrt==0.8.3"
    assert line in remedies
    if not shutil.which(
        "nvidia-smi"
    ):  # else its driver may be what fails, which comes first
        run(["doctor", "--python", str(environment)])
        assert capsys.readouterr().out.splitlines()[-1] == f"Next: {line}"


@pytest.mark.rehearse
@pytest.mark.usefixtures("plugin_loaded_once")
def test_prove_shows_every_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "doctor",
        "--prove",
        "--capture",
        "simulated",
        "--run-dir",
        "proof",
        "--json",
    ]
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [link["name"] for link in found["links"]] == [
        *("capture", "conversion", "names", "coverage", "use", "step times"),
    ]
    assert all(link["ok"] for link in found["links"])
    assert found["simulated"]


@pytest.mark.rehearse
@pytest.mark.usefixtures("plugin_loaded_once")
def test_on_one_gpu_the_names_are_those_of_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "DEVICES", 1)
    chain = doctor.prove(tmp_path / "proof", "simulated", "h100", lambda stage: None)
    assert chain.ok
    [names] = (link for link in chain.links if link.name == "names")
    assert re.fullmatch(r"(\d+) of \1 instructions", names.found)
