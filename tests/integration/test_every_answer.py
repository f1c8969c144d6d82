"""Every command that answers says what follows: a command that can be pasted, or an end in words."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest
import recorded
from documents import AUTO, DUMP, NEW, PAX, PRINTED, prepare
from walks import ENDS

from pgle.api import known
from pgle.api.answer import Answer
from pgle.cli.main import group
from pgle.next import BLANKS
from pgle.report.page import plain
from pgle.run.compiler.compile import Compiler

pytestmark = pytest.mark.usefixtures("read_once")

JSON = "--json"  # every command that answers has it
COMPILED = [recorded.PROGRAM, "--no-cache", "--target", "a100"]
SIMULATED = ["--capture", "simulated", "--target", "a100"]
PROGRAM = ["--", sys.executable, "-m", "pgle.workloads", "overlap", "--compile-only"]
SCRIPT = "job.sh"
COPY = "rank1"  # of a dump

NO_ANSWERS = (
    ["compare", "a", "b"],  # an error
    ["flags", "preset", "fsdp", "--jaxlib", "0.10.2"],  # lines for a shell
)
PRINTED_ANSWERS = [
    words for some in PRINTED.values() for words in some if words not in NO_ANSWERS
]
READ = [
    *PRINTED_ANSWERS,
    ["verify", "pax.pbtxt", *DUMP],
    ["ranks", NEW, COPY],
    ["compare", "steps.jsonl", "slower.jsonl"],
    ["compare", "steps.jsonl", "steps.jsonl"],
    ["compare", *PAX],
    ["analyze", *PAX, *DUMP],
    ["analyze", PAX[0], "--against", PAX[1], *DUMP],
    ["predict", NEW],
    ["flags", "lint", "--", "--xla_gpu_enable_latency_hiding_scheduler=true"],
    ["flags", "lint-scripts", SCRIPT],
]
"""Answers that need no compiler."""

RECORDED = [
    ["rehearse", *COMPILED, "-o", "rehearsal"],
    ["tune", *COMPILED, "--budget", "1", "-o", "tuned"],
    ["advise", *COMPILED, "--budget", "1"],
    ["scale", *COMPILED],
]
"""Answers of the compiler, with recorded schedules in its place."""

STAGES = [
    ["auto", "--run-dir", "auto", *AUTO, "costs"],
    ["profile", "--run-dir", "stages", *SIMULATED, *PROGRAM],
    ["perf", "--run-dir", "stages", *SIMULATED, "--baseline", *PROGRAM],
    ["run", "--run-dir", "run", *SIMULATED, *PROGRAM],
    ["report", "run"],
]
"""Answers of commands that start programs, and on what these left."""


def answering(commands: click.Group, *names: str) -> Iterator[str]:
    """The names of all commands that answer, with those of their groups."""
    context = click.Context(commands)
    for name in commands.list_commands(context):
        found = commands.get_command(context, name)
        if isinstance(found, click.Group):
            yield from answering(found, *names, name)
        elif found is not None and any(JSON in item.opts for item in found.params):
            yield " ".join((*names, name))


ALL = tuple(answering(group))


def command_of(words: list[str]) -> str:
    """The command that an example calls."""
    both = " ".join(words[:2])
    return both if both in ALL else words[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("answers")
    prepare(place)
    shutil.copytree(place / NEW, place / COPY)
    flag = "--xla_gpu_enable_latency_hiding_scheduler=true"
    (place / SCRIPT).write_text(f"export XLA_FLAGS={flag}\n")
    return place


def check(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a command leads on or ends, as text and as JSON."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    answers: list[Answer[object]] = []
    printed = io.StringIO()
    with chdir(folder), redirect_stdout(printed), redirect_stderr(io.StringIO()):
        group.main(words, prog_name="pgle", standalone_mode=False, obj=answers.append)
        for answer in answers:
            plain.show(answer.page)
            assert answer.document["next"] == answer.page.way.lines
    lines = printed.getvalue().splitlines()
    commands = [line for line in lines if line.startswith("Next: ")]
    ends = [line for line in lines if line.startswith(ENDS)]
    assert len(commands) + len(ends) == 1, printed.getvalue()
    given = {word for line in commands for word in line.split()}
    assert not given & BLANKS.keys()
    assert not any("…" in word for word in given)


def test_there_is_an_example_of_every_command_that_answers() -> None:
    assert {command_of(words) for words in (*READ, *RECORDED, *STAGES)} == set(ALL)


@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_an_answer_that_was_read_leads_on_or_ends(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(words, folder, monkeypatch)


@pytest.mark.parametrize("words", RECORDED, ids=lambda words: words[0])
def test_an_answer_of_the_compiler_leads_on_or_ends(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiler, "_ask", recorded.answer)
    check(words, folder, monkeypatch)


@pytest.mark.slow
@pytest.mark.rehearse
def test_an_answer_on_a_program_that_ran_leads_on_or_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # on which AutoPGLE runs anywhere
    for words in STAGES:
        check(words, folder, monkeypatch)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_folder_leads_on(is_empty: bool, folder: Path, tmp_path: Path) -> None:
    assert known.folder(tmp_path if is_empty else folder).page.way.lines
