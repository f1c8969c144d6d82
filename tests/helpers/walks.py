"""Follows the `Next:` of each answer to its end, as a user does who pastes every command."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run.inputs.next_command import ON_GPU

ENDS = ("Done: ", "Now edit: ", "Now: ")
MOST = 6  # commands of a walk
FINE = (0, 1)  # exit codes of an answer


@dataclass(frozen=True)
class Walk:
    """The commands of a walk, and how it ended."""

    commands: tuple[str, ...]
    codes: tuple[int, ...]  # exit code of each
    end: str  # ``done``, ``gpu``, ``circle``, ``long`` or ``nothing``
    last: str  # the last answer


def walk(first: str, folder: Path, *, always_in_shell: bool = False) -> Walk:
    """Type a command in a folder, and every next one; those of pgle alone in this process, unless
    `always_in_shell`.
    """
    commands, codes, command = [], [], first
    while True:
        commands.append(command)
        code, answer = _typed(command, folder, always_in_shell)
        codes.append(code)
        following = _following(answer)
        if following is None:
            lines = answer.splitlines()
            is_end = any(line.startswith(ENDS) for line in lines)
            end = "done" if is_end else "nothing"
            break
        if f"--capture {ON_GPU}" in following or "--abba" in following:
            end = "gpu"
            break
        if following in commands:
            end = "circle"
            break
        if len(commands) == MOST:
            end = "long"
            break
        command = following
    return Walk(tuple(commands), tuple(codes), end, answer)


def _following(answer: str) -> str | None:
    joined = answer.replace("\\\n", "")  # a long command goes on in the next line
    lines = [line for line in joined.splitlines() if line.startswith("Next: ")]
    return lines[-1].removeprefix("Next: ") if lines else None


PLAIN = re.compile(r"pgle [^|;<>$&*?`()[{#~!\n]*")
"""A command of pgle whose words are the same to `bash` and to `shlex`."""


def _typed(command: str, folder: Path, always_in_shell: bool) -> tuple[int, str]:
    """Run a command as bash does; its exit code and answer."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    changed = {"PATH": path, "COLUMNS": "400", "NO_COLOR": "1"}
    if PLAIN.fullmatch(command) and not always_in_shell:
        return _run_here(shlex.split(command)[1:], folder, changed)
    made = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | changed,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return made.returncode, made.stdout + made.stderr


def _run_here(
    words: list[str], folder: Path, changed: dict[str, str]
) -> tuple[int, str]:
    """Run a command of pgle in this process; its exit code and answer."""
    printed = io.StringIO()
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        for name, value in changed.items():
            patch.setenv(name, value)
        with redirect_stdout(printed), redirect_stderr(said):
            code = run(words)
    return code, printed.getvalue() + said.getvalue()
