"""What the live line says."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from pgle.report import advise
from pgle.report import text as progress
from pgle.run.compiler.compile import CompileRequest, CompilerPhase


def test_a_line_counts_says_the_best_and_the_rest() -> None:
    line = progress.Line(
        "compiling", done=5, total=20, noun="trial", best="−4.4 %", since=0.0
    )
    assert (
        line.text(18.0)
        == "trial 5 of 20 · best −4.4 % · compiling · 18 s, about 54 s left"
    )


def test_what_is_done_is_named_next_to_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = progress.Line("starting XLA's compiler", since=0.0)
    monkeypatch.setattr(advise, "live", lambda what: nullcontext(line))
    with advise.trying() as (on_attempt, _):
        on_attempt("comparing values of attention cudnn", 3, 7)
    said = "alternative 3 of 7 · comparing values of attention cudnn · 21 s"
    assert line.text(21.0) == f"{said}, about 28 s left"


def test_the_time_that_is_left_never_grows() -> None:
    line = progress.Line("compiling", done=5, total=10, noun="trial", since=0.0)
    assert line.text(50.0).endswith("50 s, about 50 s left")
    assert line.text(60.0).endswith("60 s")
    line.done = 9
    assert line.text(70.0).endswith("70 s, about 8 s left")


def test_work_that_is_not_counted_is_named() -> None:
    assert progress.Line("reading log", since=0.0).text(3.0) == "reading log · 3 s"


def test_a_share_is_shown_where_nothing_is_counted() -> None:
    assert (
        progress.Line("reading", done=1, total=4, since=0.0).text(0.5)
        == "25 % · reading · 0 s, about 2 s left"
    )


def test_a_bar_that_is_full_says_what_goes_on() -> None:
    with progress.live("x") as line:
        pass
    with progress.progress("reading traces") as advance:
        advance(1, 2)
        advance(2, 2)
    assert line.what == "x"


def test_phases_are_told_in_words() -> None:
    line = progress.Line("", since=0.0)
    request = CompileRequest(Path("m.mlir"), (), Path("out/baseline"))
    with progress.phases(line) as note:
        note(CompilerPhase(request, "optimising", "jit_step", 8))
    assert (
        line.what == "compiling jit_step, the schedule without a profile (optimising)"
    )


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in progress.Line("\x1b[2J", since=0.0).text(1.0)
