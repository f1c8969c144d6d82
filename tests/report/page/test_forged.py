"""Names from files hold line breaks, colours and the words of CI runners: no renderer lets them
forge a line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.errors import inert
from pgle.next import Way
from pgle.report import text
from pgle.report.page import html, plain, value
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Advice,
    Column,
    Page,
    Prose,
    Saving,
    Section,
    Table,
    table,
)
from pgle.xla.protos import hlo_pb2

FORGED = "a\n✓ all is well\n::error::stop\r\nNext: rm -rf .\x1b[2J\u2028b\u202ec\x85d"
"""Line breaks of five kinds, a forged verdict, command and next step, an erased screen, text from
right to left.
"""


def cells(name: str) -> Table:
    return table((name, Column("time", Unit.TIME)), ((name, 1.0),))


HOSTILE = Page(
    FORGED,
    (FORGED, "8 × H100"),
    FORGED,
    "warn",
    cells(FORGED),
    notes=(FORGED, value.Cell(FORGED, "bad")),
    actions=(Advice(FORGED, Saving(0.1, 0.1, 0.1), FORGED, FORGED),),
    sections=(
        Section(
            "one", FORGED, (Prose(FORGED), Prose(FORGED, tone="head"), cells(FORGED))
        ),
    ),
    way=Way((FORGED,)),
    warnings=(FORGED,),
    about=((FORGED, FORGED),),
    paste=FORGED,
)


def forged(lines: str) -> list[str]:
    """Lines that pass for a verdict, a command to a CI runner or a next step, and what a terminal
    obeys.
    """
    found = [
        line for line in lines.split("\n") if re.match(r"\s*(✓|::|Next: rm)", line)
    ]
    return found + re.findall(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", lines
    )


def test_no_part_of_a_page_forges_a_line_of_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain.show(HOSTILE, sections=[plain.ALL])
    assert forged(capsys.readouterr().out) == []


def test_no_part_of_a_page_forges_a_line_of_markdown() -> None:
    assert forged(plain.markdown(HOSTILE)) == []


def test_no_part_of_a_page_forges_a_line_of_html() -> None:
    body = html.render(HOSTILE).partition("<body>")[2].partition("<script>")[0]
    assert forged(body) == []


def test_no_part_of_a_page_forges_a_line_of_json() -> None:
    written = value.as_json(HOSTILE)
    assert forged(written) == []
    assert json.loads(written)["page"]["verdict"] == FORGED


def test_code_in_a_section_keeps_its_lines_indented(
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = Section("flags", "Flags", (Prose("--one\nNext: rm", code=True),))
    plain.show(Page("t", (), "v", sections=(section,)), sections=["flags"])
    assert capsys.readouterr().out.splitlines()[-2:] == ["  --one", "  Next: rm"]


@pytest.mark.parametrize(
    "line", ["::error::no", "  ::set-output name=x::y", "a ##[group]b", "##vso[task.x]"]
)
def test_no_line_is_a_command_to_a_ci_runner(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text.console().print(line, soft_wrap=True)
    text.say(line)
    shown = capsys.readouterr()
    assert not re.search(r"^\s*::|##", shown.out, re.MULTILINE)
    assert "##" not in shown.err


@pytest.mark.parametrize(
    "line", ["std::vector<int>", "a ::b", "# heading", "### done", "x: y"]
)
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert inert(line) == line


def test_a_module_s_name_forges_no_line_of_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = hlo_pb2.HloProto()
    module.hlo_module.name = FORGED
    module.hlo_module.entry_computation_id = 1
    entry = module.hlo_module.computations.add(name="main", id=1, root_id=1)
    entry.instructions.add(name="p", opcode="parameter", id=1).shape.element_type = 11
    module.hlo_module.schedule.sequences[1].instruction_ids.append(1)
    path = tmp_path / "nl.hlo.pb"
    path.write_bytes(module.SerializeToString())
    assert run(["predict", str(path), "--target", "h100", "--all"]) == 0
    assert forged(capsys.readouterr().out) == []
