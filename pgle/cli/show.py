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
    """Show a profile as XLA reads it, or what a trace holds.

    PROFILE: .pbtxt, .pb, or a directory of profiles that are named by fingerprint. The sidecar
    PROFILE.json has kinds, shapes and dispersion. Without it, pgle guesses kinds from names and
    marks them "?". Warnings name what XLA reads differently: duplicate names, .remat, a -done. Each
    cost is for one execution of its instruction.

    TRACE: anything that `pgle convert` reads. The answer shows modules and their executions (which
    are steady, and why others are dropped), instructions, devices, and GPU work that belongs to no
    instruction.

    \b
    pgle show profile.pbtxt
    pgle show report.nsys-rep
    """
    if is_trace(path):
        return _trace(path)
    lists_all = ctx.meta["pgle.as_json"] or ctx.meta["pgle.everything"]
    found = summarise(read_profile(path), top=0 if lists_all else report.ROWS)
    fingerprints: dict[str, tuple[str, ...]] = {}  # by module
    for module in module_records(found.provenance):
        name = str(module.get("name"))
        fingerprints[name] = tuple(map(str, module.get("fingerprints", ())))
    following = next_steps.after_summary(path, fingerprints)
    page = report.profile_page(str(path), found, following)
    return answer("show", found, page, report.profile_document(str(path), found))


def _trace(path: AnyPath) -> Answer[Any]:
    """What a trace holds."""
    from pgle.report.traces import trace_document, trace_page
    from pgle.trace.summary import summarise_trace

    with text.progress("reading traces") as advance:
        found = summarise_trace(read_traces([path], progress=advance))
    page = trace_page(str(path), found, convert_command(path))
    return answer("show", found, page, trace_document(str(path), found))


@command(opt.argument("old", "OLD"), opt.argument("new", "NEW"), *opt.PAGE)
def diff_command(old: AnyPath, new: AnyPath) -> Answer[Any]:
    """Compare two cost profiles: what changed and by how much.

    The largest change in time comes first. A change is marked as noise if it is within the
    dispersion of the samples (half the sum of the two p10-p90 ranges, from the sidecar files). If a
    name has another opcode or shape, it is another instruction, not a change.

    \b
    pgle diff before.pbtxt after.pbtxt
    """
    result = diff_profiles(read_profile(old), read_profile(new))
    page = report.diff_page(str(old), str(new), result, next_steps.after_summary(new))
    return answer(
        "diff", result, page, report.diff_document(str(old), str(new), result)
    )
