"""The picture, the page and the text of a small timeline: well-formed, self-contained, true to the times."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from pgle.report.timeline import render_page, render_svg, render_trace, text_timeline
from pgle.report.timeline_layout import GUTTER, MARGIN, WIDTH, View, lay_out
from pgle.schedule.timeline import Loop, Stream, Timeline

SVG = "{http://www.w3.org/2000/svg}"


def timeline(*rows: tuple[str, str, Stream, float, float], loops: tuple[Loop, ...] = ()) -> Timeline:
    n = len(rows)
    return Timeline(
        names=tuple(row[0] for row in rows),
        kinds=tuple(row[1] for row in rows),
        instruction=np.arange(n, dtype=np.int32),
        stream=np.array([row[2] for row in rows], dtype=np.uint8),
        sync=np.zeros(n, dtype=bool),
        start_us=np.array([row[3] for row in rows]),
        duration_us=np.array([row[4] - row[3] for row in rows]),
        count=np.ones(n, dtype=np.int64),
        cause=np.arange(-1, n - 1, dtype=np.int32),
        origin=np.zeros(n, dtype=np.uint8),
        step_us=max(row[4] for row in rows),
        loops=loops,
    )


HALF_EXPOSED = timeline(
    ("ag-start", "all-gather", Stream.COMMUNICATION, 0, 40),
    ("dot", "matmul", Stream.COMPUTE, 0, 20),
    ("x<&>y", "fusion", Stream.COMPUTE, 40, 100),
)
VIEWS = (View("baseline", HALF_EXPOSED, "measured"), View("profiled", HALF_EXPOSED, "measured"))


def bars(svg: str, style: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return [item for item in root.iter(f"{SVG}rect") if style in (item.get("class") or "").split()]


def test_the_svg_is_well_formed_and_refers_to_nothing_outside() -> None:
    svg = render_svg(VIEWS)
    ElementTree.fromstring(svg)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_bar_is_as_wide_as_its_share_of_the_step() -> None:
    scale = (WIDTH - GUTTER - MARGIN) / 100
    dot = next(bar for bar in lay_out(VIEWS).bars if bar.style == "matmul")
    assert (dot.x, dot.width) == pytest.approx((GUTTER, 20 * scale))


def test_tooltips_name_the_instruction_its_time_and_what_is_exposed() -> None:
    gather = next(item for item in bars(render_svg(VIEWS), "all-gather") if item.find(f"{SVG}title") is not None)
    title = gather.findtext(f"{SVG}title") or ""
    assert all(part in title for part in ("ag-start", "all-gather 40 µs", "exposed 20 µs", "measured cost"))


def test_exposed_time_is_marked() -> None:
    marked = [bar for bar in lay_out(VIEWS[:1]).bars if bar.style == "mark"]
    assert [bar.width for bar in marked] == pytest.approx([20 * (WIDTH - GUTTER - MARGIN) / 100])


def test_many_thousand_kernels_make_no_more_bars_than_pixels() -> None:
    rows = [(f"k{i}", "fusion", Stream.COMPUTE, float(i), i + 0.9) for i in range(20_000)]
    assert len(lay_out([View("big", timeline(*rows))]).bars) < WIDTH


def test_a_loop_says_how_often_it_runs() -> None:
    of = timeline(("k", "fusion", Stream.COMPUTE, 0, 100), loops=(Loop("while.3", 32, 0, 100, folded=31),))
    assert "while.3 × 32, one iteration drawn for 31" in render_svg([View("scan", of)])


def test_the_page_compares_the_views() -> None:
    page = render_page(VIEWS, title="A & B")
    assert "<title>A &amp; B</title>" in page
    assert re.search(r"<td>exposed communication</td><td>20 µs</td><td>20 µs</td>", page)
    assert "x<&>y" not in page
    assert not re.search(r'(src|href)="', page)


def test_the_same_input_gives_the_same_bytes() -> None:
    assert render_page(VIEWS) == render_page(VIEWS)


def test_the_text_fits_the_terminal_and_marks_exposed_time() -> None:
    text = text_timeline(VIEWS)
    assert max(map(len, text.splitlines())) <= 100
    marks = next(line for line in text.splitlines() if line.strip().startswith("exposed "))
    # 84 cells for 100 µs: exposed from 20 to 40 µs
    assert marks[16:].count("^") == pytest.approx(84 / 5, abs=1.5)


def test_the_trace_holds_every_activity_with_its_stream_and_time() -> None:
    events = json.loads(render_trace(VIEWS))["traceEvents"]
    gather = next(event for event in events if event["name"] == "ag-start")
    assert (gather["ts"], gather["dur"], gather["cat"]) == (0, 40, "all-gather")
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[gather["pid"], gather["tid"]] == "communication"
    assert sum(event["ph"] == "X" for event in events) == 6


def test_costs_that_nobody_measured_are_marked_in_text_too() -> None:
    assert "step 100 µs (estimated costs), exposed" in text_timeline([View("baseline", HALF_EXPOSED, "estimated")])
    assert "costs" not in text_timeline(VIEWS)


def test_an_empty_timeline_can_be_drawn() -> None:
    none = timeline(("k", "fusion", Stream.COMPUTE, 0, 0))
    ElementTree.fromstring(render_svg([View("nothing", none)]))
    assert "nothing" in text_timeline([View("nothing", none)])


def test_quotes_in_the_page_s_style_stay_quotes() -> None:
    assert 'font-family:system-ui,-apple-system,"Segoe UI"' in render_page(VIEWS)
