"""Step times out of what experiment trackers export: which metric holds them, and in which unit.

wandb writes a table with ``_step``, ``_timestamp`` and a column for each metric (its API), or with
``Step`` and ``RUN - METRIC``, each with ``__MIN`` and ``__MAX`` (its pages:
github.com/wandb/wandb/issues/5349). TensorBoard writes ``Wall time,Step,Value`` of one tag (its
scalars plugin). A table of mlflow has ``key,value,timestamp,step``, with times in milliseconds (the
fields of its REST API, ``metrics/get-history``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from pgle.errors import UserError, some

UNITS = {
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "milliseconds": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
}
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
NO_UNIT = "step_time"  # seconds in a file of ours; a tracker's may be in any unit
EXPORTED_STEPS = {"_step", "Step"}  # a column of wandb and of TensorBoard
CLOCKS = ("timestamp", "wall_time", "runtime")  # of a table, the surest first
MOST_SECONDS = 1e11  # since the epoch; a larger time stamp is in milliseconds


class Point(NamedTuple):
    """A value of a metric."""

    metric: str
    step: float | None  # None: not said
    at_s: float | None  # when it was recorded, in seconds since some moment
    value: float
    run: str = ""  # of a table that names it


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric that says how long a step takes."""

    metric: str
    kind: str  # `TIME`, `RATE` or `WORK`
    unit_s: float | None = 1.0  # seconds of its unit; None: its name does not say
    work: str = ""  # what `WORK` counts: ``token``


TIME = "time"  # of a step
RATE = "rate"  # steps per second
WORK = "work"  # tokens per second
AMOUNT = "amount"  # tokens of a step
TOTAL = "total"  # tokens since the start
LOSS = "loss"

_UNIT = rf"(?P<unit>{'|'.join(UNITS)})"
_STEP = r"(?:steps?|iterations?|iters?|its?|batch(?:es)?)"
_PER_SECOND = r"(?:_per_|/)(?:s|sec|second)"
_WORK = r"(?P<work>token|sample|example|sequence|image)s?"
_WORDINGS = (
    (TIME, rf"{_STEP}_?(?:time|timing|duration)(?:_in)?(?:_{_UNIT})?"),
    (TIME, rf"time_per_{_STEP}(?:_{_UNIT})?"),
    (TIME, rf"{_UNIT}(?:_per_|/){_STEP}"),
    (RATE, rf"{_STEP}{_PER_SECOND}"),
    (WORK, rf"{_WORK}{_PER_SECOND}"),
    (AMOUNT, rf"{_WORK}_per_(?:step|batch)"),
    (TOTAL, rf"(?:total|num|consumed)_(?:input_)?{_WORK}(?:_seen)?"),
)
_FORMS = [(kind, re.compile(rf"(?:^|[/_]){wording}$")) for kind, wording in _WORDINGS]
"""How the name of a metric ends, by what it holds."""
_FORMS.append((LOSS, re.compile(r"(?:^|/)(?:train_)?loss$")))  # not a part: `aux_loss`
EVALUATION = ("eval", "evaluation", "val", "valid", "validation", "test")
_ELSEWHERE = re.compile(rf"(?:^|[/_])(?:{'|'.join(EVALUATION)})(?:[/_]|$)|^system/")
"""Metrics that are recorded at other moments than training steps."""
_OTHER = re.compile(
    rf"{_ELSEWHERE.pattern}|__m(?:in|ax)$"
    r"|per_(?:device|gpu|chip|core)|(?:^|[/_])(?:device|gpu|chip|core)/"
)
"""These, metrics of one device, and bounds that wandb draws."""


def plain_name(metric: str) -> str:
    """The name of a metric in small letters, without the run that wandb puts before it."""
    name = metric.rpartition(" - ")[2].lower()
    return re.sub(r"[\s().:-]+", "_", name).strip("_")


def short_name(metric: str) -> str:
    """The last part of that name: ``loss`` of ``train/loss``."""
    return plain_name(metric).rpartition("/")[2].strip("_")


