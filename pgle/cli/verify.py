"""`pgle verify`."""

from __future__ import annotations

from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import (
    PATH,
    bounds_options,
    hlo_option,
    json_option,
    module_option,
    profile_argument,
)


@click.command(cls=Command)
@profile_argument
@hlo_option()
@click.option(
    "--schedule",
    type=PATH,
    metavar="PATH",
    help="Schedule dump of LHS, file or directory; found beside the HLO by itself.",
)
@module_option("Only modules whose name matches.")
@bounds_options
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, min_time_coverage: float, min_collectives: float, as_json: bool, **options: Any
) -> None:
    """Hold a profile against an HLO module, as XLA would: coverage, gaps, names that match only by accident.

    XLA looks a cost up by the name its instruction had when the latency-hiding scheduler ran, and fills gaps with
    constants that can make a schedule worse than no profile: a gap weighs what it costs (estimated) or what XLA takes
    it for, whichever is more. Names come from the schedule dump (--xla_dump_latency_hiding_schedule=true) where there
    is one, else from scheduling names in the HLO.

    \b
    pgle verify profile.pbtxt --hlo dump/
    pgle verify profile.pbtxt --hlo dump/ --module train_step --min-time-coverage 0.99
    """
    from pgle.report import verify as report
    from pgle.report.onward import after_verification, show_next
    from pgle.run.coverage import verify
    from pgle.xla.log.module_verdict import Bounds

    coverage, bounds = verify(**options), Bounds(min_time_coverage, min_collectives)
    show = report.show_json if as_json else report.show_text
    show(str(options["profile"]), coverage, bounds)
    ok = coverage.is_ok(bounds)
    if not as_json:
        show_next(after_verification(options["profile"], options["hlo"], ok=ok))
    ctx.exit(0 if ok else 1)
