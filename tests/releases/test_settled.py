"""When two compilations settle what a release does to the step, and what it does to flags."""

from __future__ import annotations

import pytest

from pgle.releases.changes import FlagChange, flag_changes, settled
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Gain
from pgle.xla.flags.text import parse_flags


def gain(share: float) -> Gain:
    return Gain(share=share, low=share, high=share, idle_share=0.0)


@pytest.mark.parametrize(
    ("first", "control", "share"),
    [
        (-0.013, -0.009, -0.009),  # both longer: the smaller change
        (0.064, 0.013, 0.013),
        (0.004, -0.003, 0.0),  # neither is worth a word
        (-0.64, 0.0, None),  # one compilation alone
        (0.014, -0.010, None),  # opposite signs
    ],
)
def test_a_change_needs_both_compilations(first, control, share):
    found = settled(Controlled(gain(first), gain(control)))
    assert (None if found is None else found.share) == share


def test_without_products_one_compilation_is_enough():
    assert settled(Controlled(gain(0.02))) == gain(0.02)


def test_a_flag_that_the_new_release_does_not_know_has_its_successor():
    flags = parse_flags("--xla_gpu_enable_pipelined_collectives=true").flags
    found = [item for item in flag_changes(flags, "0.5.3", "0.6.0") if item.is_set]
    (change,) = found
    name = "xla_gpu_enable_pipelined_collectives"
    successor = "xla_gpu_enable_pipelined_all_gather"
    assert change == FlagChange(name, "", None, successor, is_set=True)


def test_defaults_that_change_are_listed_and_flags_that_are_set_are_not():
    name = "xla_gpu_experimental_enable_heuristic_collective_combining"
    plain = {item.name: item for item in flag_changes([], "0.8.3", "0.9.2")}
    assert (plain[name].before, plain[name].after) == ("true", "false")
    flags = parse_flags(f"--{name}=true").flags
    assert name not in {item.name for item in flag_changes(flags, "0.8.3", "0.9.2")}
