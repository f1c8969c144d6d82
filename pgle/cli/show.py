"""Commands that show or compare profiles and traces, without NumPy if they can."""

from __future__ import annotations

from typing import Any

import click

from pgle.api.answer import Answer, answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import diff_profiles, module_records, summarise
from pgle.files import AnyPath
from pgle.report import next_steps, text
from pgle.report import profiles as report
from pgle.run.inputs.traces import convert_command, is_trace, read_traces


@command(opt.argument("path", "PROFILE|TRACE"), *opt.PAGE)
@click.pass_context
def show_command(ctx: click.Context, /, path: AnyPath) -> Answer[Any]:
    """Show a profile as XLA would take it, or what a trace holds.

    PROFILE: .pbtxt, .pb, or a directory of fingerprint-named ones. The sidecar PROFILE.json has
    kinds, shapes and dispersion; without it kinds are guessed from names and marked "?". Warnings
    name what XLA takes otherwise than it reads: duplicate names, .remat, a -done. Each cost is one
    execution of its instruction.

    TRACE: what `pgle convert` reads. Modules and their executions (steady ones, and why others are
    left out), instructions, devices, and activities that belong to no instruction.

    \b
    pgle show profile.pbtxt
    pgle show report.nsys-rep
    """
    if is_trace(path):
        return _trace(path)
    listed = (
        0 if ctx.meta["pgle.as_json"] or ctx.meta["pgle.everything"] else report.ROWS
    )
    found = summarise(read_profile(path), top=listed)
    known = module_records(found.provenance)
    modules = {
        str(module.get("name")): tuple(map(str, module.get("fingerprints", ())))
        for module in known
    }
    page = report.profile_page(
        str(path), found, next_steps.after_summary(path, modules)
    )
    return answer("show", found, page, report.profile_document(str(path), found))


def _trace(path: AnyPath) -> Answer[Any]:
    from pgle.report.traces import trace_document, trace_page
    from pgle.trace.summary import summarise_trace

    with text.progress("reading traces") as advance:
        found = summarise_trace(read_traces([path], progress=advance))
    page = trace_page(str(path), found, convert_command(path))
    return answer("show", found, page, trace_document(str(path), found))


@command(opt.argument("old", "OLD"), opt.argument("new", "NEW"), *opt.PAGE)
def diff_command(old: AnyPath, new: AnyPath) -> Answer[Any]:
    """Compare two cost profiles: what changed and by how much.

    Largest change in time first. A change within the dispersion of the samples (half the two
    p10-p90 ranges added up, from the sidecars) is marked as noise. A name whose opcode or shape
    differs is another instruction, not a change.

    \b
    pgle diff before.pbtxt after.pbtxt
    """
    result = diff_profiles(read_profile(old), read_profile(new))
    page = report.diff_page(str(old), str(new), result, next_steps.after_summary(new))
    return answer(
        "diff", result, page, report.diff_document(str(old), str(new), result)
    )
