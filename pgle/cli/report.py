"""`pgle report`."""

from __future__ import annotations

import click

from pgle.cli.help import Command
from pgle.cli.options import PAGE_OUT, PATH, force_option, hlo_option, json_option
from pgle.files import AnyPath


@click.command(cls=Command)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option("-o", "--output", "outputs", type=PAGE_OUT, multiple=True, metavar="FILE",
              help="FILE.html, .md, .json, .svg or .trace.json (Perfetto); repeatable; - is Markdown.")  # fmt: skip
@hlo_option(" of the traced run")
@click.option("--target", metavar="NAME|FILE", help="GPU for expected times: h100, a100, …  [default: as the HLO says]")
@force_option
@json_option
def command(
    inputs: tuple[AnyPath, ...],
    outputs: tuple[AnyPath, ...],
    hlo: tuple[AnyPath, ...],
    target: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """One page on a run: verdict, a timeline to move in, before and after, findings, costs, coverage, step times.

    RUN: a run directory, traces of one job, the folder of 'pgle rehearse' or 'pgle tune', or a report as JSON. The page
    is one file that loads nothing and sends nothing; without -o the same is printed as text.

    \b
    pgle report runs/a -o report.html
    pgle report rank*.sqlite --hlo dump/ -o report.trace.json
    pgle report rehearsal -o report.md
    """
    from pgle.cli.options import one_blas_thread

    with one_blas_thread():
        from pgle.report import report
        from pgle.report.text import progress
        from pgle.run.inputs.measured_step import Side

    report.check_outputs(outputs, force=force, inputs=inputs)
    with progress("reading") as told:
        page = report.page_of(Side(inputs, hlo, target), progress=told)
    if outputs:
        report.write(page, outputs, force=force)
    if as_json:
        report.show_json(page)
    elif not outputs:
        report.show_text(page)
