"""`pgle show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgle.cli.options import json_option, profile_argument, top_option

if TYPE_CHECKING:
    from pgle.files import AnyPath


@click.command()
@profile_argument
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
def command(profile: AnyPath, top: int | None, kinds: tuple[str, ...], sort: str, as_json: bool) -> None:
    """Show a profile as XLA would take it.

    PROFILE: .pbtxt, .pb, or a directory of fingerprint-named ones. The sidecar PROFILE.json tells kinds, shapes and
    dispersion; without it kinds are guessed from names and marked "?". What XLA takes otherwise than it reads
    (duplicate names, .remat, a -done) stands below the table. Each cost is one execution of its instruction.

    \b
    pgle show profile.pbtxt
    pgle show profile.pbtxt --kind collective --sort spread
    """
    from pgle.costs.profile.files import read_profile
    from pgle.costs.profile.summary import summarise
    from pgle.costs.profile.value import CostKind
    from pgle.report import show as report

    summary = summarise(read_profile(profile), kinds=[CostKind(kind) for kind in kinds], sort=sort)
    if as_json:
        report.show_json(str(profile), summary, top)
    else:
        report.show_text(str(profile), summary, 20 if top is None else top)
