"""`pgle convert`."""

from __future__ import annotations

import click

from pgle.cli.blas import one_blas_thread
from pgle.cli.options import force_option, json_option


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "-o", "--output", metavar="OUT", help="Profile (.pbtxt, .pb), or a directory: one per module. [RUN/profile.pbtxt]"
)
@click.option(
    "--hlo", multiple=True, metavar="PATH", help="HLO dump file or directory of the profiled run; repeatable."
)
@click.option("--module", default="auto", show_default=True, metavar="auto|all|REGEX", help="Which modules to convert.")
@click.option(
    "--stat", default="median", show_default=True, metavar="NAME", help="Compute: median, mean, min, max, pNN."
)
@click.option("--collective-stat", default="median", show_default=True, metavar="NAME", help="Collectives: the same.")
@click.option(
    "--fingerprint-names", is_flag=True, help="Write fingerprint::name, so that other modules ignore the costs."
)
@click.option("--all-executions", is_flag=True, help="Keep warm-up and truncated executions.")
@click.option("--complete", "target", metavar="TARGET", help="Fill gaps, with estimates for this GPU (h100, a100, …).")
@force_option
@json_option
def command(
    inputs: tuple[str, ...],
    output: str | None,
    hlo: tuple[str, ...],
    module: str,
    stat: str,
    collective_stat: str,
    fingerprint_names: bool,
    all_executions: bool,
    target: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Turn traces into a cost profile.

    INPUT: .nsys-rep, nsys .sqlite or parquet directory, .xplane.pb, a profiler log directory (its newest run), a run
    directory of pgle. Several inputs (ranks, hosts) are merged: a collective then costs what the last rank to arrive
    measured, so trace the same steps on all. Of several modules the one with most GPU time is taken.

    \b
    pgle convert report.nsys-rep -o profile.pbtxt --hlo dump/
    pgle convert rank*.sqlite --hlo dump/ -o profile.pbtxt
    pgle convert logdir/ -o profile.pb
    """
    with one_blas_thread():
        from pgle.costs.measure.aggregate import AggregateOptions
        from pgle.costs.profile.statistic import parse_statistic
        from pgle.files import as_path
        from pgle.report import convert as report
        from pgle.report.progress import progress
        from pgle.run.convert import ConvertRequest, convert, default_hlo, default_output

    paths = tuple(map(as_path, inputs))
    dumps = tuple(map(as_path, hlo))
    request = ConvertRequest(
        inputs=paths,
        out=as_path(output) if output else default_output(paths),
        hlo=dumps or default_hlo(paths),
        module=module,
        options=AggregateOptions(parse_statistic(stat), parse_statistic(collective_stat), all_executions),
        fingerprint_names=fingerprint_names,
        target=target,
        force=force,
    )
    with progress("reading traces") as told:
        result = convert(request, progress=told)
    (report.show_json if as_json else report.show_text)(result)
