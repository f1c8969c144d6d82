"""Documents take what they say from values, field by field, under the same names."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from pgle.report.text import Document, flat, plain


class Place(Document):
    """A part of `Measured`."""

    host: str


class Measured(Document):
    """A document with a part and a figure of its own."""

    place: Place = flat()
    step_us: float
    is_slow: bool


@dataclass(frozen=True)
class Step:
    """A value with more than a document says."""

    step_us: float
    module: str = "jit_step"


def test_a_document_has_the_fields_of_a_value_and_those_that_are_given() -> None:
    found = Measured.of_value(Step(3.0), place=Place("a"), is_slow=False)
    assert plain(found) == {"host": "a", "step_us": 3.0, "is_slow": False}


def test_of_several_values_the_first_that_has_a_field_says_it() -> None:
    found = Measured.of_value(
        SimpleNamespace(is_slow=True), Step(3.0), place=Place("a")
    )
    assert (found.is_slow, found.step_us) == (True, 3.0)


def test_a_document_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Place("a").host = "b"  # type: ignore[misc]


def test_a_field_that_no_value_has_is_named() -> None:
    with pytest.raises(TypeError, match="no value of the document has is_slow"):
        Measured.of_value(Step(3.0), place=Place("a"))
