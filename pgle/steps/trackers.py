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
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from pgle.errors import UserError, some
from pgle.files import Json

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
_OWN_STEP = re.compile(rf"(?:train(?:er|ing)?/)?(?:{'|'.join(STEP_KEYS)})")
"""The program's own number of a step: ``train/global_step`` of transformers,
``trainer/global_step`` of Lightning. wandb's ``_step`` counts the calls of its ``log`` unless the
program says otherwise.
"""
RUN_KEYS = ("run_id", "run_uuid", "run")  # whole names: `time/run` is a metric
CLOCKS = ("timestamp", "wall_time", "runtime")  # of a table, the surest first
MOST_SECONDS = 1e11  # since the epoch; a larger time stamp is in milliseconds


class Point(NamedTuple):
    """A value of a metric."""

    metric: str  # empty: a line of a table, for its clock
    step: float | None  # None: not said
    at_s: float | None  # when it was recorded, in seconds since some moment
    value: float
    run: str = ""  # of a table that names it
    line: float | None = None  # values of one step share it if there is no step

    @property
    def place(self) -> tuple[float | None, float | None]:
        """Equal for the values of one step."""
        return self.step, self.line if self.step is None else None


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
STEP_KINDS = (TIME, RATE, WORK)  # from which a step time follows

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
_FORMS = [
    (kind, re.compile(rf"(?:^|[/_])(?P<ending>{wording})$"))
    for kind, wording in _WORDINGS
]
"""How the name of a metric ends, by what it holds."""
_FORMS.append(
    (LOSS, re.compile(r"(?:^|/)(?P<ending>(?:train_)?loss)$"))
)  # not a part: `aux_loss`
_OF_STEP = re.compile(
    r"train|training|trainer|perf|avg|average|mean|median|global|total|elapsed|wall|last|current"
    r"|per|batch|iteration"
)
"""Words before ``step_time`` that leave it the time of the whole step."""
_PART = re.compile(
    r"(?:^|[/_])(?:optim(?:izer)?|forward|fwd|backward|bwd|data(?:set|loader)?|load(?:er|ing)"
    r"|checkpoint(?:ing)?|ckpt|save|comm(?:unication)?)[/_]"
)
"""A word that makes it the time or the rate of a part, in a folder too."""
EVALUATION = ("eval", "evaluation", "val", "valid", "validation", "test")
_NO_STEPS = "|".join((*EVALUATION, "epoch"))
_ELSEWHERE = re.compile(rf"(?:^|[/_])(?:{_NO_STEPS})(?:[/_]|$)|^system/")
"""Metrics that are recorded at other moments than training steps: Keras' ``epoch_loss``, say."""
_OTHER = re.compile(
    rf"{_ELSEWHERE.pattern}|__m(?:in|ax)$"
    r"|per_(?:device|gpu|chip|core)|(?:^|[/_])(?:device|gpu|chip|core)/"
    r"|(?:^|/)train_(?:steps|samples|tokens)_per_second$"
)
"""These, metrics of one device, bounds that wandb draws, and means since the start of a run:
``speed_metrics`` of transformers' trainer_utils.py.
"""


@lru_cache(maxsize=1024)  # rows of a file have the same names
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
            before = name[: found.start("ending")]
            if kind in STEP_KINDS and _is_of_part(before, kind):
                return None
            parts = found.groupdict()
            unit_s = UNITS.get(parts.get("unit") or "") if kind == TIME else 1.0
            return Measure(metric, kind, unit_s, parts.get("work") or "")
    return None


def _is_of_part(before: str, kind: str) -> bool:
    """Whether what precedes ``step_time`` in a name makes it the time of a part of a step."""
    if _PART.search(before):
        return True
    words = before.rpartition("/")[2].split("_")[:-1]
    return kind == TIME and not all(map(_OF_STEP.fullmatch, words))


def _chosen(measures: Sequence[Measure], source: str) -> Measure | None:
    """The metric that holds step times; None if there is none.

    Raises `UserError` if there are several, or if the only one does not say its unit.
    """
    for kind in STEP_KINDS:
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
    names: Sequence[str], rows: Iterable[Json], tag: str
) -> Iterator[Point]:
    """The points of a table. It is wide (a column for each metric) or long (a row for each value).

    Args:
        names: of the columns.
        rows: by those names.
        tag: the metric of a table that does not name it.
    """
    columns = {short_name(name): name for name in reversed(names)}
    step = _step_column(names)
    clock = next((columns[key] for key in CLOCKS if key in columns), "")
    metric = columns.get("key") or columns.get("metric")
    listed = [name for name in names if measure_of(name) is not None]
    others = [name for name in names if not _is_of_lines(name, (step, clock))]
    training = [name for name in others if not _is_elsewhere(name)]
    for line, row in enumerate(rows):
        of_run = run_of(row)
        number = number_of(row.get(step))
        at_s = _seconds_at(number_of(row.get(clock)))
        if "value" in columns:
            name = tag if metric is None else str(row[metric])
            value = _number_or_nan(row[columns["value"]])
            yield Point(name, number, at_s, value, run=of_run, line=at_s)
            continue
        if not others or any(_is_filled(row, name) for name in training):
            yield Point("", number, at_s, math.nan, run=of_run, line=line)
        for name in listed:
            if _is_filled(row, name):  # else other metrics have the line
                value = _number_or_nan(row[name])
                yield Point(name, number, at_s, value, run=of_run, line=line)


