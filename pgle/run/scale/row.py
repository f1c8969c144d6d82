"""One row of `pgle scale`: the program captured at one size, compiled and priced. An independent piece of work."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path

from pgle.costs.estimate.estimate import assumed_warnings, opaque_warnings
from pgle.costs.profile.carry import carry, check_source, scale_by
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Origin, Profile
from pgle.errors import UserError, WorkloadError
from pgle.files import read_bytes, write_files
from pgle.run.capture.capture import MOST_DEVICES, Devices, capture_modules
from pgle.run.capture.captured import (
    PROGRAM,
    CapturedProgram,
    choose_module,
    devices_of,
    module_name,
    partitioned,
    read_captured,
)
from pgle.run.compiler.cache import Cache
from pgle.run.compiler.compile import Compiler
from pgle.run.compiler.dumps import memory_of
from pgle.run.process.process import ended, last_line
from pgle.run.rehearse import LHS_ON
from pgle.run.rehearse_program import settle, told_of_hosts
from pgle.scale.grow import bases, grown
from pgle.scale.plan import Trial, UnfitError, filled
from pgle.scale.row import Row, end_of, exposed_by_collective, operations_of
from pgle.schedule.predict import Prediction, predict
from pgle.schedule.program import ORIGINS, Stream
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import is_hlo, read_module
from pgle.xla.targets import Hardware, Target, find_hardware, load_target

CAPTURED, COMPILED, OUTPUT = "captured", "compiled", "output.log"
"""In the folder of a row: the program's modules, what XLA left, and what the program printed."""

MUCH_DOUBT = 0.2  # of the step
OF_JAX = (".mlir", ".bin", ".mlirbc")  # what jax dumps, and not XLA


@dataclass(frozen=True)
class ScaleRequest:
    """The question."""

    words: tuple[str, ...]  # the command, with placeholders; or files of HLO or StableHLO
    devices: tuple[int, ...]  # sizes; of files none: each has its own
    out: Path  # folder for all rows
    vary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fit: str = ""  # the varied name of which the last value that fits is sought; its values grow
    target: str = "h100"
    per_host: int | None = None  # GPUs that share NVLink; None: as the target usually has
    network_gb_s: float | None = None  # per GPU and direction; None: as the target usually has, with a warning
    profile: Path | None = None  # a profile, or a run directory
    # HLO of the profile's module; None: as the run directory of the profile says, else the first row
    measured_on: Path | None = None
    measured: Mapping[int, float] = field(default_factory=dict)  # microseconds of a measured step by size
    unfit: Mapping[int, str] = field(default_factory=dict)  # of files: why there is none for a size
    flags: tuple[str, ...] = ()
    choose: str | None = None
    quiet_s: float = 20.0
    cached: bool = True

    @property
    def hardware(self) -> Hardware:
        """The GPU, its hosts and its network."""
        return find_hardware(load_target(self.target), devices_per_host=self.per_host, network_gb_s=self.network_gb_s)

    @property
    def are_files(self) -> bool:
        """Whether the words are modules and not a command."""
        return all(Path(word).is_file() and (Path(word).suffix in OF_JAX or is_hlo(Path(word))) for word in self.words)


@dataclass(frozen=True)
class RowRequest(ScaleRequest):
    """What to capture, compile and price; it is sent to other processes and machines, so its paths are absolute."""

    trial: Trial = field(kw_only=True)

    @property
    def folder(self) -> Path:
        """The folder of this row."""
        return self.out / "rows" / self.trial.name


@dataclass(frozen=True)
class Made:
    """A scheduled module, and its facts."""

    module: Module
    path: Path  # its file
    memory: Mapping[str, int]  # as of `memory_of`
    limit_bytes: int  # that jax's allocator has; 0: no limit
    warnings: tuple[str, ...] = ()
    grown: Path | None = None  # the program's module, if it is larger than a capture


def make_row(request: RowRequest) -> Row:
    """Capture, compile, price. What the program, or XLA, refuses at this size is the row's `failure`."""
    began = time.monotonic()
    trial, folder = request.trial, request.folder
    if trial.unfit:
        return Row(trial.devices, hosts=trial.hosts, failure=trial.unfit)
    empty = Row(trial.devices, dict(trial.values), trial.shown, hosts=trial.hosts)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CAPTURED, COMPILED):  # of a row that was stopped
        shutil.rmtree(folder / name, ignore_errors=True)
    try:
        with (folder / OUTPUT).open("w", encoding="utf-8") as log, redirect_stderr(log):
            row = _priced(request, empty, _made(request, log.fileno()))
    except WorkloadError as error:  # whose message holds the whole command, which all rows share
        reason = read_captured(folder / CAPTURED).error
        if not reason:
            reason = f"the program {ended(error.exit_code)}; its last line: {last_line(folder / OUTPUT)}"
        row = replace(empty, failure=_short(reason, folder))
    except (UnfitError, UserError) as error:
        row = replace(empty, failure=_short(str(error), folder))
    return replace(row, wall_s=time.monotonic() - began)


def _short(text: str, folder: Path) -> str:
    return " ".join(text.replace(f"{folder}/", "").split())


