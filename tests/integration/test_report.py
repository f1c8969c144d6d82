"""`pgle report`: one page on a run, in every form, from traces, run directories and stored pages."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.report.page.stored import read_page
from pgle.report.timeline.measured import measured_panels
from pgle.run.inputs.measured_step import Side, measured_step

ROOT = Path(__file__).parents[2]
PAX = ROOT / "testdata/pax_fsdp4"
TRACE = [str(PAX / "proc0.sqlite"), "--hlo", str(PAX / "proc0/dump")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    forms = [word for name in ("html", "md", "json", "svg", "trace.json") for word in ("-o", str(folder / f"r.{name}"))]
    assert run(["report", *TRACE, *forms]) == 0
    return folder


def test_the_verdict_comes_first_in_every_form(written: Path) -> None:
    verdict = json.loads((written / "r.json").read_text())["verdict"]
    assert verdict.startswith("A step takes ") and "on 1 device:" in verdict
    html = (written / "r.html").read_text()
    assert html.index(verdict) < html.index('id="timeline"') < html.index(">Findings<") < html.index(">Collectives<")
    assert (written / "r.md").read_text().startswith(f"# {verdict}\n")


def test_the_parts_of_every_device_are_those_that_analyze_counts() -> None:
    step = measured_step(Side((PAX / "proc0.sqlite", PAX / "proc3.sqlite"), (PAX / "proc0/dump",)))
    panels, notes = measured_panels(step)
    assert not notes
    for panel, window in zip(panels, step.windows, strict=True):
        parts = (panel.compute.length, panel.exposed.length, panel.exposed_copies.length)
        counted = (window.parts.compute_ns, window.parts.exposed_communication_ns, window.parts.exposed_copy_ns)
        assert parts == pytest.approx([time / 1e3 for time in counted], abs=0.01)


def test_the_trace_is_for_perfetto_with_what_is_known_of_each_instruction(written: Path) -> None:
    events = json.loads((written / "r.trace.json").read_text())["traceEvents"]
    gather = next(event for event in events if event.get("cat") == "all-gather")
    assert {"exposed_us", "shape", "cost"} <= gather["args"].keys()
    assert any(event["ph"] == "s" for event in events)


def test_a_stored_report_gives_the_same_page_again(written: Path, tmp_path: Path) -> None:
    assert run(["report", str(written / "r.json"), "-o", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == (written / "r.html").read_text()


def test_without_an_output_the_page_is_text(capsys: pytest.CaptureFixture[str], written: Path) -> None:
    assert run(["report", str(written / "r.json")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("A step takes ")
    assert "Findings" in text and "all-gather" in text


def test_json_has_the_schema(capsys: pytest.CaptureFixture[str], written: Path) -> None:
    assert run(["report", str(written / "r.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "pgle.report/1"


def test_an_unknown_form_is_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "nothing.sqlite", "-o", "report.docx"]) == 2
    assert "report.docx: is of no known form; choose a name that ends in" in capsys.readouterr().err


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str], written: Path) -> None:
    assert run(["report", str(written / "r.json"), "-o", str(written / "r.html")]) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_stored_report_has_no_bars_to_make_a_picture_of(
    capsys: pytest.CaptureFixture[str], written: Path, tmp_path: Path
) -> None:
    assert run(["report", str(written / "r.json"), "-o", str(tmp_path / "x.svg")]) == 2
    assert "cannot be made of a stored report" in capsys.readouterr().err


def damaged_schema(page: dict[str, object]) -> None:
    page["schema"] = "pgle.report/9"


def damaged_rows(page: dict[str, object]) -> None:
    table = {"kind": "table", "columns": ["a"], "rows": [["1", "2"]], "right": [], "find": [], "shown": 3}
    page["sections"] = [{"heading": "x", "parts": [table]}]


def damaged_script(page: dict[str, object]) -> None:
    page["sections"] = [{"heading": "x", "parts": [{"kind": "timeline", "data": "</script>", "text": ""}]}]


def damaged_tone(page: dict[str, object]) -> None:
    page["tone"] = '"><script>'


@pytest.mark.parametrize("damage", [damaged_schema, damaged_rows, damaged_script, damaged_tone])
def test_a_damaged_or_hostile_stored_report_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], written: Path, tmp_path: Path, damage: Callable[[dict[str, object]], None]
) -> None:
    page = json.loads((written / "r.json").read_text())
    damage(page)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(page))
    assert run(["report", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_empty_run_directory_says_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"schema": "pgle.manifest/1", "stages": []}')
    assert run(["report", str(tmp_path)]) == 2
    assert "nothing to report on yet" in capsys.readouterr().err


def test_a_stored_page_keeps_its_values(written: Path) -> None:
    page = read_page(written / "r.json")
    table = next(part for section in page.sections for part in section.parts if hasattr(part, "find") and part.find)
    assert len(table.find) == len(table.rows)
