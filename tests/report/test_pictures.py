"""Pictures of pages: what they show is what the values say, and their words say the same."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pgle
from pgle.analyze.differences import (
    ChangeKind,
    Differences,
    InstructionTime,
    StepChange,
    StepVerdict,
)
from pgle.analyze.layers import MeasuredInstruction, Work
from pgle.analyze.memory import LiveValue, Memory
from pgle.analyze.window import StepParts, StepTime
from pgle.report import charts, pictures
from pgle.report.page.value import Chart
from pgle.schedule.simulate import Breakdown
from pgle.xla.hlo.proto import BufferPlan
from pgle.xla.targets import by_architecture


def parts(times_us: list[float], slow: int | None = None) -> StepParts:
    steps = tuple(
        StepTime(number + 2, us, 0.0, number == slow)
        for number, us in enumerate(times_us)
    )
    none = np.zeros((0, len(steps)))
    return StepParts((), none, none, steps, {})


def step(us: float) -> Breakdown:
    return Breakdown(us, 0, 0, 0, us, 0, 0)


def change(name: str, delta_us: float) -> StepChange:
    after = InstructionTime(name, 100, 100, 1)
    kind = ChangeKind.SLOWER if delta_us > 0 else ChangeKind.FASTER
    return StepChange(kind, None, after, delta_us, 0, "", "", "", "compute")


def differences(before_us: float, after_us: float, *changes: StepChange) -> Differences:
    sides = step(before_us), step(after_us)
    found = StepVerdict.LONGER
    return Differences(*sides, 0, changes, 1, 0, 0, found, 0, 1, "", (0, 0), "")


def boxes(chart: Chart, style: str) -> list[float]:
    """Widths of the boxes of a style."""
    found = re.findall(rf'<rect class="{style}"[^>]* width="([\d.]+)"', chart.svg)
    return list(map(float, found))


def test_every_step_is_a_dot_and_a_slow_one_is_ringed() -> None:
    chart = pictures.steps_chart(parts([1000.0] * 9 + [1500.0], slow=9))
    assert chart.svg.count('class="point"') == 10
    assert chart.svg.count('class="slow"') == 1
    assert "slow: 11" in chart.alt


def test_steps_that_change_level_are_named() -> None:
    chart = pictures.steps_chart(parts([1000.0, 1001.0] * 10 + [1100.0, 1101.0] * 10))
    assert "longer from execution 22 on" in chart.alt
    assert "longer from execution 22 on" in chart.svg


def test_a_waterfall_adds_up_from_before_to_after() -> None:
    chart = pictures.waterfall(
        differences(1000, 1400, change("dot", 500), change("copy", -200))
    )
    before, after = boxes(chart, "compute")
    longer, other = boxes(chart, "exposed")
    (shorter,) = boxes(chart, "hidden")
    assert before + longer - shorter + other == pytest.approx(after, abs=0.1)
    assert chart.alt == (
        "before 1.00 ms; dot +500 µs; copy −200 µs; all other changes +100 µs; "
        "after 1.40 ms"
    )


def test_small_changes_of_a_long_step_are_seen() -> None:
    chart = pictures.waterfall(differences(100_000, 100_500, change("dot", 500)))
    assert boxes(chart, "exposed")[0] > 50
    assert "the axis does not begin at 0" in chart.svg


def ranks(waited_us: np.ndarray) -> Any:
    windows = tuple(SimpleNamespace(device=n) for n in range(4))
    late = SimpleNamespace(waited_us=waited_us)
    return SimpleNamespace(late=late, windows=windows, rank_name=lambda n: f"rank {n}")


def test_the_late_rank_is_the_strong_row() -> None:
    waited = np.zeros((3, 4))
    waited[:, 2] = 400
    chart = pictures.waits_chart(ranks(waited))
    assert chart is not None
    assert "rank 2: 400 µs" in chart.alt
    strengths = re.findall(r'class="exposed"[^>]*fill-opacity="([\d.]+)"', chart.svg)
    assert [float(one) > 0.9 for one in strengths] == [False] * 6 + [True] * 3 + [
        False
    ] * 3


def test_ranks_that_wait_for_nobody_need_no_picture() -> None:
    assert pictures.waits_chart(ranks(np.zeros((3, 4)))) is None


def kernel(name: str, work: Work, us: float) -> MeasuredInstruction:
    cost: Any = SimpleNamespace(name=name)
    return MeasuredInstruction(cost, None, us, 1, work)


def test_a_kernel_at_half_the_bandwidth_reaches_half_of_its_limit() -> None:
    hardware = by_architecture(None)
    moved = int(hardware.memory_gb_s * 1e3 * 50)  # bytes in 50 µs
    chart = pictures.roofline([kernel("add", Work(0, 1, moved), 100)], hardware)
    assert "50 % of its limit" in chart.alt
    assert f"{hardware.memory_gb_s:,.0f} GB/s" in chart.svg


def test_the_peak_of_memory_is_where_the_plan_has_it() -> None:
    plan = BufferPlan(1 << 30, 0, 0, 3 << 30, (), "dot", (1 << 30, 3 << 30, 1 << 30))
    live = (LiveValue("dot", 2 << 30, "", "", ""),)
    chart = pictures.memory_chart(Memory(plan, live, None))
    assert "peaks after 33 % of the schedule" in chart.alt
    for row in (
        "arguments 1.00 GiB",
        "dot 2.00 GiB",
        "other temporary memory 1.00 GiB",
    ):
        assert row in chart.alt


def test_ticks_are_round_in_the_unit_that_they_are_written_in() -> None:
    ticks = charts.sizes(4.2 * 1024**3).ticks
    assert [text for _, text in ticks] == ["0", "2 GiB", "4 GiB"]
    ticks = charts.times(5_000, 5_300).ticks
    assert [text for _, text in ticks][:2] == ["5.0 ms", "5.1 ms"]


def test_a_logarithmic_axis_has_powers_of_ten_at_equal_distances() -> None:
    axis = charts.logarithmic(1, 1000, str)
    assert [axis.at(value) for value, _ in axis.ticks] == pytest.approx(
        [0, 1 / 3, 2 / 3, 1]
    )


def test_names_in_a_picture_stay_text() -> None:
    chart = pictures.waterfall(differences(1000, 1100, change("<b>&", 100)))
    assert "<b>" not in chart.svg
    assert "&lt;b&gt;&amp;" in chart.svg


def test_both_sides_of_a_comparison_are_named_with_their_medians() -> None:
    found = pgle.compare([5.0, 5.1, 4.9] * 5, [4.0, 4.1, 3.9] * 5).result
    chart = pictures.sides_chart(found)
    assert chart is not None
    assert "base 5.00 s" in chart.svg and "new 4.00 s" in chart.svg
    assert chart.alt == "base: 15 steps, median 5.00 s; new: 15 steps, median 4.00 s"


def test_kernels_at_one_place_share_a_label() -> None:
    hardware = by_architecture(None)
    alike = [kernel(f"add.{n}", Work(0, 100, 100_000_000), 100) for n in range(4)]
    product = Work(1e12, 0, 10_000_000, "bf16", True)
    chart = pictures.roofline([*alike, kernel("dot", product, 50)], hardware)
    assert ">1–4<" in chart.svg and ">5<" in chart.svg
