"""Tables fold what may be folded, never names."""

from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from pgle.report.text import console, table, warn


def lines(width: int) -> list[str]:
    rows = [("collective-permute-start.12", "nothing is independent of it")]
    console = Console(width=width, record=True, file=StringIO())
    console.print(table(("collective", "why"), rows, whole="collective"))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_all_on_one_line_where_it_fits() -> None:
    assert lines(100)[1] == "collective-permute-start.12  nothing is independent of it"


def test_a_name_stays_on_one_line() -> None:
    assert lines(45)[1].startswith("collective-permute-start.12  nothing")
    assert len(lines(45)) == 4


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_no_word_is_broken_at_any_width(width: int) -> None:
    rows = [("executions/ns", "reduce-scatter.62", "12.38 ms", "a longer text that can be wrapped anywhere it must")]
    screen = Console(width=width, record=True, file=StringIO())
    screen.print(table(("instruction name", "kind", "total", "why"), rows), crop=False)
    words = set(screen.export_text().split())
    assert words == {"instruction", "name", "kind", "total", "why", *" ".join(rows[0]).split()}


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    console().print("some words that need more than thirty columns")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 30
    monkeypatch.setenv("COLUMNS", "160")
    console().print("word " * 30)
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x07b", "\u202egnp.exe", "\x9b2J", "a\rb", "a\x08b", "\ud800"])
def test_no_name_controls_the_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    console().print(text)
    console().print(Text(text))
    console().print(table(("a",), [(text,)], title=text))
    warn([text])
    output = capsys.readouterr()
    assert all(line.isprintable() for line in (output.out + output.err).split("\n"))
