"""The scene, and its still picture, text and trace: well-formed, self-contained, true to the times."""

import base64
import json
import zlib
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scenes import FOLDED, HALF_EXPOSED, timeline

from pgle.report.timeline.perfetto import encode, render_trace
from pgle.report.timeline.picture import GUTTER, MARGIN, WIDTH, lay_out, render_svg
from pgle.report.timeline.scene import Lane, disjoint, followers, panel_of, text_timeline
from pgle.schedule.program import Stream
from pgle.xla.hlo.text import module_from_text

SVG = "{http://www.w3.org/2000/svg}"
PANELS = (panel_of("baseline", HALF_EXPOSED, "measured"), panel_of("profiled", HALF_EXPOSED, "measured"))
SCALE = (WIDTH - GUTTER - MARGIN) / 100
"""Pixels per microsecond."""


def decoded(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found


def test_the_svg_is_well_formed_and_refers_to_nothing_outside() -> None:
    svg = render_svg(PANELS)
    ElementTree.fromstring(svg)
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_bar_is_as_wide_as_its_share_of_the_step() -> None:
    dot = next(box for box in lay_out(PANELS).boxes if box.style == "matmul")
    assert (dot.x, dot.width) == pytest.approx((GUTTER, 20 * SCALE), abs=1)


def test_tooltips_name_the_instruction_its_time_and_what_is_exposed() -> None:
    titles = [item.text or "" for item in ElementTree.fromstring(render_svg(PANELS)).iter(f"{SVG}title")]
    gather = next(title for title in titles if title.startswith("ag-start"))
    assert all(part in gather for part in ("all-gather 40 µs", "exposed 20 µs", "measured cost"))


def test_only_the_exposed_part_of_a_collective_is_drawn_as_exposed() -> None:
    boxes = [box for box in lay_out(PANELS[:1]).boxes if box.style == "exposed" and box.height > 20]
    assert sum(box.width for box in boxes) == pytest.approx(20 * SCALE, abs=2)


def test_many_thousand_kernels_make_no_more_boxes_than_pixels() -> None:
    rows = [(f"k{i}", "fusion", Stream.COMPUTE, float(i), i + 0.9) for i in range(20_000)]
    assert len(lay_out([panel_of("big", timeline(*rows))]).boxes) < 2 * WIDTH


def test_kernels_too_narrow_to_be_seen_are_drawn_as_high_as_they_are_busy() -> None:
    rows = [(f"k{i}", "fusion", Stream.COMPUTE, float(i), i + 0.25) for i in range(20_000)]
    boxes = [box for box in lay_out([panel_of("idle", timeline(*rows))]).boxes if box.style == "compute"]
    lane = max(box.y + box.height for box in boxes)
    heights = [box.height for box in boxes if box.y + box.height == lane]
    assert sum(heights) / len(heights) == pytest.approx(28 / 4, rel=0.15)


def test_a_loop_says_how_often_it_runs_and_what_is_folded() -> None:
    assert "while.3, 4 iterations, 4 of them drawn as one, stretched" in render_svg([panel_of("scan", FOLDED)])


def test_bars_that_overlap_lie_in_lanes_of_their_own() -> None:
    bars = Lane(
        "copies",
        np.array([0.0, 1.0, 5.0]),
        np.array([4.0, 4.0, 1.0]),
        np.arange(3, dtype=np.int32),
        np.ones(3, np.int64),
    )
    lanes = disjoint(bars)
    assert [lane.start_us.tolist() for lane in lanes] == [[0.0, 5.0], [1.0]]


def test_what_waits_for_a_collective_is_the_first_instruction_after_its_done() -> None:
    module = module_from_text(
        b"HloModule m, is_scheduled=true\n"
        b"ENTRY e {\n"
        b"  p = f32[8]{0} parameter(0)\n"
        b"  s = (f32[8]{0}, f32[8]{0}) all-gather-start(p), dimensions={0}\n"
        b"  a = f32[8]{0} negate(p)\n"
        b"  d = f32[8]{0} all-gather-done(s)\n"
        b"  ROOT b = f32[8]{0} add(a, d)\n"
        b"}\n",
        "m.txt",
    )
    assert followers(module, frozenset({"s", "a", "b"})) == {"s": "b"}


def test_the_data_of_the_page_hold_every_bar_in_nanoseconds() -> None:
    panel = decoded(encode(PANELS))["panels"][0]
    compute = next(lane for lane in panel["lanes"] if lane["label"] == "compute")
    assert (compute["start"], compute["duration"]) == ([0, 40_000], [20_000, 60_000])


def test_an_instruction_of_several_panels_is_written_once() -> None:
    assert len(decoded(encode(PANELS))["names"]) == 3


def test_the_same_scene_gives_the_same_bytes() -> None:
    assert encode(PANELS) == encode(PANELS)


def test_the_text_fits_the_terminal_and_marks_exposed_time() -> None:
    text = text_timeline(PANELS)
    assert max(map(len, text.splitlines())) <= 100
    marks = next(line for line in text.splitlines() if line.strip().startswith("exposed "))
    # 84 cells for 100 µs: exposed from 20 to 40 µs
    assert marks[16:].count("^") == pytest.approx(84 / 5, abs=1.5)


def test_costs_that_nobody_measured_are_marked_in_text_too() -> None:
    assert "step 100 µs (estimated costs), exposed" in text_timeline([panel_of("baseline", HALF_EXPOSED, "estimated")])
    assert "costs" not in text_timeline(PANELS)


def test_an_empty_timeline_can_be_drawn() -> None:
    none = timeline(("k", "fusion", Stream.COMPUTE, 0, 0))
    ElementTree.fromstring(render_svg([panel_of("nothing", none)]))
    assert "nothing" in text_timeline([panel_of("nothing", none)])


def test_the_trace_holds_every_activity_with_its_stream_and_time() -> None:
    events = json.loads(render_trace(PANELS))["traceEvents"]
    gather = next(event for event in events if event["name"] == "ag-start")
    assert (gather["ts"], gather["dur"], gather["cat"], gather["args"]["exposed_us"]) == (0, 40, "all-gather", 20)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[gather["pid"], gather["tid"]] == "communication"
    assert sum(event["ph"] == "X" for event in events) == 6


def test_an_arrow_of_the_trace_leads_from_a_collective_to_what_waits_for_it() -> None:
    waited = tuple(replace(item, follower="x<&>y") if item.name == "ag-start" else item for item in PANELS[0].names)
    events = json.loads(render_trace([replace(PANELS[0], names=waited)]))["traceEvents"]
    begin, end = (next(event for event in events if event["ph"] == phase) for phase in "sf")
    assert (begin["ts"], end["ts"], begin["id"] == end["id"]) == (40, 40, True)
    assert (begin["tid"], end["tid"]) == (2, 1)
