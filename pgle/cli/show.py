"""`pgle show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgle.cli.help import Command
from pgle.cli.options import PATH, json_option, top_option

if TYPE_CHECKING:
    from pgle.files import AnyPath


@click.command(cls=Command)
@click.argument("path", type=PATH, metavar="PROFILE|TRACE")
@top_option("Instructions to list", default=None)
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
@json_option
def command(path: AnyPath, top: int | None, kinds: tuple[str, ...], sort: str, as_json: bool) -> None:
    """Show a profile as XLA would take it, or what a trace holds.

    PROFILE: .pbtxt, .pb, or a directory of fingerprint-named ones. The sidecar PROFILE.json tells kinds, shapes and
    dispersion; without it kinds are guessed from names and marked "?". What XLA takes otherwise than it reads
    (duplicate names, .remat, a -done) stands below the table. Each cost is one execution of its instruction.

    TRACE: what `pgle convert` reads. Modules and their executions (steady ones, and why others are left out),
    instructions, devices, and activities that belong to no instruction.

    \b
    pgle show profile.pbtxt
    pgle show profile.pbtxt --kind collective --sort spread
    pgle show report.nsys-rep
    """
    from pgle.run.inputs.traces import is_trace

    (_trace if is_trace(path) else _profile)(path, top, kinds, sort, as_json)


def _profile(path: AnyPath, top: int | None, kinds: tuple[str, ...], sort: str, as_json: bool) -> None:
    from pgle.costs.profile.files import read_profile
    from pgle.costs.profile.summary import summarise
    from pgle.costs.profile.value import CostKind, module_records
    from pgle.report import show as report

    listed = top if top is not None else 0 if as_json else 20
    summary = summarise(read_profile(path), kinds=[CostKind(kind) for kind in kinds], sort=sort, top=listed)
    show = report.show_json if as_json else report.show_text
    show(str(path), summary)
    if not as_json:
        from pgle.report.onward import after_summary, show_next

        names = [str(module.get("name")) for module in module_records(summary.provenance)]
        show_next(after_summary(path, names))


def _trace(path: AnyPath, top: int | None, kinds: tuple[str, ...], sort: str, as_json: bool) -> None:
    from pgle.report import trace as report
    from pgle.report.text import progress
    from pgle.run.inputs.traces import convert_command, read_traces
    from pgle.trace.summary import listed, summarise_trace

    with progress("reading traces") as told:
        summary = summarise_trace(read_traces([path], progress=told))
    instructions = listed(summary, kinds, sort)
    following = convert_command(path)
    if as_json:
        report.show_json(str(path), summary, instructions, top, following)
    else:
        report.show_text(str(path), summary, instructions, 20 if top is None else top, following)
