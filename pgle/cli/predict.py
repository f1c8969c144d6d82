"""`pgle predict`."""

from __future__ import annotations

from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import HLO, PATH, TARGET, json_option, module_option


@click.command(cls=Command)
@click.argument("hlo", type=HLO, metavar="HLO")
@click.option("--profile", type=PATH, metavar="PROFILE", help="Measured costs; without, all are estimated.")
@click.option(
    "--target", type=TARGET, metavar="NAME|FILE", help="GPU, as for 'pgle rehearse'; default: as the dump says."
)
@module_option("Which module of a dump directory; else the one with the longest step.")
@click.option("--devices-per-host", type=click.IntRange(1), metavar="N", help="GPUs that share NVLink; else 8, or 72.")
@json_option
def command(as_json: bool, **options: Any) -> None:
    """What a step of a scheduled module takes, and why: no compiler, no GPU.

    HLO: an after_optimizations dump (.hlo.pb, .txt, also .xz and .gz), a schedule dump, a dump directory, or - for
    stdin. Costs are those of the profile; what it lacks is estimated from XLA's measured tables and a roofline, and
    said. The range holds what estimates were off on other jobs, and how much collectives slow the kernels beside them.

    \b
    pgle predict dump/module_0042.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb --profile profile.pbtxt
    pgle predict dump/ --target a100-80 --json
    cat step.txt | pgle predict - --target h100
    """
    from pgle.report import predict as report
    from pgle.run.predict import PredictRequest, predict_file

    found = predict_file(PredictRequest(**options))
    (report.show_json if as_json else report.show_text)(found)
