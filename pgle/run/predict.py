"""`pgle predict` as a function: predict the step of a scheduled module, with or without a profile.
No compiler runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from attrs import evolve

from pgle.account.scheduled import PlannedMemory, account_of_schedule
from pgle.account.value import Account, Shown, StepBase
from pgle.analyze.memory import find_memory
from pgle.costs.estimate.known import unmodelled_warnings
from pgle.costs.estimate.unknown import assumed_warnings
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import effective_costs
from pgle.errors import UserError
from pgle.files import AnyPath, as_path, read_bytes
from pgle.next import Next
from pgle.requests.predictions import Predict
from pgle.run.directory.directory import RunDirectory
from pgle.run.inputs.schedule_now import page_of_answer, schedule_now
from pgle.run.target import TargetFrom, gpu_of
from pgle.run.timed import timed_steps
from pgle.schedule.predict import Prediction, predict
from pgle.xla.hlo.dumps import no_match, read_scheduled
from pgle.xla.hlo.module import MAX_HLO_BYTES, Module
from pgle.xla.hlo.proto import buffers_from_bytes
from pgle.xla.targets import BUILT_IN, Hardware, load_target


@dataclass(frozen=True)
class Predicted:
    """A module with its prediction."""

    asked: Predict  # the request
    module: Module  # the scheduled module
    hardware: Hardware  # the GPU, its hosts and its network
    target_from: TargetFrom  # what names the GPU
    prediction: Prediction  # prediction of one step
    warnings: tuple[str, ...]  # one line each
    # the run directory's stage that has the module; empty: no run directory was given
    stage: str = ""
    # the run directory that was given; its profile prices the step
    run: RunDirectory | None = None
    # what `advise` found for the program
    trials: Shown = field(default_factory=dict)

    @property
    def run_around(self) -> RunDirectory | None:
        """The run directory that was given or that holds the dump; None: neither."""
        if self.run is not None:
            return self.run
        hlo = self.asked.hlo
        folders = hlo.parents if isinstance(hlo, Path) else ()
        return next(
            (run for run in map(RunDirectory, folders) if run.is_recorded), None
        )

    @property
    def page(self) -> AnyPath | None:
        """The page of the rehearsal or search that the step belongs to; None: neither."""
        return page_of_answer(self.asked.hlo) if self.run is None else None

    @property
    def target(self) -> str:
        """The GPU's name."""
        return self.hardware.name

    @property
    def advise(self) -> Next | None:
        """The command that tries edits of the program; None if no run directory tells how the
        program starts.
        """
        run = self.run_around
        return None if run is None else Next.of("advise", run.path)

    @property
    def search(self) -> Next | None:
        """The command that searches for flags; None if the program is unknown or the search is
        done.
        """
        run = self.run_around
        if run is None:
            return None
        # imported late: a module alone needs no code that starts programs
        from pgle.run.inputs.found_flags import tune

        return tune(run)

    @cached_property
    def account(self) -> Account:
        """The step, and what would shorten it."""
        search = self.search
        found = account_of_schedule(
            self.module,
            self.prediction,
            self.hardware,
            memory=_planned(self.module, self.hardware),
            base=StepBase.SCHEDULED,
            timed=timed_steps(self.run),
            advise=self.advise,
            search=search,
            is_searched=self.run_around is not None and search is None,
        )
        return found.with_trials(self.trials)


def predict_file(request: Predict) -> Predicted:
    """Predict the step of the main module.

    Raises:
        UserError: an input is bad, or no module is scheduled.
    """
    run = RunDirectory(Path(str(request.hlo)))
    if run.is_recorded and request.profile is None:
        request = evolve(request, profile=run.found_profile)
    profile = read_profile(request.profile) if request.profile is not None else None
    named = None if request.target is None else load_target(request.target)
    hlo, stage = _stage_of(request.hlo)
    scheduled = read_scheduled(hlo)
    chosen = [module for module in scheduled if re.search(request.module, module.name)]
    if not chosen:
        raise no_match(request.module, [item.name for item in scheduled])
    found = []
    for module in chosen:
        gpu = gpu_of(module.source, named)
        domain = request.devices_per_host or gpu.hardware.devices_per_host
        hardware = gpu.hardware.on_network(request.network_gb_s)
        hardware = replace(hardware, devices_per_host=domain)
        found.append((predict(module, profile, hardware), module, hardware, gpu))
    prediction, module, chosen_hardware, gpu = max(
        found, key=lambda item: item[0].step_us
    )
    costs = () if profile is None else effective_costs(profile, module.fingerprint)
    warnings = [
        gpu.doubt,
        *unmodelled_warnings(module, costs),
        *assumed_warnings(module, chosen_hardware, is_named=request.names_network),
        *(() if profile is None else profile.warnings),
        *prediction.timeline.warnings,
    ]
    return Predicted(
        asked=request,
        stage=stage,
        run=run if run.is_recorded else None,
        module=module,
        hardware=chosen_hardware,
        target_from=gpu.by,
        prediction=prediction,
        warnings=tuple(filter(None, warnings)),
    )


def _stage_of(path: AnyPath) -> tuple[AnyPath, str]:
    """Return the dump and the name of the stage that shows a run directory's program in its final
    form.
    """
    run = RunDirectory(Path(str(path)))
    for name in ("perf", "baseline", "profile") if run.is_recorded else ():
        for dump in run.stage(name).dumps():
            return dump, name
    return schedule_now(path), ""


def _planned(module: Module, hardware: Hardware) -> PlannedMemory:
    """Return the device memory of XLA's plan in the module's dump; empty if the dump has no
    plan.
    """
    path = as_path(module.source)
    if not path.is_file():
        return PlannedMemory()
    plan = buffers_from_bytes(read_bytes(path, max_bytes=MAX_HLO_BYTES))
    if plan is None:
        return PlannedMemory()
    has_size = hardware.name in BUILT_IN
    device_bytes = load_target(hardware.name).memory_bytes if has_size else None
    memory = find_memory(module, plan, device_bytes)
    return PlannedMemory(plan.peak_bytes, memory.limit_bytes)


def account_of_run(run: RunDirectory) -> Account | None:
    """Return the account of a run directory's final step; None if the run has no scheduled
    module.
    """
    try:
        return predict_file(Predict(run.path)).account
    except UserError:  # `pgle predict` reports the reason
        return None
