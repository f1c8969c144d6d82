"""`pgle merge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgle.cli.help import Command
from pgle.cli.options import PATH, force_option, json_option, one_blas_thread, profile_output, stat_option

if TYPE_CHECKING:
    from pgle.files import AnyPath


@click.command(cls=Command)
@click.argument("profiles", nargs=-1, required=True, type=PATH, metavar="PROFILE...")
@profile_output
@click.option(
    "--of",
    default="ranks",
    show_default=True,
    type=click.Choice(["ranks", "runs"]),
    help="Ranks of one run, or independent runs.",
)
@stat_option
@click.option(
    "--collective-stat",
    metavar="NAME",
    help="Collectives.  [default: median over executions where known, else min of ranks, --stat of runs]",
)
@force_option
@json_option
def command(
    profiles: tuple[AnyPath, ...],
    output: AnyPath,
    of: str,
    stat: str,
    collective_stat: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Merge cost profiles of ranks or runs into one.

    A collective's time on one rank includes waiting for the last one. Where the sidecars of ranks carry each
    occurrence, the least over the ranks is taken of each, then --collective-stat over executions, as if all traces
    had been converted together. Other costs: --stat over the inputs, each counted once per sample; percentiles
    interpolate. A name that is another opcode or shape in each input is left out, or kept as FINGERPRINT::NAME where
    fingerprints are known.

    \b
    pgle merge rank*.pbtxt -o profile.pbtxt
    pgle merge monday.pb tuesday.pb --of runs --stat p90 -o profile.pb
    """
    with one_blas_thread():
        from pgle.costs.profile.merge import MergeOptions, Of
        from pgle.costs.statistic import parse_statistic
        from pgle.report import merge as report
        from pgle.report.onward import after_summary, show_next
        from pgle.run.profiles import merge_files

    options = MergeOptions(
        of=Of(of),
        stat=parse_statistic(stat),
        collective_stat=parse_statistic(collective_stat) if collective_stat else None,
    )
    result = merge_files(profiles, output, options, force=force)
    (report.show_json if as_json else report.show_text)(result)
    if not as_json:
        show_next(after_summary(result.written.path))
