"""`pgle diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgle.cli.help import Command
from pgle.cli.options import PATH, json_option, top_option

if TYPE_CHECKING:
    from pgle.files import AnyPath


@click.command(cls=Command)
@click.argument("old", type=PATH, metavar="OLD")
@click.argument("new", type=PATH, metavar="NEW")
@top_option("Changes to list")
@json_option
def command(old: AnyPath, new: AnyPath, top: int, as_json: bool) -> None:
    """Compare two cost profiles: what changed and by how much.

    Largest change in time first. A change within the dispersion of the samples (half the two p10-p90 ranges added up,
    from the sidecars) is marked as noise. A name whose opcode or shape differs is another instruction, not a change.

    \b
    pgle diff before.pbtxt after.pbtxt
    """
    from pgle.costs.profile.diff import Change, diff_profiles
    from pgle.costs.profile.files import read_profile
    from pgle.report import diff as report
    from pgle.report.onward import after_difference, show_next

    result = diff_profiles(read_profile(old), read_profile(new))
    if as_json:
        report.show_json(str(old), str(new), result)
    else:
        report.show_text(str(old), str(new), result, top)
        noisy = {item.change for item in result.differences} - {Change.SAME} == {Change.NOISE}
        show_next(after_difference(old, new, noisy=noisy))
