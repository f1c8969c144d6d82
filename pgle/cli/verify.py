"""`pgle verify`."""

from __future__ import annotations

import math

import click

from pgle.cli.options import json_option


@click.command()
@click.argument("profile", metavar="PROFILE")
@click.option("--hlo", multiple=True, metavar="PATH", help="HLO dump file or directory; repeatable.")
@click.option(
    "--schedule", metavar="PATH", help="Schedule dump of LHS, file or directory; found beside the HLO by itself."
)
@click.option("--module", default="", metavar="REGEX", help="Only modules whose name matches.")
@click.option(
    "--min-time-coverage",
    default=0.95,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Exit with 1 where less of the main module's time is covered.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    profile: str,
    hlo: tuple[str, ...],
    schedule: str | None,
    module: str,
    min_time_coverage: float,
    as_json: bool,
) -> None:
    """Hold a profile against an HLO module, as XLA would: coverage, gaps, names that match only by accident.

    XLA looks a cost up by the name its instruction had when the latency-hiding scheduler ran, and fills gaps with
    constants that can make a schedule worse than no profile. Names come from the schedule dump
    (--xla_dump_latency_hiding_schedule=true) where there is one, else from scheduling names in the HLO.

    \b
    pgle verify profile.pbtxt --hlo dump/
    pgle verify profile.pbtxt --hlo dump/ --module train_step --min-time-coverage 0.99
    """
    from pgle.files import as_path
    from pgle.report import verify as report
    from pgle.run.verify import VerifyRequest, verify

    if math.isnan(min_time_coverage):
        raise click.BadParameter("nan is not in the range 0<=x<=1.", param_hint="'--min-time-coverage'")
    coverage = verify(
        VerifyRequest(
            profile=as_path(profile),
            hlo=tuple(map(as_path, hlo)),
            schedule=None if schedule is None else as_path(schedule),
            module=module,
        )
    )
    (report.show_json if as_json else report.show_text)(profile, coverage, min_time_coverage)
    ctx.exit(0 if coverage.is_ok(min_time_coverage) else 1)
