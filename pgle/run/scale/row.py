"""One row of `pgle scale`: the program captured at one size, compiled and priced. An independent piece of work."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.costs.estimate.ranges import assumed_warnings, opaque_warnings
from pgle.costs.profile.files import read_profile
from pgle.errors import UserError, WorkloadError
from pgle.run.launch.capture_modules import Devices, capture_modules
from pgle.run.launch.captured import CapturedProgram, fitted, module_name, read_captured
from pgle.run.launch.jax_dump import devices_of
from pgle.run.rehearse.compiler.cache import Cache
from pgle.run.rehearse.compiler.compile import Compiler
from pgle.run.rehearse.compiler.request import RehearsalResult
from pgle.run.rehearse.rehearse import LHS
from pgle.run.rehearse.settings import Setting, settle, told_of_hosts
from pgle.scale.plan import Trial, UnfitError, filled
from pgle.scale.row import Row, end_of, exposed_by_collective, operations_of
from pgle.schedule.predict import predict
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.targets import Target, load_target

CAPTURED, COMPILED, OUTPUT = "captured", "compiled", "output.log"
"""In the folder of a row: the program's modules, what XLA left, and what the program printed."""


@dataclass(frozen=True)
class RowRequest:
    """What to capture, compile and price; it is sent to other processes and machines."""

    trial: Trial
    words: tuple[str, ...]  # the command with its placeholders, or one module file
    is_program: bool  # whether they are a command
    target: str  # the GPU, by name or description
    folder: Path  # of this row
    profile: Path | None = None
    network_gb_s: float | None = None
    flags: tuple[str, ...] = ()
    choose: str | None = None
    quiet_s: float = 20.0
    cached: bool = True

    @property
    def hardware(self) -> Hardware:
        """The GPU, its hosts and its network."""
        return find_hardware(
            load_target(self.target), devices_per_host=self.trial.per_host, network_gb_s=self.network_gb_s
        )


def make_row(request: RowRequest) -> Row:
    """Capture, compile, price. What the program, or XLA, refuses at this size is the row's `failure`."""
    began = time.monotonic()
    trial, folder = request.trial, request.folder
    empty = Row(trial.devices, dict(trial.values), hosts=trial.hosts)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CAPTURED, COMPILED):  # of a row that was stopped
        shutil.rmtree(folder / name, ignore_errors=True)
    try:
        with (folder / OUTPUT).open("w", encoding="utf-8") as log, redirect_stderr(log):
            row = _made(request, empty, log.fileno())
    except (UnfitError, UserError, WorkloadError) as error:
        row = replace(empty, failure=_short(str(error), folder))
    return replace(row, wall_s=time.monotonic() - began)


def _short(text: str, folder: Path) -> str:
    """The words of an error, without the command, which is the same in all rows."""
    return " ".join(text.replace(f"{folder}/", "").split())


def _made(request: RowRequest, empty: Row, log: int) -> Row:
    target, topology = load_target(request.target), request.trial.topology
    modules, program = _modules(request, target, log) if request.is_program else _given(request)
    setting = settle(modules, request.choose, program, request.flags)
    if setting.no_step:
        raise UserError(setting.no_step, remedy="name the step with --choose, or wait longer with --quiet-for 600")
    own = devices_of(setting.module)
    if own not in (None, request.trial.devices):
        raise UserError(f"{module_name(setting.module)} is for {own} GPUs, whatever the program is given")
    topology, said = fitted(setting.module, topology)
    setting = told_of_hosts(replace(setting, topology=topology), target, topology, request.network_gb_s)
    made = _compiled(request, setting, target, topology)
    return _priced(request, empty, setting, made, said)


def _modules(request: RowRequest, target: Target, log: int) -> tuple[Sequence[Path], CapturedProgram]:
    where = request.folder / CAPTURED
    captured = capture_modules(
        filled(request.words, request.trial),
        where,
        target=target,
        devices=Devices(request.trial.devices, topology=request.trial.topology),
        quiet_s=request.quiet_s,
        choose=request.choose,
        until_step=True,
        output=log,
    )
    return captured, read_captured(where)


def _given(request: RowRequest) -> tuple[Sequence[Path], CapturedProgram]:
    return [Path(request.words[0])], CapturedProgram()


def _compiled(request: RowRequest, setting: Setting, target: Target, topology: str) -> RehearsalResult:
    """Compiled once, by all passes, with LHS: ratios of sizes need no second schedule."""
    wanted = setting.request(target, request.folder / COMPILED, topology=topology, flags=(LHS, *setting.flags))
    with Compiler(setting.python, cache=Cache.of_user() if request.cached else None) as compiler:
        return compiler.compile(wanted)


def _priced(request: RowRequest, empty: Row, setting: Setting, made: RehearsalResult, warnings: Sequence[str]) -> Row:
    hardware, module = request.hardware, made.scheduled
    profile = None if request.profile is None else read_profile(request.profile)
    prediction = predict(module, profile, hardware)
    parts = prediction.timeline.breakdown
    least, most = prediction.interval_us
    memory = made.memory
    limit = int(setting.memory_fraction * load_target(request.target).memory_bytes)
    return replace(
        empty,
        module=module.name,
        step_us=prediction.step_us,
        least_us=least,
        most_us=end_of(most),
        compute_us=parts.compute_us,
        exposed_us=parts.exposed_communication_us,
        copy_us=parts.exposed_copy_us,
        idle_us=parts.idle_us,
        ceiling_us=prediction.ceiling.step_us,
        by_collective=exposed_by_collective(module, prediction, hardware),
        operations=operations_of(module, prediction),
        argument_bytes=memory.get("argument"),
        temp_bytes=memory.get("temp"),
        memory_bytes=memory.get("total"),
        limit_bytes=limit or None,
        costs_are="estimated" if profile is None else prediction.costs_are,
        estimated_share=prediction.estimated_share,
        scheduled=str(made.after_optimizations),
        warnings=(
            *warnings,
            *setting.warnings,
            *opaque_warnings(module, ()),
            *assumed_warnings(module, hardware, is_named=request.network_gb_s is not None),
            *prediction.timeline.warnings,
        ),
    )
