"""The commit that a run is recorded with: that of its work tree, a mark where it has changes,
nothing else.
"""

import subprocess
from pathlib import Path

import pytest

from pgle.run.ask.machine import git_commit


def git(*words: str) -> str:
    done = subprocess.run(("git", *words), capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.com")
    git("init", "--quiet")
    git("remote", "add", "origin", "https://user:secret@example.com/x.git")
    (tmp_path / "train.py").write_text("step = 1\n")
    git("add", "train.py")
    git("commit", "--quiet", "-m", "first")
    return tmp_path


def test_the_commit_is_that_of_head(tree: Path) -> None:
    assert git("rev-parse", "HEAD").startswith(git_commit())
    assert len(git_commit()) == 12


def test_changes_that_are_not_committed_are_marked(tree: Path) -> None:
    (tree / "train.py").write_text("step = 2\n")
    assert git_commit().endswith("+")


def test_files_that_git_does_not_know_are_no_change(tree: Path) -> None:
    (tree / "runs.log").write_text("")
    assert not git_commit().endswith("+")


def test_outside_of_a_work_tree_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() == ""


def test_without_git_there_is_none(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git_commit() == ""
