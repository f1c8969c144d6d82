"""Follows the `Next:` of each answer to its end, as a user does who pastes every command."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pgle.run.inputs.next_command import ON_GPU

ENDS = ("Done: ", "Now edit: ", "Now: ")
MOST = 8  # commands of a walk
FINE = (0, 1)  # exit codes of an answer


@dataclass(frozen=True)
class Walk:
    """The commands of a walk, and how it ended."""

    commands: tuple[str, ...]
    codes: tuple[int, ...]  # exit code of each
    end: str  # ``done``, ``gpu``, ``circle``, ``long`` or ``nothing``
    last: str  # the last answer


def walk(first: str, folder: Path) -> Walk:
    """Type a command in a folder, and every next one."""
    commands, codes, command = [], [], first
    while True:
        commands.append(command)
        code, answer = _typed(command, folder)
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


def _typed(command: str, folder: Path) -> tuple[int, str]:
    """Run a command of pgle by bash; its exit code and answer."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    made = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "400", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return made.returncode, made.stdout + made.stderr
