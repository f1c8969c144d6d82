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
@click.option("--profile", metavar="PROFILE", help="What the scheduler was given  [default: that of RUN/perf]")
@click.option(
    "--against", multiple=True, metavar="OTHER", help="Another run of the program: say what changed since it."
)
@click.option("--against-hlo", multiple=True, metavar="PATH", help="HLO dump of that run.")
@json_option
def command(
    inputs: tuple[str, ...],
    hlo: tuple[AnyPath, ...],
    target: str | None,
    profile: str | None,
    against: tuple[str, ...],
    against_hlo: tuple[str, ...],
    as_json: bool,
) -> None:
    """Where the time of a step goes, and what could be saved.

    INPUT: traces, several as ranks of one job; a run directory or a stage of it (RUN/perf); a rehearsal or scheduled
    HLO, whose step is simulated. Compute, exposed communication, exposed copies and idle add up to the window of the
    steady steps. Findings are ranked by what they could save at most, each with its number, its evidence and what to
    do. With --against: what got slower, is hidden less, appeared or is gone, and by how much of the step.

    \b
    pgle analyze report.nsys-rep --hlo dump/
    pgle analyze rank*.sqlite --hlo dump/ --json
    pgle analyze runs/b/perf --against runs/a/perf
    """
    from pgle.cli.options import one_blas_thread

    with one_blas_thread():
        from pgle.report import analyze as report
        from pgle.report.text import progress
        from pgle.run.analyze import analyze
        from pgle.run.inputs.measured_step import Side

    side = Side(tuple(map(as_path, inputs)), hlo, target, as_path(profile) if profile else None)
    other = Side(tuple(map(as_path, against)), tuple(map(as_path, against_hlo)), target) if against else None
    with progress("reading traces") as told:
        found = analyze(side, other, progress=told)
    (report.show_json if as_json else report.show_text)(found)
