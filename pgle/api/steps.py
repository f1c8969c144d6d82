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
    from pgle.steps.series import Side


@answers(Compare)
def compare(request: Compare) -> Answer[Comparison]:
    """Compare the step times of two sides, as `pgle compare`."""
    from pgle.report import compare as report
    from pgle.report.next_steps import after_comparison
    from pgle.run.compare import judged, request_of, run_compare

    base, new = request.base, request.new
    following: Commands = ()
    if new is None or (are_paths(base) and are_paths(new)):
        sides = [
            tuple(map(str, paths(side)))  # type: ignore[arg-type]
            for side in (base, new)
            if side is not None
        ]
        if new is None:
            asked = request_of(request, *sides)
        else:
            asked = request_of(request, (), *sides)
        found, checks = run_compare(asked)
        following = after_comparison(found, checks)
    else:
        asked = request_of(request)
        one, two = (
            _side(label, times, name, asked)
            for label, times, name in zip(
                request.labels, (base, new), ("base", "new"), strict=True
            )
        )
        found, checks = judged(one, two, asked)
    ok = not any(check.failed for check in checks)
    page = report.comparison_page(found, checks, following)
    return answer("compare", found, page, report.document(found, checks), ok)


def _side(label: str, given: Times, name: str, asked: CompareRequest) -> Side:
    """A side of a comparison: runs on disk, an array of step times, or an array for each run."""
    from pgle.run.inputs.step_times import read_side
    from pgle.steps.series import Side, Step, make_series, steady, unfit

    label, rules = label or name, asked.rules
    if are_paths(given):
        files = [str(path) for path in paths(given)]  # type: ignore[arg-type]
        return read_side(label, files, rules=rules, pattern=asked.pattern)
    items: list[Any] = list(given)  # type: ignore[arg-type]
    found = []
    for at, run in enumerate(
        items if items and isinstance(items[0], Iterable) else [items]
    ):
        steps = [Step(number, float(value)) for number, value in enumerate(run)]
        for step in steps:
            if why := unfit(step.step_time_s):
                raise UserError(
                    f"step {step.step}: {step.step_time_s:g} s {why}",
                    where=f"{label}[{at}]",
                    remedy="give seconds",
                )
        found.append(steady(make_series(f"{label}[{at}]", "array", steps), rules))
    return Side(label, tuple(found))
