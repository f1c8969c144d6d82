"""`pgle doctor`."""

from __future__ import annotations

import click

from pgle.cli.options import json_option
from pgle.report import doctor as report
from pgle.report import json
from pgle.run.doctor.doctor import diagnose
from pgle.run.doctor.world import this_world


@click.command()
@click.option("--run-dir", default=".", metavar="DIR", help="Where runs are to be kept.  [default: .]")
@click.option("--python", metavar="PATH", help="The Python of your program.  [default: the one pgle runs under]")
@json_option
@click.pass_context
def command(ctx: click.Context, run_dir: str, python: str | None, as_json: bool) -> None:
    """Check GPUs, driver, jax, nsys, CUPTI, flags, caches and permissions. Exit code 1 where something fails."""
    diagnosis = diagnose(this_world(python), run_dir)
    if as_json:
        json.show("pgle.doctor/1", report.doctor_json(diagnosis))
    else:
        report.doctor_table(diagnosis)
    ctx.exit(0 if diagnosis.ok else 1)
