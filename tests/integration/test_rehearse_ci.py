"""`rehearse.sh` and its action, on a small repository with a stand-in for pytest."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "pgle" / "starters" / "ci" / "rehearse.sh"

ACTION = ROOT / ".github" / "actions" / "rehearse" / "action.yml"

# As after `pip install -e .`: the code of the checkout is importable from everywhere.
STAND_IN = """import os, sys
sys.path.append(os.path.join({checkout!r}, "src"))
import model
with open(os.environ["SEEN"], "a") as file:
    file.write(model.SIDE + "\\n")
assert not any(os.path.isabs(word) for word in sys.argv[1:])  # pytest takes it for a test
for word in sys.argv:
    if word.startswith("--pgle-markdown="):
        with open(word.partition("=")[2], "w") as file:
            file.write("the report\\n")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose package lies in src, with a commit before the change."""
    return committed(tmp_path / "checkout", ".")


def committed(folder: Path, project: str) -> Path:
    """A repository with a project in one of its folders, with a commit before the change."""
    model = folder / project / "src" / "model.py"
    model.parent.mkdir(parents=True)
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git = ("git", "-C", str(folder), *identity)
    subprocess.run([*git, "init", "--quiet"], check=True)
    for side in ("base", "change"):
        model.write_text(f"SIDE = {side!r}\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", side], check=True)
    return folder / project


def rehearse(checkout: Path, base: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a checkout; the stand-in writes which code it imports."""
    python = checkout.parent / "python"
    script = checkout.parent / "stand_in.py"
    script.write_text(STAND_IN.format(checkout=str(checkout)))
    words = shlex.join([sys.executable, str(script)])
    python.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    python.chmod(0o755)
    settings = {"BASE": base, "PYTHON": str(python), "SEEN": f"{checkout.parent}/seen"}
    return subprocess.run(
        ["sh", str(SCRIPT)],
        cwd=checkout,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **settings},
        capture_output=True,
        text=True,
    )


def test_each_side_imports_its_own_code(checkout: Path) -> None:
    found = rehearse(checkout, "HEAD~1")
    assert (found.returncode, found.stdout) == (0, "the report\n"), found.stderr
    assert (checkout.parent / "seen").read_text().split() == ["base", "change"]


def test_a_project_in_a_folder_of_its_repository_is_compared(tmp_path: Path) -> None:
    project = committed(tmp_path, "packages/my model")
    found = rehearse(project, "HEAD~1")
    assert (found.returncode, found.stdout) == (0, "the report\n"), found.stderr
    assert (project.parent / "seen").read_text().split() == ["base", "change"]


def test_a_base_that_is_not_fetched_is_named_with_a_remedy(checkout: Path) -> None:
    found = rehearse(checkout, "origin/main")
    assert found.returncode == 2
    assert found.stderr == (
        "BASE=origin/main is not here: git fetch origin main, or fetch-depth: 0 for actions/checkout\n"
    )


GH = """#!/bin/sh
case $1 in
pr) echo "$FOUND" ;;
api) echo "$4 $5" && cat "${7#body=@}" ;;
esac
"""


@pytest.mark.parametrize(
    ("found", "call"),
    [
        ("", "POST repos/o/r/issues/7/comments"),
        (
            "https://example.org/o/r/pull/7#issuecomment-42",
            "PATCH repos/o/r/issues/comments/42",
        ),
    ],
)
def test_the_action_edits_its_own_comment_only(
    found: str, call: str, tmp_path: Path
) -> None:
    step = yaml.safe_load(ACTION.read_text())["runs"]["steps"][-1]
    assert "head.repo.full_name == github.repository" in step["if"]
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    report = tmp_path / "report.md"
    report.write_text("the report\n")
    settings = {"FOUND": found, "GH_REPO": "o/r", "NUMBER": "7", "REPORT": str(report)}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        env={**os.environ, **settings, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == f"{call}\n<!-- pgle -->\nthe report\n"
