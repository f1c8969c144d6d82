"""`pgle perf-table`."""

from __future__ import annotations

from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import PATH, force_option, hlo_option, json_option, module_option, target_option


@click.command(cls=Command)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="INPUT...")
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="FILE", help="Table of collectives: .pbtxt.")
@hlo_option(" of the traced run")
@module_option("Which modules: auto, all or a regular expression.", default="auto")
@target_option
@click.option("--rehearse", is_flag=True, help="Compile the measured program with the table and with a profile too.")
@force_option
@json_option
def command(
    inputs: tuple[Any, ...], hlo: tuple[Any, ...], target: str, rehearse: bool, as_json: bool, **options: Any
) -> None:
    """From traces the measured tables that XLA's own cost model reads: one per cluster, for every program.

    INPUT: traces as for 'pgle convert'. The tables hold what collectives and matrix products took, by size and group,
    and need no names or fingerprints; a cost profile, where there is one, goes before them. Before they are written
    out, small modules are compiled with them to see whether this jaxlib takes each entry (no GPU needed).

    \b
    pgle perf-table runs/a -o cluster.pbtxt
    pgle perf-table rank*.sqlite --hlo dump/ --target h100 -o cluster.pbtxt
    """
    from pgle.report import perf_table as report
    from pgle.report.text import progress
    from pgle.run.convert import ConvertRequest, default_hlo
    from pgle.run.perf_table import perf_table
    from pgle.xla.targets import load_target

    request = ConvertRequest(inputs=inputs, hlo=hlo or default_hlo(inputs), **options)
    with progress("reading traces") as told:
        found = perf_table(request, load_target(target), rehearse=rehearse, progress=told)
    (report.show_json if as_json else report.show_text)(found)
