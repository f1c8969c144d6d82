"""Read step times from files that programs write: console logs, JSON lines and CSV.

Known lines, as programs print them:
- MaxText: ``completed step: 7, seconds: 3.604, TFLOP/s/device: 286.671, loss: 2.014``
- plain: ``step 7 … 0.2013 s``, ``step=7 time=201.3 ms``, ``iteration 7 | 201.3 ms``,
  ``step 7 step_time_s=0.2``

A log without such lines may have a record per line, as JSON or as a Python dict. Or it may have
bars of tqdm (``7/100 [00:02<00:30, 3.05it/s]``), whose rates are smoothed. Means over many steps
(Pax ``steps/sec: 0.485``, Keras ``123ms/step``) are not step times. Other lines show when a
profiler ran.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from pgle.errors import UserError
from pgle.files import Json
from pgle.steps.series import (
    LARGEST_LOSS,
    LARGEST_STEP,
    Malformed,
    Mark,
    Series,
    Step,
    check_count,
    make_series,
    unfit,
)
from pgle.steps.trackers import (
    EXPORTED_STEPS,
    STEP_KEYS,
    TIME_KEYS,
    UNITS,
    Point,
    check_one_run,
    counts_calls,
    number_of,
    run_of,
    step_rows,
    table_points,
)

LOSS_KEYS = ("loss", "learning/loss", "train_loss")
MARKS = {
    "profiled": Mark.PROFILED,
    "compiled": Mark.COMPILED,
    "checkpoint": Mark.CHECKPOINT,
}

_Row: TypeAlias = Json
_Rows: TypeAlias = Iterable[tuple[int, str, _Row | str]]
"""Number of a line, its text, and its record, or the reason why it has none."""
_Match: TypeAlias = Callable[[str], "_Row | str | None"]
"""Returns a line's record of a step, or the reason why it is malformed; None if it has no step."""


def read_json_lines(lines: Iterable[str], source: str) -> Series:
    """Read JSON lines such as ``{"step": 7, "step_time_s": 0.2013}``, or lines with Python dicts.

    Optional keys: ``loss``; ``profiled``, ``compiled``, ``checkpoint`` (true if it happened in this
    step); ``simulated``.

    Args:
        source: name of the file, for messages.

    Raises:
        UserError: there are several runs, or too many lines.
    """
    return _series(source, "jsonl", _json_rows(lines))


def read_csv(lines: Iterable[str], source: str) -> Series:
    """Read a table with a header. Columns have the names of the keys of JSON lines, or those of an
    experiment tracker's export. Other columns are ignored.

    Raises:
        UserError: it has no step times, or those of several runs.
    """
    rest = iter(lines)
    head = next(rest, "")
    delimiter = max(",;\t", key=head.count)
    reader = csv.DictReader(chain([head], rest), delimiter=delimiter)
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        is_ours = set(names) & set(TIME_KEYS) and not set(names) & EXPORTED_STEPS
        if not is_ours:
            return _read_export(reader, source)
        rows = (
            (reader.line_num, delimiter.join(map(str, row.values())), row)
            for row in reader
        )
        return _series(source, "csv", rows)
    except csv.Error as error:
        raise UserError(
            f"not a table of step times ({error})",
            where=source,
            remedy="check the file",
        ) from None


_TAG = re.compile(r"-tag-(.+)\.csv")  # TensorBoard names a table by its tag


def _read_export(reader: csv.DictReader[str], source: str) -> Series:
    """Read a table that a tracker exported."""
    names = list(reader.fieldnames or ())
    named = _TAG.search(source)
    points = list(table_points(names, reader, named[1] if named else "Value"))
    if not any(point.at_s is not None or point.metric for point in points):
        what = f"no column with step times among: {', '.join(names) or 'none'}"
        remedy = f"name it step_time_s (or {', '.join(list(TIME_KEYS)[3:7])})"
        raise UserError(what, where=source, remedy=remedy)
    return read_points(points, source, "csv", may_count_calls=counts_calls(names))


