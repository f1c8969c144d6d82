"""Commands that make cost profiles from traces, and that check, fill and carry profiles.

Each imports what it runs when it runs, of which its help needs nothing.
"""

from __future__ import annotations

from typing import Any

from pgle import api
from pgle.api import Answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.options import PATH


@command(
    opt.INPUTS,
    opt.option(
        "-o --output",
        "Profile (.pbtxt, .pb), or a directory: one per module.  [default: RUN/profile.pbtxt]",
        "OUT",
        PATH,
    ),
    opt.hlo(" of the profiled run"),
    opt.module("Which modules to convert.", "auto", "auto|all|REGEX"),
    opt.STAT,
    opt.option("--collective-stat", "Collectives: the same.", "NAME", default="median"),
    opt.flag(
        "--fingerprint-names",
        "Write fingerprint::name, so that other modules ignore the costs.",
    ),
    opt.flag("--all-executions", "Keep warm-up and truncated executions."),
    opt.option(
        "--complete",
        "Fill gaps, with estimates for this GPU (h100, a100, …).",
        "TARGET",
    ),
    opt.FORCE,
    *opt.PAGE,
)
def convert_command(**options: Any) -> Answer[Any]:
    """Turn traces into a cost profile.

    INPUT: .nsys-rep, nsys .sqlite, .xplane.pb, a profiler log directory (its newest run), a run
    directory of pgle. Several inputs (ranks, hosts) are merged: a collective then costs what the
    last rank to arrive measured, so trace the same steps on all. Of several modules the one with
    most compute is taken.

    \b
    pgle convert report.nsys-rep -o profile.pbtxt --hlo dump/
    pgle convert rank*.sqlite --hlo dump/ -o profile.pbtxt
    pgle convert logdir/ -o profile.pb
    """
    return api.convert(**options)


@command(
    opt.PROFILE,
    opt.hlo(),
    opt.module("Only modules whose name matches."),
    *opt.BOUNDS,
    *opt.PAGE,
)
def verify_command(**options: Any) -> Answer[Any]:
    """Hold a profile against an HLO module, as XLA would: coverage, gaps, names that match only by
    accident.

    XLA looks a cost up by the name its instruction had when the latency-hiding scheduler ran, and
    fills gaps with constants that can make a schedule worse than no profile: a gap weighs what it
    costs (estimated) or what XLA takes it for, whichever is more. Names come from the schedule dump
    (--xla_dump_latency_hiding_schedule=true) where there is one, else from scheduling names in the
    HLO.

    \b
    pgle verify profile.pbtxt --hlo dump/
    pgle verify profile.pbtxt --hlo dump/ --module train_step --min-time-coverage 0.99
    """
    return api.verify(**options)


_PER_HOST = opt.devices_per_host("GPUs that share NVLink.", default=8)


@command(
    opt.PROFILE,
    opt.hlo(required=True),
    opt.OUT,
    opt.target(
        "GPU of the estimates: h100, a100, …  [default: the dump's]", default=""
    ),
    opt.module("Modules to complete for.  [default: best match]"),
    _PER_HOST,
    opt.FORCE,
    *opt.PAGE,
)
def complete_command(**options: Any) -> Answer[Any]:
    """Fill the gaps of a cost profile.

    An instruction without a cost gets a constant of 1, 1000 or 5000 µs from XLA (on Hopper and
    later its own estimate), and a half-covered profile can make a worse schedule than none. Gaps
    are filled from measured instructions of the same shape, else from an estimate for --target,
    scaled by what was measured. The sidecar marks what was filled.

    \b
    pgle complete profile.pbtxt --hlo dump/ --target h100 -o complete.pbtxt
    """
    from pgle.report import profiles as report
    from pgle.report.next_steps import after_conversion
    from pgle.run.coverage import complete_file

    completions, written = complete_file(**options)
    page = report.complete_page(
        completions, written, after_conversion(written.path, options["hlo"])
    )
    return api.answer(
        "complete", completions, page, report.complete_document(completions, written)
    )


@command(
    opt.PROFILE,
    opt.option(
        "--from old",
        "Dump that the profile was measured on.",
        "OLD_HLO",
        PATH,
        required=True,
    ),
    opt.option(
        "--to new",
        "Dump that the profile is wanted for.",
        "NEW_HLO",
        PATH,
        required=True,
    ),
    opt.OUT,
    opt.target("GPU whose links scale collectives.  [default: the dump's]", default=""),
    _PER_HOST,
    opt.module("Module to carry.  [default: best match]"),
    opt.FORCE,
    *opt.PAGE,
)
def carry_command(**options: Any) -> Answer[Any]:
    """Carry a profile over to another compilation of the program.

    NEW_HLO may come from another jax, another number of devices, or an edited program. Instructions
    are matched by what they are: opcode, shapes, neighbours, the framework's name, place. A
    collective of another size or group gets its cost scaled, and is marked as an estimate.
    Instructions without a counterpart are left without a cost and listed.

    \b
    pgle carry profile.pbtxt --from old_dump/ --to new_dump/ -o carried.pbtxt
    """
    from pgle.report import profiles as report
    from pgle.report.next_steps import after_conversion
    from pgle.run.coverage import carry_file

    carried, written = carry_file(**options)
    page = report.carry_page(
        carried, written, after_conversion(written.path, [options["new"]])
    )
    return api.answer("carry", carried, page, report.carry_document(carried, written))
