"""`pgle verify`."""

from __future__ import annotations

import math
from typing import Any

import click

from pgle.cli.options import PATH, coverage_option, hlo_option, json_option, module_option, profile_argument


@click.command()
@profile_argument
@hlo_option()
@click.option(
    "--schedule",
    type=PATH,
    metavar="PATH",
    help="Schedule dump of LHS, file or directory; found beside the HLO by itself.",
)
@module_option("Only modules whose name matches.")
@coverage_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, min_time_coverage: float, as_json: bool, **options: Any) -> None:
    """Hold a profile against an HLO module, as XLA would: coverage, gaps, names that match only by accident.

    XLA looks a cost up by the name its instruction had when the latency-hiding scheduler ran, and fills gaps with
    constants that can make a schedule worse than no profile. Names come from the schedule dump
    (--xla_dump_latency_hiding_schedule=true) where there is one, else from scheduling names in the HLO.

    \b
    pgle verify profile.pbtxt --hlo dump/
    pgle verify profile.pbtxt --hlo dump/ --module train_step --min-time-coverage 0.99
    """
    from pgle.report import verify as report
    from pgle.run.verify import VerifyRequest, verify

    if math.isnan(min_time_coverage):
        raise click.BadParameter("nan is not in the range 0<=x<=1.", param_hint="'--min-time-coverage'")
    coverage = verify(VerifyRequest(**options))
    (report.show_json if as_json else report.show_text)(str(options["profile"]), coverage, min_time_coverage)
    ctx.exit(0 if coverage.is_ok(min_time_coverage) else 1)
