"""Commands in narrow windows: no line is wider, no word is broken, nothing that 200 columns show is
missing.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recorded
from documents import BF16, BIG, DUMP, NEW, PAX, ROOT, T, prepare, produce
from rich.cells import cell_len

from pgle.cli.main import run
from pgle.report import stages
from pgle.report.page import plain
from pgle.run.compiler.compile import Compiler
from pgle.run.directory.directory import RunDirectory
from pgle.run.stages.auto import AutoResult
from pgle.run.stages.stage import StageRequest, StageResult

pytestmark = pytest.mark.usefixtures("read_once")

COMMANDS = {
    "show": ["show", BF16],
    "trace": ["show", PAX[0]],
    "verify": ["verify", BF16, "--hlo", NEW],
    "diff": ["diff", BF16, BIG],
    "confirm": ["confirm", f"{T}/maxtext_pgle/llama2_7b_pgle_run.log"],
    "compare": ["compare", *PAX],
    "predict": ["predict", NEW],
    "analyze": ["analyze", *PAX, *DUMP],
    "flags": ["flags", "preset"],
    "lint": [
        "flags",
        "lint",
        "--jaxlib",
        "0.10.2",
        "--",
        "--xla_gpu_no_such=1",
        "--xla_dump_to=/d",
    ],
    "explain": ["flags", "explain", "xla_gpu_all_gather_combine_threshold_bytes"],
    "complete": ["complete", BF16, "--hlo", NEW, "--force", "-o", "k.pbtxt"],
    "doctor": ["doctor"],
    "init": ["init"],
    "here": [],
}
RECORDED = {
    "rehearse": [
        "rehearse",
        recorded.PROGRAM,
        "--no-cache",
        "--target",
        "a100",
        "-o",
        "rehearsal",
    ],
    "tune": [
        "tune",
        recorded.PROGRAM,
        "--no-cache",
        "--target",
        "a100",
        "--budget",
        "1",
        "-o",
        "tuned",
    ],
    "run": [
        "run",
        "--run-dir",
        "runs/a",
        "--capture",
        "simulated",
        "--target",
        "a100",
        "--",
        recorded.PROGRAM,
    ],
    "report": ["report", "runs/a"],
    "history": [
        "history",
        "add",
        "steps.jsonl",
        "--name",
        "a",
        "--commit",
        "c",
        "--file",
        "h.jsonl",
    ],
}
"""What compiles, or reads what was compiled."""
AUTO = AutoResult(
    StageResult(
        StageRequest("auto", ("python", "train.py", "--config", "a b"), RunDirectory(Path("runs/auto")), "baseline"),
        simulated=False, step_times_s=(0.2, 0.21, 0.2),
    ),
    Path("runs/auto/auto-cache"), "recompiled", "2 modules were compiled again with measured costs",
    {"jit_train_step": 12_345, "jit_evaluate": 678},
)  # fmt: skip
Answer = list[Callable[[], object]]
"""What prints it."""
WIDTHS = (60, 80, 100, 140)
IN_TMUX = {
    **{name: COMMANDS[name] for name in ("verify", "predict", "show", "confirm", "compare")},
    "analyze": ["analyze", NEW], "flags": COMMANDS["flags"],
    "report": ["report", "runs/a", "--force", "-o", "page.html"],
    "search": ["report", "tuned", "--force", "-o", "page.html"],
}  # fmt: skip
SHORTENED = ("confirm",)
"""Long proofs and paths end in …, as --json does not."""
DRAWN = re.compile(r"[^\w]*[█-▏░▒▓┤├^'│┼─▁-▇\ue000-\uf8ff][^\w]*|.*[█▏▎▍▌▋▊▉░▒▓┤├].*")
"""Bars, lanes and axes: drawn to the width."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("widths")
    prepare(place)
    produce(
        [
            "history",
            "add",
            "steps.jsonl",
            "--name",
            "a",
            "--commit",
            "c",
            "--file",
            "h.jsonl",
        ],
        place,
    )
    produce(
        [
            "history",
            "add",
            "slower.jsonl",
            "--name",
            "a",
            "--hardware",
            "h100",
            "--file",
            "h.jsonl",
        ],
        place,
    )
    return place


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Answer]:
    """Each command is run once, then its answer is shown at each width; what prints in another way
    is run again.
    """
    found: dict[str, Answer] = {}
    shown: list[Any] = []

    def show(
        function: Callable[..., object], *words: object, **options: object
    ) -> None:
        shown.append(partial(function, *words, **options))

    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        patch.setattr(Compiler, "_ask", recorded.answer)
        patch.setattr(plain, "show", partial(show, plain.show))
        for name, words in (COMMANDS | RECORDED).items():
            shown.clear()
            with redirect_stdout(io.StringIO()) as otherwise:
                run(words)
            is_again = name in COMMANDS and otherwise.getvalue()
            found[name] = [partial(run, words)] if is_again else list(shown)
    made = {"auto": stages.auto_page(AUTO)}
    return found | {name: [partial(plain.show, page)] for name, page in made.items()}


