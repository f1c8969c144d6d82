"""Commands that predict steps: of a compiled module, compiled for other GPUs, at other sizes, under
other flags.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from pgle import api
from pgle.api import Answer
from pgle.checks import check
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.options import FOLDER, LOCAL
from pgle.cli.parameters import parameters
from pgle.errors import UserError
from pgle.report import text
from pgle.requests.predictions import Predict
from pgle.run.directory.directory import forget

if TYPE_CHECKING:
    from pgle.run.rehearse import Rehearsal


@command(*parameters(Predict), *opt.PAGE)
def predict_command(**options: Any) -> Answer[Any]:
    """Predict what a step of a scheduled module takes, and why. Needs no compiler and no GPU.

    HLO: an after_optimizations dump (.hlo.pb, .txt, also .xz and .gz), a schedule dump or a dump
    directory. Costs come from the profile. What it lacks is estimated from XLA's measured tables
    and a roofline. The range holds the errors of estimates on other jobs, and how much collectives
    slow the kernels that run with them.

    \b
    pgle predict dump/module_0042.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb --profile profile.pbtxt
    pgle predict dump/ --target a100-80 --json
    """
    return api.predict(**options)


@command(
    opt.argument(
        "words", "MODULE | FOLDER | RUN | -- COMMAND...", None, nargs=-1, required=True
    ),
    *opt.COMPILED,
    opt.option(
        "-o --output",
        "New folder for dumps, logs and the page. [default: temporary]",
        "DIR",
        FOLDER,
    ),
    opt.CHOOSE,
    opt.QUIET,
    opt.CACHE,
    *opt.PAGE,
)
def rehearse_command(words: tuple[str, ...], **options: Any) -> Answer[Any]:
    """Compile a step for GPUs that you do not have, with and without a profile. See what the
    profile changes.

    MODULE: StableHLO (JAX_DUMP_IR_TO) or HLO (text or proto) before scheduling. FOLDER: a folder of
    such dumps. RUN: a run directory, with its module, measured profile, flags and GPU. COMMAND: a
    program. It runs on virtual CPU devices until it has compiled its step. XLA_FLAGS of the
    environment count. The exit code is 1 if XLA did not use the profile. A program that fails
    after its step passes its own on.

    \b
    pgle rehearse jax_ir0000_jit_step_compile.mlir --target h100
    pgle rehearse step.mlir --profile profile.pbtxt --target a100 -o rehearsal
    pgle rehearse runs/a
    pgle rehearse --devices 8 -- python train.py --config x
    """
    return _unnamed(api.rehearse(words, **options))


def _unnamed(answer: Answer[Rehearsal]) -> Answer[Rehearsal]:
    """An answer, without its folder if nobody named that and only the verdict is printed, which
    does not name it.
    """
    if text.quiet and not click.get_current_context().meta["pgle.as_json"]:
        forget(answer.result.request.out)
    return answer


@command(
    opt.argument(
        "words", "MODULE | RUN | -- COMMAND...", None, nargs=-1, required=True
    ),
    *opt.COMPILED,
    opt.CHOOSE,
    opt.QUIET,
    opt.option(
        "--budget", "Trials at most.", default=20, type=opt.whole_number("budget")
    ),
    opt.CACHE,
    opt.option(
        "-o --output",
        "Folder for flags, profile, trials and page.",
        "DIR",
        FOLDER,
        required=True,
    ),
    *opt.PAGE,
)
def tune_command(words: tuple[str, ...], **options: Any) -> Answer[Any]:
    """Find the XLA flags that, with the profile, make a step fastest. Uses the real compiler and no
    GPU.

    MODULE: as for 'pgle rehearse'. RUN: a run directory, with its module, measured profile and
    flags. The search tries combine thresholds, pipelined collectives, loop double buffering and
    other flags that decide the schedule, one at a time. It accepts a setting if the step gets half
    a per cent shorter, by the likely costs and on average over worlds, and if it is shorter in nine
    of ten worlds. In a world, costs, latencies, contention and launch gaps differ. All gains are
    predictions. The answer shows what others measured for each flag. To continue a search that was
    stopped, give the same command again.

    \b
    pgle tune step.mlir --profile profile.pbtxt --target h100 --devices 8 -o tuned
    pgle tune runs/mine -o tuned
    pgle tune --devices 8 -o tuned -- python train.py --config x
    """
    return api.tune(words, **options)


def _sizes(text: str) -> tuple[int, ...]:
    """``8,64,512``."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise UserError(
            "is no list of sizes", where=f"--devices {text}", remedy="say 8,64,512"
        )
    sizes = tuple(map(int, parts))
    check({"devices": sizes})
    return sizes


