"""The `console` transcripts of the README and the docs are what the commands print, run in order in
one folder.
"""

import os
import re
import shlex
import sys
from pathlib import Path

import jax
import pytest
from documents import write_steps

from pgle.cli.main import run

pytestmark = pytest.mark.usefixtures("read_once", "plugin_loaded_once")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMPILES = ("rehearse", "scale", "tune")
CHEAP = (
    "convert",
    "verify",
    "show",
    "predict",
    "diff",
    "complete",
    "analyze",
    "compare",
    "flags",
    "ranks",
)
RELEASE = "0.10.2"
"""Of jax, with which the compiled transcripts were made; schedules differ between releases."""


def transcripts(page: Path) -> list[tuple[list[str], str]]:
    """Commands and what they are said to print, of one page."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            joined = part.replace("\\\n", " ")
            line, _, output = joined.partition("\n")
            found.append((shlex.split(line), output.strip("\n")))
    return found


def commands(page: Path, names: tuple[str, ...]) -> list[tuple[list[str], str]]:
    return [
        (words, output)
        for words, output in transcripts(page)
        if words[0] == "pgle" and words[1] in names
    ]


def same_but_for_time(text: str) -> list[str]:
    """Lines without the seconds that a compilation took, the last column of a table."""
    return [re.sub(r"\s+\d+\.\d s$", "", line) for line in text.rstrip().splitlines()]


def assert_printed(lines: list[str], expected: list[str]) -> None:
    """The expected lines, where ``…`` as the last one stands for all that follow."""
    if expected[-1] == "…":
        lines, expected = lines[: len(expected) - 1], expected[:-1]
    assert lines == expected


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's cache: pages show several answers about one program, which compile the same."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in; it has the test data."""
    monkeypatch.chdir(tmp_path)
    # `python` in a transcript is that of the environment that pgle is installed in
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    # compilations kept there say so on stderr alone
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (tmp_path / "testdata").symlink_to(ROOT / "testdata")
    return tmp_path


def check(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run one command; its output is the expected one, and so are those of its warnings that are
    shown.
    """
    capsys.readouterr()
    assert run(words[1:]) in (0, 1)
    printed = capsys.readouterr()
    notes = [line for line in expected.splitlines() if line.startswith("pgle: ")]
    shown = "\n".join(
        line for line in expected.splitlines() if not line.startswith("pgle: ")
    )
    assert_printed(same_but_for_time(printed.out), same_but_for_time(shown))
    assert not set(notes) - set(printed.err.splitlines())


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if commands(page, CHEAP)],
    ids=lambda page: page.name,
)
def test_what_needs_no_compiler(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_steps(folder)
    for words, expected in commands(page, CHEAP):
        check(words, expected, capsys)


@pytest.mark.usefixtures("folder")
@pytest.mark.rehearse
@pytest.mark.slow
@pytest.mark.skipif(jax.__version__ != RELEASE, reason=f"made with jax {RELEASE}")
@pytest.mark.parametrize(
    ("words", "expected"),
    [found for page in PAGES for found in commands(page, COMPILES)],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_what_compiles(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(words, expected, capsys)


def test_every_transcript_is_run() -> None:
    for page in PAGES:
        assert not [
            words
            for words, _ in transcripts(page)
            if words[0] != "pgle" or words[1] not in CHEAP + COMPILES
        ]
        assert not re.findall(r"^    \$ ", page.read_text(), re.M), (
            "make it a console block"
        )


def test_the_readme_has_both_kinds() -> None:
    assert commands(ROOT / "README.md", CHEAP)
    assert commands(ROOT / "README.md", COMPILES)