def read_points(
    points: Iterable[Point], source: str, format: str, *, may_count_calls: bool = False
) -> Series:
    """Make a series from the metrics of a tracker.

    Args:
        may_count_calls: as in `step_rows`.
    """
    rows, note = step_rows(points, source, may_count_calls=may_count_calls)
    numbered = ((at, str(row), row) for at, row in enumerate(rows, 1))
    series = _series(source, format, numbered)
    return series if note is None else series.warned(f"{source}: {note}")


def _json_rows(lines: Iterable[str]) -> _Rows:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        yield number, line, _record(line)


LONGEST_DICT = 16_384
"""Most characters of a Python dict. A longer line is not a record of a step, and slow to parse."""
_NOT_FINITE = re.compile(r"(?<=[:,\[(] )[-+]?(?:nan|inf)(?=[,}\])])")


def _record(line: str) -> _Row | str:
    """The record in a line, as JSON or as a Python dict of plain values; else why there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = _plain_dict(line.strip())
        if row is None:
            return "not JSON (cut short?)"
    return row if isinstance(row, dict) else "not a JSON object"


def _plain_dict(text: str) -> _Row | None:
    """Read a dict as Python prints it, evaluating only literals; None if the text is not one."""
    if not text.startswith("{") or len(text) > LONGEST_DICT:
        return None
    quoted = _NOT_FINITE.sub(r"'\g<0>'", text)  # nan and inf are not literals
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a text may have a backslash
            row = ast.literal_eval(quoted)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return row if isinstance(row, dict) else None


def _series(source: str, format: str, rows: _Rows) -> Series:
    steps: list[Step] = []
    malformed: list[Malformed] = []
    runs: dict[str, None] = {}
    simulated = False
    for number, line, row in rows:
        check_count(source, len(steps) + len(malformed))
        if isinstance(row, str):
            malformed.append(Malformed(number, line[:80], row))
            continue
        simulated = simulated or _truth(row.get("simulated"))
        runs[run_of(row)] = None
        next_number = steps[-1].step + 1 if steps else 0
        found = _step(row, next_number)
        if isinstance(found, Step):
            steps.append(found)
        else:
            malformed.append(Malformed(number, line[:80], found))
    check_one_run(runs, source)
    return make_series(
        source, format, steps, malformed=tuple(malformed), simulated=simulated
    )


def _step(row: _Row, count: int) -> Step | str:
    """The step of a record, or the reason why it is malformed.

    Args:
        count: the step's number if the record has none.
    """
    key = next((name for name in TIME_KEYS if name in row), None)
    if key is None:
        return "no step_time_s"
    number_of_units = number_of(row[key])
    if number_of_units is None:
        return f"{key} is not a positive number"
    seconds = number_of_units * TIME_KEYS[key]
    reason = unfit(seconds)
    if reason:
        return f"{key} {reason}"
    mark = Mark.NONE
    for name, flag in MARKS.items():
        if _truth(row.get(name)):
            mark |= flag
    number = next(
        (
            value
            for name in STEP_KEYS
            if (value := number_of(row.get(name))) is not None
        ),
        None,
    )
    if number is not None and abs(number) > LARGEST_STEP:
        return "the step number is too large"
    return Step(
        step=count if number is None else int(number),
        step_time_s=seconds,
        loss=_loss(row),
        mark=mark,
    )


def _loss(row: _Row) -> float:
    """The loss of a record; NaN if it has none, infinite if its loss is not a finite number."""
    for name in LOSS_KEYS:
        if name in row and row[name] not in (None, ""):
            finite = number_of(row[name])
            return math.inf if finite is None or abs(finite) > LARGEST_LOSS else finite
    return math.nan


def _truth(value: Any) -> bool:
    return (
        value is True
        or (isinstance(value, str) and value.strip().lower() in ("true", "1", "yes"))
        or value == 1
    )


NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf"
# a number such as ``12,345.6``
_GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])(?:\.\d*)?"
_TIME = rf"{_GROUPED}|(?!\d+,\d)(?:{NUMBER})"
"""A number, perhaps with separators of thousands. The part before a decimal comma does not match.
"""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Escape sequences of terminals. Keras and coloured loggers print them into files, too."""

