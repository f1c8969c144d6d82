"""An answer on real data fits a screen of 100 columns: the verdict first, the command to type next
last.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import recorded
from documents import BF16, BIG, DUMP, NEW, PAX, ROOT, prepare, produce

from pgle.cli.main import run
from pgle.report import text
from pgle.run.compiler.compile import Compiler

pytestmark = pytest.mark.usefixtures("read_once")

LOG = "run.log"
COMPILED = [recorded.PROGRAM, "--no-cache", "--target", "a100"]
SCREENS: list[tuple[list[str], int, str]] = [
    (
        ["compare", "steps.jsonl", "slower.jsonl"],
        12,
        "5.0 % slower (2.2 … 7.9 %, 95 % CI)",
    ),
    (["compare", *PAX], 12, "Undecided: −0.1 % (−2.9 … +2.7 %, 95 % CI)"),
    (["compare", LOG, "steps.jsonl"], 12, "95.2 % faster (94.4 … 96.0 %, 95 % CI)"),
    (
        [
            "compare",
            "steps.jsonl",
            "slower.jsonl",
            "--fail-slower",
            "1%",
            "--max-loss-change",
            "1%",
        ],
        12,
        "5.0 % slower",
    ),
    (
        [
            "history",
            "add",
            "steps.jsonl",
            "--name",
            "a",
            "--hardware",
            "h",
            "--file",
            "h.jsonl",
        ],
        12,
        "Added: 200.4 ms ± ",
    ),
    (
        ["flags", "explain", "xla_gpu_all_gather_combine_threshold_bytes"],
        20,
        "Join small all-gathers",
    ),
    (
        ["flags", "explain", "xla_gpu_enable_latency_hiding_scheduler"],
        21,
        "Use the latency-hiding scheduler",
    ),
    (
        [
            "flags",
            "lint",
            "--jaxlib",
            "0.10.2",
            "--",
            "--xla_gpu_no_such=1",
            "--xla_dump_to=/d",
        ],
        10,
        "1 error, ",
    ),
    (["flags", "preset"], 20, "presets"),
    (
        ["analyze", *PAX, *DUMP],
        30,
        "! Fuse the attention: saves 42.0 % (40.9 … 43.2 %) of the step",
    ),
    (
        ["analyze", PAX[0], "--against", PAX[1], *DUMP],
        26,
        "Cannot tell whether steps changed: both sides are",
    ),
    (
        ["report", *PAX, *DUMP],
        8,
        "! Fuse the attention: saves 42.0 % (40.9 … 43.2 %) of the step",
    ),
    (["show", PAX[0]], 26, ""),
    (
        ["convert", *PAX, *DUMP, "--force", "-o", "a.pbtxt"],
        8,
        "✓ wrote a.pbtxt: 2,514 costs (2,491 compute",
    ),
    (
        ["verify", "pax.pbtxt", *DUMP],
        4,
        "✓ the profile covers 100.0 % of the step's time",
    ),
    (["verify", BF16, *DUMP], 16, "✗ FAILED: 5 of 23 collectives lack a cost"),
    (["verify", BF16, "--hlo", NEW], 16, "✗ FAILED: 4 of 10 collectives lack a cost"),
    (["confirm", LOG], 9, "! jit_train_step: cannot tell whether the profile was used"),
    (["init"], 16, "8 starters"),
    ([], 8, "Newest: "),
    (["diff", BF16, BIG], 22, "Sum of costs"),
    (
        ["rehearse", *COMPILED, "-o", "rehearsal"],
        24,
        "! Measure a profile and use it: saves 6.0 %",
    ),
    (
        ["tune", *COMPILED, "--budget", "1", "-o", "tuned"],
        22,
        "! Try these flags: predicted ",
    ),
    (["predict", *DUMP[1:]], 29, "A step takes "),
]
"""Command, lines at most, and how its verdict begins."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("screens")
    prepare(place)
    (place / LOG).symlink_to(ROOT / "testdata/maxtext_pgle/llama2_7b_pgle_run.log")
    for name in ("steps", "slower"):
        words = [
            "history",
            "add",
            f"{name}.jsonl",
            "--name",
            "a",
            "--hardware",
            "h",
            "--commit",
            "c",
        ]
        produce([*words, "--file", "h.jsonl"], place)
    return place


@pytest.mark.parametrize(
    ("words", "most", "verdict"),
    SCREENS,
    ids=lambda value: "-".join(value[:2])[-40:] if isinstance(value, list) else None,
)
def test_an_answer_fits_a_screen(
    words: list[str], most: int, verdict: str, folder: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(Compiler, "_ask", recorded.answer)
    monkeypatch.setattr(
        text, "LOG_S", 600.0
    )  # a line of progress every 10 s is no part of an answer
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    run(words)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    ends = ("Next: ", "Done: ", "Now edit: ", "Now: ")
    last = max(number for number, line in enumerate(lines) if line.startswith(ends))
    is_command = lines[last].startswith("Next: ")
    assert not is_command or all(line.endswith("\\") for line in lines[last:-1]), (
        "more than a command follows Next"
    )
    assert len(lines) <= most, printed.out
    assert verdict in "\n".join(lines[:3])
    assert printed.err == ""
