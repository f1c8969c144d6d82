"""Commands that make cost profiles and tables from traces, and that check, fill, carry and merge profiles.

Each imports what it runs when it runs, of which its help needs nothing.
"""

from __future__ import annotations

from typing import Any

from pgle import api
from pgle.api import Answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.options import PATH, Place
from pgle.files import AnyPath
from pgle.report import text


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
        "--fingerprint-names", "Write fingerprint::name, so that other modules ignore the costs."
    ),
    opt.flag("--all-executions", "Keep warm-up and truncated executions."),
    opt.option("--complete", "Fill gaps, with estimates for this GPU (h100, a100, …).", "TARGET"),
    opt.FORCE,
    *opt.PAGE,
)
def convert_command(**options: Any) -> Answer[Any]:
    """Turn traces into a cost profile.

    INPUT: .nsys-rep, nsys .sqlite, .xplane.pb, a profiler log directory (its newest run), a run
    directory of pgle. Several inputs (ranks, hosts) are merged: a collective then costs what the last rank to arrive
    measured, so trace the same steps on all. Of several modules the one with most compute is taken.

    \b
    pgle convert report.nsys-rep -o profile.pbtxt --hlo dump/
    pgle convert rank*.sqlite --hlo dump/ -o profile.pbtxt
    pgle convert logdir/ -o profile.pb
    """
    return api.convert(**options)


@command(
    opt.INPUTS,
    opt.option(
        "-o --output out", "The table (.pbtxt).", "FILE", Place(".pbtxt", ".txtpb"), required=True
    ),
    opt.hlo(" of the traced run"),
    opt.module("Which modules: auto, all or a regular expression.", "auto"),
    opt.TARGET,
    opt.FORCE,
    *opt.PAGE,
)
def perf_table_command(
    inputs: tuple[Any, ...], hlo: tuple[Any, ...], target: str, **options: Any
) -> Answer[Any]:
    """From traces the measured table that XLA's own cost model reads: one per cluster, for every program.

    INPUT: traces as for 'pgle convert'. The table holds what collectives took, by size and group, and needs no names or
    fingerprints; XLA prefers a cost profile, if there is one. Before the table is written, small modules are compiled
    with it to see whether this jaxlib takes each entry (no GPU needed).

    \b
    pgle perf-table runs/a -o cluster.pbtxt
    pgle perf-table rank*.sqlite --hlo dump/ --target h100 -o cluster.pbtxt
    """
    from pgle.report import flags as report
    from pgle.run.convert import ConvertRequest, default_hlo
    from pgle.run.perf_table import perf_table
    from pgle.xla.targets import load_target

    request = ConvertRequest(inputs=inputs, hlo=hlo or default_hlo(inputs), **options)
    with text.progress("reading traces") as advance:
        found = perf_table(request, load_target(target), progress=advance)
    return api.answer(
        "perf-table", found, report.perf_table_page(found), report.perf_table_document(found)
    )


@command(
    opt.PROFILE,
    opt.hlo(),
    opt.module("Only modules whose name matches."),
    *opt.BOUNDS,
    *opt.PAGE,
)
def verify_command(**options: Any) -> Answer[Any]:
    """Hold a profile against an HLO module, as XLA would: coverage, gaps, names that match only by accident.

    XLA looks a cost up by the name its instruction had when the latency-hiding scheduler ran, and fills gaps with
    constants that can make a schedule worse than no profile: a gap weighs what it costs (estimated) or what XLA takes
    it for, whichever is more. Names come from the schedule dump (--xla_dump_latency_hiding_schedule=true) where there
    is one, else from scheduling names in the HLO.

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
    opt.TARGET,
    opt.module("Modules to complete for.  [default: best match]"),
    _PER_HOST,
    opt.FORCE,
    *opt.PAGE,
)
def complete_command(**options: Any) -> Answer[Any]:
    """Fill the gaps of a cost profile.

    An instruction without a cost gets a constant of 1, 1000 or 5000 µs from XLA (on Hopper and later its own estimate),
    and a half-covered profile can make a worse schedule than none. Gaps are filled from measured instructions of the
    same shape, else from an estimate for --target, scaled by what was measured. The sidecar marks what was filled.

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
    return api.answer("complete", completions, page, report.complete_document(completions, written))


@command(
    opt.PROFILE,
    opt.option(
        "--from old", "Dump that the profile was measured on.", "OLD_HLO", PATH, required=True
    ),
    opt.option("--to new", "Dump that the profile is wanted for.", "NEW_HLO", PATH, required=True),
    opt.OUT,
    opt.target("GPU whose links scale collectives.  [default: the dump's]", default=""),
    _PER_HOST,
    opt.module("Module to carry.  [default: best match]"),
    opt.FORCE,
    *opt.PAGE,
)
def carry_command(**options: Any) -> Answer[Any]:
    """Carry a profile over to another compilation of the program.

    NEW_HLO may come from another jax, another number of devices, or an edited program. Instructions are matched by what
    they are: opcode, shapes, neighbours, the framework's name, place. A collective of another size or group gets its
    cost scaled, and is marked as an estimate. Instructions without a counterpart are left without a cost and listed.

    \b
    pgle carry profile.pbtxt --from old_dump/ --to new_dump/ -o carried.pbtxt
    """
    from pgle.report import profiles as report
    from pgle.report.next_steps import after_conversion
    from pgle.run.coverage import carry_file

    carried, written = carry_file(**options)
    page = report.carry_page(carried, written, after_conversion(written.path, [options["new"]]))
    return api.answer("carry", carried, page, report.carry_document(carried, written))


@command(
    opt.argument("profiles", "PROFILE...", nargs=-1, required=True),
    opt.OUT,
    opt.choice("--of", "Ranks of one run, or independent runs.", "ranks", "runs", default="ranks"),
    opt.STAT,
    opt.option(
        "--collective-stat", "Collectives.  [default: min of ranks, --stat of runs]", "NAME"
    ),
    opt.FORCE,
    *opt.PAGE,
)
def merge_command(
    profiles: tuple[AnyPath, ...],
    output: AnyPath,
    of: str,
    stat: str,
    collective_stat: str | None,
    force: bool,
) -> Answer[Any]:
    """Merge cost profiles of ranks or runs into one.

    Costs are --stat over the inputs, each counted once per sample; percentiles interpolate. A collective's time on one
    rank includes waiting for the last one, so of ranks the least counts, which still includes some. If you have the
    traces, give `pgle convert` all of them instead. A name that is another opcode or shape in each input is left out.

    \b
    pgle merge rank*.pbtxt -o profile.pbtxt
    pgle merge monday.pb tuesday.pb --of runs --stat p90 -o profile.pb
    """
    from pgle.costs.measure.samples import parse_statistic
    from pgle.costs.profile.merge import MergeOf, MergeOptions
    from pgle.report import profiles as report
    from pgle.report.next_steps import after_summary
    from pgle.run.convert import merge_files

    collective = parse_statistic(collective_stat) if collective_stat else None
    options = MergeOptions(of=MergeOf(of), stat=parse_statistic(stat), collective_stat=collective)
    merged, written = merge_files(profiles, output, options, force=force)
    page = report.merge_page(merged, written, after_summary(written.path))
    return api.answer("merge", merged, page, report.merge_document(merged, written), version=2)
