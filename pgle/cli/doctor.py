"""`pgle doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from pgle.cli.help import Command
from pgle.cli.options import json_option, python_option, run_dir_option
from pgle.report import doctor as report
from pgle.report import json
from pgle.run.doctor.doctor import diagnose
from pgle.run.doctor.world import this_world


@click.command(cls=Command)
@run_dir_option(".", "Where runs are to be kept.")
@python_option
@json_option
@click.pass_context
def command(ctx: click.Context, run_dir: Path, python: str | None, as_json: bool) -> None:
    """Check GPUs, driver, jax, its CUDA plugin, nsys, CUPTI, flags, caches and permissions.

    Exit code 1 where something fails; warnings are allowed.

    \b
    pgle doctor
    pgle doctor --python /path/to/env/bin/python
    """
    diagnosis = diagnose(this_world(python), str(run_dir))
    if as_json:
        json.show("pgle.doctor/1", report.doctor_json(diagnosis))
    else:
        report.doctor_table(diagnosis)
    ctx.exit(0 if diagnosis.ok else 1)
