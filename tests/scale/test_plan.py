"""Sizes and variants become command lines; what a size cannot be is said."""

from __future__ import annotations

import re

import pytest

from pgle.errors import UserError
from pgle.scale.plan import SizeTrial, UnfitError, check_names, filled, trials


def test_every_size_comes_with_every_combination() -> None:
    found = trials([8, 64], 8, {"mesh": ["a", "b"], "batch": ["1"]})
    assert [(trial.devices, dict(trial.values)["mesh"]) for trial in found] == [
        (8, "a"),
        (8, "b"),
        (64, "a"),
        (64, "b"),
    ]
    assert [trial.name for trial in found][:2] == [
        "8-mesh=a-batch=1",
        "8-mesh=b-batch=1",
    ]


def test_hosts_are_slices_of_a_topology() -> None:
    assert [SizeTrial(devices, 8).topology for devices in (4, 8, 64)] == [
        "1x1x4",
        "1x1x8",
        "8x1x8",
    ]


def test_half_a_host_is_refused() -> None:
    with pytest.raises(UnfitError, match="12 GPUs do not fill hosts of 8"):
        _ = SizeTrial(12, 8).topology


def test_placeholders_are_replaced_and_worked_out() -> None:
    trial = SizeTrial(64, 8, (("batch", "4"), ("mesh", "fsdp{hosts}tp8")))
    words = (
        "--batch={batch*devices}",
        "--per",
        "{devices / batch / 2}",
        "{mesh}",
        '{{"a": 1}}',
        "{devices}",
    )
    assert filled(words, trial) == (
        "--batch=256",
        "--per",
        "8",
        "fsdp8tp8",
        '{"a": 1}',
        "64",
    )


def test_a_division_that_leaves_a_rest_is_a_size_the_program_cannot_take() -> None:
    with pytest.raises(UnfitError, match="10 is not divisible by 4"):
        filled(("{devices/4}",), SizeTrial(10, 16))


@pytest.mark.parametrize(
    ("words", "vary", "said"),
    [
        (
            ["train.py"],
            {"mesh": ["a"]},
            "--vary mesh: is not in the command; write {mesh} in it",
        ),
        (["{mash}"], {"mesh": ["a"]}, "{mash}: has no value; did you mean 'mesh'"),
        (["--n={device}"], {}, "{device}: has no value; did you mean 'devices'"),
        (
            ["{mesh}"],
            {"batch": ["1"], "mesh": ["fsdp{batch}"]},
            "{batch}: has no value",
        ),
        (["{devices//8}"], {}, "{devices//8}: is not a placeholder; only"),
        (["{devices + 1}"], {}, "{devices + 1}: is not a placeholder; only"),
        (["{mash}"], {}, "{mash}: has no value"),
        (["{devices}"], {"devices": ["1"]}, "a name of pgle's own"),
    ],
)
def test_names_that_do_not_meet_are_refused(
    words: list[str], vary: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        check_names(words, vary)


def test_the_same_size_twice_is_refused() -> None:
    with pytest.raises(UserError, match="two trials are the same"):
        trials([8, 8], 8, {})
