"""`pgle diff`."""

from __future__ import annotations

import click

from pgle.cli.options import json_option


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--top", type=click.IntRange(0), default=20, show_default=True, help="Changes to list; 0: all.")
@json_option
def command(old: str, new: str, top: int, as_json: bool) -> None:
    """Compare two cost profiles: what changed and by how much.

    Largest change in time first. A change within the dispersion of the samples (half the two p10-p90 ranges added up,
    from the sidecars) is marked as noise. A name whose opcode or shape differs is another instruction, not a change.

    \b
    pgle diff before.pbtxt after.pbtxt
    """
    from pgle.costs.profile.diff import diff_profiles
    from pgle.costs.profile.files import read_profile
    from pgle.files import as_path
    from pgle.report import diff as report

    result = diff_profiles(read_profile(as_path(old)), read_profile(as_path(new)))
    if as_json:
        report.show_json(old, new, result)
    else:
        report.show_text(old, new, result, top)
