"""Commands that look at what there is: a profile or a trace, a measured or a scheduled step, a run as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli.help import Command
from pgle.cli.options import (
    _together,
    force_option,
    hlo_option,
    json_option,
    module_option,
    network_option,
    page_options,
    targets,
)
from pgle.cli.paths import HLO, PAGE_OUT, PATH

if TYPE_CHECKING:
    from pgle.files import AnyPath
expected_on = click.option(
    "--target", metavar="NAME|FILE", help="GPU for expected times: h100, a100, …  [default: as the HLO says]"
)


against_options = _together(
    click.option("--against", multiple=True, type=PATH, metavar="OTHER",
                 help="Another run of the program: show what changed since. A directory means all ranks in it."),
    click.option("--against-hlo", multiple=True, type=PATH, metavar="PATH", help="HLO dump of that run."),
)  # fmt: skip


@click.command(cls=Command)
@click.argument("path", type=PATH, metavar="PROFILE|TRACE")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(["compute", "collective", "copy", "loop"]),
    help="List only these; repeatable.",
)
@click.option(
    "--sort",
    default="cost",
    show_default=True,
    type=click.Choice(["cost", "name", "spread", "samples"]),
    help="Costliest, alphabetical, most dispersed or least sampled first.",
)
@page_options
@click.pass_context
def show_command(ctx: click.Context, /, path: AnyPath, kinds: tuple[str, ...], sort: str) -> Answer[Any]:
    """Show a profile as XLA would take it, or what a trace holds.

    PROFILE: .pbtxt, .pb, or a directory of fingerprint-named ones. The sidecar PROFILE.json has kinds, shapes and
    dispersion; without it kinds are guessed from names and marked "?". Warnings name what XLA takes otherwise than it
    reads: duplicate names, .remat, a -done. Each cost is one execution of its instruction.

    TRACE: what `pgle convert` reads. Modules and their executions (steady ones, and why others are left out),
    instructions, devices, and activities that belong to no instruction.

    \b
    pgle show profile.pbtxt
    pgle show profile.pbtxt --kind collective --sort spread
    pgle show report.nsys-rep
    """
    from pgle.run.inputs.traces import is_trace

    if is_trace(path):
        return _trace(path, kinds, sort)
    return _profile(path, kinds, sort, all_rows=ctx.meta["pgle.as_json"] or ctx.meta["pgle.everything"])


def _profile(path: AnyPath, kinds: tuple[str, ...], sort: str, *, all_rows: bool) -> Answer[Any]:
    from pgle.costs.profile.files import read_profile
    from pgle.costs.profile.summary import summarise
    from pgle.costs.profile.value import CostKind, module_records
    from pgle.report.costs import show as report
    from pgle.report.next_steps import after_summary

    listed = 0 if all_rows else report.ROWS
    found = summarise(read_profile(path), kinds=[CostKind(kind) for kind in kinds], sort=sort, top=listed)
    known = module_records(found.provenance)
    modules = {str(module.get("name")): tuple(map(str, module.get("fingerprints", ()))) for module in known}
    page = report.show_page(str(path), found, after_summary(path, modules))
    return api.answer("show", found, page, report.document(str(path), found))


def _trace(path: AnyPath, kinds: tuple[str, ...], sort: str) -> Answer[Any]:
    from pgle.report.costs import trace as report
    from pgle.report.progress import progress
    from pgle.run.inputs.traces import convert_command, read_traces
    from pgle.trace.summary import listed, summarise_trace

    with progress("reading traces") as advance:
        found = summarise_trace(read_traces([path], progress=advance))
    about = str(path), found, listed(found, kinds, sort), convert_command(path)
    return api.answer("show", found, report.trace_page(*about), report.document(*about))


@click.command(cls=Command, computes=True)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="INPUT...")
@hlo_option(" of the traced run")
@expected_on
@click.option(
    "--profile", type=PATH, metavar="PROFILE", help="What the scheduler was given  [default: that of RUN/perf]"
)
@against_options
@page_options
def analyze_command(
    inputs: tuple[AnyPath, ...], hlo: tuple[AnyPath, ...], target: str | None, profile: AnyPath | None,
    against: tuple[AnyPath, ...], against_hlo: tuple[AnyPath, ...],
) -> Answer[Any]:  # fmt: skip
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
    from pgle.report import analyze as report
    from pgle.report.progress import progress
    from pgle.run.analyze import analyze
    from pgle.run.inputs.measured_step import Side

    side = Side(inputs, hlo, target, profile)
    other = Side(against, against_hlo, target) if against else None
    with progress("reading traces") as advance:
        found = analyze(side, other, progress=advance)
    return api.answer("analyze", found, report.analyze_page(found), report.document(found))


@click.command(cls=Command)
@click.argument("hlo", type=HLO, metavar="HLO")
@click.option("--profile", type=PATH, metavar="PROFILE", help="Measured costs; without, all are estimated.")
@click.option(
    "--target",
    shell_complete=targets,
    metavar="NAME|FILE",
    help="GPU, as for 'pgle rehearse'; default: as the dump says.",
)
@module_option("Which module of a dump directory; else the one with the longest step.")
@click.option("--devices-per-host", type=click.IntRange(1), metavar="N", help="GPUs that share NVLink; else 8, or 72.")
@network_option
@page_options
def predict_command(**options: Any) -> Answer[Any]:
    """Predict what a step of a scheduled module takes, and why. Needs no compiler and no GPU.

    HLO: an after_optimizations dump (.hlo.pb, .txt, also .xz and .gz), a schedule dump, a dump directory, or - for
    stdin. Costs come from the profile. What it lacks is estimated from XLA's measured tables and a roofline. The range
    holds the errors of estimates on other jobs, and how much collectives slow the kernels that run with them.

    \b
    pgle predict dump/module_0042.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb --profile profile.pbtxt
    pgle predict dump/ --target a100-80 --json
    cat step.txt | pgle predict - --target h100
    """
    return api.predict(**options)


@click.command(cls=Command, computes=True)
@click.argument("inputs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option("-o", "--output", "outputs", type=PAGE_OUT, multiple=True, metavar="FILE",
              help="FILE.html, .md, .json, .svg or .trace.json (Perfetto); repeatable; - is Markdown.")  # fmt: skip
@hlo_option(" of the traced run")
@expected_on
@against_options
@force_option
@json_option
@click.pass_context
def report_command(
    ctx: click.Context, /, inputs: tuple[AnyPath, ...], outputs: tuple[AnyPath, ...], hlo: tuple[AnyPath, ...],
    target: str | None, against: tuple[AnyPath, ...], against_hlo: tuple[AnyPath, ...], force: bool,
) -> None:  # fmt: skip
    """Write a page on a run: verdict, what to do, a timeline to move in, before and after, costs, step times.

    RUN: a run directory, traces of one job, the folder of 'pgle rehearse' or 'pgle tune', or a report as JSON. The page
    is one file that loads nothing and sends nothing. Without -o it is report.html in the run directory, else here. With
    --against: both steps on one time axis, and what changed. For text use 'pgle analyze'.

    \b
    pgle report runs/a
    pgle report rank*.sqlite --hlo dump/ -o report.html -o report.trace.json
    pgle report runs/b/perf --against runs/a/perf -o diff.html
    """
    from pgle.report import report
    from pgle.report.page import stored
    from pgle.report.page.terminal import show
    from pgle.report.progress import progress
    from pgle.run.inputs.measured_step import Side

    as_json = ctx.meta["pgle.as_json"]

    outputs = outputs or (() if as_json else (report.default_output(inputs),))
    report.check_outputs(outputs, force=force, inputs=(*inputs, *against))
    other = Side(against, against_hlo, target) if against else None
    with progress("reading") as advance:
        page, panels = report.page_of(Side(inputs, hlo, target), other, progress=advance)
    lines = report.write(page, panels, outputs, force=force)
    if as_json:
        click.echo(stored.as_json(page), nl=False)
    elif not ctx.meta.get("pgle.stdout"):
        show(report.short(page, lines))