_MAXTEXT = re.compile(rf"completed step: (?P<step>\d+), seconds: (?P<s>{NUMBER})\b")
_MAXTEXT_LIKE = "completed step:"
_PLAIN_STEP = re.compile(
    r"(?:^|[^\w/])(?:step|iteration|iter)(?:\s*[:=#|]\s*|\s+|\[)"
    r"(?P<step>\d{1,3}(?:,\d{3})+(?![\d.]|\s*(?:ms|us|µs|s|sec)\b)|\d+)\b",
    re.IGNORECASE,
)
_BEFORE = r"(?<![\w.])(?<!\d,)(?<!eta )(?<!eta: )(?<!eta:)(?<!eta=)"
_UNIT = r"(?P<unit>seconds|secs|sec|ms|us|µs|s)"
_NAMED = (
    r"(?: per (?:step|iteration|iter))?(?P<suffix>_(?:s|sec|seconds|ms|us))?"
    r"(?:\s*\((?P<paren>ms|s|us|sec)\))?"
    rf"\s*(?:[:=]\s*|\s)(?P<t>{_TIME})\s*{_UNIT}?\b(?![.,:]?\d)"
    r"(?!\s*(?:m|mins?|minutes?|h|hrs?|hours?|days?)\b)"
)
"""A time after its name. Times of day, and times in minutes or longer units, do not match."""
_TIME_WORDINGS = (
    rf"{_BEFORE}(?P<t>{_TIME})\s*{_UNIT}/(?:step|iteration|iter|it)\b",
    rf"\b(?:step_?time|iter_?time){_NAMED}",
    rf"\A[^\w.]{{0,4}}(?P<t>{_TIME})\s*{_UNIT}\b(?!/)",
    rf"\b(?:elapsed time|time|elapsed|took|seconds|duration|dt){_NAMED}",
    rf"{_BEFORE}(?P<t>{_TIME})\s*{_UNIT}\b(?!/)(?! left| remaining)",
)
"""Wordings of a step time after the number of the step, the surest one first."""
_PLAIN_TIMES = tuple(re.compile(form, re.IGNORECASE) for form in _TIME_WORDINGS)
_LOSS = re.compile(rf"\bloss[\"']?\s*[:=]?\s*(?P<loss>{NUMBER})", re.IGNORECASE)

_PROFILE_BEGINS = re.compile(
    r"Capture range started|Profiler session (?:initializ|started)|Profiler session is starting"
)
_PROFILE_ENDS = re.compile(
    r"Capture range ended|Profiler session tear down|Profiler session (?:ended|stopped)"
)


def read_console(
    lines: Iterable[str], source: str, *, pattern: str | None = None
) -> Series:
    """Read a console log.

    Args:
        lines: of the log; it must be possible to iterate over them several times. Carriage returns
            end lines, too (progress bars).
        source: name of the log.
        pattern: regular expression of the user's own step line. It has a group ``s``, ``ms`` or
            ``us``, and perhaps ``step`` and ``loss``.

    Raises:
        UserError: no line has a step time, all times grow, or the pattern has no such group.
    """
    if pattern is not None:
        name = "pattern"
        match = _custom(pattern)
    else:
        is_maxtext = any(_MAXTEXT_LIKE in line for line in lines)
        name, match = ("maxtext", _maxtext) if is_maxtext else ("plain", _plain)
    series = _series(source, name, _console_rows(lines, match))
    if not len(series) and name == "plain":
        series = _read_records(lines, source) or _read_bars(lines, source) or series
    if not len(series):
        raise UserError("no line of it holds a step time", where=source, remedy=_REMEDY)
    # no program is slower in each of ten steps, up to three times the first; these are clock times
    seconds = series.step_time_s
    if (
        len(seconds) >= 10
        and seconds[-1] > 3 * seconds[0]
        and (np.diff(seconds) > 0).all()
    ):
        raise UserError(
            "its times only grow: since the start?", where=source, remedy=_REMEDY
        )
    return series


