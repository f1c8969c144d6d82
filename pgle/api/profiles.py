"""The library's answers on profiles: convert and verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pgle.api.answer import Answer, answer, keep_met
from pgle.next import Commands
from pgle.report import text
from pgle.requests.function import answers
from pgle.requests.profiles import Convert, Verify

if TYPE_CHECKING:
    from pgle.costs.profile.coverage import Coverage
    from pgle.run.convert import Conversion


@answers(Convert)
def convert(request: Convert) -> Answer[Conversion]:
    """Turn traces into a cost profile, as `pgle convert`."""
    from pgle.report import conversions as report
    from pgle.report.next_steps import after_conversion
    from pgle.run.convert import convert, hlo_of

    with text.progress("reading traces") as advance:
        found = convert(request, progress=advance)
    made = Path(found.written[0].path)
    if len(found.written) > 1:
        made = made.parent
    page = report.convert_page(found, after_conversion(made, hlo_of(request)))
    return answer("convert", found, page, report.convert_document(found))


@answers(Verify)
def verify(request: Verify) -> Answer[Coverage]:
    """Check that a profile fits an HLO module, as `pgle verify`."""
    from pgle.report import verify as report
    from pgle.report.next_steps import after_verification, run_of_profile
    from pgle.run.coverage import verify
    from pgle.xla.log.verdict import Bounds

    name = str(request.profile)
    hlo = request.hlo
    bounds = Bounds(request.min_time_coverage, request.min_collectives)
    found = verify(request.profile, hlo, module=request.module)
    ok = found.is_ok(bounds)
    following: Commands = ()
    if ok and hlo:
        keep_met(run_of_profile(request.profile), bounds)
        following = after_verification(request.profile, hlo)
    page = report.verify_page(name, found, bounds, following)
    return answer("verify", found, page, report.document(name, found, bounds), ok)