@pytest.fixture(scope="module")
def whole() -> dict[str, list[str]]:
    """Answers at 200 columns, as they are asked for."""
    return {}


def printed(
    answer: Answer,
    width: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(width))
    capsys.readouterr()
    for part in answer:
        part()
    return capsys.readouterr().out.splitlines()


def words(lines: list[str]) -> set[str]:
    """The words of a text without punctuation at their ends, bars and lanes left out."""
    drawn = (
        line
        for line in lines
        if not DRAWN.fullmatch(line.strip()) and not re.match(r"\s{8,}0\s.*\w", line)
    )
    found = {word for line in drawn for word in line.split() if re.search(r"\w", word)}
    return {word.strip(",;:.") for word in found if not word.endswith("…")}


def lanes(lines: list[str]) -> list[str]:
    """What begins each line of shades and marks; it has nothing but these where it goes on a line
    before.
    """
    return [line[:15] for line in lines if re.search(r"[░▒▓]|\^\^|'\^|\^'", line)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*COMMANDS, *RECORDED, "auto"])
def test_it_fits_and_nothing_is_broken_or_missing(
    name: str, width: int, folder: Path, answers: dict[str, Answer], whole: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if name not in whole:
        whole[name] = printed(answers[name], 200, folder, monkeypatch, capsys)
    lines = printed(answers[name], width, folder, monkeypatch, capsys)
    assert not [
        line
        for line in lines
        if cell_len(line) > width and max(map(cell_len, line.split())) < width - 12
    ]
    missing = words(whole[name]) - words(lines)
    assert not missing or (name in SHORTENED and "…" in "".join(lines)), "cut"
    assert not words(lines) - words(whole[name]), "broken"
    assert lanes(lines) == lanes(whole[name]), "a lane of a timeline is broken"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.parametrize(
    ("name", "width", "colour"),
    [(name, WIDTHS[at % len(WIDTHS)], at % 3 != 2) for at, name in enumerate(IN_TMUX)],
)
def test_a_real_terminal_shows_what_a_pipe_of_its_width_does(
    name: str, width: int, colour: bool, folder: Path, answers: dict[str, Answer], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    command = shlex.join([sys.executable, recorded.__file__, *IN_TMUX[name]])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"} | (
        {} if colour else {"NO_COLOR": "1"}
    )
    piped = printed([partial(run, IN_TMUX[name])], width, folder, monkeypatch, capsys)
    monkeypatch.delenv("COLUMNS")
    tmux = ["tmux", "-u", "-S", str(tmp_path / "tmux")]
    shown = f"{command} 2>/dev/null; {shlex.join(tmux)} wait-for -S done; cat"
    size = ["-x", str(width), "-y", "400"]
    try:
        subprocess.run(
            [*tmux, "new-session", "-d", *size, "-c", str(folder), shown],
            env=environment,
            check=True,
        )
        subprocess.run([*tmux, "wait-for", "done"], timeout=60, check=True)
        plain, escaped = (
            subprocess.run(
                [*tmux, "capture-pane", "-p", "-J", *more],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for more in ([], ["-e"])
        )
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    assert [line.rstrip() for line in plain.rstrip().splitlines()] == [
        line.rstrip() for line in piped
    ]
    assert colour or not re.search(r"\x1b\[(?:\d+;)*3[0-7]m", escaped)