def measure_of(metric: str) -> Measure | None:
    """What a metric says of a step, by its name; None: nothing."""
    name = plain_name(metric)
    if _OTHER.search(name):
        return None
    if metric in TIME_KEYS and metric != NO_UNIT:
        return Measure(metric, TIME, TIME_KEYS[metric])
    for kind, form in _FORMS:
        if (found := form.search(name)) is not None:
            parts = found.groupdict()
            unit_s = UNITS.get(parts.get("unit") or "") if kind == TIME else 1.0
            return Measure(metric, kind, unit_s, parts.get("work") or "")
    return None


def _chosen(measures: Sequence[Measure], source: str) -> Measure | None:
    """The metric that holds step times; None if there is none.

    Raises `UserError` if there are several, or if the only one does not say its unit.
    """
    for kind in (TIME, RATE, WORK):
        fit = [item for item in measures if item.kind == kind and item.unit_s]
        if len(fit) > 1:
            names = some([repr(item.metric) for item in fit], 4)
            what = f"several columns hold step times: {names}"
            raise UserError(what, where=source, remedy="keep one, of one run")
        if fit:
            return fit[0]
    for item in measures:
        if item.unit_s is None:
            what = f"'{item.metric}' has no unit: s or ms?"
            name = short_name(item.metric)
            remedy = f"rename it to {name}_s or {name}_ms"
            raise UserError(what, where=source, remedy=remedy)
    return None


def table_points(
    names: Sequence[str], rows: Iterable[Mapping[str, Any]], tag: str
) -> Iterator[Point]:
    """The points of a table: one of a column for each metric, or one of a line for each value.

    Args:
        names: of the columns.
        rows: by those names.
        tag: the metric of a table that does not name it.
    """
    columns = {short_name(name): name for name in reversed(names)}
    step = next((columns[key] for key in STEP_KEYS if key in columns), "")
    clock = next((columns[key] for key in CLOCKS if key in columns), "")
    metric = columns.get("key") or columns.get("metric")
    run = columns.get("run_id") or columns.get("run_uuid") or columns.get("run")
    listed = [name for name in names if measure_of(name) is not None]
    for row in rows:
        of_run = "" if run is None else row.get(run) or ""
        number = number_of(row.get(step))
        at_s = _seconds_at(number_of(row.get(clock)))
        if "value" in columns:
            name = tag if metric is None else str(row[metric])
            value = _number_or_nan(row[columns["value"]])
            yield Point(name, number, at_s, value, of_run)
            continue
        yield Point("", number, at_s, math.nan, of_run)  # of its clock
        for name in listed:
            cell = row.get(name)
            if cell is None or not str(cell).strip():  # other metrics have the line
                continue
            yield Point(name, number, at_s, _number_or_nan(cell), of_run)


def _seconds_at(stamp: float | None) -> float | None:
    if stamp is None or stamp < MOST_SECONDS:
        return stamp
    return stamp / 1000


def step_rows(
    points: Iterable[Point], source: str
) -> tuple[list[dict[str, Any]], str | None]:
    """A row for each step, with ``step``, ``seconds`` and ``loss``; and a note on how they were
    taken, if they were no step times.

    Raises `UserError` if nothing says how long a step took, if its unit is not clear, or if there
    are several runs.
    """
    by_metric: dict[str, list[Point]] = {}
    runs: dict[str, None] = {}
    for point in points:
        by_metric.setdefault(point.metric, []).append(point)
        if point.run:
            runs[point.run] = None
    if len(runs) > 1:
        what = f"holds several runs: {some([repr(name) for name in runs], 4)}"
        raise UserError(what, where=source, remedy="keep one")
    known = map(measure_of, by_metric)
    measures = [measure for measure in known if measure is not None]
    measure = _chosen(measures, source)
    of_loss = _losses(measures, by_metric, source)
    losses = {point.step: point.value for point in of_loss}
    note: str | None = None
    if measure is None:
        note = "step times are the times between its lines"
        times = _between(of_loss, by_metric, source)
    elif measure.kind == TIME:
        unit_s = measure.unit_s or math.nan
        kept = by_metric[measure.metric]
        times = [(point.step, point.value * unit_s) for point in kept]
    else:
        note = f"step times are from '{measure.metric}'"
        kept = [point for point in by_metric[measure.metric] if point.value]
        done = dict.fromkeys([point.step for point in kept], 1.0)
        if measure.kind == WORK:
            done = _work_of_steps(measure, measures, by_metric, source)
        counted = [point for point in kept if point.step in done]
        times = [(point.step, done[point.step] / point.value) for point in counted]
    rows = [
        {"step": step, "seconds": seconds, "loss": losses.get(step)}
        for step, seconds in times
    ]
    return rows, note


