"""The lines of the program behind an instruction of a library."""

from __future__ import annotations

import pytest

from pgle.xla.hlo.frames import Frames, in_package

FLAX = "/env/lib/python3.11/site-packages/flax/linen/attention.py:132"


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([FLAX, FLAX, "/src/model.py:8", "/src/train.py:16"], "/src/model.py:8"),
        (["/src/model.py:8", FLAX, "/src/train.py:16"], ""),
        ([FLAX, "/usr/lib/python3.11/contextlib.py:79", "<string>:1"], ""),
    ],
)
def test_the_program_s_own_line_is_the_innermost_outside_of_packages(
    places: list[str], found: str
) -> None:
    frames = Frames()
    for number, place in enumerate(places, start=1):
        caller = number + 1 if number < len(places) else number
        frames.add(number, place, caller)
    assert frames.called_from(1) == found


def test_a_line_of_a_package_is_said_with_its_folder() -> None:
    assert in_package(FLAX) == "flax/linen/attention.py:132"
    assert in_package("/src/model.py:8") == "model.py:8"
