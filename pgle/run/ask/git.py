"""What git knows of the program: its commit, and nothing else (addresses of remotes may hold credentials)."""

from __future__ import annotations

import os
import subprocess

TIMEOUT_S = 20  # a work tree of a million files on a network takes seconds to be looked through


def git_commit() -> str:
    """The commit of the working directory, short, with ``+`` where tracked files have changes.

    Empty outside of a work tree, before its first commit, and where git is missing or does not answer.
    """
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if commit and _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*words: str) -> str:
    without_locks = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # the user's own git may run meanwhile
    done = subprocess.run(
        ("git", *words), capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL, env=without_locks,
    )  # fmt: skip
    return done.stdout.strip() if done.returncode == 0 else ""