def _varied(text: str) -> tuple[str, list[str]]:
    """``NAME=A,B``."""
    name, equals, values = text.partition("=")
    if not (equals and values and re.fullmatch(r"[A-Za-z_]\w*", name)):
        raise UserError(
            "is no name with values",
            where=f"--vary {text}",
            remedy="say --vary mesh=fsdp8,fsdp4tp2",
        )
    return name, values.split(",")


def _measured(text: str) -> dict[int, float]:
    """Size and microseconds of ``8=1.56s``."""
    found = re.fullmatch(r"\s*(\d{1,7})\s*=\s*(\d*\.?\d+)\s*(s|ms|us)\s*", text)
    us = float(found[2]) * {"s": 1e6, "ms": 1e3, "us": 1.0}[found[3]] if found else 0.0
    if found is None:
        raise UserError(
            "is no measured step",
            where=f"--measured {text}",
            remedy="say 8=1.56s or 8=320ms",
        )
    check({"measured_us": us})
    return {int(found[1]): us}


@command(
    opt.argument("words", "-- COMMAND... | HLO...", None, nargs=-1, required=True),
    opt.option(
        "--devices",
        "Numbers of GPUs; the smallest is compared with.",
        "N,N,…",
        _sizes,
        default="",
    ),
    opt.option(
        "--vary",
        "Values for {NAME} in the command; all combinations; repeatable.",
        "NAME=A,B,…",
        _varied,
        multiple=True,
    ),
    opt.option(
        "--fit",
        "Of this varied name, whose values need more and more memory, take the last that fits.",
        "NAME",
        default="",
    ),
    opt.option(
        "--measured measured_us",
        "A measured step, 8=1.56s: all predictions are moved by it.",
        "N=TIME",
        _measured,
    ),
    opt.option(
        "--profile",
        "Measured costs, carried to every size; without, estimates stand in for them.",
        "PROFILE",
        LOCAL,
    ),
    opt.option(
        "--from measured_on", "Dump that the profile was measured on.", "HLO", LOCAL
    ),
    opt.COMPILED_FOR,
    opt.devices_per_host("GPUs that share NVLink.  [default: the target's, 8 or 72]"),
    opt.NETWORK,
    *opt.FLAGS,
    opt.CHOOSE,
    opt.QUIET,
    opt.CACHE,
    opt.option(
        "-o --output",
        "Folder for rows and page; repeat to resume.  [default: temporary]",
        "DIR",
        FOLDER,
    ),
    *opt.PAGE,
)
def scale_command(
    words: tuple[str, ...], vary: tuple[tuple[str, list[str]], ...], **options: Any
) -> Answer[Any]:
    """Predict a program's step at sizes that you do not have: does it fit, how well does it scale,
    where does it break?

    COMMAND is captured at each size on virtual devices, compiled by XLA for the target, and priced.
    Nothing of it is executed on a GPU. In it {devices}, {hosts} and every {NAME} of --vary are
    replaced; {4*devices} and {batch/hosts} are worked out. HLO: modules instead of a program, a
    file for each size. All figures are predictions. The exit code is 1 if no size has a step that
    fits.

    \b
    pgle scale --devices 8,64,512 --network 50GB/s -- python train.py --batch '{4*devices}'
    pgle scale --devices 64 --vary mesh=fsdp64,fsdp8tp8 -- python train.py --mesh {mesh}
    """
    return api.scale(words, vary=dict(vary), **options)
