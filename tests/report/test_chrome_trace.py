"""A page's timeline as a Chrome trace: what Perfetto is given is what the page draws."""

import gzip
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenes import FOLDED, HALF_EXPOSED
from scenes import timeline as step

from pgle.errors import UserError
from pgle.report.chrome_trace import (
    OPPORTUNITIES,
    chrome_trace,
    packed_chrome_trace,
)
from pgle.report.page.value import Advice, Page, Saving, Section, as_json
from pgle.report.report import check_outputs, form_of, page_of
from pgle.report.scene import read_scene
from pgle.report.timeline import Panel, panel_of, timeline
from pgle.run.analyze import StepInput
from pgle.schedule.simulate import Stream, Timeline
from pgle.xla.hlo.text import module_from_text


def page(*panels: Panel, actions: tuple[Advice, ...] = ()) -> Page:
    section = Section("timeline", "Timeline", (timeline(panels),))
    return Page("t", (), "Yes", actions=actions, sections=(section,))


def events(found: Page) -> list[dict[str, Any]]:
    trace: dict[str, Any] = json.loads(chrome_trace(found))
    return list(trace["traceEvents"])


def slices(found: Page, track: str) -> list[dict[str, Any]]:
    """The slices of the tracks of one name, in any process."""
    every = events(found)
    threads = {
        item["tid"]
        for item in every
        if item["name"] == "thread_name" and item["args"]["name"] == track
    }
    return [item for item in every if item["ph"] == "X" and item["tid"] in threads]


def times(found: Sequence[dict[str, Any]]) -> list[tuple[str, float, float]]:
    return [(item["name"], item["ts"], item["dur"]) for item in found]


def one(step: Timeline) -> Page:
    return page(panel_of("LHS", step, "measured"))


def test_each_stream_is_a_track_with_its_bars_in_microseconds() -> None:
    found = one(HALF_EXPOSED)
    assert times(slices(found, "compute"))[0] == ("dot", 0, 20)
    assert times(slices(found, "communication")) == [("ag-start", 0, 40)]


def test_a_collective_says_how_long_nothing_hides_it() -> None:
    (gather,) = slices(one(HALF_EXPOSED), "communication")
    assert gather["args"]["exposed_us"] == 20
    assert gather["cat"] == "communication"


def test_the_parts_of_a_step_fill_it() -> None:
    found = slices(one(HALF_EXPOSED), "parts of the step")
    assert sum(item["dur"] for item in found) == 100
    exposed = [item for item in found if item["name"] == "exposed communication"]
    assert times(exposed) == [("exposed communication", 20, 20)]


def test_a_folded_loop_says_how_many_executions_a_bar_is() -> None:
    (gather,) = slices(one(FOLDED), "communication")
    assert gather["args"]["executions"] == 4
    (loop,) = slices(one(FOLDED), "steps and loops")
    assert loop["name"] == "while.3, 4 iterations"


def test_an_instruction_has_its_layer_and_source_line() -> None:
    module = module_from_text(
        b"HloModule m, is_scheduled=true\n"
        b"ENTRY e {\n"
        b"  p = f32[8]{0} parameter(0)\n"
        b"  ROOT dot = f32[8]{0} negate(p), "
        b'metadata={op_name="jit(step)/mlp/dot" source_file="train.py" source_line=7}\n'
        b"}\n",
        "m.txt",
    )
    found = page(panel_of("LHS", HALF_EXPOSED, "measured", module))
    dot = slices(found, "compute")[0]["args"]
    assert dot["op_name"] == "jit(step)/mlp/dot"
    assert dot["source"] == "train.py:7"


def test_an_opportunity_lies_where_its_instruction_is() -> None:
    action = Advice("Hide it", Saving(0.2, 0.1, 0.3), find="ag-start")
    found = page(panel_of("LHS", HALF_EXPOSED, "measured"), actions=(action,))
    (drawn,) = slices(found, "1. Hide it")
    assert (drawn["ts"], drawn["dur"]) == (0, 40)
    assert drawn["args"]["saves"] == "20.0 % (10.0 … 30.0 %)"
    assert drawn["args"]["expected share"] == 0.2
    processes = [item for item in events(found) if item["name"] == "process_name"]
    assert processes[-1]["args"]["name"] == OPPORTUNITIES


def test_an_opportunity_of_no_instruction_spans_the_step() -> None:
    action = Advice("Measure a profile")
    found = page(panel_of("LHS", HALF_EXPOSED, "measured"), actions=(action,))
    (drawn,) = slices(found, "1. Measure a profile")
    assert (drawn["ts"], drawn["dur"]) == (0, 100)


def test_schedules_are_processes_and_no_number_is_used_twice() -> None:
    found = page(panel_of("before", HALF_EXPOSED), panel_of("after", HALF_EXPOSED))
    names = [
        (item["pid"], item["args"]["name"])
        for item in events(found)
        if item["name"] == "process_name"
    ]
    assert [name for _, name in names] == ["before", "after"]
    threads = [item["tid"] for item in events(found) if item["name"] == "thread_name"]
    every = threads + [number for number, _ in names]
    assert len(set(every)) == len(every)


def test_the_same_page_gives_the_same_bytes() -> None:
    packed = packed_chrome_trace(one(HALF_EXPOSED))
    assert packed == packed_chrome_trace(one(HALF_EXPOSED))
    assert gzip.decompress(packed).decode() == chrome_trace(one(HALF_EXPOSED))


def test_bars_of_a_track_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    start = np.cumsum(rng.random(200)) * 1e-3
    rows = zip(start, start + 1e-3, strict=True)
    bars = [(f"k{n}", "fusion", Stream.COMPUTE, *row) for n, row in enumerate(rows)]
    every = events(one(step(*bars)))
    of_thread: dict[int, list[tuple[float, float]]] = {}
    for item in every:
        if item["ph"] == "X" and item["cat"] == "compute":
            bar = (item["ts"], item["ts"] + item["dur"])
            of_thread.setdefault(item["tid"], []).append(bar)
    for found in of_thread.values():
        for (_, end), (begin, _) in pairwise(found):
            assert begin >= end - 1e-6


def test_a_page_without_a_timeline_is_refused() -> None:
    with pytest.raises(UserError, match="no timeline"):
        chrome_trace(Page("t", (), "Yes"))


def test_damaged_data_is_refused() -> None:
    with pytest.raises(UserError, match="damaged"):
        read_scene("AAAA")


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("trace.json.gz", ".json.gz"),
        ("run.trace.json", ".trace.json"),
        ("report.json", ".json"),
        ("trace.json", ".json"),
    ],
)
def test_the_end_of_a_name_chooses_the_form(name: str, ending: str) -> None:
    assert form_of(Path(name)) == ending


def test_an_archive_of_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="ending is unknown"):
        check_outputs([Path("report.html.gz")], force=False, inputs=())


def test_a_stored_page_gives_the_same_trace(tmp_path: Path) -> None:
    found = one(HALF_EXPOSED)
    (tmp_path / "report.json").write_text(as_json(found))
    stored = page_of(StepInput((tmp_path / "report.json",)))
    assert chrome_trace(stored) == chrome_trace(found)
