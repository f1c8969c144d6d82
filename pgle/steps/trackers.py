"""Find step times in exports of experiment trackers: which metric holds them, and in which unit.

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
"""Names of a step time, with seconds per unit, in order of preference."""
STEP_KEYS = ("step", "global_step", "iteration", "iter")
NO_UNIT = "step_time"  # seconds in pgle's own files; a tracker's may be in any unit
EXPORTED_STEPS = {"_step", "Step"}  # step columns of wandb and of TensorBoard
_OWN_STEP = re.compile(rf"(?:train(?:er|ing)?/)?(?:{'|'.join(STEP_KEYS)})")
"""Names of the program's own step number: ``train/global_step`` of transformers,
``trainer/global_step`` of Lightning. wandb's ``_step`` counts calls of its ``log``, unless the
program sets it.
"""
RUN_KEYS = ("run_id", "run_uuid", "run")  # whole names: `time/run` is a metric
CLOCKS = ("timestamp", "wall_time", "runtime")  # columns with a time, the surest first
MOST_SECONDS = 1e11  # since the epoch; a larger time stamp is in milliseconds


class Point(NamedTuple):
    """A value of a metric."""

    metric: str  # its name; empty for a line of a table that counts only for its clock
    step: float | None  # None if unknown
    at_s: float | None  # when it was recorded, in seconds since any fixed moment
    value: float
    run: str = ""  # empty if the table names no run
    line: float | None = None  # without step numbers, values of one step share it

    @property
    def place(self) -> tuple[float | None, float | None]:
        """A key that is equal for all values of one step."""
        return self.step, self.line if self.step is None else None


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric that helps to find how long a step takes, or its loss."""

    metric: str
    kind: str  # `TIME`, `RATE`, `WORK`, `AMOUNT`, `TOTAL` or `LOSS`
    unit_s: float | None = 1.0  # seconds per unit; None if its name has no unit
    work: str = ""  # what it counts: ``token``


TIME = "time"  # of a step
RATE = "rate"  # steps per second
WORK = "work"  # tokens per second
AMOUNT = "amount"  # tokens of a step
TOTAL = "total"  # tokens since the start
LOSS = "loss"
STEP_KINDS = (TIME, RATE, WORK)  # kinds that give a step time

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
"""The endings of metric names, by kind."""
# not a part of the loss, such as `aux_loss`
_FORMS.append((LOSS, re.compile(r"(?:^|/)(?P<ending>(?:train_)?loss)$")))
_OF_STEP = re.compile(
    r"train|training|trainer|perf|avg|average|mean|median|global|total|elapsed|wall|last|current"
    r"|per|batch|iteration"
)
"""Words that may precede ``step_time`` if it is the time of the whole step."""
_PART = re.compile(
    r"(?:^|[/_])(?:optim(?:izer)?|forward|fwd|backward|bwd|data(?:set|loader)?|load(?:er|ing)"
    r"|checkpoint(?:ing)?|ckpt|save|comm(?:unication)?)[/_]"
)
"""Words that make a metric the time or rate of a part of a step, also in its folder's name."""
EVALUATION = ("eval", "evaluation", "val", "valid", "validation", "test")
_NO_STEPS = "|".join((*EVALUATION, "epoch"))
_ELSEWHERE = re.compile(rf"(?:^|[/_])(?:{_NO_STEPS})(?:[/_]|$)|^system/")
"""Metrics that are not recorded at training steps, such as Keras' ``epoch_loss``."""
_OTHER = re.compile(
    rf"{_ELSEWHERE.pattern}|__m(?:in|ax)$"
    r"|per_(?:device|gpu|chip|core)|(?:^|[/_])(?:device|gpu|chip|core)/"
    r"|(?:^|/)train_(?:steps|samples|tokens)_per_second$"
)
"""Metrics that say nothing about a step: those of `_ELSEWHERE`, of one device, bounds that wandb
draws, and means since the start of a run (``speed_metrics`` of transformers' trainer_utils.py).
"""


@lru_cache(maxsize=1024)  # rows of a file have the same names
def plain_name(metric: str) -> str:
    """The name of a metric in lower case, without the run that wandb puts before it."""
    name = metric.rpartition(" - ")[2].lower()
    return re.sub(r"[\s().:-]+", "_", name).strip("_")


def short_name(metric: str) -> str:
    """The last part of a metric's plain name: ``loss`` of ``train/loss``."""
    return plain_name(metric).rpartition("/")[2].strip("_")


