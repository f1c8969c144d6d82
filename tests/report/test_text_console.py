"""What a console does to text: nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pgle.errors import call_it
from pgle.report.text import FLAT, console, grid, near, plain


@pytest.mark.parametrize(
    "text", ["wrote runs/[red]/profile.pbtxt", "runs/:smile:/profile.pbtxt", "x[/bold]"]
)
def test_paths_and_names_are_printed_as_they_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console().print(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_commands_begin_as_pgle_was_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgle.errors._names", {})
    call_it(".venv/bin/pgle", ("run", "convert"))
    console().print("next: pgle convert runs/a/pgle run; pgle has XLA run it")
    assert (
        capsys.readouterr().out
        == "next: .venv/bin/pgle convert runs/a/pgle run; pgle has XLA run it\n"
    )


def test_a_command_is_never_broken_inside_quotes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    console().print(
        "next: pgle run --run-dir runs/a -- python train.py --name 'two words'",
        soft_wrap=True,
    )
    assert "'two words'" in capsys.readouterr().out


def test_lines_of_a_table_end_where_their_text_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console().print(grid(("name", "why"), [("a", "x"), ("b", "longer")]))
    assert capsys.readouterr().out == "name  why\na     x\nb     longer\n"


def test_a_path_below_the_working_directory_is_shown_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert near(tmp_path / "a" / "b") == Path("a/b")
    assert near(Path("/elsewhere/b")) == Path("/elsewhere/b")


@pytest.mark.parametrize("width", ["0", "1", "-5", "x", "99999999", "٣"])
def test_a_width_in_which_nothing_can_be_laid_out_is_not_taken(
    width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert 30 <= console().width <= 200


@dataclass(frozen=True)
class Head:
    name: str


@dataclass(frozen=True)
class Tail:
    steps_us: tuple[float, ...]


@dataclass(frozen=True)
class Whole:
    head: Head = field(metadata=FLAT)
    more: Head | None = field(metadata=FLAT)
    tail: Tail = field(metadata=FLAT)


def test_the_parts_of_a_document_are_one_object_in_their_order() -> None:
    found = plain(Whole(Head("jit_step"), None, Tail((1.0, 2.0))))
    assert list(found.items()) == [("name", "jit_step"), ("steps_us", [1, 2])]
