"""`pgle complete`."""

from __future__ import annotations

from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import (
    force_option,
    hlo_option,
    json_option,
    module_option,
    profile_argument,
    profile_output,
    target_option,
)


@click.command(cls=Command)
@profile_argument
@hlo_option(required=True)
@profile_output
@target_option
@module_option("Modules to complete for.  [default: best match]")
@click.option(
    "--devices-per-host",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="GPUs that share NVLink.",
)
@force_option
@json_option
def command(as_json: bool, **options: Any) -> None:
    """Fill the gaps of a cost profile.

    An instruction without a cost gets a constant of 1, 1000 or 5000 µs from XLA (on Hopper and later its own estimate),
    and a half-covered profile can make a worse schedule than none. Gaps are filled from measured instructions of the
    same shape, else from an estimate for --target, scaled by what was measured. The sidecar marks what was filled.

    \b
    pgle complete profile.pbtxt --hlo dump/ --target h100 -o complete.pbtxt
    """
    from pgle.report import complete as report
    from pgle.report.onward import after_conversion, show_next
    from pgle.run.coverage import complete_file

    result = complete_file(**options)
    (report.show_json if as_json else report.show_text)(result)
    if not as_json:
        show_next(after_conversion(result.written.path, options["hlo"]))