def _console_rows(lines: Iterable[str], match: _Match) -> _Rows:
    is_on = was_on = False  # whether a profiler is on, or was on until this step
    for number, line in enumerate(map(_uncoloured, lines), 1):
        found = match(line)
        if found is not None:
            profiled = {"profiled": True} if is_on or was_on else {}
            was_on = False
            yield (
                number,
                line.strip(),
                found if isinstance(found, str) else {**found, **profiled},
            )
        elif (
            "apture range" in line or "rofiler session" in line
        ):  # a search for words is many times faster than one by an expression
            if _PROFILE_BEGINS.search(line):
                is_on = True
            elif _PROFILE_ENDS.search(line):
                is_on, was_on = False, True


_REMEDY = (
    r"print 'step 7: 0.2013 s' per step, or pass --pattern "
    r"'step (?P<step>\d+) .* (?P<s>[\d.]+)'"
)


_OTHER_STEP = re.compile(
    r"\bstep_i: (?P<step>\d+)\b|\b(?P<of_epoch>\d+)/\d+\b.*?(?:ms|us|µs|s)/(?:step|batch|epoch)\b"
)
"""Lines of Pax and Keras, which name a step but not its time."""
_XLA_LINE = re.compile(
    r"[IWEF]\d{4} \d{2}:\d{2}:|\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d+: [IWEF] "
)


def step_number(line: str) -> int | None:
    """The step number in a line of output, in any of the known wordings; None if it has none."""
    if _XLA_LINE.match(line):
        return None
    line = _uncoloured(line)
    found = _PLAIN_STEP.search(line) or _OTHER_STEP.search(line)
    number = "" if found is None else found["step"] or found["of_epoch"]
    return _integer(number) if 0 < len(number) < 12 else None


def _uncoloured(line: str) -> str:
    """Remove the codes of colours from a line."""
    return _COLOUR.sub("", line) if "\x1b" in line else line


def _maxtext(line: str) -> _Row | str | None:
    """Return the row in a line of MaxText; why it is no row; or None if it is another line."""
    found = _MAXTEXT.search(line)
    if found is None:
        return "cut short" if _MAXTEXT_LIKE in line else None
    return {"step": _integer(found["step"]), "seconds": found["s"], **_loss_in(line)}


def _plain(line: str) -> _Row | str | None:
    """Return the row in a line that names a step and its time; None if it is another line."""
    lower = line.lower()  # a search for words is many times faster than an expression
    step = _PLAIN_STEP.search(line) if "step" in lower or "iter" in lower else None
    if step is None or _bar(line) is not None:
        return None
    rest = line[step.end() :]
    named = next(
        (found for form in _PLAIN_TIMES if (found := form.search(rest)) is not None),
        None,
    )
    if named is None:
        return None
    parts = named.groupdict()
    unit = (
        parts["unit"] or parts.get("paren") or (parts.get("suffix") or "s").lstrip("_")
    ).lower()
    return {
        "step": _integer(step["step"]),
        "seconds": _float(named["t"]) * UNITS[unit],
        **_loss_in(line),
    }


def _read_records(lines: Iterable[str], source: str) -> Series | None:
    """Read the records among other lines of a log; None if there are no records."""
    records = (
        (number, line, _record(line))
        for number, line in enumerate(lines, 1)
        if line.lstrip().startswith("{")
    )
    series = _series(source, "jsonl", records)
    return series if len(series) else None


