"""The Makefile, as far as it goes without installing anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """As a person types it, though `make test` runs this."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS"))
    }
    return subprocess.run(
        ["make", "-n", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )


def test_a_run_directory_with_a_blank_is_refused_with_the_command_to_type_instead():
    done = make("profile", "RUN=runs/a b")
    assert done.returncode == 2
    assert "pgle run --run-dir 'runs/a b' -- COMMAND" in done.stderr
    assert done.stdout == ""


def test_profile_runs_the_profile_stage_alone(tmp_path):
    (tmp_path / ".installed").touch()
    done = make("profile", "RUN=runs/none", f"VENV={tmp_path}")
    scripts = [line.strip() for line in done.stdout.splitlines() if "scripts/" in line]
    assert scripts == ["scripts/profile.sh"]


def test_a_virtual_environment_and_a_python_with_blanks_are_words(tmp_path):
    place = tmp_path / "an env"
    place.mkdir()
    done = make("types", f"VENV={place}", "PYTHON=/a b/python3")
    assert f"scripts/make_venv.sh '/a b/python3' '{place}'" in done.stdout
    assert f"'{place}/bin/mypy'" in done.stdout
    for name in (".installed", ".installed-dev"):
        (place / name).touch()
    assert make("types", f"VENV={place}").stdout == f"'{place}/bin/mypy'\n"


def test_a_command_with_blanks_reaches_pgle_as_its_words(tmp_path):
    program = tmp_path / "a pgle"
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\n')
    program.chmod(0o755)
    command = "'/an env/bin/python' train.py --name 'a b'"
    environ = {**os.environ, "PGLE": str(program), "RUN": "runs/a", "CMD": command}
    done = subprocess.run(
        [ROOT / "scripts" / "demo.sh"],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
    )
    words = done.stdout.splitlines()
    last = words[words.index("<-->") + 1 :]
    assert last == ["</an env/bin/python>", "<train.py>", "<--name>", "<a b>"]
