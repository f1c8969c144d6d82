"""The answer of `pgle advise` in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from accounts import account, opportunity

from pgle.account.captured_program import CapturedFacts, opportunities_of
from pgle.account.value import OpportunityKind, Trial
from pgle.next import Next, Sentence, to_way
from pgle.report.advise import (
    _actions,
    _at,
    _left,
    _notes,
    _table,
    _values_note,
    commands,
    headline,
)
from pgle.report.next_steps import way_in_run
from pgle.report.page.value import as_cell
from pgle.run.advise import Advised
from pgle.run.alternative_steps import Tried
from pgle.run.alternatives import Alternative, Kind
from pgle.run.attempts import Attempt
from pgle.run.capture.captured import ComparedValues
from pgle.run.directory.directory import RunDirectory
from pgle.run.untried import OVER_BUDGET, Untried
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Gain
from pgle.schedule.verdict import Verdict

IDLE = tuple(opportunities_of(CapturedFacts(devices=8), devices=4, step_us=1000.0))
UNROLL = Alternative(Kind.UNROLL, "a.py:1", "2", "")


def advised(*attempts: Attempt, **fields: Any) -> Advised:
    best = next((item for item in attempts if item.verdict is Verdict.BETTER), None)
    usual = {
        "unchanged": (),
        "whole": None,
        "run": None,
        "left": 0,
        "interrupted": False,
        "best": best,
        "open": None,
        "left_out": "",
        "left_sites": 0,
        "request": SimpleNamespace(no_step=""),
        "account": account(exposed=0.0),
    }
    found = {**usual, "attempts": attempts, **fields}
    return cast(Advised, SimpleNamespace(**found))


def test_devices_that_do_nothing_lead_before_what_was_tried() -> None:
    found = advised(account=replace(account(), opportunities=IDLE))
    words, _ = headline(found)
    assert words == "Use all 8 GPUs: the step runs on 4 of the 8 that were asked for"
    assert [item.title for item in _actions(found)] == ["Use all 8 GPUs"]
    (end,) = commands(found)
    assert str(end).startswith("the program, then rehearse. Write this before the loop")
    assert "mesh = Mesh(" in to_way([end]).code


def test_a_gain_has_its_range() -> None:
    gained = Controlled(Gain(0.1, 0.02, 0.2, 0.0))
    found = advised(Attempt((UNROLL,), Verdict.BETTER, "", gained=gained))
    words, _ = headline(found)
    assert words == "unroll 2 shortens the step by about 10.0 % (2.0 … 20.0 %)"


def test_a_longer_step_with_more_data_is_not_called_shorter() -> None:
    batch = Alternative(Kind.VARIED, "batch", "batch=16", "batch=16")
    gained = Controlled(Gain(0.4, 0.4, 0.4, 0.0))
    tried = cast(Tried, SimpleNamespace(step_us=1200.0))
    found = Attempt((batch,), Verdict.BETTER, "", tried, gained, work=2.0)
    words, _ = headline(advised(found, base=SimpleNamespace(step_us=1000.0)))
    assert words == (
        "batch=16: each element of the data takes 40.0 % less time; "
        "step 1.00 ms → 1.20 ms"
    )


def test_the_budget_that_suffices_is_named_once() -> None:
    left = Untried("flags", OVER_BUDGET, "")
    found = advised(open=left, interrupted=False, best=FAILED, left=3, budget=8)
    assert (
        "; ".join(_left(found)) == f"flags: {OVER_BUDGET} (--budget 8); 3 alternatives"
    )


def test_the_savings_of_edits_in_turn_add_up_to_that_of_all() -> None:
    """The second edit halves what the first one leaves of the step: 30 % of it as it is."""
    halved = Controlled(Gain(0.5, 0.4, 0.6, 0.0))
    tried = cast(Tried, SimpleNamespace(gain_over=lambda base, work: halved))
    gains = (
        Controlled(Gain(0.4, 0.3, 0.5, 0.0)),
        Controlled(Gain(0.7, 0.6, 0.8, 0.0)),
    )
    both = (UNROLL, Alternative(Kind.UNROLL, "a.py:2", "4", ""))
    one, two = (
        Attempt(both[:count], Verdict.BETTER, "", tried, gained)
        for count, gained in enumerate(gains, start=1)
    )
    first, second = _actions(advised(one, two, best=two))
    assert str(first.saves) == "40.0 % (30.0 … 50.0 %)"
    assert str(second.saves) == "30.0 % (24.0 … 36.0 %)"


def test_a_search_that_was_stopped_names_what_is_left_to_compare() -> None:
    gained = Controlled(Gain(0.4, 0.3, 0.5, 0.0))
    why = "values not compared: stopped"
    tried = cast(Tried, SimpleNamespace(step_us=600.0))
    found = Attempt((UNROLL,), Verdict.UNSURE, why, tried, gained)
    words, _ = headline(advised(found, interrupted=True))
    assert words == (
        "Stopped. No sure gain; open: unroll 2 may shorten the step by "
        "40.0 % (30.0 … 50.0 %): values not compared: stopped"
    )


TRIED = cast(Tried, SimpleNamespace(step_us=1000.0))
FAILED = Attempt((UNROLL,), Verdict.UNSURE, "it fails: head of 512")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            advised(),
            "Nothing to gain: found no alternative to try; 100.0 % of it is compute",
        ),
        (advised(FAILED, FAILED), "No answer: 2 alternatives tried, all failed"),
        (
            advised(FAILED, unchanged=("unroll 2, a.py:1",)),
            "Nothing to gain: no alternative is surely 0.5 % shorter",
        ),
    ],
)
def test_nothing_to_try_is_not_that_all_failed(found: Advised, words: str) -> None:
    assert headline(found) == (words, "")


def test_without_a_gain_the_largest_untried_opportunity_is_named_with_the_reason() -> (
    None
):
    fuse = opportunity(OpportunityKind.ATTENTION, None, most=0.4)
    why = "jax has no fused kernel of its own for AMD"
    left = Untried(str(fuse.kind), why, "use Pallas", fuse)
    found = advised(unchanged=("unroll 2, a.py:1",), open=left, account=account(fuse))
    words, tone = headline(found)
    assert (words, tone) == (
        "Nothing of what was tried helps. Not tried: attention that is not fused "
        "(saves at most 40.0 % of the step): jax has no fused kernel of its own for AMD",
        "warn",
    )


def test_an_unsure_gain_in_both_compilations_is_open_and_not_nothing() -> None:
    turns = "an uncertain cost may turn its sign"
    cast_all = Alternative(Kind.PRECISION, "a.py:1", "bfloat16", "cast(x)")
    gained = Controlled(Gain(0.339, -0.02, 0.5, 0.0))
    found = advised(
        Attempt((cast_all,), Verdict.UNSURE, turns, TRIED, gained),
        Attempt((UNROLL,), Verdict.UNSURE, ""),
        measure=Next.of("run", "--", "python", "a.py"),
    )
    assert headline(found)[0] == (
        f"No sure gain; open: {cast_all.name} may shorten the step by "
        f"33.9 % (−2.0 … 50.0 %): {turns}"
    )
    (end,) = commands(found)
    words = "precision bfloat16 in a.py:1; only a measurement tells whether that helps"
    assert str(end).startswith(words)
    assert to_way([end]).code == "cast(x)"


def test_a_larger_opportunity_that_nobody_tried_leads_before_an_unsure_gain() -> None:
    fuse = opportunity(OpportunityKind.ATTENTION, None, most=0.4)
    left = Untried(str(fuse.kind), "no kernel", "use Pallas", fuse)
    gained = Controlled(Gain(0.1, -0.02, 0.2, 0.0))
    unsure = Attempt((UNROLL,), Verdict.UNSURE, "", TRIED, gained)
    found = advised(unsure, open=left, account=account(fuse))
    assert "Not tried: attention that is not fused" in headline(found)[0]


def test_an_edit_by_hand_goes_on_in_its_own_sentence() -> None:
    casts = opportunity(OpportunityKind.PRECISION, 0.2)
    untried = Untried("products", "types", "Cast to bfloat16.", casts)
    (end,) = commands(advised(open=untried))
    assert str(end) == "Cast to bfloat16; then rehearse again"


def test_without_a_step_nothing_is_claimed_of_it() -> None:
    found = advised(request=SimpleNamespace(no_step="jit_dot is a function of jax's"))
    assert headline(found) == ("Cannot tell: no training step was found", "bad")
    assert str(commands(found)[0]).startswith("compile the step with jax.jit")


def test_a_program_is_edited_before_it_is_measured() -> None:
    measure = Next.of("profile", "--", "python", "train.py")
    found = advised(Attempt((UNROLL,), Verdict.BETTER, ""), measure=measure)
    (end,) = commands(found)
    assert str(end) == f"the program, then measure it: `{measure}`"


def test_in_a_run_directory_the_best_leads_to_the_step_of_all_answers(
    tmp_path: Path,
) -> None:
    remat = Alternative(Kind.REMAT, "a.py:1", "dots", "")
    shown = {OpportunityKind.REMAT: Trial(0.1, 0.1, 0.1, "better", helps=True)}
    known = {"run": RunDirectory(tmp_path), "shown": shown, "measure": Next.of("run")}
    found = advised(Attempt((remat,), Verdict.BETTER, ""), **known)
    assert commands(found) == way_in_run(RunDirectory(tmp_path))
    other = advised(Attempt((UNROLL,), Verdict.BETTER, ""), **known)
    assert known["measure"] in cast(Sentence, commands(other)[0]).commands


def test_an_edit_shows_its_limit() -> None:
    limited = replace(UNROLL, limit="a NaN spreads")
    found = advised(Attempt((limited,), Verdict.BETTER, ""))
    assert "a NaN spreads" in _actions(found)[0].why


def test_code_at_the_end_of_an_answer_is_not_shown_in_its_row_too() -> None:
    limited = replace(UNROLL, edit="unroll=2", how="Write this above", limit="a NaN")
    found = advised(Attempt((limited,), Verdict.BETTER, ""))
    (shown,) = _actions(found)
    (short,) = _actions(found, shown.code)
    assert (shown.code, short.code) == (limited.edit, "")
    assert "above" in shown.why and "above" not in short.why


def test_flags_have_no_place_in_the_program() -> None:
    flags = Alternative(Kind.FLAGS, "all-reduce combined to 32 MiB", "--x", "--x")
    assert _at(Attempt((flags,), Verdict.BETTER, "")) == ""
    assert _at(Attempt((UNROLL,), Verdict.BETTER, "")) == ", a.py:1"


def test_a_shorter_step_that_is_no_gain_has_the_reason_under_its_row() -> None:
    gained = Controlled(Gain(0.9, 0.8, 0.95, 0.0))
    step = SimpleNamespace(
        step_us=10.0,
        memory_bytes=0,
        profiled_share=None,
        costs_are="estimated",
        prediction=SimpleNamespace(exposed_us=0.0),
    )
    why = "it needs 93.1 GiB of 60.0 GiB"
    tried = cast(Tried, step)
    limited = replace(UNROLL, limit="a NaN spreads")
    large = Attempt((limited,), Verdict.UNSURE, why, tried, gained)
    found = advised(large, ranked=[large], base=step)
    names = [as_cell(row[0]).value for row in _table(found).rows]
    assert names == ["as it is", "unroll 2, a.py:1", f"  {why}"]


def test_what_changed_nothing_is_named() -> None:
    names = ("unroll 2, a.py:1",)
    found = advised(ranked=[], unchanged=names, left_alone=())
    assert list(_notes(found)) == ["changed nothing in the step: unroll 2, a.py:1"]


def test_what_the_budget_left_out_is_tried_next() -> None:
    again = Next.of("advise", "--budget", 9, "--", "python", "train.py")
    assert commands(advised(whole=again)) == (again,)


def test_a_compared_cast_says_that_its_products_alone_were_rounded() -> None:
    near = ComparedValues(difference=1e-3, tolerance=1e-2, unit=2**-8, seen=2)
    cast_ = Alternative(Kind.CAST, "by hand", "bfloat16", "")
    gained = Controlled(Gain(0.1, 0.1, 0.1, 0.0))
    made = Attempt((cast_,), Verdict.BETTER, "", gained=gained, values=near)
    (note,) = _values_note(made)
    assert note.endswith("are rounded, and nothing else that a cast rounds")
