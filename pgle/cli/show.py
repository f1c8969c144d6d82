"""Commands that look at what there is: a profile or a trace, a measured step, a run as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.paths import PAGE_OUT, PATH

if TYPE_CHECKING:
    from pgle.files import AnyPath

_MEASURED = (
    opt.hlo(" of the traced run"),
    opt.target("GPU for expected times: h100, a100, …  [default: as the HLO says]"),
)
_AGAINST = (
    opt.option("--against", "Another run of the program: show what changed since. A directory means all ranks in it.",
               "OTHER", PATH, multiple=True),
    opt.option("--against-hlo", "HLO dump of that run.", "PATH", PATH, multiple=True),
)  # fmt: skip


@command(
    opt.argument("path", "PROFILE|TRACE"),
    opt.choice("--kind kinds", "List only these; repeatable.", "compute", "collective", "copy", "loop", multiple=True),
    opt.choice("--sort", "Costliest, alphabetical, most dispersed or least sampled first.", "cost", "name", "spread",
               "samples", default="cost"),
    *opt.PAGE,
)  # fmt: skip
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
    from pgle.costs.profile.diff import summarise
    from pgle.costs.profile.files import read_profile
    from pgle.costs.profile.value import CostKind, module_records
    from pgle.report import show as report
    from pgle.report.next_steps import after_summary

    listed = 0 if all_rows else report.ROWS
    found = summarise(read_profile(path), kinds=[CostKind(kind) for kind in kinds], sort=sort, top=listed)
    known = module_records(found.provenance)
    modules = {str(module.get("name")): tuple(map(str, module.get("fingerprints", ()))) for module in known}
    page = report.profile_page(str(path), found, after_summary(path, modules))
    return api.answer("show", found, page, report.profile_document(str(path), found))


def _trace(path: AnyPath, kinds: tuple[str, ...], sort: str) -> Answer[Any]:
    from pgle.report import show as report
    from pgle.report.text import progress
    from pgle.run.inputs.traces import convert_command, read_traces
    from pgle.trace.summary import listed, summarise_trace

    with progress("reading traces") as advance:
        found = summarise_trace(read_traces([path], progress=advance))
    about = str(path), found, listed(found, kinds, sort), convert_command(path)
    return api.answer("show", found, report.trace_page(*about), report.trace_document(*about))


@command(
    opt.INPUTS, *_MEASURED,
    opt.option("--profile", "What the scheduler was given  [default: from RUN/perf]", "PROFILE", PATH),
    *_AGAINST, *opt.PAGE, computes=True,
)  # fmt: skip
def analyze_command(**options: Any) -> Answer[Any]:
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

    found = api.analysed(**options)
    return api.answer("analyze", found, report.analyze_page(found), report.document(found))


@command(
    opt.argument("inputs", "RUN...", nargs=-1, required=True),
    opt.option("-o --output outputs", "FILE.html, .md or .json; repeatable; - is "
               "Markdown.", "FILE", PAGE_OUT, multiple=True),
    *_MEASURED, *_AGAINST, opt.FORCE, opt.JSON, computes=True,
)  # fmt: skip
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
    pgle report rank*.sqlite --hlo dump/ -o report.html -o report.md
    pgle report runs/b/perf --against runs/a/perf -o diff.html
    """
    from pgle.report import report
    from pgle.report.page import value
    from pgle.report.page.terminal import show
    from pgle.report.text import progress
    from pgle.run.analyze import Side

    as_json = ctx.meta["pgle.as_json"]

    outputs = outputs or (() if as_json else (report.default_output(inputs),))
    report.check_outputs(outputs, force=force, inputs=(*inputs, *against))
    other = Side(against, against_hlo, target) if against else None
    with progress("reading") as advance:
        page = report.page_of(Side(inputs, hlo, target), other, progress=advance)
    lines = report.write(page, outputs, force=force)
    if as_json:
        click.echo(value.as_json(page), nl=False)
    elif not ctx.meta.get("pgle.stdout"):
        show(report.short(page, lines))
