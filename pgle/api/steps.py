"""The library's answer on step times: compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pgle.api.answer import Answer, answer
from pgle.errors import UserError
from pgle.next import Commands
from pgle.requests.function import answers
from pgle.requests.given import are_paths, paths
from pgle.requests.steps import Compare, Times

if TYPE_CHECKING:
    from pgle.run.compare import CompareRequest
    from pgle.steps.compare import Comparison
    from pgle.steps.series import Side, Step, StepTimes


@answers(Compare)
def compare(request: Compare) -> Answer[Comparison]:
    """Compare the step times of two sides, as `pgle compare`."""
    from pgle.report import compare as report
    from pgle.report.next_steps import after_comparison
    from pgle.run.compare import judged, request_of, run_compare

    base = request.base
    new = request.new
    following: Commands = ()
    if new is None:
        asked = request_of(request, _files(base))
        found, checks = run_compare(asked)
        following = after_comparison(found, checks)
    elif are_paths(base) and are_paths(new):
        asked = request_of(request, (), _files(base), _files(new))
        found, checks = run_compare(asked)
        following = after_comparison(found, checks)
    else:
        asked = request_of(request)
        base_label, new_label = request.labels
        one = _side(base_label or "base", base, asked)
        two = _side(new_label or "new", new, asked)
        found, checks = judged(one, two, asked)
    ok = not any(check.failed for check in checks)
    page = report.comparison_page(found, checks, following)
    return answer("compare", found, page, report.document(found, checks), ok)


def _files(given: Times) -> tuple[str, ...]:
    """The paths of a side's runs."""
    return tuple(map(str, paths(given)))  # type: ignore[arg-type]


def _side(label: str, given: Times, asked: CompareRequest) -> Side:
    """A side of a comparison: runs on disk, an array of step times, or an array for each run."""
    from pgle.run.inputs.step_times import read_side
    from pgle.steps.series import Side, make_series, steady

    if are_paths(given):
        files = _files(given)
        return read_side(label, files, rules=asked.rules, pattern=asked.pattern)
    items: list[Any] = list(given)  # type: ignore[arg-type]
    is_one_run = not items or not isinstance(items[0], Iterable)
    found: list[StepTimes] = []
    for at, times_s in enumerate([items] if is_one_run else items):
        name = f"{label}[{at}]"
        series = make_series(name, "array", _steps(name, times_s))
        found.append(steady(series, asked.rules))
    return Side(label, tuple(found))


def _steps(name: str, times_s: Iterable[float]) -> list[Step]:
    """Number step times, in seconds, from 0.

    Raises:
        UserError: one cannot be the time of a step.
    """
    from pgle.steps.series import Step, unfit

    steps: list[Step] = []
    for number, value in enumerate(times_s):
        step = Step(number, float(value))
        if why := unfit(step.step_time_s):
            raise UserError(
                f"step {number}: {step.step_time_s:g} s {why}",
                where=name,
                remedy="give seconds",
            )
        steps.append(step)
    return steps
