"""Step times from records: JSON lines and CSV."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from pgle.errors import UserError
from pgle.steps.series import LARGEST_LOSS, LARGEST_STEP, Malformed, Mark, Series, Step, check_count, make_series, unfit

TIME_KEYS: Mapping[str, float] = {
    "step_time_s": 1.0,
    "step_time_seconds": 1.0,
    "perf/step_time_seconds": 1.0,  # MaxText's metrics_file
    "step_time_ms": 1e-3,
    "step_time_us": 1e-6,
    "step_time": 1.0,
    "seconds": 1.0,
    "time_s": 1.0,
    "time_ms": 1e-3,
    "duration_s": 1.0,
    "duration_ms": 1e-3,
}
"""Names of a step time and seconds per unit, in order of preference."""
STEP_KEYS = ("step", "global_step", "iteration", "iter")
LOSS_KEYS = ("loss", "learning/loss", "train_loss")
MEMORY_KEYS = ("peak_memory_bytes", "peak_bytes_in_use")
MARKS = {"profiled": Mark.PROFILED, "compiled": Mark.COMPILED, "checkpoint": Mark.CHECKPOINT}


def read_json_lines(lines: Iterable[str], source: str) -> Series:
    """Steps of JSON lines such as ``{"step": 7, "step_time_s": 0.2013}``.

    Optional keys: ``loss``, ``peak_memory_bytes``, ``profiled``, ``compiled``, ``checkpoint`` (true where it happened
    in this step), ``simulated``. A line with ``compile_time_s`` and no step time gives the compile time.

    Raises:
        UserError: more steps than `MOST_STEPS`.
    """
    return _series(source, "jsonl", _json_rows(lines))


def read_csv(lines: Iterable[str], source: str) -> Series:
    """Steps of a table with a header; columns are named as the keys of JSON lines, other columns are ignored.

    Raises:
        UserError: no column holds a step time, a field is longer than any number, or more steps than `MOST_STEPS`.
    """
    rest = iter(lines)
    head = next(rest, "")
    delimiter = max(",;\t", key=head.count)
    reader = csv.DictReader(chain([head], rest), delimiter=delimiter)
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
    except csv.Error as error:
        raise _no_table(source, error) from None
    if not set(names) & set(TIME_KEYS):
        what = f"no column with step times among: {', '.join(names) or 'none'}"
        raise UserError(what, where=source, remedy=f"name it step_time_s (or {', '.join(list(TIME_KEYS)[3:7])})")
    reader.fieldnames = names
    plain = _decimal_comma if delimiter == ";" else _thousands
    rows = (
        (reader.line_num, delimiter.join(map(str, row.values())), {key: plain(value) for key, value in row.items()})
        for row in reader
    )
    try:
        return _series(source, "csv", rows)
    except csv.Error as error:
        raise _no_table(source, error) from None


def _no_table(source: str, error: csv.Error) -> UserError:
    return UserError(f"not a table of step times ({error})", where=source, remedy="check the file")


_GROUPED = re.compile(r"\s*[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?\s*")


def _thousands(value: Any) -> Any:
    """``1,234.5`` as ``1234.5``; anything else as it is."""
    return value.replace(",", "") if isinstance(value, str) and "," in value and _GROUPED.fullmatch(value) else value


def _decimal_comma(value: Any) -> Any:
    """``1.234,5`` as ``1234.5``: where semicolons divide the columns, a comma divides the number."""
    if not isinstance(value, str) or value.count(",") != 1:
        return value
    whole, _, part = value.partition(",")
    return f"{whole.replace('.', '')}.{part}" if "." not in part else _thousands(value)


def _json_rows(lines: Iterable[str]) -> Iterator[tuple[int, str, Mapping[str, Any] | str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            yield number, line, "not JSON (cut short?)"
            continue
        yield number, line, row if isinstance(row, dict) else "not a JSON object"


def _series(source: str, format: str, rows: Iterable[tuple[int, str, Mapping[str, Any] | str]]) -> Series:
    steps: list[Step] = []
    malformed: list[Malformed] = []
    compile_time: float | None = None
    simulated = False
    for number, line, row in rows:
        check_count(source, len(steps) + len(malformed))
        if isinstance(row, str):
            malformed.append(Malformed(number, line[:80], row))
            continue
        found, seconds = _step(row, len(steps)), _number(row.get("compile_time_s"))
        if isinstance(found, Step):
            steps.append(found)
        elif seconds is None:
            malformed.append(Malformed(number, line[:80], found))
        simulated = simulated or _truth(row.get("simulated"))
        compile_time = compile_time if seconds is None else max(seconds, compile_time or 0.0)
    return make_series(source, format, steps, malformed=malformed, compile_time_s=compile_time, simulated=simulated)


def _step(row: Mapping[str, Any], count: int) -> Step | str:
    """The step of a record; `count` numbers it where the record does not; a reason where it is malformed."""
    key = next((name for name in TIME_KEYS if name in row), None)
    if key is None:
        return "no step_time_s"
    seconds = _number(row[key])
    if seconds is None or (reason := unfit(seconds * TIME_KEYS[key])):
        return f"{key} {'is not a positive number' if seconds is None else reason}"
    mark = Mark.NONE
    for name, flag in MARKS.items():
        if name in row and _truth(row[name]):
            mark |= flag
    number = _first(row, STEP_KEYS)
    if number is not None and abs(number) > LARGEST_STEP:
        return "the step number is too large"
    memory = _first(row, MEMORY_KEYS)
    return Step(
        step=count if number is None else int(number),
        step_time_s=seconds * TIME_KEYS[key],
        loss=_loss(row),
        peak_memory_bytes=math.nan if memory is None else memory,
        mark=mark,
    )


def _first(row: Mapping[str, Any], names: Iterable[str]) -> float | None:
    for name in names:
        if name in row and (value := _number(row[name])) is not None:
            return value
    return None


def _loss(row: Mapping[str, Any]) -> float:
    """The loss; infinite where one was recorded that is no finite number, NaN where none was recorded."""
    for name in LOSS_KEYS:
        if name in row and row[name] not in (None, ""):
            finite = _number(row[name])
            return math.inf if finite is None or abs(finite) > LARGEST_LOSS else finite
    return math.nan


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # overflow: an integer of 309 digits
        return None
    return number if math.isfinite(number) else None


def _truth(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "1", "yes")) or value == 1
