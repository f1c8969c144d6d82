"""`pgle doctor --prove`: the whole chain on a small program of ours, and what each link shows to work here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pgle.costs.profile.files import read_profile
from pgle.errors import UserError
from pgle.run.directory.directory import RunDirectory
from pgle.run.stages.pipeline import Capture, Pipeline, PipelineRequest, choose_back_end, run_pipeline
from pgle.run.stages.simulated import SimulatedBackEnd
from pgle.run.stages.stage import StageRequest

PROGRAM = ("-m", "pgle.workloads.overlap")
"""Two gathers and an independent chain of matmuls: two seconds on a GPU, and its schedule changes with a profile."""
DEVICES = 4


@dataclass(frozen=True, slots=True)
class Link:
    """One link of the chain."""

    name: str  # of the link
    ok: bool  # whether it held
    proves: str  # what that shows
    found: str  # the evidence


@dataclass(frozen=True, slots=True)
class Proof:
    """The chain."""

    links: tuple[Link, ...]  # in order
    simulated: bool  # whether the GPU is; then its times are of the simulation
    run: Path  # the run directory, which is kept

    @property
    def ok(self) -> bool:
        """Whether every link held."""
        return all(link.ok for link in self.links)


def prove(run: Path, capture: Capture, target: str, announce: Callable[[str], None]) -> Proof:
    """Run all stages of `pgle run` on our small program, and look at what each left.

    Args:
        run: a new run directory.
        capture: as of `pgle run`; ``auto`` takes the GPUs where there are any.
        target: the GPU to simulate on a machine without GPUs.
        announce: called with the name of each stage before it starts.

    Raises:
        UserError: the run directory is not empty, or a stage cannot be run.
    """
    if run.exists() and any(run.iterdir()):
        raise UserError("is not empty", where=run, remedy="choose a new --run-dir")
    directory = RunDirectory(run)
    back_end = choose_back_end(capture, target=target, devices=DEVICES, topology=None, choose=None, quiet_s=20.0)
    simulated = isinstance(back_end, SimulatedBackEnd)
    words = (sys.executable, *PROGRAM, *(("--devices", str(DEVICES), "--compile-only") if simulated else ()))
    stage = StageRequest("profile", words, directory, "sync", flags=(), stdout=2)
    result = run_pipeline(PipelineRequest(stage, back_end), announce)
    return Proof(links(result), simulated, run)


def links(result: Pipeline) -> tuple[Link, ...]:
    """What each stage left, as evidence."""
    run = result.run
    profile = read_profile(run.profile)
    traces = run.stage("profile").trace_files()
    size = sum(path.stat().st_size for path in traces)
    modules = result.coverage.main
    collectives = [module.collectives for module in modules]
    covered = sum(share.covered for share in collectives), sum(share.total for share in collectives)
    time = min((module.time.value or 0.0 for module in modules), default=0.0)
    name = modules[0].module if modules else "no module"
    verdict = next((item.verdict for item in result.stages if item.verdict), None)
    compared = result.comparison
    change = f"{compared.verdict}, {compared.ratio - 1:+.1%}" if compared else "; ".join(result.warnings)
    return (
        Link(
            "capture",
            size > 0,
            "a profiler records the steps of a program here",
            f"{len(traces)} trace{'s' * (len(traces) != 1)}, {size:,} bytes",
        ),
        Link("conversion", len(profile) > 0, "kernels of steady steps become costs", f"{len(profile)} costs of {name}"),
        Link(
            "names",
            0 < covered[1] == covered[0],
            "costs stand under the names that the scheduler looks up",
            f"{covered[0]:g} of {covered[1]:g} collectives",
        ),
        Link("coverage", result.covered, "XLA will find the costs of this module", f"{time:.1%} of its time"),
        Link(
            "use",
            result.used,
            "XLA scheduled with these costs, by its own schedule and log",
            verdict.why if verdict else "no verdict",
        ),
        Link("step times", compared is not None, "runs without and with the profile can be compared", change),
    )
