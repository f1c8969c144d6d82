"""`pgle init`: files from the package, never over others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run.init import STARTERS


@pytest.mark.parametrize("name", STARTERS)
def test_a_starter_is_written_with_what_to_do_next(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", name, "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["written"]) == sorted(str(tmp_path / place) for place in STARTERS[name].files.values())
    assert all(Path(path).read_bytes() for path in found["written"])
    assert run(["init", name, "-o", str(tmp_path), "--force"]) == 0
    assert f"Next, in {tmp_path}: {found['next']}" in capsys.readouterr().out


def test_what_exists_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pgle.sbatch").write_text("mine")
    assert run(["init", "slurm", "-o", str(tmp_path)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pgle.sbatch"]


def test_a_mistyped_starter_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "slrum"]) == 2
    assert "did you mean 'slurm'?" in capsys.readouterr().err


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in STARTERS)


@pytest.mark.parametrize("name", ["slurm", "github", "gitlab"])
def test_scripts_are_sound_to_the_shell(name: str, tmp_path: Path) -> None:
    run(["init", name, "-o", str(tmp_path)])
    scripts = [path for path in tmp_path.rglob("*") if path.suffix in (".sh", ".sbatch")]
    assert scripts
    for script in scripts:
        assert script.stat().st_mode & 0o111
        assert subprocess.run(["bash", "-n", script], capture_output=True, check=False).returncode == 0


def test_the_makefile_runs_each_stage_once_and_in_order(tmp_path: Path) -> None:
    run(["init", "make", "-o", str(tmp_path)])
    words = ["make", "-n", "-f", "Makefile.pgle", "compare", "CMD=python x.py", "RUN=r"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        *("profile", "convert", "verify", "perf", "perf", "compare"),
    ]
