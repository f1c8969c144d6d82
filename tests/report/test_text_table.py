"""Tables and sentences fold between words at any width; columns without room stand below."""

import json as decoder
import re
from io import StringIO

import pytest
from rich.table import Table
from rich.text import Text

from pgle.report.text import Screen, as_json, console, grid, warn


def printed(width: int, table: Table) -> str:
    stream = StringIO()
    Screen(stream, width).print(table)
    return stream.getvalue()


def lines(width: int) -> list[str]:
    rows = [("collective-permute-start.12", "nothing is independent of it")]
    return [
        line.rstrip()
        for line in printed(
            width, grid(("collective", "why"), rows, whole={0})
        ).splitlines()
    ]


def test_all_on_one_line_where_it_fits() -> None:
    assert lines(100)[1] == "collective-permute-start.12  nothing is independent of it"


def test_a_name_stays_on_one_line() -> None:
    assert lines(50)[1].startswith("collective-permute-start.12  nothing")
    assert len(lines(50)) == 3


def test_a_sentence_without_room_stands_below() -> None:
    assert lines(45)[1:] == [
        "collective-permute-start.12",
        "    why: nothing is independent of it",
    ]


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_no_word_is_broken_at_any_width(width: int) -> None:
    rows = [
        (
            "executions/ns",
            "reduce-scatter.62",
            "12.38 ms",
            "a longer text that can be wrapped anywhere it must",
        )
    ]
    text = printed(width, grid(("instruction name", "kind", "total", "why"), rows))
    words = set(re.sub("[,:]", " ", text).split())
    assert words == {
        "instruction",
        "name",
        "kind",
        "total",
        "why",
        *" ".join(rows[0]).split(),
    }


@pytest.mark.parametrize("width", [40, 66, 100])
def test_columns_without_room_stand_below_their_row(width: int) -> None:
    rows = [
        ("all-gather-start.1", "1.5 ms", "0.2 ms", "the scheduler put nothing", "yes")
    ]
    found = printed(
        width,
        grid(("collective", "time", "exposed", "why", "moved"), rows, right={1, 2}),
    )
    text = " ".join(found.replace(",", " ").split())
    assert set(" ".join(rows[0]).split()) <= set(text.split())
    assert ("moved: yes" in text) == (width < 66)


def test_a_number_keeps_its_unit() -> None:
    text = printed(
        24, grid(("name", "what"), [("a", "it took 12.3 ms in all, and 4 GiB")])
    )
    assert not any(line.rstrip().endswith(("12.3", " 4")) for line in text.splitlines())


@pytest.mark.parametrize("width", ["60", "80"])
def test_a_long_command_can_be_copied(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    command = "  pgle convert runs/a-long-name/trace.nsys-rep --hlo runs/a-long-name/hlo -o profile.pbtxt"
    console().print(command, soft_wrap=True)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= int(width)
    assert printed.replace(" \\\n", " ").split() == command.split()


def test_a_long_sentence_wraps_where_the_width_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "some words that need more than forty columns and must not be broken"
    monkeypatch.setenv("COLUMNS", "40")
    console().print(sentence, soft_wrap=True)
    assert [len(line) <= 40 for line in capsys.readouterr().out.splitlines()] == [
        True,
        True,
    ]


def test_a_pipe_is_as_wide_as_columns_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    console().print("some words that need more than thirty columns")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 30
    monkeypatch.setenv("COLUMNS", "160")
    console().print("word " * 30)
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mred",
        "a\x07b",
        "\u202egnp.exe",
        "\x9b2J",
        "a\rb",
        "a\x08b",
        "\ud800",
        "\u0379",
    ],
)
def test_no_name_controls_the_terminal(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console().print(text)
    console().print(Text(text))
    console().print(grid((text,), [(text,)]))
    warn([text])
    output = capsys.readouterr()
    assert all(line.isprintable() for line in (output.out + output.err).split("\n"))


@pytest.mark.parametrize(
    "text", ["\x7f", "\x9b2J", "\u202egnp.exe", "\ud800", "\u0379", "\U000e0001", "é"]
)
def test_no_name_in_json_controls_the_terminal_and_none_is_lost(text: str) -> None:
    written = as_json("pgle.test/1", {"name": text})
    assert all(line.isprintable() for line in written.split("\n"))
    assert decoder.loads(written)["name"] == text
