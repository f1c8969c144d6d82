"""Commands that make cost profiles from traces, and that check, fill and carry profiles.

Each imports its code only when it runs, so that help is fast.
"""

from __future__ import annotations

from typing import Any

from pgle.api import profiles
from pgle.api.answer import Answer, answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.parameters import parameters
from pgle.requests.profiles import Carry, Complete, Convert, Verify


@command(*parameters(Convert), *opt.PAGE)
def convert_command(**options: Any) -> Answer[Any]:
    """Turn traces into a cost profile.

    INPUT: .nsys-rep, nsys .sqlite, .xplane.pb, a profiler's log directory (its newest run), or a
    run directory of pgle. Several inputs are ranks of one job and are merged. A collective then
    costs what the rank that arrived last measured, so trace the same steps on all ranks. If a trace
    holds several modules, pgle takes the one with the most compute.

    \b
    pgle convert report.nsys-rep -o profile.pbtxt --hlo dump/
    pgle convert rank*.sqlite --hlo dump/ -o profile.pbtxt
    pgle convert logdir/ -o profile.pb
    """
    return profiles.convert(**options)


@command(*parameters(Verify), *opt.PAGE)
def verify_command(**options: Any) -> Answer[Any]:
    """Check before a run that a profile fits an HLO module: coverage, gaps, false matches.

    XLA looks a cost up by the name that its instruction had when the latency-hiding scheduler ran.
    XLA fills a gap with a constant, which can make the schedule worse than no profile. So a gap
    weighs what the instruction costs (estimated) or what XLA assumes, whichever is more. Names come
    from the schedule dump (--xla_dump_latency_hiding_schedule=true) if there is one, else from
    scheduling names in the HLO.

    \b
    pgle verify profile.pbtxt --hlo dump/
    pgle verify profile.pbtxt --hlo dump/ --module train_step --min-time-coverage 0.99
    """
    return profiles.verify(**options)


@command(*parameters(Complete), *opt.PAGE)
def complete_command(**options: Any) -> Answer[Any]:
    """Fill the gaps of a cost profile.

    XLA gives an instruction without a cost a constant of 1, 1000 or 5000 µs (on Hopper and later
    its own estimate). So a profile with gaps can make a worse schedule than none. pgle fills a gap
    from measured instructions of the same shape, else with an estimate for --target that is scaled
    by what was measured. The sidecar file marks filled costs.

    \b
    pgle complete profile.pbtxt --hlo dump/ --target h100
    """
    from pgle.report import conversions as report
    from pgle.report.verify import after_coverage
    from pgle.run.coverage import complete_file

    request = Complete(**options)
    completions, coverage, written = complete_file(request)
    following = after_coverage(written.path, request.hlo, coverage)
    page = report.complete_page(completions, written, following)
    return answer(
        "complete", completions, page, report.complete_document(completions, written)
    )


@command(*parameters(Carry), *opt.PAGE)
def carry_command(**options: Any) -> Answer[Any]:
    """Carry a profile over to another compilation of the program.

    NEW_HLO may come from another jax, another number of devices, or an edited program. pgle matches
    instructions by opcode, shapes, neighbours, the framework's name and place. If a collective has
    another size or group, its cost is scaled and marked as an estimate. Instructions without a
    counterpart get no cost and are listed.

    \b
    pgle carry profile.pbtxt --from old_dump/ --to new_dump/
    """
    from pgle.report import conversions as report
    from pgle.report.verify import after_coverage
    from pgle.run.coverage import carry_file

    request = Carry(**options)
    carried, coverage, written = carry_file(request)
    following = after_coverage(written.path, [request.new], coverage)
    page = report.carry_page(carried, written, following)
    return answer("carry", carried, page, report.carry_document(carried, written))
