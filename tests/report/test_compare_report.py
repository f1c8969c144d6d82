"""Renderers of a comparison."""

import math
import re
from dataclasses import replace

import pytest

from pgle.report.compare import (
    comparison_page,
    document,
    headline,
    left_out_text,
    outputs,
    sides_table,
    summary,
)
from pgle.report.page.html import render
from pgle.report.page.value import Table
from pgle.report.text import plain
from pgle.steps.compare import Comparison, LimitCheck, Limits, Outcome, compare, gate
from pgle.steps.estimate import Assumptions, LaunchSpread
from pgle.steps.series import Mark, Side, Step, make_series, steady


def side(label: str, level: float) -> Side:
    steps = [
        Step(
            i,
            level * (1 + 0.001 * (i * 7 % 5)),
            2.0,
            Mark.PROFILED if i in (4, 5, 6, 9) else Mark.NONE,
        )
        for i in range(60)
    ]
    return Side(label, (steady(make_series(f"{label}.jsonl", "jsonl", steps)),))


def slower(label: str = "new") -> Comparison:
    return compare(side("base", 0.2), side(label, 0.21))


def cells(found: Comparison) -> list[list[object]]:
    return [[cell.value for cell in row] for row in sides_table(found).drawn().rows]


def test_a_row_for_each_side_and_one_for_the_change() -> None:
    assert sides_table(slower()).drawn().heads == ("", "step (ms)", "±", "loss")
    assert cells(slower()) == [
        ["base", "200.4", "0.1 %", "2"],
        ["new", "210.4", "0.1 %", "2"],
        ["change", "+5.0 %", "", "–"],
    ]


def test_an_undecided_change_is_marked_with_a_tilde() -> None:
    assert str(cells(compare(side("a", 0.2), side("b", 0.2)))[2][1]).startswith("~")


def test_the_name_of_a_run_is_not_read_as_a_unit() -> None:
    (about, *_) = comparison_page(slower("run (time)"), ()).sections
    (table,) = about.parts
    assert isinstance(table, Table)
    assert table.drawn().heads == ("", "base", "run (time)")


@pytest.mark.parametrize(
    ("levels", "same_within", "said"),
    [
        ((0.2, 0.21), 0.0, "5.00 % slower (4.54 … 5.47 %, 95 % CI)"),
        ((0.21, 0.2), 0.0, "4.76 % faster (4.34 … 5.18 %, 95 % CI)"),
        ((0.2, 0.2), 0.01, "The same: 0.00 % (−0.46 … +0.47 %, 95 % CI)"),
        ((0.2, 0.2), 0.0, "Undecided: 0.00 % (−0.46 … +0.47 %, 95 % CI)"),
    ],
)
def test_the_verdict_has_one_number_and_its_interval(
    levels: tuple[float, float], same_within: float, said: str
) -> None:
    spread = LaunchSpread(0.0015, math.inf, "--launch-spread")
    found = compare(
        side("a", levels[0]),
        side("b", levels[1]),
        Assumptions(0.95, same_within, spread, False),
    )
    assert headline(found) == said


def test_wide_intervals_have_one_decimal() -> None:
    assert headline(slower()) == "5.0 % slower (2.2 … 7.9 %, 95 % CI)"


def test_that_launches_are_assumed_is_said_once() -> None:
    found = comparison_page(slower(), ())
    said = [str(getattr(note, "value", note)) for note in found.notes]
    assert said == [
        "One launch per side: launches are assumed to differ by up to ±2.70 % (--abba measures it)"
    ]
    assert found.warnings == ()


def test_left_out_steps_are_given_as_ranges() -> None:
    assert left_out_text(side("a", 0.2)) == "4 profiled (4–6, 9)"


def test_names_cannot_break_markdown_or_html() -> None:
    label = "<script>|`*\n\x1b ![x](https://host/x) [x](www.host) @me"
    found = slower(label)
    checks = (LimitCheck("step time", Outcome.FAIL, "<b>|\x00"),)
    markdown = summary(found, checks)
    assert "<script>" not in markdown
    assert "```" not in markdown
    assert "\\<b\\>\\|\\\\x00" in markdown
    assert not re.search(r"(?<!\\)[\[\]<`]|\x1b|https:/|www\.host| @me", markdown)
    assert "<script>|" not in render(comparison_page(found, checks))


def test_what_cannot_be_told_is_ok_in_no_form() -> None:
    found = slower()  # one run per side, launches unknown: +5 % against a bound of 3 %
    checks = gate(found, Limits(fail_slower=0.03))
    known = document(found, checks)
    assert (known.ok, known.outcome) == (None, "cannot-tell")
    assert known.checks[0].ok is None
    assert outputs(found, checks)["ok"] == "cannot-tell"
    assert outputs(found, checks)["message"].startswith(
        "step time: a slowdown of 3 % is neither shown nor ruled out: +5.00 %"
    )
    assert "cannot tell step time: a slowdown of 3 % is neither shown" in summary(
        found, checks
    )
    page = render(comparison_page(found, checks))
    assert (
        "cannot tell step time: a slowdown of 3 % is neither shown nor ruled out"
        in page
    )


def test_p_is_shown_only_for_a_test_of_whole_runs() -> None:
    one, two = (
        Side("a", tuple(side("a", level + i * 1e-4).runs[0] for i in range(4)))
        for level in (0.2, 0.21)
    )
    shown = [summary(found, ()) for found in (slower(), compare(one, two))]
    assert ["p (Mann" in text for text in shown] == [False, True]
    assert "0.029" in shown[1]


def test_outputs_are_single_lines() -> None:
    found = slower()
    values = outputs(found, gate(found, Limits(fail_slower=0.01)))
    assert values["verdict"] == "slower"
    assert values["message"].startswith(
        "step time: slower by more than 1 % (--fail-slower): +5.00 %"
    )
    assert not any("\n" in value for value in values.values())


def test_the_document_has_the_promised_keys() -> None:
    assert {"verdict", "ratio", "ci", "p", "n", "minimum_detectable"} <= set(
        plain(document(slower(), ()))
    )


def test_an_interval_of_simulated_steps_is_no_confidence_interval() -> None:
    one, two = (
        Side(name, (replace(run, series=replace(run.series, simulated=True)),))
        for name, level in (("a", 0.21), ("b", 0.2))
        for run in side(name, level).runs
    )
    found = compare(one, two)
    assert headline(found).endswith("%, range of the estimate)")
    known = document(found, gate(found, Limits(fail_slower=0.01))).statistics
    assert known.interval_kind == "range of the estimate"
    assert known.confidence is None
    page = render(comparison_page(found, gate(found, Limits(fail_slower=0.01))))
    assert "% CI" not in page
    assert "80 % probability" not in page