def measure_of(metric: str) -> Measure | None:
    """What a metric says about a step, by its name; None if nothing."""
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
    """Whether a metric measures only a part of a step.

    Args:
        before: the text before ``step_time`` in its name.
    """
    if _PART.search(before):
        return True
    words = before.rpartition("/")[2].split("_")[:-1]
    return kind == TIME and not all(map(_OF_STEP.fullmatch, words))


def _chosen(measures: Sequence[Measure], source: str) -> Measure | None:
    """The metric that gives step times; None if there is none.

    Raises:
        UserError: there are several, or the only one has no unit.
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
        names: names of the columns.
        rows: cells by these names.
        tag: name of the metric if the table has none.
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
            if _is_filled(row, name):  # else the line is of other metrics
                value = _number_or_nan(row[name])
                yield Point(name, number, at_s, value, run=of_run, line=line)


def _step_column(names: Sequence[str]) -> str:
    """The name of the column with step numbers; empty if there is none."""
    for name in names:
        is_own = _OWN_STEP.fullmatch(plain_name(name)) is not None
        if is_own and name not in EXPORTED_STEPS:
            return name
    columns = {short_name(name): name for name in reversed(names)}
    return next((columns[key] for key in STEP_KEYS if key in columns), "")


def run_of(row: Json) -> str:
    """The run in a row; empty if the row names none."""
    for name, value in row.items():
        is_named = value is not None and value != ""  # a run may be number 0
        if is_named and isinstance(name, str) and plain_name(name) in RUN_KEYS:
            return str(value)
    return ""


def check_one_run(runs: Iterable[str], source: str) -> None:
    """Refuse rows of several runs.

    Raises:
        UserError: rows name several runs.
    """
    named = dict.fromkeys(filter(None, runs))
    if len(named) > 1:
        what = f"holds several runs: {some([repr(name) for name in named], 4)}"
        raise UserError(what, where=source, remedy="keep one")


def _is_of_lines(name: str, columns: Sequence[str]) -> bool:
    """Whether a column is not a metric: one of `columns` (step, clock), wandb's own, or the run."""
    return name in columns or name.startswith("_") or plain_name(name) in RUN_KEYS


def _is_filled(row: Json, name: str) -> bool:
    """Whether a row has a value in a column."""
    cell = row.get(name)
    return cell is not None and bool(str(cell).strip())


def _seconds_at(stamp: float | None) -> float | None:
    """A time stamp in seconds, which may be in milliseconds."""
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
"""Seconds of steps, each with a point of that step."""


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
    """Find the time of each step.

    Args:
        may_count_calls: from `counts_calls`. If such steps rise by one, nobody can tell what they
            count.

    Returns:
        A row for each step, with ``step``, ``seconds`` and ``loss``. Then a note on how times were
        computed; None if a metric holds step times.

    Raises:
        UserError: no metric shows how long a step took, the unit is unclear, or there are several
            runs.
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
    """Return the points of a run by metric, and which metrics measure its steps.

    A time or rate with one value is left out if another metric has several: it is a mean over the
    run.

    Raises:
        UserError: the points are of several runs.
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
    """The points of a metric. If all have the same step, their lines replace it.

    mlflow records step 0 with each value if the program gives no step.
    """
    if len(points) < 2 or len({point.step for point in points}) > 1:
        return points
    placed = []
    for point in points:
        line = point.at_s if point.line is None else point.line
        placed.append(point._replace(step=None, line=line))
    return placed


def _measured(measure: Measure, metrics: _Metrics) -> _Times:
    """Step times that a metric holds."""
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
    """The points of the loss; empty if there is no loss.

    A loss with a single value is a mean over the run if another loss has more values. One example
    is ``train_loss`` of transformers.

    Raises:
        UserError: several losses are left.
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
    """How many units of a rate (such as tokens) each step does, each with a point of that step.

    Raises:
        UserError: no metric shows it.
    """
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
    """The time between lines, divided by the steps between them.

    The lines are those of the loss, else all lines of a table, else those of the longest metric
    that is recorded during training.

    Raises:
        UserError: no lines have times that rise.
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
    """Whether a metric is not recorded at training steps."""
    return _ELSEWHERE.search(plain_name(metric)) is not None


def _rises(points: Sequence[Point], values: Sequence[float | None]) -> _Times:
    """How much a value rises per step between neighbouring points, each with the later point."""
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
    """A number from a cell; NaN if it is something else."""
    number = number_of(value)
    return math.nan if number is None else number


def number_of(value: Any) -> float | None:
    """A finite number from a number or a text; None if the value is something else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # overflow: an integer of 309 digits
        return None
    return number if math.isfinite(number) else None
