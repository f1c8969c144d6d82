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
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    return subprocess.run(
        ["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False, env=environ
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
