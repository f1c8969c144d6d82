"""One step of a scheduled module, simulated with the costs that a test gives."""

from collections.abc import Mapping

from pgle.costs.measure.contention import DEFAULT, NONE, Factors, LaunchGaps
from pgle.costs.profile.value import Cost
from pgle.schedule.predict import read_program
from pgle.schedule.simulate import Timeline, run_program
from pgle.xla.hlo.module import Module
from pgle.xla.targets import TABLE, Hardware


def simulate(
    module: Module,
    costs: Mapping[str, Cost],
    *,
    hardware: Hardware = TABLE["h100-sxm"],
    launch: LaunchGaps = DEFAULT,
    slower: Factors = NONE,
    expand_loops: bool = False,
) -> Timeline:
    """What has no cost is estimated."""
    program = read_program(module, costs, hardware, launch.kernels)
    return run_program(
        program, launch, slower, name=module.name, expand_loops=expand_loops
    )
