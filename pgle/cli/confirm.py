"""`pgle confirm`."""

from __future__ import annotations

from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import bounds_options, module_option, page_options
from pgle.cli.paths import PATH


@click.command(cls=Command)
@click.argument("log", metavar="LOG")
@module_option("The main module; default: the one that weighs most in the log.", default=None)
@click.option(
    "--schedule",
    type=PATH,
    metavar="PATH",
    help="Schedule dump of the same run (file or directory): what the scheduler believed.",
)
@click.option(
    "--profile", type=PATH, metavar="PROFILE", help="The profile of the run; default: the one that the log names."
)
@click.option(
    "--jax", "release", metavar="VERSION", help="The jax that wrote the log; default: guessed from its wordings."
)
@bounds_options
@page_options
@click.pass_context
def command(
    ctx: click.Context, /, log: str, min_time_coverage: float, min_collectives: float, sections: tuple[str, ...],
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Read an XLA log: was the profile used, by which module, and what proves it.

    LOG is the output of a run, stdout and stderr together, of any size; - reads stdin; a run directory stands for its
    perf stage, with its schedule dump. Ranks are known by the labels of srun -l, mpirun, torchrun, kubectl and others,
    and each is judged. XLA says most of it at level INFO, which JAX hides: set TF_CPP_MIN_LOG_LEVEL=0 before Python
    starts. A schedule dump (--xla_dump_latency_hiding_schedule=true) proves use without any log line.

    Verdicts: used, partly-used, used-without-matches, not-used, wrong-format, cannot-tell. Exit code 0 when the main
    module used the profile, 1 otherwise; partly-used is less than the two bounds, those of 'pgle verify'. Without a
    schedule dump nobody knows times, and --min-time-coverage is held against the share of instructions.

    \b
    pgle confirm run.log
    python train.py 2>&1 | tee run.log | pgle confirm -
    pgle confirm run.log --schedule dump/ --profile profile.pbtxt
    """
    from pgle.files import as_path
    from pgle.report.experiment import confirm as report
    from pgle.report.next_steps import after_confirmation
    from pgle.report.page.terminal import show
    from pgle.report.progress import progress
    from pgle.run.confirm import ConfirmRequest, check_log, confirm, given_profile
    from pgle.xla.log.module_verdict import Bounds, ProfileUse

    path = as_path(log)  # no spooled stdin: a program that still runs may be at the other end
    check_log(path, may_be_empty=options["schedule"] is not None)
    with progress("reading log") as advance:
        profile, why_not = given_profile(options.pop("profile"), needed=options["schedule"] is None)
        bounds = Bounds(min_time_coverage, min_collectives)
        request = ConfirmRequest(path, **options, profile=profile, unreadable=why_not, bounds=bounds)
        verdict = confirm(request, progress=advance)
    if as_json:
        report.show_json(verdict)
    else:
        show(report.confirm_page(str(path), verdict, after_confirmation(path, verdict)), sections=sections)
    if verdict.main.verdict is not ProfileUse.USED:
        ctx.exit(1)
