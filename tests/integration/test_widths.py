"""Commands in narrow windows: no line is wider, no word is broken, nothing that 200 columns show is missing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import BF16, BIG, DUMP, NEW, PAX, ROOT, prepare, produce
from rich.cells import cell_len

from pgle.cli.main import run

COMMANDS = {
    "show": ["show", BF16, "--top", "6"],
    "trace": ["show", PAX[0], "--top", "6"],
    "verify": ["verify", BF16, "--hlo", NEW],
    "diff": ["diff", BF16, BIG, "--top", "6"],
    "confirm": ["confirm", f"{ROOT}/testdata/maxtext_pgle/llama2_7b_pgle_run.log"],
    "compare": ["compare", *PAX],
    "predict": ["predict", NEW],
    "analyze": ["analyze", *PAX, *DUMP],
    "flags": ["flags", "preset"],
    "history": ["history", "show", "--file", "h.jsonl"],
    "lint": ["flags", "lint", "--jaxlib", "0.10.2", "--", "--xla_gpu_no_such=1", "--xla_dump_to=/d"],
    "explain": ["flags", "explain", "xla_gpu_all_gather_combine_threshold_bytes"],
    "complete": ["complete", BF16, "--hlo", NEW, "--force", "-o", "k.pbtxt"],
    "doctor": ["doctor"],
    "init": ["init"],
    "here": [],
    "merge": ["merge", BF16, BIG, "--force", "-o", "m.pbtxt"],
}
WIDTHS = (60, 80, 100, 140)
IN_TMUX = ("verify", "predict", "diff", "show", "confirm", "compare", "analyze", "flags", "history", "merge")
SHORTENED = ("confirm",)
"""Long proofs and paths end in …, as --json does not."""
DRAWN = re.compile(r"[^\w]*[█-▏░▒▓┤├^'│┼─▁-▇\ue000-\uf8ff][^\w]*|.*[█▏▎▍▌▋▊▉░▒▓┤├].*")
"""Bars, lanes and axes: drawn to the width."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("widths")
    prepare(place)
    produce(["history", "add", "steps.jsonl", "--name", "a", "--commit", "c", "--file", "h.jsonl"], place)
    produce(["history", "add", "slower.jsonl", "--name", "a", "--hardware", "h100", "--file", "h.jsonl"], place)
    return place


def printed(
    name: str, width: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(width))
    capsys.readouterr()
    run(COMMANDS[name])
    return capsys.readouterr().out.splitlines()


def words(lines: list[str]) -> set[str]:
    """The words of a text without punctuation at their ends, bars and lanes left out."""
    drawn = (line for line in lines if not DRAWN.fullmatch(line.strip()) and not re.match(r"\s{8,}0\s.*\w", line))
    found = {word for line in drawn for word in line.split() if re.search(r"\w", word)}
    return {word.strip(",;:.") for word in found if not word.endswith("…")}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_it_fits_and_nothing_is_broken_or_missing(
    name: str, width: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = printed(name, 200, folder, monkeypatch, capsys)
    lines = printed(name, width, folder, monkeypatch, capsys)
    assert not [line for line in lines if cell_len(line) > width and max(map(cell_len, line.split())) < width - 12]
    assert not words(whole) - words(lines) or (name in SHORTENED and "…" in "".join(lines)), "cut"
    assert not words(lines) - words(whole), "broken"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.parametrize(
    ("name", "width", "colour"),
    [(name, WIDTHS[at % len(WIDTHS)], at % 3 != 2) for at, name in enumerate(IN_TMUX)],
)
def test_a_real_terminal_shows_what_a_pipe_of_its_width_does(
    name: str, width: int, colour: bool, folder: Path, tmp_path: Path
) -> None:
    command = shlex.join([sys.executable, "-m", "pgle", *COMMANDS[name]])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "COLUMNS": str(width)}
    piped = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True).stdout
    environment |= {} if colour else {"NO_COLOR": "1"}
    del environment["COLUMNS"]
    tmux = ["tmux", "-u", "-S", str(tmp_path / "tmux")]
    shown = f"{command} 2>/dev/null; {shlex.join(tmux)} wait-for -S done; cat"
    size = ["-x", str(width), "-y", "400"]
    try:
        subprocess.run([*tmux, "new-session", "-d", *size, "-c", str(folder), shown], env=environment, check=True)
        subprocess.run([*tmux, "wait-for", "done"], timeout=60, check=True)
        plain, escaped = (
            subprocess.run(
                [*tmux, "capture-pane", "-p", "-J", *more], capture_output=True, text=True, check=True
            ).stdout
            for more in ([], ["-e"])
        )
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    assert [line.rstrip() for line in plain.rstrip().splitlines()] == [line.rstrip() for line in piped.splitlines()]
    assert colour or not re.search(r"\x1b\[(?:\d+;)*3[0-7]m", escaped)
