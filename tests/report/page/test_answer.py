"""A page as every renderer draws it: the order is fixed, names stay text, and what is saved is read
again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pgle.errors import UserError
from pgle.next import Way
from pgle.report.page import html, plain, value
from pgle.report.page.figures import Unit
from pgle.report.page.plain import markdown
from pgle.report.page.value import (
    Advice,
    Cell,
    Chart,
    Column,
    Page,
    Prose,
    Saving,
    Section,
    Table,
    TimelineData,
)

HOSTILE = "</script><img src=x onerror=alert(1)>[x](http://y)![z](w)"
TABLE = Table(
    (
        Column(""),
        Column("step", Unit.TIME),
        Column("empty"),
        Column("exposed", Unit.TIME),
    ),
    (
        ("default", 6419.0, None, Cell(539.2, "exposed")),
        ("with the profile", 5878.0, None, 0.0),
    ),
)
PAGE = Page(
    "pgle test",
    ("jit_step", "8 × H100", "predicted"),
    "The profile shortens the step by 8.4 %",
    "good",
    TABLE,
    notes=("From estimated costs.",),
    actions=(
        Advice(
            "Turn the scheduler on",
            Saving(0.039, 0.03, 0.05),
            "XLA has it off here",
            "export XLA_FLAGS=--x",
        ),
        Advice("Measure"),
    ),
    sections=(
        Section("layers", "Layers", (Prose("one"), Prose("pgle x", code=True))),
        Section("memory", "Memory", (Prose("peak"),)),
    ),
    way=Way(("pgle run -- python train.py", "pgle report")),
    warnings=("2 of 4 ranks", "second", "third", "fourth"),
)


def lines(
    capsys: pytest.CaptureFixture[str], page: Page = PAGE, *sections: str
) -> list[str]:
    plain.show(page, sections=sections)
    found = capsys.readouterr()
    assert found.err == ""
    return found.out.splitlines()


def test_a_table_drops_columns_without_values_and_names_units_in_heads() -> None:
    assert TABLE.drawn().heads == ("", "step (ms)", "exposed (µs)")
    assert [[cell.value for cell in row] for row in TABLE.drawn().rows] == [
        ["default", "6.42", "539"], ["with the profile", "5.88", "–"],
    ]  # fmt: skip
    assert TABLE.drawn().rows[0][2].tone == "exposed"
    assert TABLE.drawn().right == (False, True, True)


def test_the_verdict_is_the_second_line_and_the_next_command_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = lines(capsys)
    assert found[:2] == [
        "jit_step · 8 × H100 · predicted",
        "✓ The profile shortens the step by 8.4 %",
    ]
    assert found[-1] == "Next: pgle run -- python train.py"
    assert len(found) <= 24


def test_flags_to_copy_stay_as_a_shell_takes_them() -> None:
    assert "<code><span>export</span> <span>XLA_FLAGS=--x</span></code>" in html.render(
        PAGE
    )


def test_sections_are_printed_only_when_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "Layers" not in lines(capsys)
    assert "Layers" in lines(capsys, PAGE, "layers")
    assert "Memory" not in lines(capsys, PAGE, "layers")
    everything = lines(capsys, PAGE, plain.ALL)
    assert {"Layers", "Memory", "warning: fourth", "pgle report"} <= set(everything)


def test_an_unknown_section_names_those_that_there_are() -> None:
    with pytest.raises(UserError, match="layers, memory"):
        plain.show(PAGE, sections=["nothing"])


def test_more_warnings_than_fit_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "… and 2 more warnings (--all)" in lines(capsys)


def test_a_script_that_goes_on_by_itself_gets_no_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGLE_NEXT", "0")
    assert not any(line.startswith("Next") for line in lines(capsys))


def hostile() -> Page:
    table = Table((Column(HOSTILE),), ((HOSTILE,),), find=(HOSTILE,))
    parts = (table, Prose(HOSTILE), Prose(HOSTILE, code=True))
    return Page(HOSTILE, (HOSTILE,), HOSTILE, table=table, actions=(Advice(HOSTILE, why=HOSTILE, command=HOSTILE),),
                sections=(Section("k", HOSTILE, parts),), way=Way((HOSTILE,)), warnings=(HOSTILE,))  # fmt: skip


def test_hostile_names_stay_text_on_a_page() -> None:
    written = html.render(hostile())
    assert "<img" not in written
    assert written.count("</script>") == 1


def test_hostile_names_make_no_links_or_pictures_in_markdown() -> None:
    fenced, text = False, []
    for line in markdown(hostile()).splitlines():
        fenced ^= line.startswith("```")
        text += [] if fenced or line.lstrip().startswith("`") else [line]
    assert not any(
        "](" in line.replace("\\](", "") or "<img" in line.replace("\\<", "")
        for line in text
    )


def test_a_terminal_is_never_controlled(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(
        capsys,
        replace(PAGE, verdict="a\x1b[31mb", identity=("c\x07",), notes=("\x9b2J",)),
    )
    assert not any(char in "\n".join(found) for char in "\x1b\x07\x9b")


def test_a_page_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "page.json").write_text(value.as_json(PAGE))
    assert value.read_page(tmp_path / "page.json") == PAGE


def test_names_that_utf8_cannot_encode_are_escaped_in_a_page(tmp_path: Path) -> None:
    (tmp_path / "page.json").write_text(
        value.as_json(replace(PAGE, identity=("\ud800.py",)))
    )
    assert value.read_page(tmp_path / "page.json").identity == ("\\ud800.py",)


def test_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    table = Table((Column("step", Unit.TIME),), ((np.float64(1.5),),))
    (tmp_path / "page.json").write_text(value.as_json(replace(PAGE, table=table)))
    found = value.read_page(tmp_path / "page.json").table
    assert found is not None and found.rows == ((1.5,),)


def test_pictures_of_a_saved_page_are_not_trusted(tmp_path: Path) -> None:
    parts = (Chart("<script>1</script>", "words"), TimelineData("QUJD", "text"))
    page = replace(PAGE, sections=(Section("k", "h", parts),))
    (tmp_path / "page.json").write_text(value.as_json(page))
    assert value.read_page(tmp_path / "page.json").sections[0].parts == (
        Chart("", "words"),
        TimelineData("QUJD", "text"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema":"pgle.report/1","page":{}}',
        "[" * 100_000,
        value.as_json(PAGE)[:-40],
    ],
)
def test_what_is_no_page_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.json").write_text(text)
    with pytest.raises(UserError):
        value.read_page(tmp_path / "page.json")


def test_a_damaged_timeline_is_refused(tmp_path: Path) -> None:
    page = replace(
        PAGE, sections=(Section("k", "h", (TimelineData("</script>", ""),)),)
    )
    (tmp_path / "page.json").write_text(value.as_json(page))
    with pytest.raises(UserError, match="not a report"):
        value.read_page(tmp_path / "page.json")
