"""The account in words: one verdict, the same rows and numbers in every answer."""

from dataclasses import replace

import pytest
from accounts import account, opportunity

from pgle.account.next_move import Known, Search
from pgle.account.value import (
    Basis,
    ContentionLoss,
    OpportunityKind,
    Place,
    Refused,
    StepBase,
    TimedSteps,
    Trial,
)
from pgle.next import to_way
from pgle.report.account import (
    actions,
    contention_note,
    document,
    end_words,
    headline,
    note,
    timed_note,
    without_communication,
)
from pgle.report.page.value import Saving
from pgle.report.text import plain
from pgle.steps.verdict import Verdict

FLAGS = OpportunityKind.FLAGS
ATTENTION = opportunity(
    OpportunityKind.ATTENTION,
    0.31,
    least=0.22,
    most=0.38,
    title="Fuse the attention",
    edit="write jax.nn.dot_product_attention(..., implementation='cudnn')",
)
LOOPS = opportunity(
    OpportunityKind.UNROLL, None, most=0.6, title="Run fewer small kernels in loops"
)
SEARCH = opportunity(FLAGS, None, most=0.226, title="Search for flags")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            account(ATTENTION, SEARCH),
            "Fuse the attention: saves 31.0 % (22.0 … 38.0 %) of the step, estimated",
        ),
        (
            account(ATTENTION, LOOPS),
            "Fuse the attention: saves 31.0 % (22.0 … 38.0 %) of the step, estimated; open: "
            "run fewer small kernels in loops (at most 60.0 %)",
        ),
        (
            account(SEARCH),
            "No sure gain; open: search for flags (at most 22.6 % of the step)",
        ),
        (
            account(),
            "Nothing to gain above 0.5 % of the step: 70.0 % of it is compute",
        ),
    ],
)
def test_the_largest_lever_leads_else_what_is_open_else_what_bounds_the_step(
    found, words: str
) -> None:
    assert headline(found)[0] == words


def test_the_rows_are_the_opportunities_above_one_per_cent_the_largest_first() -> None:
    small = opportunity(OpportunityKind.DONATION, 0.004)
    rows = actions(account(small, SEARCH, ATTENTION))
    assert [row.title for row in rows] == ["Fuse the attention", "Search for flags"]
    assert [str(row.saves) for row in rows] == [
        "31.0 % (22.0 … 38.0 %)",
        "at most 22.6 %",
    ]


def test_the_base_of_all_savings_is_named_once() -> None:
    assert note(account(ATTENTION)) == (
        "Savings are shares of the step with the flags that you use now."
    )


def test_the_base_of_a_bound_is_named_too() -> None:
    words = "Savings are shares of the step with the flags that you use now."
    assert note(account(SEARCH)) == words


def test_a_headline_names_a_step_that_is_not_the_one_of_today() -> None:
    profiled = replace(account(ATTENTION), base=StepBase.PROFILED)
    assert "of the step with the profile, estimated" in headline(profiled)[0]


def test_the_document_has_the_numbers_of_the_screen() -> None:
    (found,) = plain(document(account(ATTENTION)))["opportunities"]
    assert (found["expected"], found["least"], found["most"]) == (0.31, 0.22, 0.38)


def test_an_edit_of_the_program_is_the_end_of_the_way() -> None:
    words = end_words(Known(account=account(ATTENTION)))
    assert str(words) == (
        "the program to save 31.0 %, then rehearse. "
        "Write jax.nn.dot_product_attention(..., implementation='cudnn')"
    )


def test_after_a_search_in_vain_nothing_is_left() -> None:
    words = end_words(Known(search=Search.IN_VAIN, account=account(SEARCH)))
    assert str(words) == "no profile and no flag that pgle knows shortens this step"


def test_a_long_scope_is_named_by_its_last_part() -> None:
    scope = "/".join((*(f"AttentionOp_0.{number:030}" for number in range(6)), "local"))
    where = (Place(scope, 3740.0), Place("other", 1.0))
    kind = OpportunityKind.REMAT
    found = opportunity(kind, 0.07, where=where, why="7.0 % is computed again")
    (row,) = actions(account(found))
    assert row.why == "7.0 % is computed again, most in local (3.74 ms)"
    assert row.find == scope


def test_a_place_that_the_finding_names_is_not_named_twice() -> None:
    why = "the others wait 11.4 ms for rank 1 · GPU 1 (10.1 ms)"
    where = (Place("rank 1 · GPU 1", 10100.0), Place("rank 3 · GPU 3", 1200.0))
    found = opportunity(OpportunityKind.RANK_SKEW, 0.09, where=where, why=why)
    (row,) = actions(account(found))
    assert row.why == why


