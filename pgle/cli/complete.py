"""`pgle complete`."""

from __future__ import annotations

import click

from pgle.cli.options import force_option, json_option


@click.command()
@click.argument("profile", metavar="PROFILE")
@click.option("--hlo", multiple=True, required=True, metavar="PATH", help="HLO dump file or directory; repeatable.")
@click.option("-o", "--output", required=True, metavar="OUT", help="Profile to write: .pbtxt or .pb.")
@click.option(
    "--target",
    default="h100",
    show_default=True,
    metavar="NAME|FILE",
    help="GPU to estimate for: a100, a100-80, h100, h200, b200, or a gpu_target_config.pbtxt.",
)
@click.option("--module", default="", metavar="REGEX", help="Modules to complete for.  [default: best match]")
@click.option("--devices-per-host", default=8, show_default=True, metavar="N", help="GPUs that share NVLink.")
@force_option
@json_option
def command(
    profile: str,
    hlo: tuple[str, ...],
    output: str,
    target: str,
    module: str,
    devices_per_host: int,
    force: bool,
    as_json: bool,
) -> None:
    """Fill the gaps of a cost profile.

    An instruction without a cost gets a constant of 1, 1000 or 5000 µs from XLA (on Hopper and later its own estimate),
    and a half-covered profile can make a worse schedule than none. Gaps are filled from measured instructions of the
    same shape, else from an estimate for --target, scaled by what was measured. The sidecar marks what was filled.

    \b
    pgle complete profile.pbtxt --hlo dump/ --target h100 -o complete.pbtxt
    """
    from pgle.files import as_path
    from pgle.report import complete as report
    from pgle.run.complete import complete_file

    result = complete_file(
        as_path(profile),
        tuple(map(as_path, hlo)),
        as_path(output),
        target=target,
        module=module,
        devices_per_host=devices_per_host,
        force=force,
    )
    (report.show_json if as_json else report.show_text)(result.completions, result.path, result.sha256)