def _step_column(names: Sequence[str]) -> str:
    """The column with the number of the step; empty if there is none."""
    for name in names:
        is_own = _OWN_STEP.fullmatch(plain_name(name)) is not None
        if is_own and name not in EXPORTED_STEPS:
            return name
    columns = {short_name(name): name for name in reversed(names)}
    return next((columns[key] for key in STEP_KEYS if key in columns), "")


def run_of(row: Json) -> str:
    """The run that a row names; empty if it names none."""
    for name, value in row.items():
        is_named = value is not None and value != ""  # a run may be number 0
        if is_named and isinstance(name, str) and plain_name(name) in RUN_KEYS:
            return str(value)
    return ""


def check_one_run(runs: Iterable[str], source: str) -> None:
    """Raise `UserError` if rows name several runs."""
    named = dict.fromkeys(filter(None, runs))
    if len(named) > 1:
        what = f"holds several runs: {some([repr(name) for name in named], 4)}"
        raise UserError(what, where=source, remedy="keep one")


def _is_of_lines(name: str, columns: Sequence[str]) -> bool:
    """Whether a column is no metric: one of `columns` (step, clock), wandb's own, or the run's."""
    return name in columns or name.startswith("_") or plain_name(name) in RUN_KEYS


def _is_filled(row: Json, name: str) -> bool:
    cell = row.get(name)
    return cell is not None and bool(str(cell).strip())


def _seconds_at(stamp: float | None) -> float | None:
    if stamp is None or stamp < MOST_SECONDS:
        return stamp
    return stamp / 1000


@dataclass(frozen=True, slots=True)
class _Metrics:
    """The metrics of one run."""

    points: Mapping[str, Sequence[Point]]  # by metric
    measures: Sequence[Measure]
    source: str


_Times: TypeAlias = Sequence[tuple[Point, float]]
"""The seconds of a step, each with a point of that step."""


CALLS = (
    "wandb's step counts calls of its log: if the program logs every Nth step, these are times of "
    "N steps; log its own global_step"
)


def counts_calls(names: Sequence[str]) -> bool:
    """Whether the step column of a table is wandb's own, which may count calls of its ``log``."""
    step = _step_column(names)
    return step == "_step" or (step == "Step" and any(" - " in name for name in names))


def step_rows(
    points: Iterable[Point], source: str, *, may_count_calls: bool = False
) -> tuple[list[dict[str, Any]], str | None]:
    """A row for each step, with ``step``, ``seconds`` and ``loss``; and a note on how they were
    taken, if they were no step times.

    Args:
        may_count_calls: as of `counts_calls`. If such steps rise by one, nobody can tell what they
            count.

    Raises `UserError` if nothing says how long a step took, if its unit is not clear, or if there
    are several runs.
    """
    metrics = _metrics(points, source)
    of_loss = _losses(metrics)
    losses = {point.place: point.value for point in of_loss}
    measure = _chosen(metrics.measures, source)
    if measure is None:
        times = _between(of_loss, metrics)
        note: str | None = "step times are the times between its lines"
    elif measure.kind == TIME:
        times = _measured(measure, metrics)
        note = None
    else:
        times = _of_rate(measure, metrics)
        note = f"step times are from '{measure.metric}'"
    kinds = {item.kind for item in metrics.measures}
    is_of_lines = measure is None or (measure.kind == WORK and AMOUNT not in kinds)
    if may_count_calls and is_of_lines and _rise_by_one(times):
        note = f"{note}; {CALLS}"
    rows = [
        {"step": point.step, "seconds": seconds, "loss": losses.get(point.place)}
        for point, seconds in times
    ]
    return rows, note


def _rise_by_one(times: _Times) -> bool:
    """Whether the steps of points follow each other without a gap."""
    steps = [point.step for point, _ in times if point.step is not None]
    return all(after - before == 1 for before, after in pairwise(steps))


