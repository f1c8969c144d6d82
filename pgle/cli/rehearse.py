"""`pgle rehearse`."""

from __future__ import annotations

import click

from pgle.cli.options import json_option


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("module", nargs=-1, required=True, metavar="MODULE | FOLDER | -- COMMAND...")
@click.option("--profile", metavar="PROFILE", help="Measured costs; without, estimates stand in for them.")
@click.option(
    "--target", default="h100", show_default=True, metavar="NAME|FILE", help="GPU, or a gpu_target_config dump."
)
@click.option("--devices", type=click.IntRange(1), metavar="N", help="Devices on one host; short for --topology 1x1xN.")
@click.option("--topology", metavar="SxHxD", help="Slices x hosts per slice x devices per host.")
@click.option(
    "--flag",
    "flags",
    multiple=True,
    metavar="--xla_…",
    help="An XLA flag for all compilations, after XLA_FLAGS; repeatable.",
)
@click.option("--job", metavar="DUMP|FINGERPRINT", help="Say whether the module recompiles to this job's fingerprint.")
@click.option("-o", "--output", metavar="DIR", help="New folder for dumps, logs and the picture. [default: temporary]")
@click.option("--choose", metavar="NAME|REGEX", help="Which of several modules, by name; else the program's step.")
@click.option("--quiet-for", default=20.0, show_default=True, metavar="SECONDS",
              help="With COMMAND: stop it when it has compiled nothing new for so long.")  # fmt: skip
@click.option("--cache/--no-cache", "cached", default=True, show_default=True,
              help="Keep compilations in the user's cache, up to PGLE_CACHE_MIB (2048).")  # fmt: skip
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    module: tuple[str, ...],
    profile: str | None,
    target: str,
    devices: int | None,
    topology: str | None,
    flags: tuple[str, ...],
    job: str | None,
    output: str | None,
    choose: str | None,
    quiet_for: float,
    cached: bool,
    as_json: bool,
) -> None:
    """Compile a module for a GPU that is not there, with and without a profile, and say what the profile changes.

    MODULE: StableHLO (JAX_DUMP_IR_TO), a jax.export artifact, or HLO (text or proto) of any stage before scheduling,
    partitioned or not; FOLDER: of such dumps. With COMMAND the program is run on virtual CPU devices until it has
    compiled its step: the module that it executes again and again. Its own jaxlib compiles where that has the CUDA
    plugin, and XLA_FLAGS of the environment count. The exit code is 1 where XLA did not use the profile.

    \b
    pgle rehearse jax_ir0000_jit_step_compile.mlir --target h100
    pgle rehearse step.mlir --profile profile.pbtxt --target a100 -o rehearsal
    pgle rehearse --devices 8 -- python train.py --config x
    """
    from pgle.report import rehearse as report
    from pgle.report.phases import phases
    from pgle.run.rehearse.command import RehearseCommand, run

    options = RehearseCommand(
        words=module,
        profile=profile,
        target=target,
        topology=topology or (f"1x1x{devices}" if devices else None),
        devices=devices,
        flags=flags,
        job=job,
        out=output,
        choose=choose,
        quiet_s=quiet_for,
        cached=cached,
    )
    with phases() as on_phase:
        result = run(options, on_phase)
    picture = report.write_pictures(result)
    if as_json:
        report.show_json(result, picture)
    else:
        report.show_text(result, picture)
    if not result.good:
        ctx.exit(1)
