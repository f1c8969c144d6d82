"""Figures have one unit per column, fixed decimals, one minus and one per cent."""

import re
from pathlib import Path

import pytest

import pgle
from pgle.errors import as_change
from pgle.report.page import figures
from pgle.report.page.figures import Unit

PGLE = Path(pgle.__file__).parent


@pytest.mark.parametrize(
    ("us", "text"),
    [(285.4, "285 µs"), (6419, "6.42 ms"), (55990, "55.99 ms"), (130_900, "130.9 ms"), (1_562_000, "1.56 s"),
     (0.2, "–"), (None, "–"), (-1231, "−1.23 ms"), (999.6, "1.00 ms"), (999_960, "1.00 s")],
)  # fmt: skip
def test_a_duration_has_the_digits_that_a_reader_needs(
    us: float | None, text: str
) -> None:
    assert figures.time(us) == text


def test_a_column_of_times_has_the_unit_of_its_largest() -> None:
    assert figures.column(Unit.TIME, [1231.0, 904.1, 7.5, None, 0.1]) == (
        "ms",
        ["1.23", "0.90", "0.01", "–", "–"],
    )


def test_a_column_of_signed_times() -> None:
    assert figures.column(Unit.CHANGE_TIME, [251.5, -19.0]) == ("µs", ["+252", "−19"])


def test_a_column_of_sizes() -> None:
    assert figures.column(Unit.SIZE, [3 << 30, 256 << 20]) == ("GiB", ["3.00", "0.25"])


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [(Unit.SHARE, 0.28, "28.0 %"), (Unit.CHANGE, -0.0784, "−7.8 %"), (Unit.CHANGE, 0.0001, "–"),
     (Unit.CHANGE, 0.1, "+10.0 %"), (Unit.COUNT, 2514, "2,514"), (Unit.FACTOR, 1.85, "1.85×"),
     (Unit.RATE, 0.0183, "0.0183"),
     (Unit.RATE, 2350.0, "2,350")],
)  # fmt: skip
def test_a_cell(unit: Unit, value: float, text: str) -> None:
    assert figures.column(unit, [value]) == ("", [text])


def test_a_range_names_its_unit_once() -> None:
    assert figures.between("8.5 %", "15.8 %") == "8.5 … 15.8 %"
    assert figures.between("900 µs", "1.20 ms") == "900 µs … 1.20 ms"


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.05, "+5.0 %"), (-0.5, "−50.0 %"), (0.0, "+0.0 %"), (12.5, "+1,250.0 %")],
)
def test_a_share_with_a_sign_has_one_spelling(value: float, words: str) -> None:
    assert as_change(value) == words


def test_no_other_file_words_shares_by_itself() -> None:
    # outputs of a GitHub action are for programs, not for readers
    sources = [path for path in PGLE.rglob("*.py") if path.name != "compare.py"]
    own = [path.name for path in sources if re.search(r":[+.\d]*%\}", path.read_text())]
    assert own == []
