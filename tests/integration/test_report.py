"""`pgle report`: one page on a run, in every form, from traces, run directories and stored
pages.
"""

import base64
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.report.measured_timeline import measured_panels
from pgle.report.page.value import Table, read_page
from pgle.report.timeline import Style
from pgle.run import analyze
from pgle.run.analyze import StepInput
from pgle.trace.intervals import join, without

pytestmark = pytest.mark.usefixtures("read_once")

ROOT = Path(__file__).parents[2]
PAX = ROOT / "testdata/pax_fsdp4"
TRACE = [str(PAX / "proc0.sqlite"), "--hlo", str(PAX / "proc0/dump")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    forms = [
        word
        for name in ("html", "md", "json")
        for word in ("-o", str(folder / f"r.{name}"))
    ]
    assert run(["report", *TRACE, *forms]) == 0
    return folder


def test_the_verdict_comes_first_in_every_form(written: Path) -> None:
    verdict = json.loads((written / "r.json").read_text())["page"]["verdict"]
    assert verdict.startswith("Fuse the attention: saves ")
    html = (written / "r.html").read_text()
    assert (
        html.index(verdict)
        < html.index('id="timeline"')
        < html.index(">Findings<")
        < html.index(">Collectives<")
    )
    assert (written / "r.md").read_text().startswith(f"# {verdict}\n")


def test_every_action_has_its_place_in_the_timeline(written: Path) -> None:
    page = read_page(written / "r.json")
    assert page.actions and page.timeline is not None
    for action in page.actions:
        assert action.span_us is not None and action.span_us[0] < action.span_us[1]


def test_ranks_and_streams_have_names_of_the_field(written: Path) -> None:
    data = values(written / "r.html")[0]
    scene = zlib.decompress(base64.b64decode(data)).decode()
    assert all(
        name in scene
        for name in ("rank 0 · GPU 0", "compute (stream 7)", "NCCL (stream ")
    )
    assert "proc0:" not in scene


def test_the_steps_of_the_window_are_listed(written: Path) -> None:
    page = read_page(written / "r.json")
    steps = next(section for section in page.sections if section.key == "steps")
    (listed,) = (part for part in steps.parts if isinstance(part, Table))
    assert len(listed.rows) == 3  # executions 2 to 4


def test_two_steps_are_two_panels_on_one_axis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = [
        "--against",
        str(PAX / "proc3.sqlite"),
        "--against-hlo",
        str(PAX / "proc3/dump"),
    ]
    assert (
        run(
            [
                "report",
                *TRACE,
                *other,
                "-o",
                str(tmp_path / "d.json"),
                "-o",
                str(tmp_path / "d.html"),
            ]
        )
        == 0
    )
    page = read_page(tmp_path / "d.json")
    assert page.table is not None and page.table.columns[2].head == "before"
    assert page.timeline is not None
    assert (
        "before: rank 3 · GPU 0" in page.timeline.text
        and "after: rank 0 · GPU 0" in page.timeline.text
    )
    changes = next(
        part
        for section in page.sections
        if section.key == "changes"
        for part in section.parts
        if isinstance(part, Table)
    )
    for row in changes.rows[:-1]:
        assert row[0].tone == ("bad" if row[4] > 0 else "good")


def test_the_parts_of_every_device_are_those_that_analyze_counts() -> None:
    step = analyze.measured_step(
        StepInput((PAX / "proc0.sqlite", PAX / "proc3.sqlite"), (PAX / "proc0/dump",))
    )
    panels, notes = measured_panels(step)
    assert not notes
    for panel, window in zip(panels, step.windows, strict=True):
        copies = without(
            panel.busy(Style.COPY), join(panel.compute, panel.busy(Style.COMMUNICATION))
        )
        parts = (panel.compute.length, panel.exposed.length, copies.length)
        counted = [
            window.parts_ns[f"{name}_ns"]
            for name in ("compute", "exposed_communication", "exposed_copy")
        ]
        assert parts == pytest.approx([time / 1e3 for time in counted], abs=0.01)


def values(path: Path) -> tuple[str, str]:
    """What a page shows: its data for the timeline, and its texts; pictures of a stored page are
    not trusted.
    """
    html = path.read_text()
    found = re.findall(r"<h1[^>]*>(.*?)</h1>|<td[^>]*>(.*?)</td>|<p>(.*?)</p>", html)
    return html.partition('id="timeline-data">')[2].partition("<")[0], str(found)


def test_a_stored_report_gives_the_same_page_again(
    written: Path, tmp_path: Path
) -> None:
    assert (
        run(["report", str(written / "r.json"), "-o", str(tmp_path / "again.html")])
        == 0
    )
    data, texts = values(tmp_path / "again.html")
    assert data and data == values(written / "r.html")[0]
    assert set(re.findall(r"'([^']+)'", values(written / "r.html")[1])) <= set(
        re.findall(r"'([^']+)'", texts)
    )


def test_without_an_output_a_page_is_written_here_and_the_answer_says_where(
    capsys: pytest.CaptureFixture[str],
    written: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("report.html", "report-2.html"):  # nothing is overwritten
        assert run(["report", str(written / "r.json")]) == 0
        assert f"wrote {name} (" in capsys.readouterr().out
        assert values(tmp_path / name)[0] == values(written / "r.html")[0]


def test_json_has_the_schema(
    capsys: pytest.CaptureFixture[str],
    written: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(written / "r.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "pgle.report/2"
    assert not list(tmp_path.iterdir())


def test_an_unknown_form_is_refused_before_anything_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["report", "nothing.sqlite", "-o", "report.docx"]) == 2
    assert (
        "report.docx: its ending is unknown; choose a name that ends in"
        in capsys.readouterr().err
    )


def test_nothing_is_overwritten(
    capsys: pytest.CaptureFixture[str], written: Path
) -> None:
    assert run(["report", str(written / "r.json"), "-o", str(written / "r.html")]) == 2
    assert "already exists" in capsys.readouterr().err


def damaged_schema(page: dict[str, object]) -> None:
    page["schema"] = "pgle.report/9"


def damaged_rows(page: dict[str, object]) -> None:
    page["page"]["sections"][0]["parts"] = [
        {"type": "table", "columns": [], "rows": "none"}
    ]


def damaged_script(page: dict[str, object]) -> None:
    page["page"]["sections"][0]["parts"] = [
        {"type": "timeline", "data": "</script>", "text": ""}
    ]


def damaged_tone(page: dict[str, object]) -> None:
    page["page"]["tone"] = '"><script>'


@pytest.mark.parametrize(
    "damage", [damaged_schema, damaged_rows, damaged_script, damaged_tone]
)
def test_a_damaged_or_hostile_stored_report_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
    written: Path,
    tmp_path: Path,
    damage: Callable[[dict[str, object]], None],
) -> None:
    page = json.loads((written / "r.json").read_text())
    damage(page)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(page))
    assert run(["report", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_empty_run_directory_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(
        '{"schema": "pgle.manifest/1", "stages": []}'
    )
    assert run(["report", str(tmp_path)]) == 2
    assert "nothing to report on yet" in capsys.readouterr().err


def test_a_stored_page_keeps_its_values(written: Path) -> None:
    page = read_page(written / "r.json")
    table = next(
        part
        for section in page.sections
        for part in section.parts
        if hasattr(part, "find") and part.find
    )
    assert len(table.find) == len(table.rows)