def _metrics(points: Iterable[Point], source: str) -> _Metrics:
    """The metrics of the one run, without those that are means of the whole run.

    Such a metric is a rate or a time that is recorded once, while others are recorded more often.
    """
    by_metric: dict[str, list[Point]] = {}
    runs: dict[str, None] = {}
    for point in points:
        by_metric.setdefault(point.metric, []).append(point)
        runs[point.run] = None
    check_one_run(runs, source)
    by_metric = {name: _placed(of_metric) for name, of_metric in by_metric.items()}
    lengths = [len(of) for name, of in by_metric.items() if name]
    is_longer = max(lengths, default=0) > 1
    measures = []
    for name, of_metric in by_metric.items():
        measure = measure_of(name)
        is_of_run = is_longer and len(of_metric) == 1
        if measure is not None and not (is_of_run and measure.kind in STEP_KINDS):
            measures.append(measure)
    return _Metrics(by_metric, measures, source)


def _placed(points: list[Point]) -> list[Point]:
    """The points of a metric, placed by their line if all have one step.

    mlflow records step 0 with each value if the program names no step.
    """
    if len(points) < 2 or len({point.step for point in points}) > 1:
        return points
    placed = []
    for point in points:
        line = point.at_s if point.line is None else point.line
        placed.append(point._replace(step=None, line=line))
    return placed


def _measured(measure: Measure, metrics: _Metrics) -> _Times:
    """Step times as a metric holds them."""
    unit_s = measure.unit_s or math.nan
    return [(point, point.value * unit_s) for point in metrics.points[measure.metric]]


def _of_rate(measure: Measure, metrics: _Metrics) -> _Times:
    """Step times from steps per second, or from tokens per second and the tokens of each step."""
    kept = [point for point in metrics.points[measure.metric] if point.value]
    if measure.kind == RATE:
        return [(point, 1 / point.value) for point in kept]
    work = {point.place: done for point, done in _work_of_steps(measure, metrics)}
    return [
        (point, work[point.place] / point.value)
        for point in kept
        if point.place in work
    ]


def _losses(metrics: _Metrics) -> Sequence[Point]:
    """The points of the loss; none if there is none.

    A single value next to a longer one is the mean of a run, as transformers logs ``train_loss``.
    Raises `UserError` if several losses are left.
    """
    found = [item.metric for item in metrics.measures if item.kind == LOSS]
    longer = [name for name in found if len(metrics.points[name]) > 1]
    kept = longer or found
    if len(kept) > 1:
        names = some([repr(name) for name in kept], 4)
        what = f"several columns hold the loss: {names}"
        raise UserError(what, where=metrics.source, remedy="keep one, of one run")
    return metrics.points[kept[0]] if kept else ()


def _work_of_steps(
    measure: Measure, metrics: _Metrics
) -> Sequence[tuple[Point, float]]:
    """How much of what a rate counts each step does, each with a point of that step."""
    found: Sequence[tuple[Point, float]] = ()
    for item in metrics.measures:
        points = metrics.points[item.metric]
        if found or item.work != measure.work:
            continue
        if item.kind == AMOUNT:
            found = [(point, point.value) for point in points]
            if len(points) == 1:  # recorded once, so it holds for all steps
                rates = metrics.points[measure.metric]
                found = [(point, points[0].value) for point in rates]
        if item.kind == TOTAL:
            found = _rises(points, [point.value for point in points])
    if found:
        return found
    what = f"'{measure.metric}' does not say how long a step takes"
    remedy = f"add a column {measure.work}s_per_step"
    raise UserError(what, where=metrics.source, remedy=remedy)


def _between(of_loss: Sequence[Point], metrics: _Metrics) -> _Times:
    """The time from line to line, per step.

    The lines of the loss, else all lines of a table, else those of the longest metric that is
    recorded while the program trains.
    """
    by_metric = metrics.points
    steady = [by_metric[name] for name in by_metric if not _is_elsewhere(name)]
    longest = max(steady, key=len, default=())
    for points in (of_loss, by_metric.get("", ()), longest):
        found = _rises(points, [point.at_s for point in points])
        if found:
            return found
    names = some([repr(name) for name in by_metric if name], 6) or "there is none"
    what = f"no metric says how long a step takes: {names}"
    raise UserError(what, where=metrics.source, remedy="log step_time_s")


def _is_elsewhere(metric: str) -> bool:
    return _ELSEWHERE.search(plain_name(metric)) is not None


def _rises(points: Sequence[Point], values: Sequence[float | None]) -> _Times:
    """By how much something rises per step, from point to point; each with the later point."""
    known = [
        (point, point.step, value)
        for point, value in zip(points, values, strict=True)
        if point.step is not None and value is not None
    ]
    found = []
    for (_, before, low), (point, after, high) in pairwise(known):
        if after > before and high > low:
            found.append((point, (high - low) / (after - before)))
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
