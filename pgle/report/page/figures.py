"""How figures are written: one unit per column with fixed decimals, one spelling of per cent, minus
and thousands.

Times that round to 0 µs are shown as ``–``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial

from pgle.errors import as_change, in_percent

NONE = "–"
_SMALLEST_US = 0.5  # what rounds to 0 µs is nothing
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
_SIZES = (
    (1024.0**4, "TiB"),
    (1024.0**3, "GiB"),
    (1024.0**2, "MiB"),
    (1024.0, "KiB"),
    (1.0, "B"),
)


class Unit(Enum):
    """The unit of a column's numbers. It decides how they are written."""

    TEXT = "text"
    TIME = "time"  # microseconds; the column has one unit, named in its head
    CHANGE_TIME = "change-time"  # microseconds with a sign
    SHARE = "share"  # 0 to 1, as per cent
    CHANGE = "change"  # a share with a sign
    COUNT = "count"
    SIZE = "size"  # bytes; the column has one unit, named in its head
    RATE = "rate"  # a plain number with three significant digits, such as GB/s
    FACTOR = "factor"  # ``1.85×``


def time(us: float | None) -> str:
    """One duration: ``285 µs``, ``6.42 ms``, ``130.9 ms``, ``1.56 s``; nothing is ``–``.

    Args:
        us: microseconds; None if it is not known.
    """
    if us is None or abs(us) < _SMALLEST_US:
        return NONE
    scale, name = _unit(abs(us), _TIMES)
    size = abs(us) / scale
    return f"{_minus(us)}{size:,.{_decimals(size, name)}f} {name}"


def time_unit(us: float) -> tuple[float, str]:
    """Choose the unit for a time: return its microseconds and its name."""
    return _unit(us, _TIMES)


def size_unit(size_bytes: float) -> tuple[float, str]:
    """Choose the unit for a size: return its bytes and its name."""
    return _unit(size_bytes, _SIZES)


def share(value: float | None, decimals: int = 1) -> str:
    """A share of 0 to 1 as ``28.0 %``."""
    if value is None:
        return NONE
    return in_percent(value, decimals)


def change(value: float | None, decimals: int = 1) -> str:
    """A signed share: ``−7.8 %``, or ``22×`` from tenfold on. A share that rounds to 0 is ``–``."""
    if value is not None and value >= 9:
        return f"{value + 1:,.0f}×"
    if value is None or round(abs(value) * 100, decimals) == 0:
        return NONE
    return as_change(value, decimals)


def signed(value: float, decimals: int = 1) -> str:
    """A signed share. A share that rounds to 0 is ``0.0 %``."""
    text = change(value, decimals)
    return share(0.0, decimals) if text == NONE else text


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Group ascending numbers into runs; return the first and last number of each."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        first = number
        if found and number == found[-1][1] + 1:
            first, _ = found.pop()
        found.append((first, number))
    return found


def count(value: float | None) -> str:
    """A number with thousands: ``2,514``."""
    return NONE if value is None else f"{_minus(value)}{abs(value):,.0f}"


def size(value: float | None) -> str:
    """Bytes as ``1.23 GiB``."""
    if not value:
        return NONE
    scale, name = _unit(abs(value), _SIZES)
    return f"{value / scale:,.{_size_decimals(name)}f} {name}"


def column(
    unit: Unit, values: Sequence[float | None], like: Sequence[float | None] = ()
) -> tuple[str, list[str]]:
    """A column of figures in one unit with fixed decimals.

    Args:
        unit: the unit of the values.
        values: in microseconds, bytes, or as they are; None if one is not known.
        like: the values that decide on unit and decimals; if empty, all.

    Returns:
        The unit for the column's head, empty if each cell shows it; and the texts.
    """
    sizes = (abs(value) for value in like or values if value is not None)
    most = max(sizes, default=0.0)
    if unit in (Unit.TIME, Unit.CHANGE_TIME):
        scale, name = _unit(most, _TIMES)
        decimals = _decimals(most / scale, name)
        write_time = partial(
            _cell,
            scale=scale,
            decimals=decimals,
            signed=unit is Unit.CHANGE_TIME,
            least=_SMALLEST_US,
        )
        return name, list(map(write_time, values))
    if unit is Unit.SIZE:
        scale, name = _unit(most, _SIZES)
        decimals = _size_decimals(name)
        return name, [_cell(value, scale, decimals) for value in values]
    write: Callable[[float | None], str] = {
        Unit.SHARE: share,
        Unit.CHANGE: change,
        Unit.COUNT: count,
        Unit.RATE: _rate,
        Unit.FACTOR: factor,
    }[unit]
    return "", list(map(write, values))


def between(low: str, high: str) -> str:
    """A range of two figures of one unit: ``8.5 … 15.8 %``."""
    if low == high:
        return low
    number, _, unit = low.rpartition(" ")
    if number and high.endswith(f" {unit}"):
        return f"{number} … {high}"
    return f"{low} … {high}"


def shares(values: Iterable[float]) -> str:
    """Shares as a range, the smallest first; one alone as it is."""
    ordered = sorted(values)
    return between(share(ordered[0]), share(ordered[-1]))


def saving(expected: float | None, least: float, most: float) -> str:
    """A saving as shares of the step: ``2.5 % (1.6 … 5.2 %)``, or ``at most 5.2 %`` if only the
    most is known.
    """
    if expected is None:
        return f"at most {share(most)}"
    likely = share(expected)
    low = share(least)
    high = share(most)
    return likely if low == high else f"{likely} ({between(low, high)})"


def _cell(
    value: float | None,
    scale: float,
    decimals: int,
    *,
    signed: bool = False,
    least: float = 0.0,
) -> str:
    """A figure in the unit of its column; ``–`` for nothing."""
    if value is None or abs(value) <= least:
        return NONE
    sign = _sign(value) if signed else _minus(value)
    return f"{sign}{abs(value) / scale:,.{decimals}f}"


def _unit(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit in which a value is not below 1, when it is rounded."""
    fitting = (unit for unit in units if value >= unit[0] * 0.9995)
    return next(fitting, units[-1])


def _decimals(value: float, unit: str) -> int:
    """Return how many decimals give a time three or four digits."""
    if unit == "µs":
        return 0
    return 2 if value < 99.995 else 1


def _size_decimals(unit: str) -> int:
    return 0 if unit == "B" else 2


def _sign(value: float) -> str:
    return "+" if value > 0 else "−"


def _minus(value: float) -> str:
    return "−" if value < 0 else ""


def _rate(value: float | None) -> str:
    """A number with three significant digits, or a whole one from 1,000 on."""
    if value is None:
        return NONE
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def factor(value: float | None) -> str:
    """``1.85×``."""
    return NONE if value is None else f"{value:.2f}×"
