"""The scene, and its text and its data: true to the times."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from scenes import HALF_EXPOSED, timeline

from pgle.report.timeline import (
    Lane,
    disjoint,
    encode,
    followers,
    panel_of,
    text_timeline,
)
from pgle.schedule.simulate import Stream
from pgle.xla.hlo.text import module_from_text

PANELS = (
    panel_of("baseline", HALF_EXPOSED, "measured"),
    panel_of("profiled", HALF_EXPOSED, "measured"),
)


def decoded(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found


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
    marks = next(
        line for line in text.splitlines() if line.strip().startswith("exposed ")
    )
    # 84 cells for 100 µs: exposed from 20 to 40 µs
    assert marks[16:].count("^") == pytest.approx(84 / 5, abs=1.5)


def test_costs_that_nobody_measured_are_marked_in_text_too() -> None:
    assert "step 100 µs (estimated costs), exposed" in text_timeline(
        [panel_of("baseline", HALF_EXPOSED, "estimated")]
    )
    assert "costs" not in text_timeline(PANELS)


def test_an_empty_timeline_can_be_drawn() -> None:
    none = timeline(("k", "fusion", Stream.COMPUTE, 0, 0))
    assert "nothing" in text_timeline([panel_of("nothing", none)])