_OF_BAR = r"(?:it|steps?|iter|batch)"
_BAR = re.compile(
    rf"\b(?P<step>\d+)(?:/(?P<total>\d+|\?)|{_OF_BAR}) \[[\d:]+(?:<[\d:?]+)?, *"
    rf"(?:(?P<s>\d+\.\d+)s/{_OF_BAR}|(?P<rate>\d+\.\d+){_OF_BAR}/s)\b"
)
"""A bar of tqdm with the rate of its steps.

tqdm's ``format_meter`` (github.com/tqdm/tqdm, tqdm/std.py) prints the rate or its inverse,
whichever is above 1, with two decimals.
"""


def _bar(line: str) -> re.Match[str] | None:
    """The bar of tqdm in a line, or None."""
    if "[" not in line or not ("s/" in line or "/s" in line):
        return None
    return _BAR.search(line)


def _read_bars(lines: Iterable[str], source: str) -> Series | None:
    """Read tqdm's bars, with a warning that their times are smoothed; None if there are no bars.

    If bars have several totals (epochs around batches), those with the most lines count.
    """
    bars = (_bar(line) for line in lines)
    totals = Counter(bar["total"] for bar in bars if bar is not None)
    if not totals:
        return None
    (total, _), *_ = totals.most_common(1)
    series = _series(source, "tqdm", _bar_rows(lines, total))
    if not len(series):
        return None
    note = (
        f"{source}: step times are tqdm's smoothed rates, of two decimals; "
        "to see smaller differences, print the time of each step"
    )
    return series.warned(note)


def _bar_rows(lines: Iterable[str], total: str | None) -> _Rows:
    """The rows of the bars with one total.

    If a bar prints a step again, only the first line counts: a closed bar shows the mean rate of
    all its steps.
    """
    last = None
    for number, line in enumerate(lines, 1):
        bar = _bar(_uncoloured(line))
        if bar is None or bar["total"] != total or bar["step"] == last:
            continue
        last = bar["step"]
        seconds = _seconds_of(bar)
        row = {"step": _integer(last), "seconds": seconds, **_loss_in(line)}
        yield number, line.strip(), row


def _seconds_of(bar: re.Match[str]) -> float:
    """Seconds of a step, from the rate of a bar; infinite if the rate is 0."""
    if bar["s"] is not None:
        return float(bar["s"])
    rate = float(bar["rate"])
    return 1 / rate if rate > 0 else math.inf


def _loss_in(line: str) -> _Row:
    """Return the loss in a line, as part of a row; empty if there is none."""
    found = _LOSS.search(line)
    return {} if found is None else {"loss": found["loss"]}


def _integer(text: str) -> int:
    """Return an integer that may hold commas."""
    # Python refuses 4,300 digits, and a number of a hundred is too large anyway
    return int(text.replace(",", "")[:100])


def _float(text: str) -> float:
    """Return a number that may hold commas."""
    return float(text.replace(",", ""))


def _custom(pattern: str) -> _Match:
    """Return a function that reads a row by the user's own expression."""
    compiled = re.compile(pattern)
    unit = next(
        (name for name in ("s", "ms", "us") if name in compiled.groupindex), None
    )
    if unit is None:
        raise UserError(
            "has no group named s, ms or us",
            where="--pattern",
            remedy=r"write (?P<s>[\d.]+)",
        )

    def match(line: str) -> _Row | str | None:
        """Return the row in a line; why it is no row; or None if it is another line."""
        found = compiled.search(line)
        if found is None:
            return None
        groups = found.groupdict()
        try:
            step = _integer(groups["step"]) if groups.get("step") else None
            seconds = _float(groups[unit] or "nan") * UNITS[unit]
            return {
                "step": step,
                "seconds": seconds,
                **_loss_in(f"loss {groups.get('loss') or ''}"),
            }
        except ValueError:
            return "not a number"

    return match
