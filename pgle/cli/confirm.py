"""`pgle confirm`."""

from __future__ import annotations

import click

from pgle.cli.options import json_option


@click.command()
@click.argument("log", metavar="LOG")
@click.option("--module", metavar="REGEX", help="The main module; default: the one that weighs most in the log.")
@click.option(
    "--schedule", metavar="PATH", help="Schedule dump of the same run (file or directory): what the scheduler believed."
)
@click.option("--profile", metavar="PROFILE", help="The profile of the run; default: the one that the log names.")
@click.option("--jax", "release", metavar="VERSION", help="The jax that wrote the log; default: told by its wordings.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    log: str,
    module: str | None,
    schedule: str | None,
    profile: str | None,
    release: str | None,
    as_json: bool,
) -> None:
    """Read an XLA log: was the profile used, by which module, and what proves it.

    LOG is the output of a run, stdout and stderr together, of any size; - reads stdin. XLA says most of it at level
    INFO, which JAX hides: set TF_CPP_MIN_LOG_LEVEL=0 before Python starts. A schedule dump
    (--xla_dump_latency_hiding_schedule=true) proves use without any log line.

    Verdicts: used, used-without-matches, not-used, wrong-format, cannot-tell. Exit code 0 when the main module used
    the profile, 1 otherwise.

    \b
    pgle confirm run.log
    python train.py 2>&1 | tee run.log | pgle confirm -
    pgle confirm run.log --schedule dump/ --profile profile.pbtxt
    """
    from pgle.files import as_path
    from pgle.report import confirm as report
    from pgle.report.progress import progress
    from pgle.run.confirm import ConfirmRequest, confirm
    from pgle.xla.log.reasons import Verdict

    request = ConfirmRequest(
        log,
        module,
        None if schedule is None else as_path(schedule),
        None if profile is None else as_path(profile),
        release,
        named=True,
    )
    with progress("reading log") as told:
        verdict = confirm(request, progress=told)
    (report.show_json if as_json else report.show)(verdict)
    if verdict.main.verdict is not Verdict.USED:
        ctx.exit(1)
