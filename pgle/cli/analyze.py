"""`pgle analyze`."""

from __future__ import annotations

import click

from pgle.cli.help import Command
from pgle.cli.options import hlo_option, json_option
from pgle.files import AnyPath, as_path


@click.command(cls=Command)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@hlo_option(" of the traced run")
@click.option("--target", metavar="NAME|FILE", help="GPU for expected times: h100, a100, …  [default: as the HLO says]")
@json_option
def command(inputs: tuple[str, ...], hlo: tuple[AnyPath, ...], target: str | None, as_json: bool) -> None:
    """Where the time of a step goes, and what could be saved.

    INPUT: traces or a run directory, as for 'pgle convert'; several are ranks of one job. Compute, exposed
    communication, exposed copies and idle add up to the window of the steady steps. Findings are ranked by what they
    could save at most, each with its number, its evidence and what to do.

    \b
    pgle analyze report.nsys-rep --hlo dump/
    pgle analyze rank*.sqlite --hlo dump/ --json
    """
    from pgle.cli.options import one_blas_thread

    with one_blas_thread():
        from pgle.report import analyze as report
        from pgle.report.text import progress
        from pgle.run.analyze import AnalyzeRequest, analyze

    request = AnalyzeRequest(tuple(map(as_path, inputs)), hlo, target)
    with progress("reading traces") as told:
        found = analyze(request, progress=told)
    (report.show_json if as_json else report.show_text)(found)