def _made(request: RowRequest, log: int) -> Made:
    target, trial = load_target(request.target), request.trial
    topology = trial.topology
    if trial.file and Path(trial.file).suffix not in OF_JAX:
        module = read_module(Path(trial.file))
        if module.is_scheduled:
            return Made(module, Path(trial.file).resolve(), memory_of(Path(trial.file)), 0)
    modules, program = ([Path(trial.file)], CapturedProgram()) if trial.file else _captured(request, target, log)
    found = settle(
        modules, request.choose, program, request.flags, target=target, out=request.folder / COMPILED,
        topology=topology, network_gb_s=request.network_gb_s,
    )  # fmt: skip
    if found.no_step:
        raise UserError(found.no_step, remedy="name the step with --choose, or wait longer with --quiet-for 600")
    own = None if trial.file else devices_of(found.module)
    if own not in (None, trial.devices):
        remedy = "does the command fix their number? Write {devices} in its place"
        raise UserError(f"{module_name(found.module)} uses {own} of {trial.devices} GPUs", remedy=remedy)
    asked = told_of_hosts(found)
    with Compiler(asked.python, cache=Cache.of_user() if request.cached else None) as compiler:
        made = compiler.compile(asked.compilation((LHS_ON, *asked.flags)))
    row = Made(made.scheduled, made.after_optimizations, made.memory, asked.allocator_bytes, asked.warnings)
    if trial.file or trial.devices <= MOST_DEVICES:
        return row
    how = f"{', '.join(map(str, bases(trial.devices, MOST_DEVICES, trial.per_host)))} GPUs"
    return replace(row, warnings=(*row.warnings, f"its module is grown from captures at {how}"), grown=found.module)


def _captured(request: RowRequest, target: Target, log: int) -> tuple[Sequence[Path], CapturedProgram]:
    """The modules of the program at this size, or of its step if the size is larger than can be captured."""
    trial, where = request.trial, request.folder / CAPTURED
    if trial.devices <= MOST_DEVICES:
        return _captured_at(request, trial, where, target, log), read_captured(where)
    steps = {}
    for size in bases(trial.devices, MOST_DEVICES, trial.per_host):
        last = where / str(size)
        found = _captured_at(request, replace(trial, devices=size), last, target, log)
        steps[size] = step = choose_module(found, request.choose)
        if partitioned(step) != step:
            raise UnfitError(f"only the program can partition its step, on at most {MOST_DEVICES} GPUs")
    module = grown({size: read_bytes(path).decode() for size, path in steps.items()}, trial.devices)
    write_files({where / step.name: module, where / PROGRAM: read_bytes(last / PROGRAM)})
    return [where / step.name], read_captured(where)


def _captured_at(request: RowRequest, trial: Trial, where: Path, target: Target, log: int) -> Sequence[Path]:
    return capture_modules(
        filled(request.words, trial),
        where,
        target=target,
        devices=Devices(trial.devices, topology=trial.topology),
        quiet_s=request.quiet_s,
        choose=request.choose,
        until_step=True,
        output=log,
    )


def _priced(request: RowRequest, empty: Row, made: Made) -> Row:
    hardware, module = request.hardware, made.module
    profile, collectives = _profile(request, made, hardware)
    prediction = predict(module, profile, hardware)
    parts, memory = prediction.timeline.breakdown, made.memory
    least, most = prediction.interval_us
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
        limit_bytes=made.limit_bytes or None,
        costs_are="estimated" if profile is None else prediction.costs_are,
        covered_share=None if profile is None else _covered_share(prediction),
        scheduled=_inside(made.path, request.out),
        grown="" if made.grown is None else _inside(made.grown, request.out),
        warnings=(
            *made.warnings,
            *opaque_warnings(module, () if profile is None else {cost.name for cost in profile.costs}),
            *assumed_warnings(module, hardware, is_named=request.network_gb_s is not None),
            *prediction.timeline.warnings,
            *_doubt(prediction),
            *collectives,
        ),
    )


def _inside(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _profile(request: RowRequest, made: Made, hardware: Hardware) -> tuple[Profile | None, tuple[str, ...]]:
    """The measured costs under this row's names, and what to say of them."""
    if request.profile is None:
        return None, ()
    given = read_profile(request.profile)
    if request.measured_on is None:
        return given, given.warnings
    before, after = _table(request.measured_on), _table(made.path)
    check_source(given, before, request.profile)
    return carry(given, before, after, scale_by(before, after, hardware)).profile, given.warnings


def _table(path: Path) -> LookupTable:
    """What XLA looks up of a scheduled module, by the names when LHS ran."""
    dumps = read_dumps([path.parent] if path.is_file() else [path])
    module = max((item for item in dumps.modules if item.is_scheduled), key=lambda item: len(item.instructions))
    return LookupTable(module, dumps.lhs_module(module.name))


def _covered_share(prediction: Prediction) -> float:
    """Of the computing time, the part with a cost of the given profile."""
    timeline = prediction.timeline
    compute = timeline.stream == Stream.COMPUTE
    given = timeline.origin != ORIGINS.index(Origin.ESTIMATED)
    total = float(timeline.duration_us[compute].sum())
    return float(timeline.duration_us[compute & given].sum()) / total if total else 0.0


def _doubt(prediction: Prediction) -> Iterator[str]:
    """What makes a range wide, where data decides more than `MUCH_DOUBT` of the step."""
    if prediction.steps_us.most_data > (1 + MUCH_DOUBT) * prediction.step_us:
        why = prediction.uncertain[0].range.why
        yield f"ranges are wide because data decides a cost ({why}); measure it, and give --profile"