def test_an_edit_of_the_program_ends_with_what_to_write() -> None:
    code = "jax.nn.dot_product_attention(q, k, v)"
    kind = OpportunityKind.ATTENTION
    attention = opportunity(kind, 0.31, edit="Write this.", code=code)
    found = to_way([end_words(Known(account=account(attention)))])
    words = "the program to save 31.0 %, then rehearse. Write this:"
    assert (found.end, found.done, found.code) == ("Now edit", words, code)


def test_what_is_no_edit_of_the_program_is_to_do() -> None:
    host = opportunity(OpportunityKind.INPUT, 0.2, edit="look at the host")
    found = to_way([end_words(Known(account=account(host)))])
    words = "look at the host: saves 20.0 %; then measure again"
    assert (found.end, found.done) == ("Now", words)


def test_an_edit_begins_with_its_place() -> None:
    where = (Place("fusion.1", 3740.0, source="train.py:41"),)
    kind = OpportunityKind.ATTENTION
    known = account(opportunity(kind, 0.31, where=where, edit="Fuse it. Stop."))
    words = str(end_words(Known(account=known)))
    assert words == "train.py:41 to save 31.0 %, then rehearse. Fuse it. Stop"


def test_a_sum_counts_savings_that_no_row_shows_and_says_so() -> None:
    small = opportunity(OpportunityKind.INPUT, 0.001)
    found = note(account(ATTENTION, small))
    assert found.endswith(", with 1 more of --all.")


def test_one_saving_that_is_all_of_the_sum_has_no_sum() -> None:
    tiny = opportunity(OpportunityKind.INPUT, 0.0001)
    assert note(account(ATTENTION)) == note(account(ATTENTION, tiny))
    assert "together" not in note(account(ATTENTION))


def test_slow_steps_name_the_part_as_a_time_of_the_mean_step() -> None:
    where = (Place("between steps", 5700.0), Place("compute", 1.0))
    why = "1 of 6 steps longer than the others, execution 3 by 33 ms"
    found = opportunity(OpportunityKind.SLOW_STEPS, 0.07, where=where, why=why)
    (row,) = actions(account(found))
    assert row.why == f"{why}, most of it between steps (5.70 ms of the mean step)"


def test_nothing_left_is_done() -> None:
    assert to_way([end_words(Known(account=account()))]).end == "Done"


LOSS = ContentionLoss(us=35.0, product=1.85, other=1.35, launches=54)


def test_contention_is_one_line_with_its_factors_and_what_they_rest_on() -> None:
    found = replace(account(), contention=LOSS)
    assert contention_note(found) == (
        "contention adds 35 µs (3.5 %): next to collectives matmuls take 1.85×, "
        "others 1.35× (measured)"
    )
    assert plain(document(found))["contention"]["us"] == 35.0
    assumed = replace(found, contention=replace(LOSS, launches=0))
    assert contention_note(assumed).endswith("(assumed)")


def test_a_step_without_communication_is_a_line() -> None:
    known = account()
    bounds = replace(known.bounds, without_communication_us=0.8 * known.step_us)
    said = without_communication(replace(known, bounds=bounds))
    assert said.startswith("Without communication the step would take ")
    assert said.endswith("(80.0 %).")


def test_contention_below_half_a_per_cent_is_no_line() -> None:
    found = replace(account(), contention=replace(LOSS, us=4.0))
    assert contention_note(found) == ""


def test_an_edit_that_was_tried_says_what_that_has_shown() -> None:
    words = "−70.1 %, attention cudnn, better"
    shown = {OpportunityKind.ATTENTION: Trial(0.701, 0.69, 0.72, words, helps=True)}
    edit, search = actions(account(ATTENTION, SEARCH).with_trials(shown))
    assert edit.why.endswith(f"tried: {words}")
    assert edit.saves == Saving(0.701, 0.69, 0.72)
    assert "tried" not in search.why


def test_an_edit_that_could_not_be_tried_says_why() -> None:
    refused = {OpportunityKind.ATTENTION: Refused("its weights are dropped")}
    edit, _ = actions(account(ATTENTION, SEARCH).with_trials(refused))
    assert edit.why.endswith("not tried: its weights are dropped")


def test_the_step_of_a_profile_run_is_not_held_against_timed_steps() -> None:
    timed = TimedSteps(
        base_us=1000.0,
        step_us=980.0,
        change=-0.02,
        least=-0.03,
        most=-0.01,
        verdict=Verdict.FASTER,
        basis=Basis.SIMULATED,
    )
    plain = replace(account(), timed=timed)
    alone = replace(plain, base=StepBase.ALONE)
    assert "the model is 0.0 % from them" in timed_note(plain, is_base=True)
    assert timed_note(alone, is_base=True).endswith("faster.")
