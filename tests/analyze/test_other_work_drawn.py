"""GPU work of no instruction is a row of its own in the timeline; it is not drawn as idle time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.report.measured_timeline import measured_panels
from pgle.report.timeline import Style, text_timeline
from tests.analyze.test_findings import MODULE, in_graphs, steps_of, usual

GRAPH_US = 2000.0  # of each step that `in_graphs` makes
Measure = Callable[..., MeasuredStep]


def test_work_of_no_instruction_has_a_lane(measured: Measure) -> None:
    panels, _ = measured_panels(measured(in_graphs(), MODULE))
    for panel in panels:
        (lane,) = (lane for lane in panel.lanes if lane.label == "CUDA graphs")
        assert lane.duration_us.tolist() == pytest.approx([GRAPH_US] * 4)
        assert {panel.names[at].style for at in lane.named.tolist()} == {Style.OTHER}
        assert panel.busy(Style.OTHER).length == pytest.approx(4 * GRAPH_US)


def test_the_text_shades_it_too(measured: Measure) -> None:
    panels, _ = measured_panels(measured(in_graphs(), MODULE))
    rows = text_timeline(panels).splitlines()
    assert sum(row.strip().startswith("other work") for row in rows) == len(panels)


def test_a_step_without_such_work_has_no_such_lane(measured: Measure) -> None:
    panels, _ = measured_panels(measured(steps_of(usual()), MODULE))
    labels: list[str] = []
    for panel in panels:
        labels += [lane.label for lane in panel.lanes]
    assert "CUDA graphs" not in labels