def _losses(
    measures: Sequence[Measure], by_metric: Mapping[str, Sequence[Point]], source: str
) -> Sequence[Point]:
    """The points of the loss; none if there is none.

    A single value beside a longer one is the mean of a run, as transformers logs ``train_loss``.
    Raises `UserError` if several losses are left.
    """
    found = [item.metric for item in measures if item.kind == LOSS]
    longer = [name for name in found if len(by_metric[name]) > 1]
    kept = longer or found
    if len(kept) > 1:
        names = some([repr(name) for name in kept], 4)
        what = f"several columns hold the loss: {names}"
        raise UserError(what, where=source, remedy="keep one, of one run")
    return by_metric[kept[0]] if kept else ()


def _work_of_steps(
    measure: Measure,
    measures: Sequence[Measure],
    by_metric: Mapping[str, Sequence[Point]],
    source: str,
) -> dict[float | None, float]:
    """How much of what a rate counts each step does."""
    for item in measures:
        points = by_metric[item.metric]
        if item.work == measure.work and item.kind == AMOUNT:
            return {point.step: point.value for point in points}
        if item.work == measure.work and item.kind == TOTAL:
            return dict(_rises(points, [point.value for point in points]))
    what = f"'{measure.metric}' does not say how long a step takes"
    remedy = f"add a column {measure.work}s_per_step"
    raise UserError(what, where=source, remedy=remedy)


def _between(
    of_loss: Sequence[Point], by_metric: Mapping[str, Sequence[Point]], source: str
) -> list[tuple[float | None, float]]:
    """The time from line to line, per step.

    The lines of the loss, else all lines of a table, else those of the longest metric that is
    recorded while the program trains.
    """
    steady = [by_metric[name] for name in by_metric if not _is_elsewhere(name)]
    longest = max(steady, key=len, default=())
    found: list[tuple[float | None, float]] = []
    for points in (of_loss, by_metric.get("", ()), longest):
        found = found or _rises(points, [point.at_s for point in points])
    if not found:
        names = some([repr(name) for name in by_metric], 6) or "there is none"
        what = f"no metric says how long a step takes: {names}"
        raise UserError(what, where=source, remedy="log step_time_s")
    return found


def _is_elsewhere(metric: str) -> bool:
    return _ELSEWHERE.search(plain_name(metric)) is not None


def _rises(
    points: Sequence[Point], values: Sequence[float | None]
) -> list[tuple[float | None, float]]:
    """By how much something rises per step, from point to point; each with the later step."""
    found: list[tuple[float | None, float]] = []
    for (before, low), (after, high) in pairwise(zip(points, values, strict=True)):
        steps = (after.step or 0) - (before.step or 0)
        rise = (high or 0) - (low or 0)
        if steps > 0 and rise > 0:
            found.append((after.step, rise / steps))
    return found


def _number_or_nan(value: Any) -> float:
    number = number_of(value)
    return math.nan if number is None else number


def number_of(value: Any) -> float | None:
    """A finite number, of a number or a text; else None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # overflow: an integer of 309 digits
        return None
    return number if math.isfinite(number) else None
