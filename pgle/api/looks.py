"""The library's answers about recordings: confirm, ranks and analyze."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgle.api.answer import Answer, answer, keep_met
from pgle.errors import some
from pgle.report import text
from pgle.requests.function import answers
from pgle.requests.looks import Analyze, Confirm, OrderOfRanks

if TYPE_CHECKING:
    from pgle.run.analyze import Analysis
    from pgle.run.ranks import Ranks
    from pgle.xla.log.verdict import LogVerdict


@answers(Confirm)
def confirm(request: Confirm) -> Answer[LogVerdict]:
    """Read from an XLA log whether a run used the profile, as `pgle confirm`."""
    from pgle.costs.profile.files import read_profile
    from pgle.report import confirm as report
    from pgle.report.next_steps import after_confirmation, run_of_log
    from pgle.run.confirm import ConfirmRequest, check_log, confirm
    from pgle.xla.log.verdict import Bounds, ProfileUse

    paths = request.log
    for path in paths:
        may_be_empty = request.schedule is not None or len(paths) > 1
        check_log(path, may_be_empty=may_be_empty)
    path, *more = paths
    given = None if request.profile is None else read_profile(request.profile)
    asked = ConfirmRequest(
        path,
        tuple(more),
        module=request.module,
        schedule=request.schedule,
        profile=given,
        release=request.jax,
        bounds=Bounds(request.min_time_coverage, request.min_collectives),
    )
    with text.progress("reading log") as advance:
        found = confirm(asked, progress=advance)
    name = some(map(str, paths), 2)
    ok = found.main.verdict is ProfileUse.USED
    if ok:
        keep_met(run_of_log(path), asked.bounds)
    page = report.confirm_page(name, found, after_confirmation(path, found))
    return answer("confirm", found, page, report.confirm_document(found), ok)


@answers(OrderOfRanks)
def ranks(request: OrderOfRanks) -> Answer[Ranks]:
    """Check that all ranks start their collectives in the same order, as `pgle ranks`."""
    from pgle.report import ranks as report
    from pgle.report.next_steps import after_ranks
    from pgle.run.ranks import compare_ranks

    found = compare_ranks(request.paths)
    following = after_ranks(request.paths, found)
    page = report.ranks_page(some(map(str, request.paths), 2), found, following)
    return answer("ranks", found, page, report.ranks_document(found), found.ok)


@answers(Analyze)
def analyze(request: Analyze) -> Answer[Analysis]:
    """Where the time of a step goes and what could be saved, as `pgle analyze`; its page is the one
    of `pgle report`.
    """
    from pgle.report import analyze as report
    from pgle.report.report import run_page
    from pgle.run.analyze import RunFacts

    found = read_analysis(request)
    following = report.way_on(found)
    page = run_page(RunFacts(request.inputs, analysis=found), following)
    return answer("analyze", found, page, report.document(found))


def read_analysis(request: Analyze) -> Analysis:
    """Read what `analyze` and `pgle analyze` answer, before it becomes a page."""
    from pgle.run.analyze import analyze, other_of, step_of

    with text.progress("reading traces") as advance:
        return analyze(step_of(request), other_of(request), progress=advance)
