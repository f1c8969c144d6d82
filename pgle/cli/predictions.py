"""Commands that predict steps: of compiled modules, for other GPUs, at other sizes, under other
flags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgle.api import predictions
from pgle.api.answer import Answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.parameters import parameters
from pgle.report import text
from pgle.requests.predictions import Advise, Predict, Releases, Scale, Tune
from pgle.run.directory.directory import forget

if TYPE_CHECKING:
    from pgle.run.rehearse import Rehearsal
    from pgle.run.releases import ReleasesResult

Compiled = TypeVar("Compiled", "Rehearsal", "ReleasesResult")


@command(*parameters(Predict), *opt.PAGE)
def predict_command(**options: Any) -> Answer[Any]:
    """Predict what a step of a scheduled module takes, and why. Needs no compiler and no GPU.

    HLO: an after_optimizations dump (.hlo.pb, .txt, also .xz and .gz), a schedule dump or a dump
    directory. Costs come from the profile. What it lacks is estimated from XLA's measured tables
    and a roofline. The range holds the errors of estimates on other jobs, and how much collectives
    slow the kernels that run with them.

    \b
    pgle predict dump/module_0042.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb --profile p.pbtxt
    pgle predict dump/ --target a100-80 --json
    """
    return predictions.predict(**options)


@command(*parameters(Releases), opt.SHOW_OUTPUT, *opt.PAGE)
def rehearse_command(
    words: tuple[str, ...], jax: tuple[str, ...], yes: bool, **options: Any
) -> Answer[Any]:
    """Compile a step for GPUs that you do not have, with and without a profile. See what the
    profile changes.

    MODULE: StableHLO (JAX_DUMP_IR_TO) or HLO (text or proto) before scheduling. FOLDER: a folder of
    such dumps. RUN: a run directory, with its module, measured profile, flags and GPU. COMMAND: a
    program. It runs on virtual CPU devices until it has compiled its step. XLA_FLAGS of the
    environment count. --jax A,B: compare what releases of jax make of the step. The exit code is
    1 if XLA did not use the profile. If the program fails
    after its step was captured, its own exit code is returned.

    \b
    pgle rehearse jax_ir0000_jit_step_compile.mlir --target h100
    pgle rehearse step.mlir --profile profile.pbtxt --target a100 -o rehearsal
    pgle rehearse runs/a
    pgle rehearse --devices 8 -- python train.py --config x
    pgle rehearse --jax 0.12.0.1 -- python train.py
    """
    if jax:
        return _unnamed(predictions.releases(words, jax=jax, yes=yes, **options))
    return _unnamed(predictions.rehearse(words, **options))


def _unnamed(answer: Answer[Compiled]) -> Answer[Compiled]:
    """Drop the folder from an answer if the user did not name it and only the verdict, which does
    not name it, is printed.
    """
    if text.quiet and not click.get_current_context().meta["pgle.as_json"]:
        forget(answer.result.request.out)
    return answer


@command(*parameters(Tune), opt.SHOW_OUTPUT, *opt.PAGE)
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
    pgle tune runs/mine
    pgle tune --devices 8 -- python train.py --config x
    """
    return predictions.tune(words, **options)


@command(*parameters(Advise), *opt.PAGE)
def advise_command(
    words: tuple[str, ...], vary: tuple[tuple[str, list[str]], ...], **options: Any
) -> Answer[Any]:
    """Let the real compiler try changes of your program, and rank those that make its step shorter.
    Uses no GPU.

    COMMAND runs on virtual CPU devices until it has compiled its step: once as it is, and once for
    all alternatives, which pgle makes inside that run. Your files stay as they are. pgle tries
    cuDNN attention (also for attention that is written by hand), a loss in chunks, lookups without
    a scatter, jax.checkpoint, unroll of jax.lax.scan, fewer bits for products, a cast to bfloat16,
    donation, a batch divided over the devices, XLA flags, options of MaxText and Levanter, and your
    own values (--vary). An alternative is better if two compilations, with different kernels for
    products, both make the step half a per cent shorter. If an alternative can change values, pgle
    compares them on the CPU. Ctrl-C ends the trials and shows what is known.

    RUN: a run directory; its program is tried. MODULE: has no calls that pgle can change, so it
    tries only precision and donation.

    \b
    pgle advise --target h100 --devices 8 -- python train.py --config x
    pgle advise --devices 8 --vary batch=4,8 -- python train.py --batch {batch}
    """
    return predictions.advise(words, vary=dict(vary), **options)


@command(*parameters(Scale), *opt.PAGE)
def scale_command(
    words: tuple[str, ...], vary: tuple[tuple[str, list[str]], ...], **options: Any
) -> Answer[Any]:
    """Predict a program's step at sizes that you do not have: does it fit, how well does it scale,
    where does it break?

    COMMAND is captured at each size on virtual devices. XLA compiles it for the target, and the
    step is priced. Nothing runs on a GPU. In COMMAND, pgle replaces {devices}, {hosts} and each
    {NAME} of --vary, and calculates {4*devices} and {batch/hosts}. HLO: modules instead of a
    program, one file for each size. All figures are predictions. The exit code is 1 if no size has
    a step that fits.

    \b
    pgle scale --devices 8,64,512 --network 50GB/s -- python train.py --batch '{4*devices}'
    pgle scale --devices 64 --vary mesh=fsdp64,fsdp8tp8 -- python train.py --mesh {mesh}
    """
    return predictions.scale(words, vary=dict(vary), **options)
