"""Commands on cost profiles: held against a module, their gaps filled, merged, compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli.help import Command
from pgle.cli.options import (
    bounds_options,
    force_option,
    hlo_option,
    module_option,
    page_options,
    profile_argument,
    profile_output,
    stat_option,
    target_option,
)
from pgle.cli.paths import PATH

if TYPE_CHECKING:
    from pgle.files import AnyPath

devices_per_host_option = click.option(
    "--devices-per-host",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="GPUs that share NVLink.",
)


@click.command(cls=Command)
@profile_argument
@hlo_option()
@click.option(
    "--schedule",
    type=PATH,
    metavar="PATH",
    help="Schedule dump of LHS, file or directory; found next to the HLO by itself.",
)
@module_option("Only modules whose name matches.")
@bounds_options
@page_options
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


@click.command(cls=Command)
@profile_argument
@hlo_option(required=True)
@profile_output
@target_option
@module_option("Modules to complete for.  [default: best match]")
@devices_per_host_option
@force_option
@page_options
def complete_command(**options: Any) -> Answer[Any]:
    """Fill the gaps of a cost profile.

    An instruction without a cost gets a constant of 1, 1000 or 5000 µs from XLA (on Hopper and later its own estimate),
    and a half-covered profile can make a worse schedule than none. Gaps are filled from measured instructions of the
    same shape, else from an estimate for --target, scaled by what was measured. The sidecar marks what was filled.

    \b
    pgle complete profile.pbtxt --hlo dump/ --target h100 -o complete.pbtxt
    """
    from pgle.report.costs import profiles as report
    from pgle.report.next_steps import after_conversion
    from pgle.run.coverage import complete_file

    completions, written = complete_file(**options)
    page = report.complete_page(completions, written, after_conversion(written.path, options["hlo"]))
    return api.answer("complete", completions, page, report.complete_document(completions, written))


@click.command(cls=Command)
@profile_argument
@click.option(
    "--from", "old", type=PATH, required=True, metavar="OLD_HLO", help="Dump that the profile was measured on."
)
@click.option("--to", "new", type=PATH, required=True, metavar="NEW_HLO", help="Dump that the profile is wanted for.")
@profile_output
@click.option(
    "--target", default="", metavar="NAME|FILE", help="GPU whose links scale collectives.  [default: the dump's]"
)
@devices_per_host_option
@module_option("Module to carry.  [default: best match]")
@force_option
@page_options
def carry_command(**options: Any) -> Answer[Any]:
    """Carry a profile over to another compilation of the program.

    NEW_HLO may come from another jax, another number of devices, or an edited program. Instructions are matched by what
    they are: opcode, shapes, neighbours, the framework's name, place. A collective of another size or group gets its
    cost scaled, and is marked as an estimate. Instructions without a counterpart are left without a cost and listed.

    \b
    pgle carry profile.pbtxt --from old_dump/ --to new_dump/ -o carried.pbtxt
    """
    from pgle.report.costs import profiles as report
    from pgle.report.next_steps import after_conversion
    from pgle.run.coverage import carry_file

    carried, written = carry_file(**options)
    page = report.carry_page(carried, written, after_conversion(written.path, [options["new"]]))
    return api.answer("carry", carried, page, report.carry_document(carried, written))


@click.command(cls=Command, computes=True)
@click.argument("profiles", nargs=-1, required=True, type=PATH, metavar="PROFILE...")
@profile_output
@click.option(
    "--of",
    default="ranks",
    show_default=True,
    type=click.Choice(["ranks", "runs"]),
    help="Ranks of one run, or independent runs.",
)
@stat_option
@click.option(
    "--collective-stat",
    metavar="NAME",
    help="Collectives.  [default: min of ranks, --stat of runs]",
)
@force_option
@page_options
def merge_command(
    profiles: tuple[AnyPath, ...], output: AnyPath, of: str, stat: str, collective_stat: str | None, force: bool
) -> Answer[Any]:
    """Merge cost profiles of ranks or runs into one.

    Costs are --stat over the inputs, each counted once per sample; percentiles interpolate. A collective's time on one
    rank includes waiting for the last one, so of ranks the least counts, which still includes some. If you have the
    traces, give `pgle convert` all of them instead. A name that is another opcode or shape in each input is left out.

    \b
    pgle merge rank*.pbtxt -o profile.pbtxt
    pgle merge monday.pb tuesday.pb --of runs --stat p90 -o profile.pb
    """
    from pgle.costs.profile.merge import MergeOptions, Of
    from pgle.costs.statistic import parse_statistic
    from pgle.report.costs import profiles as report
    from pgle.report.next_steps import after_summary
    from pgle.run.profiles import merge_files

    options = MergeOptions(
        of=Of(of),
        stat=parse_statistic(stat),
        collective_stat=parse_statistic(collective_stat) if collective_stat else None,
    )
    merged, written = merge_files(profiles, output, options, force=force)
    page = report.merge_page(merged, written, after_summary(written.path))
    return api.answer("merge", merged, page, report.merge_document(merged, written), version=2)


@click.command(cls=Command)
@click.argument("old", type=PATH, metavar="OLD")
@click.argument("new", type=PATH, metavar="NEW")
@page_options
def diff_command(old: AnyPath, new: AnyPath) -> Answer[Any]:
    """Compare two cost profiles: what changed and by how much.

    Largest change in time first. A change within the dispersion of the samples (half the two p10-p90 ranges added up,
    from the sidecars) is marked as noise. A name whose opcode or shape differs is another instruction, not a change.

    \b
    pgle diff before.pbtxt after.pbtxt
    """
    from pgle.costs.profile.diff import Change, diff_profiles
    from pgle.costs.profile.files import read_profile
    from pgle.report.costs import diff as report
    from pgle.report.next_steps import after_difference

    result = diff_profiles(read_profile(old), read_profile(new))
    noisy = {item.change for item in result.differences} - {Change.SAME} == {Change.NOISE}
    following = after_difference(old, new, noisy=noisy)
    page = report.diff_page(str(old), str(new), result, following)
    return api.answer("diff", result, page, report.document(str(old), str(new), result))
