"""Is PGLE worth a job? The sentence, for predictions that a person can read."""

from __future__ import annotations

from dataclasses import replace

from pgle.costs.profile.value import Cost, Profile
from pgle.schedule.compare import DISABLE_ASYNC, Move, Placement, judge_gain
from pgle.schedule.predict import Prediction, predict
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

SHAPE = Shape("f32", (1 << 20,))
GATHER = Placement("all-gather-start", "all-gather", True, 0, 0.0, 100.0, 100.0, 900.0)


def step_of(compute_us: float, gather_us: float) -> Prediction:
    """A step of one kernel, then a synchronous gather."""
    entry = (
        Instruction("gemm", "fusion", SHAPE, "e", fusion_kind="kLoop"),
        Instruction("all-gather", "all-gather", SHAPE, "e", ("gemm",)),
    )
    module = Module("jit_step", 1, "", "e", {"e": Computation("e", entry, "all-gather")}, is_scheduled=True)
    return predict(module, Profile((Cost("gemm", compute_us), Cost("all-gather", gather_us))), "a100")


def judge(after_us: float, after: Placement = GATHER, before: Placement = GATHER) -> str:
    move = Move("all-gather-start", before, after)
    return judge_gain(step_of(900, 100), step_of(after_us - 100, 100), [move], "measured")


def test_a_shorter_step_whose_collectives_moved_is_worth_it() -> None:
    hidden = replace(GATHER, sync=False, between=1, exposed_us=0.0)
    assert judge(900, hidden) == "Yes: the profile moves 1 of 1 collectives and the step gets 10.0% shorter."


def test_a_gain_that_contention_may_take_is_no_yes() -> None:
    after = step_of(800, 100)
    after = replace(after, steps_us=after.steps_us._replace(most_contention=1100.0))
    assert judge_gain(step_of(900, 100), after, [], "measured").startswith("Cannot tell: the step gets 10.0%")


def test_a_gain_without_moves_is_not_ascribed_to_collectives() -> None:
    assert judge(900).startswith("Yes: no collective moves")


def test_a_longer_step_is_said_first() -> None:
    assert judge(1100).startswith(
        "No: with true costs the greedy scheduler does worse here, the step gets 10.0% longer"
    )


def test_a_flag_that_keeps_collectives_synchronous_is_named() -> None:
    kept = replace(GATHER, kept_by=DISABLE_ASYNC)
    assert judge(1000, kept, kept).startswith(f"No: {DISABLE_ASYNC} keeps 100% of the exposed communication")


def test_what_nothing_is_independent_of_cannot_be_hidden() -> None:
    alone = replace(GATHER, independent_us=0.0)
    assert "100% of it has nothing independent to hide behind" in judge(1000, alone, alone)


def test_no_change_is_called_no_change() -> None:
    assert judge(1000).endswith("but the profile does not change the step time.")


def test_a_program_without_collectives_has_nothing_to_hide() -> None:
    assert "no collective" in judge_gain(step_of(900, 0), step_of(900, 0), [], "measured")


def offloading(order: tuple[str, ...]) -> Prediction:
    """A copy of 100 µs to host memory and a kernel of as much, in a given order."""
    host = Shape("f32", (1 << 20,), memory_space=5)
    known = {
        "start": Instruction("start", "copy-start", Shape("tuple", elements=(host, SHAPE, Shape("u32"))), "e", ("x",)),
        "done": Instruction("done", "copy-done", host, "e", ("start",)),
        "gemm": Instruction("gemm", "fusion", SHAPE, "e", ("x",), fusion_kind="kLoop"),
    }
    entry = (Instruction("x", "parameter", SHAPE, "e"), *(known[name] for name in order))
    module = Module("jit_step", 1, "", "e", {"e": Computation("e", entry, order[-1])}, is_scheduled=True)
    return predict(module, Profile((Cost("gemm", 100.0), Cost("start", 100.0))), "a100")


def test_host_copies_that_hide_are_the_gain() -> None:
    late, early = offloading(("gemm", "start", "done")), offloading(("start", "gemm", "done"))
    assert "of the host copies hide" in judge_gain(late, early, [], "measured")


def test_exposed_host_copies_count() -> None:
    late = offloading(("gemm", "start", "done"))
    assert "exposed communication and host copies" in judge_gain(late, late, [], "measured")
