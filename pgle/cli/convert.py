"""Commands that take costs from traces: `pgle convert` and `pgle perf-table`."""

from __future__ import annotations

from typing import Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli.help import Command
from pgle.cli.options import (
    force_option,
    hlo_option,
    module_option,
    page_options,
    stat_option,
    target_option,
)
from pgle.cli.paths import PATH, PROFILE_OUT, Out


@click.command(cls=Command, computes=True)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="INPUT...")
@click.option(
    "-o",
    "--output",
    type=PROFILE_OUT,
    metavar="OUT",
    help="Profile (.pbtxt, .pb, - for stdout), or a directory: one per module.  [default: RUN/profile.pbtxt]",
)
@hlo_option(" of the profiled run")
@module_option("Which modules to convert.", default="auto", metavar="auto|all|REGEX")
@stat_option
@click.option("--collective-stat", default="median", show_default=True, metavar="NAME", help="Collectives: the same.")
@click.option(
    "--fingerprint-names", is_flag=True, help="Write fingerprint::name, so that other modules ignore the costs."
)
@click.option("--all-executions", is_flag=True, help="Keep warm-up and truncated executions.")
@click.option("--complete", metavar="TARGET", help="Fill gaps, with estimates for this GPU (h100, a100, …).")
@click.option(
    "--executor",
    default="processes",
    show_default=True,
    metavar="processes|dask://HOST:PORT",
    help="Where large inputs are read: processes of this machine, or a Dask cluster (pip install 'pgle[dask]').",
)
@force_option
@page_options
def convert_command(**options: Any) -> Answer[Any]:
    """Turn traces into a cost profile.

    INPUT: .nsys-rep, nsys .sqlite or parquet directory, .xplane.pb, a profiler log directory (its newest run), a run
    directory of pgle. Several inputs (ranks, hosts) are merged: a collective then costs what the last rank to arrive
    measured, so trace the same steps on all. Of several modules the one with most compute is taken.

    \b
    pgle convert report.nsys-rep -o profile.pbtxt --hlo dump/
    pgle convert rank*.sqlite --hlo dump/ -o profile.pbtxt
    pgle convert logdir/ -o profile.pb
    pgle convert shared/rank*.sqlite --executor dask://head:8786 -o profile.pbtxt
    """
    return api.convert(**options)


@click.command(cls=Command)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="INPUT...")
@click.option(
    "-o",
    "--output",
    "out",
    type=Out("", ".pbtxt", ".txtpb"),
    required=True,
    metavar="FILE",
    help="Table of collectives (.pbtxt); that of products next to it: .matmul.pbtxt.",
)
@hlo_option(" of the traced run")
@module_option("Which modules: auto, all or a regular expression.", default="auto")
@target_option
@force_option
@page_options
def perf_table_command(inputs: tuple[Any, ...], hlo: tuple[Any, ...], target: str, **options: Any) -> Answer[Any]:
    """From traces the measured tables that XLA's own cost model reads: one per cluster, for every program.

    INPUT: traces as for 'pgle convert'. The tables hold what collectives and matrix products took, by size and group,
    and need no names or fingerprints; a cost profile, where there is one, goes before them. Before they are written
    out, small modules are compiled with them to see whether this jaxlib takes each entry (no GPU needed).

    \b
    pgle perf-table runs/a -o cluster.pbtxt
    pgle perf-table rank*.sqlite --hlo dump/ --target h100 -o cluster.pbtxt
    """
    from pgle.report.costs import perf_table as report
    from pgle.report.progress import progress
    from pgle.run.convert import ConvertRequest, default_hlo
    from pgle.run.perf_table import perf_table
    from pgle.xla.targets import load_target

    request = ConvertRequest(inputs=inputs, hlo=hlo or default_hlo(inputs), **options)
    with progress("reading traces") as advance:
        found = perf_table(request, load_target(target), progress=advance)
    return api.answer("perf-table", found, report.perf_table_page(found), report.document(found))
