"""Where a schedule puts collectives, on schedules that a person can read."""

from dataclasses import replace

import pytest
from simulated import simulate

from pgle.costs.profile.value import Cost
from pgle.schedule.placements import DISABLE_ASYNC, compare_placements, placements
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

COSTS = {
    "all-gather-start": 300.0,
    "dot.1": 200.0,
    "dot.2": 200.0,
    "tanh": 10.0,
    "use": 5.0,
}
INSTRUCTIONS = {
    "x": ("parameter", ()),
    "dot.1": ("custom-call", ("x",)),
    "dot.2": ("custom-call", ("dot.1",)),
    "tanh": ("fusion", ("x",)),
    "all-gather-start": ("all-gather-start", ("tanh",)),
    "all-gather-done": ("all-gather-done", ("all-gather-start",)),
    "use": ("fusion", ("all-gather-done", "dot.2")),
}


def place(*order: str):
    entry = tuple(
        Instruction(
            name,
            INSTRUCTIONS[name][0],
            Shape("f32", (8,)),
            "main",
            INSTRUCTIONS[name][1],
        )
        for name in order
    )
    module = Module(
        "jit_step",
        1,
        "",
        "main",
        {"main": Computation("main", entry, "use")},
        is_scheduled=True,
    )
    timeline = simulate(
        module, {name: Cost(name, cost) for name, cost in COSTS.items()}
    )
    return placements(module, timeline)


LATE = ("x", "dot.1", "dot.2", "tanh", "all-gather-start", "all-gather-done", "use")
EARLY = ("x", "tanh", "all-gather-start", "dot.1", "dot.2", "all-gather-done", "use")


def test_nothing_between_start_and_done_is_synchronous():
    gather = place(*LATE)["all-gather-start"]
    assert (gather.sync, gather.between, gather.cover_us) == (True, 0, 0.0)
    assert gather.exposed_us == pytest.approx(300)


def test_what_stands_between_covers_it():
    gather = place(*EARLY)["all-gather-start"]
    assert (gather.sync, gather.between, gather.cover_us) == (False, 2, 400.0)
    assert gather.exposed_us == pytest.approx(0, abs=5)


def test_independent_compute_is_what_neither_feeds_nor_needs_it():
    assert place(*LATE)["all-gather-start"].independent_us == 400


def test_the_reason_names_what_the_scheduler_left_undone():
    assert place(*LATE)["all-gather-start"].reason == "nothing is scheduled next to it"
    assert place(*EARLY)["all-gather-start"].reason == ""


def test_a_collective_that_everything_needs_cannot_be_hidden(monkeypatch):
    monkeypatch.setitem(INSTRUCTIONS, "dot.1", ("custom-call", ("all-gather-done",)))
    gather = place(
        "x", "tanh", "all-gather-start", "all-gather-done", "dot.1", "dot.2", "use"
    )["all-gather-start"]
    assert gather.independent_us == 0
    assert gather.reason == "nothing is independent of it"


def test_a_changed_schedule_is_a_move():
    (move,) = compare_placements(place(*LATE), place(*EARLY))
    assert move.moved
    assert not compare_placements(place(*EARLY), place(*EARLY))[0].moved


def test_a_collective_of_only_one_schedule_has_moved():
    (move,) = compare_placements(place(*LATE), {})
    assert move.moved
    assert move.after is None


def flagged(*flags: str) -> str:
    module_order = tuple(
        Instruction(
            name,
            INSTRUCTIONS[name][0],
            Shape("f32", (8,)),
            "main",
            INSTRUCTIONS[name][1],
        )
        for name in LATE
    )
    module = Module(
        "jit_step",
        1,
        "",
        "main",
        {"main": Computation("main", module_order, "use")},
        is_scheduled=True,
    )
    timeline = simulate(
        module, {name: Cost(name, cost) for name, cost in COSTS.items()}
    )
    return placements(module, timeline, flags)["all-gather-start"].reason


def test_a_flag_that_keeps_a_kind_synchronous_is_the_reason():
    assert (
        flagged(f"{DISABLE_ASYNC}=allcollectives") == f"synchronous by {DISABLE_ASYNC}"
    )
    assert (
        flagged(f"{DISABLE_ASYNC}=ALLREDUCE,ALLGATHER")
        == f"synchronous by {DISABLE_ASYNC}"
    )


def test_a_flag_for_another_kind_is_not():
    assert flagged(f"{DISABLE_ASYNC}=allreduce") == "nothing is scheduled next to it"
    assert (
        flagged(f"{DISABLE_ASYNC}=allgather", f"{DISABLE_ASYNC}=allreduce")
        == "nothing is scheduled next to it"
    )


def test_a_launch_gap_of_exposed_time_needs_no_reason():
    gather = place(*EARLY)["all-gather-start"]
    assert replace(gather, exposed_us=2.0).reason == ""
    assert replace(gather, exposed_us=60.0).reason != ""


def test_what_a_send_takes_is_read(monkeypatch):
    monkeypatch.setitem(INSTRUCTIONS, "use", ("fusion", ("dot.2",)))
    monkeypatch.setitem(INSTRUCTIONS, "sent", ("send", ("all-gather-done",)))
    assert not place(*LATE[:-1], "sent", "use")["all-gather-start"].unread


def test_a_collective_that_nothing_reads_says_so(monkeypatch):
    monkeypatch.setitem(INSTRUCTIONS, "use", ("fusion", ("dot.2",)))
    gather = place(*LATE)["all-gather-start"]
    assert gather.unread
    assert gather.reason == "nothing reads its result, and XLA runs it all the same"
    monkeypatch.setitem(INSTRUCTIONS, "use", ("fusion", ("all-gather-done", "dot.2")))
    assert not place(*LATE)["all-gather-start"].unread
