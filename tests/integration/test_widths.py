"""Ten commands in narrow windows: no line is wider, no word is broken, nothing that 200 columns show is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import BF16, BIG, DUMP, NEW, PAX, ROOT, prepare
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
    "merge": ["merge", BF16, BIG, "--force", "-o", "m.pbtxt"],
}
SHORTENED = ("confirm",)
"""Long proofs and paths end in …, as --json does not."""
DRAWN = re.compile(r"[^\w]*[█-▏░▒▓┤├^'│┼─▁-▇\ue000-\uf8ff][^\w]*|.*[█▏▎▍▌▋▊▉░▒▓┤├].*")
"""Bars, lanes and axes: drawn to the width."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("widths")
    prepare(place)
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


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("name", COMMANDS)
def test_it_fits_and_nothing_is_broken_or_missing(
    name: str, width: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = printed(name, 200, folder, monkeypatch, capsys)
    lines = printed(name, width, folder, monkeypatch, capsys)
    assert not [line for line in lines if cell_len(line) > width and max(map(cell_len, line.split())) < width - 12]
    assert not words(whole) - words(lines) or (name in SHORTENED and "…" in "".join(lines)), "cut"
    assert not words(lines) - words(whole), "broken"
