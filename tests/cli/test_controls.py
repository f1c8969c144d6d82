"""No name from outside controls the terminal, whatever prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgle.cli.main import run

NAME = "a\x1b[31mb\u202ec"
TRACE = "nsys_synthetic/synthetic_cases.sqlite"
COMMANDS = {
    "report": ["report", "TRACE", "-o", f"OUT/{NAME}.html"],
    "convert": ["convert", "TRACE", "-o", f"OUT/{NAME}.pbtxt"],
    "preset": ["flags", "preset", "pgle-perf", "--profile", f"OUT/{NAME}.pbtxt"],
    "export lines": [
        "flags",
        "preset",
        "pgle-perf",
        "--shell",
        "--profile",
        f"OUT/{NAME}.pbtxt",
    ],
    "no such file": ["show", f"OUT/{NAME}"],
    "no such command": [NAME],
    "history": [
        "history",
        "add",
        "STEPS",
        "--name",
        NAME,
        "--file",
        f"OUT/{NAME}.jsonl",
    ],
    "init": ["init", "slurm", "-o", f"OUT/{NAME}"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_printed_holds_no_control_character(
    command: str, testdata: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text(
        "".join(f'{{"step": {number}, "step_time_s": 0.2}}\n' for number in range(8))
    )
    places = {"TRACE": str(testdata / TRACE), "STEPS": str(steps)}
    run(
        [
            places.get(word, word.replace("OUT/", f"{tmp_path}/"))
            for word in COMMANDS[command]
        ]
    )
    out, err = capfd.readouterr()
    assert all(
        line.isprintable() for line in (out + err).replace("\t", " ").split("\n")
    )
    assert r"\x1b[31m" in out + err or not command.startswith(
        ("report", "preset", "no")
    )
