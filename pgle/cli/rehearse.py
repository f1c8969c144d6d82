"""`pgle rehearse`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli.help import Command
from pgle.cli.options import asked_of, choose_option, module_options, page_options, quiet_option
from pgle.cli.paths import FOLDER


@click.command(cls=Command, context_settings={"ignore_unknown_options": False})
@click.argument("words", nargs=-1, required=True, metavar="MODULE | FOLDER | RUN | -- COMMAND...")
@module_options
@click.option(
    "-o",
    "--output",
    type=FOLDER,
    metavar="DIR",
    help="New folder for dumps, logs and the page. [default: temporary]",
)
@choose_option
@quiet_option
@click.option("--cache/--no-cache", "cached", default=True, show_default=True,
              help="Keep compilations in the user's cache, up to PGLE_CACHE_MIB (2048).")  # fmt: skip
@page_options
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], output: Path | None, **options: Any) -> Answer[Any]:
    """Compile a step for GPUs that you do not have, with and without a profile. See what the profile changes.

    MODULE: StableHLO (JAX_DUMP_IR_TO) or HLO (text or proto) before scheduling; - reads stdin. FOLDER: a folder of
    such dumps. RUN: a run directory, with its module, measured profile, flags and GPU. COMMAND: a
    program. It runs on virtual CPU devices until it has compiled its step. XLA_FLAGS of the environment count. The exit
    code is 1 if XLA did not use the profile.

    \b
    pgle rehearse jax_ir0000_jit_step_compile.mlir --target h100
    pgle rehearse step.mlir --profile profile.pbtxt --target a100 -o rehearsal
    pgle rehearse runs/a
    cat step.hlo | pgle rehearse - --target b200
    pgle rehearse --devices 8 -- python train.py --config x
    """
    return api.rehearsed(asked_of(ctx, words, output, options))
