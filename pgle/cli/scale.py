"""`pgle scale`."""

from __future__ import annotations

import re
from typing import Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli.help import Command
from pgle.cli.options import choose_option, flag_option, network_option, page_options, quiet_option, target_option
from pgle.cli.paths import FOLDER, LOCAL
from pgle.errors import UserError


@click.command(cls=Command)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND... | HLO...")
@click.option("--devices", "sizes", default="", metavar="N,N,…", help="Numbers of GPUs; the first is compared with.")
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=A,B,…",
    help="Values for {NAME} in the command; all combinations; repeatable.",
)
@click.option("--fit", default="", metavar="NAME",
              help="Of this varied name, whose values need more and more memory, take the last that fits.")  # fmt: skip
@click.option("--measured", metavar="N=TIME", help="A measured step, 8=1.56s: all predictions are moved by it.")
@click.option("--profile", type=LOCAL, metavar="PROFILE",
              help="Measured costs, carried to every size; without, estimates stand in for them.")  # fmt: skip
@click.option("--from", "measured_on", type=LOCAL, metavar="HLO",
              help="Dump that the profile was measured on.")  # fmt: skip
@target_option
@click.option("--devices-per-host", type=click.IntRange(1), metavar="N",
              help="GPUs that share NVLink.  [default: the target's, 8 or 72]")  # fmt: skip
@network_option
@flag_option
@choose_option
@quiet_option
@click.option("--executor", default="processes", metavar="processes|dask://HOST:PORT",
              help="Where rows are made: processes of this machine, or a Dask cluster.")  # fmt: skip
@click.option("--cache/--no-cache", "cached", default=True, show_default=True, help="Keep and reuse compilations.")
@click.option("-o", "--output", type=FOLDER, metavar="DIR",
              help="Folder for rows and page; the same again goes on.  [default: temporary]")  # fmt: skip
@page_options
def command(
    words: tuple[str, ...], sizes: str, vary: tuple[str, ...], measured: str | None, **options: Any,
) -> Answer[Any]:  # fmt: skip
    """Predict a program's step at sizes that you do not have: does it fit, how well does it scale, where does it break?

    COMMAND is captured at each size on virtual devices, compiled by XLA for the target, and priced. Nothing of it is
    executed on a GPU. In it {devices}, {hosts} and every {NAME} of --vary are replaced; {4*devices} and {batch/hosts}
    are worked out. HLO: modules instead of a program, a file for each size. All figures are predictions. The exit code
    is 1 if no size has a step that fits.

    \b
    pgle scale --devices 8,64,512 --network 50GB/s -- python train.py --batch '{4*devices}'
    pgle scale --devices 64 --vary mesh=fsdp64,fsdp8tp8 -- python train.py --mesh {mesh}
    """
    measured_us = None if measured is None else dict([_measured(measured)])
    return api.scale(words, _sizes(sizes), vary=dict(map(_varied, vary)), measured_us=measured_us, **options)


def _sizes(text: str) -> tuple[int, ...]:
    """``8,64,512``."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and 0 < int(part) <= 1 << 20 for part in parts):
        raise UserError("is no list of sizes", where=f"--devices {text}", remedy="say 8,64,512")
    return tuple(map(int, parts))


def _varied(text: str) -> tuple[str, list[str]]:
    """``NAME=A,B``."""
    name, equals, values = text.partition("=")
    if not (equals and values and re.fullmatch(r"[A-Za-z_]\w*", name)):
        raise UserError("is no name with values", where=f"--vary {text}", remedy="say --vary mesh=fsdp8,fsdp4tp2")
    return name, values.split(",")


def _measured(text: str) -> tuple[int, float]:
    """Size and microseconds of ``8=1.56s``."""
    found = re.fullmatch(r"\s*(\d{1,7})\s*=\s*(\d*\.?\d+)\s*(s|ms|us)\s*", text)
    us = float(found[2]) * {"s": 1e6, "ms": 1e3, "us": 1.0}[found[3]] if found else 0.0
    if found is None or not 0 < us < 1e12:
        raise UserError("is no measured step", where=f"--measured {text}", remedy="say 8=1.56s or 8=320ms")
    return int(found[1]), us
