"""`pgle scale` as a function: capture, compile and price a program at every size and variant, in
parallel.

``rows.json`` identifies the program. Each row has its own folder with ``row.json``. If the command
runs again, or with more sizes and values, it uses the existing rows.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import isfinite
from pathlib import Path
from types import MappingProxyType

import msgspec
from attrs import evolve

from pgle import __version__
from pgle.account.scheduled import PlannedMemory, account_of_schedule
from pgle.account.value import Account, StepBase
from pgle.costs.estimate.known import unmodelled_warnings
from pgle.costs.estimate.unknown import assumed_warnings
from pgle.costs.profile.carry import carry, check_source, scale_by
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Origin, Profile
from pgle.errors import UserError, WorkloadError
from pgle.files import Json, read_bytes, sha256, write_files
from pgle.next import ADVISE, RUN, TUNE
from pgle.requests.predictions import Scale
from pgle.run.ask.jax_private import partitions_of
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
from pgle.run.compiler.compile import CompileResult, compiler_with_cache
from pgle.run.compiler.session import session_with
from pgle.run.compiler.worker import memory_of
from pgle.run.directory.directory import RunDirectory, check_question
from pgle.run.directory.manifest import changed_import, imported_files
from pgle.run.process.compilers import check_compiler
from pgle.run.process.on_worker import Seen
from pgle.run.process.process import check_program, ended, last_line, program_of
from pgle.run.process.workers import Workers, workers
from pgle.run.rehearse import rehearsed
from pgle.run.rehearse_program import (
    DEFAULT_TARGET,
    RehearseRequest,
    settle,
    with_hosts_flag,
)
from pgle.run.second_compilation import unchecked
from pgle.run.target import gpu_of, target_named_by
from pgle.scale.answer import (
    RowControl,
    ScaleAnswer,
    ScaleRow,
    exposed_by_collective,
    operations_of,
)
from pgle.scale.control import ScaleControl, answer_of_both
from pgle.scale.plan import (
    SizeTrial,
    UnfitError,
    bases,
    check_names,
    filled,
    fitting,
    grown,
    trials,
)
from pgle.schedule.control import hangs_on_choice, other_choice
from pgle.schedule.predict import Prediction, predict
from pgle.schedule.simulate import ORIGINS, Stream
from pgle.xla.hlo.dumps import is_hlo, read_dumps, read_module
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Hardware, Target, find_hardware, load_target
from pgle.xla.vendors import maker_of

CAPTURED, COMPILED, CONTROL, OUTPUT = "captured", "compiled", "control", "output.log"
ROW = "row.json"
"""File with the row, in the row's folder. The folder also holds the program's modules, XLA's files
and the program's output.
"""
# file that identifies all rows, in their common folder
NAME, SCHEMA = "rows.json", "pgle.rows/1"
MUCH_DOUBT = 0.2  # share of the step
# suffixes of files that jax dumps and XLA does not
OF_JAX = (".mlir", ".bin", ".mlirbc")

OnRow = Callable[[ScaleRow, int, int], None]
"""Called with each row, the number of finished rows, and the total (0: not known)."""


def target_of(request: Scale) -> Target:
    """Return the GPU."""
    return load_target(request.target or DEFAULT_TARGET)


def hardware_of(request: Scale) -> Hardware:
    """Return the GPU, its hosts and its network."""
    return find_hardware(
        target_of(request),
        devices_per_host=request.devices_per_host,
        network_gb_s=request.network_gb_s,
    )


def are_files(request: Scale) -> bool:
    """Whether the words are module files and not a command."""
    return are_modules(map(Path, request.words))


def are_modules(paths: Iterable[Path]) -> bool:
    """Whether all paths are module files."""
    return all(
        path.is_file() and (path.suffix in OF_JAX or is_hlo(path)) for path in paths
    )


@dataclass(frozen=True)
class Scaling:
    """The rows of `pgle scale`, with what they show."""

    request: Scale
    rows: tuple[ScaleRow, ...]  # in the order of the request
    answer: ScaleAnswer
    hardware: Hardware
    resumed: int  # number of rows that already existed
    # result of a second compilation; None: no row depends on one
    control: ScaleControl | None = None

    @property
    def are_files(self) -> bool:
        """Whether the request gives modules and not a command."""
        return are_files(self.request)

    @property
    def target(self) -> str:
        """The GPU by name, or its description."""
        return self.request.target or DEFAULT_TARGET


def scale(
    request: Scale,
    on_row: OnRow = lambda row, done, total: None,
    unfit: Mapping[int, str] = MappingProxyType({}),
) -> Scaling:
    """Make all rows and judge them.

    Args:
        request: the request, with a folder for the rows.
        on_row: called with each row.
        unfit: for module files: why a size has no file.
    """
    request = _with_target(_with_run(request))
    if are_files(request):
        wanted = _of_files(request, unfit)
    else:
        wanted = _of_command(request)
    if missing := set(request.measured_us) - {trial.devices for trial in wanted}:
        raise UserError(
            f"no step is predicted for {min(missing)} GPUs",
            where="--measured",
            remedy=f"add {min(missing)} to --devices",
        )
    kept = KeptRows(request.out, _about(request))
    with workers(request.executor, len(wanted), _seen_by_rows(request)) as makers:
        making = _Making(request, makers, kept, on_row)
        rows = making.fitted(wanted) if request.fit else making.rows(wanted)
    found, control = answer_of_both(rows, request.measured_us)
    return Scaling(
        request=request,
        rows=rows,
        answer=found,
        hardware=hardware_of(request),
        resumed=kept.resumed,
        control=control,
    )


def _seen_by_rows(request: Scale) -> Seen:
    """Return which files the processes that make rows read and write."""
    read = list(filter(None, (request.profile, request.measured_on)))
    if are_files(request):
        read += map(Path, request.words)
    elif program := shutil.which(request.words[0]):
        read.append(Path(program))
    return Seen(tuple(read), written=request.out)


def _with_run(request: Scale) -> Scale:
    """Return the request with the profile of its run directory as a file, and with the dump that
    the profile was measured on.
    """
    profile = request.profile
    if profile is not None and profile.is_dir():
        profile = RunDirectory(profile).found_profile
        if profile is None:
            raise UserError(
                "holds no profile",
                where=request.profile,
                remedy="give a profile, or a run directory",
            )
    measured_on = request.measured_on
    if measured_on is not None:
        measured_on = measured_on.resolve()
    if profile is not None and measured_on is None:
        runs = map(RunDirectory, profile.resolve().parents[:2])
        dumps = [run.stage("profile").dumps() for run in runs if run.is_recorded]
        measured_on = next(chain.from_iterable(dumps), None)
    profile = profile and profile.resolve()
    return evolve(request, profile=profile, measured_on=measured_on)


def _with_target(request: Scale) -> Scale:
    """Return the request, with the GPU of its first file if it names no GPU."""
    if request.target:
        return request
    named = ""
    if request.words and are_files(request):
        named = target_named_by(str(Path(request.words[0]).resolve()))
    return evolve(request, target=named or DEFAULT_TARGET)


def _of_command(request: Scale) -> tuple[SizeTrial, ...]:
    if not request.devices:
        raise UserError("no sizes", where="--devices", remedy="say --devices 8,64,512")
    check_names(request.words, request.vary)
    if request.fit and request.fit not in request.vary:
        remedy = (
            f"add --vary {request.fit}=1,2,4,8: values that need more and more memory"
        )
        raise UserError("is not varied", where=f"--fit {request.fit}", remedy=remedy)
    check_program(request.words)
    hardware = hardware_of(request)
    check_compiler(request.words, maker_of(hardware), by_name=True)
    return trials(request.devices, hardware.devices_per_host, request.vary)


def _of_files(request: Scale, unfit: Mapping[int, str]) -> tuple[SizeTrial, ...]:
    """Return one trial per file, with the device count of the file."""
    if not (request.words or unfit):
        raise UserError("no sizes", remedy="give devices=(8, 64, 512)")
    if request.vary or request.fit or len(request.devices) > 1:
        remedy = (
            "leave out --vary, --fit and --devices, and give a file for each size; or give "
            "the program"
        )
        raise UserError("a module has one size", where=request.words[0], remedy=remedy)
    per_host = hardware_of(request).devices_per_host
    sizes = [_devices_in(Path(word), request.devices) for word in request.words]
    is_named = len(set(sizes)) < len(sizes)  # several files have one size
    found = [SizeTrial(count, per_host, unfit=why) for count, why in unfit.items()]
    for path, count in zip(map(Path, request.words), sizes, strict=True):
        trial = SizeTrial(
            count,
            per_host,
            (("module", path.name),) if is_named else (),
            str(path.resolve()),
            sha256(read_bytes(path))[:12],
        )
        found.append(trial)
    return tuple(sorted(found, key=lambda trial: trial.devices))


def _devices_in(path: Path, asked: Sequence[int]) -> int:
    if path.suffix in OF_JAX:
        found = devices_of(path)
    elif (data := read_bytes(path)).lstrip().startswith(b"HloModule"):
        # shardings may name devices that the header omits
        partitions, replicas = partitions_of(data.decode(errors="replace"))
        found = (partitions or 1) * replicas
    else:
        found = read_module(path).num_devices
    if asked and found not in (None, 1, asked[0]):
        raise UserError(
            f"is for {found} GPUs", where=path, remedy="leave out --devices"
        )
    found = asked[0] if asked else found
    if not found:
        raise UserError(
            "does not say for how many GPUs it is",
            where=path,
            remedy="give it alone, with --devices N",
        )
    return found


def _about(request: Scale) -> Json:
    """Return everything that a row depends on, except its size and values."""
    profile = request.profile
    # for a file, the row has its digest
    words = () if are_files(request) else request.words
    return {
        **request.question(),
        **program_of(words),
        "target": sha256(target_of(request).text.encode()),
        "profile": None if profile is None else sha256(read_bytes(profile)),
    }


class KeptRows:
    """Rows of one program on disk, each in its own folder.

    Args:
        folder: the folder of all rows.
        about: what all rows depend on besides size and values, as JSON values.
    """

    def __init__(self, folder: Path, about: Json) -> None:
        self._folder = folder
        head = json.dumps({"schema": SCHEMA, "pgle": __version__, **about})
        check_question(
            folder / NAME, json.loads(head), "the rows of another program or setting"
        )
        write_files({folder / NAME: f"{head}\n"}, force=True)
        self.resumed = len(list(folder.glob(f"rows/*/{ROW}")))

    def known(self, trial: SizeTrial) -> ScaleRow | None:
        """Return the row of a trial, if it exists with its scheduled module."""
        path = self._folder / "rows" / trial.name / ROW
        if not path.exists():
            return None
        try:
            row = msgspec.json.decode(read_bytes(path), type=ScaleRow)
        except ValueError:
            raise UserError("is no row", where=path, remedy="delete it") from None
        # the folder's name may abbreviate a long value
        is_same = row.values == dict(trial.values)
        programs = (path.parent / CAPTURED).rglob(PROGRAM)
        sources = [read_captured(found.parent).sources for found in programs]
        if any(changed_import(imported_files(digests)) for digests in sources):
            return None
        return row if is_same and (self._folder / row.scheduled).is_file() else None

    def add(self, trial: SizeTrial, row: ScaleRow) -> None:
        """Save a row. A row without a step is not reused, since this machine may have caused the
        failure.
        """
        if not row.failure:
            write_files(
                {self._folder / "rows" / trial.name / ROW: msgspec.json.encode(row)},
                force=True,
            )


class _Making:
    """Make rows, and reuse saved ones."""

    def __init__(
        self, request: Scale, makers: Workers, kept: KeptRows, on_row: OnRow
    ) -> None:
        self._request = request
        self._makers = makers
        self._kept = kept
        self._on_row = on_row
        self._made = 0

    def rows(
        self, wanted: Sequence[SizeTrial], total: int | None = None
    ) -> tuple[ScaleRow, ...]:
        """Return the rows of these trials. Rows are made in parallel."""
        self._find_measured(wanted)
        found: dict[SizeTrial, ScaleRow] = {}

        def there(trial: SizeTrial, row: ScaleRow) -> None:
            found[trial], self._made = row, self._made + 1
            self._on_row(row, self._made, len(wanted) if total is None else total)

        for trial in wanted:
            if (row := self._kept.known(trial)) is not None:
                there(trial, row)
        # largest first: those take longest
        missing = sorted(
            (trial for trial in wanted if trial not in found),
            key=lambda trial: -trial.devices,
        )
        make = partial(make_row, self._request)
        for place, row in self._makers.results(make, missing):
            self._kept.add(missing[place], row)
            there(missing[place], row)
        return tuple(found[trial] for trial in wanted)

    def fitted(self, wanted: Sequence[SizeTrial]) -> tuple[ScaleRow, ...]:
        """Return, for every size and variant, the row with the last value that fits. Values are
        bisected.
        """
        searches = fitting(wanted, self._request.fit)
        asked = {at: next(search) for at, search in enumerate(searches)}
        found: dict[int, ScaleRow] = {}
        while asked:
            for at, row in zip(
                list(asked), self.rows(list(asked.values()), total=0), strict=True
            ):
                try:
                    asked[at] = searches[at].send(row)
                except StopIteration as end:
                    found[at] = end.value
                    del asked[at]
        return tuple(found[at] for at in range(len(searches)))

    def _find_measured(self, wanted: Sequence[SizeTrial]) -> None:
        """With a profile, make the first row that has a step before all others. The others carry
        their costs over from this row.
        """
        if self._request.profile is None or self._request.measured_on is not None:
            return
        for trial in wanted:
            row = self._kept.known(trial)
            if row is None:
                row = make_row(self._request, trial)
                self._kept.add(trial, row)
            if not row.failure:
                self._request = evolve(
                    self._request,
                    measured_on=self._request.out.resolve() / row.scheduled,
                )
                return


@dataclass(frozen=True)
class _Made:
    """A scheduled module and facts about it."""

    module: Module
    path: Path  # the module's file
    memory: Mapping[str, int]  # memory in bytes by kind, as in `memory_of`
    limit_bytes: int = 0  # limit of jax's allocator; 0: no limit
    warnings: tuple[str, ...] = ()
    # the program's full-size module, if it is larger than a capture
    grown: Path | None = None


def make_row(request: Scale, trial: SizeTrial) -> ScaleRow:
    """Capture, compile and price one size, in its own process. If the program or XLA fails at this
    size, the row has a `failure`.
    """
    began = time.monotonic()
    if trial.unfit:
        return ScaleRow(trial.devices, hosts=trial.hosts, failure=trial.unfit)
    out = request.out.resolve()
    folder = out / "rows" / trial.name
    empty = ScaleRow(trial.devices, dict(trial.values), trial.shown, hosts=trial.hosts)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CAPTURED, COMPILED):  # left by a row that was stopped
        shutil.rmtree(folder / name, ignore_errors=True)
    try:
        with (folder / OUTPUT).open("w", encoding="utf-8") as log, redirect_stderr(log):
            row, made = _found(request, empty, trial, folder, log.fileno())
            return replace(
                row,
                scheduled=str(_inside(out, made.path)),
                grown=str(_inside(out, made.grown)) if made.grown else "",
                wall_s=time.monotonic() - began,
            )
    except WorkloadError as error:
        # The message holds the whole command, which all rows share. Smaller captures also count.
        captures = (folder / CAPTURED).rglob(PROGRAM)
        errors = (read_captured(path.parent).error for path in captures)
        reason = next(filter(None, errors), "")
        if not reason:
            reason = (
                f"the program {ended(error.exit_code)}; its last line: "
                f"{last_line(folder / OUTPUT)}"
            )
    except (UnfitError, UserError) as error:
        reason = str(error)
    reason = " ".join(reason.replace(f"{folder}/", "").split())
    return replace(empty, failure=reason, wall_s=time.monotonic() - began)


def _inside(out: Path, path: Path) -> Path:
    """Return a path relative to the folder of all rows, if it lies inside."""
    return path.relative_to(out) if path.is_relative_to(out) else path


def _found(
    request: Scale, empty: ScaleRow, trial: SizeTrial, folder: Path, log: int
) -> tuple[ScaleRow, _Made]:
    """Return the row and its module, compiled by all passes with LHS and without a profile.

    A profile may have the names of another size. A scheduled module keeps its job's kernels.
    """
    target = target_of(request)
    file = Path(trial.file)
    modules: Sequence[Path] = [file]
    program = CapturedProgram()
    notes: tuple[str, ...] = ()
    if not trial.file:
        modules, notes = _captured(request, trial, folder / CAPTURED, target, log)
        program = read_captured(folder / CAPTURED)
    elif file.suffix not in OF_JAX and (module := read_module(file)).is_scheduled:
        doubt = gpu_of(str(file), target).doubt
        scheduled = _Made(
            module, file.resolve(), memory_of(file), warnings=(doubt,) if doubt else ()
        )
        row, prediction = _priced(request, empty, scheduled)
        account = _account(
            scheduled, prediction, hardware_of(request), StepBase.SCHEDULED
        )
        return replace(row, account=account), scheduled
    asked = settle(
        modules, request, program, target, folder / COMPILED, topology=trial.topology
    )
    if asked.no_step:
        raise UserError(
            asked.no_step,
            remedy="name the step with --module, or wait longer with --quiet-for 600",
        )
    own = None if trial.file else devices_of(asked.module)
    if own not in (None, trial.devices):
        raise UserError(
            f"{module_name(asked.module)} uses {own} of {trial.devices} GPUs",
            remedy="does the command fix their number? Write {devices} in its place",
        )
    asked = with_hosts_flag(asked)
    grown = asked.module if not trial.file and trial.devices > MOST_DEVICES else None
    asked = replace(asked, warnings=(*asked.warnings, *notes))
    if request.profile is None:
        return _rehearsed(request, empty, asked, grown)
    return _with_profile(request, empty, asked, grown)


def _rehearsed(
    request: Scale, empty: ScaleRow, asked: RehearseRequest, grown: Path | None
) -> tuple[ScaleRow, _Made]:
    """Return the row of a step priced by estimates, with the account of a rehearsal."""
    found = replace(rehearsed(asked, _silent), tune=TUNE, measure=RUN, advise=ADVISE)
    made = _made(found.baseline.compiled, asked, grown)
    row, _ = _priced(request, empty, made)
    row = replace(row, account=found.account)
    second = found.control
    if row.fits is False or second is None:
        return row, made
    if second.failure or second.schedules is None:
        return replace(
            row, control=RowControl(second.flag, failure=second.failure)
        ), made
    other, _ = _priced(request, empty, _made(second.schedules.compiled, asked, grown))
    return replace(row, control=RowControl(second.flag, other)), made


def _silent(phase: object) -> None:
    """Print nothing about a compilation, since all rows share one live line."""


def _with_profile(
    request: Scale, empty: ScaleRow, asked: RehearseRequest, grown: Path | None
) -> tuple[ScaleRow, _Made]:
    """Return the row of a step priced by carried costs. No other schedule of the step is made."""
    wanted = asked.compilation()
    with compiler_with_cache(asked.python, cached=request.cached) as compiler:
        session = session_with(compiler, wanted, asked.hardware, checked=False)
        first = session.schedule("baseline", wanted.flags)
        made = _made(first, asked, grown)
        row, prediction = _priced(request, empty, made)
        account = _account(made, prediction, hardware_of(request), StepBase.OVERLAPPED)
        row = replace(row, account=account)
        if row.fits is False or not hangs_on_choice([prediction]):
            return row, made
        flag = other_choice(wanted.flags)
        try:
            again = session.with_other_kernels(CONTROL, wanted.flags)
            other = session.schedule(CONTROL, again)
        except UserError as error:
            found = RowControl(flag, failure=unchecked(error))
            return replace(row, control=found), made
    if other.fingerprint and other.fingerprint == first.fingerprint:
        return replace(row, control=RowControl(flag)), made
    second, _ = _priced(request, empty, _made(other, asked, grown))
    return replace(row, control=RowControl(flag, second)), made


def _account(
    made: _Made, prediction: Prediction, hardware: Hardware, base: StepBase
) -> Account:
    """Return the account of a step, without what other schedules would show."""
    memory = PlannedMemory(made.memory.get("total"), made.limit_bytes)
    return account_of_schedule(
        made.module,
        prediction,
        hardware,
        memory=memory,
        search=TUNE,
        advise=ADVISE,
        base=base,
    )


def _made(compiled: CompileResult, asked: RehearseRequest, grown: Path | None) -> _Made:
    return _Made(
        module=compiled.scheduled,
        path=compiled.after_optimizations,
        memory=compiled.memory,
        limit_bytes=asked.allocator_bytes,
        warnings=(*asked.warnings, *compiled.warnings),
        grown=grown,
    )


def _captured(
    request: Scale, trial: SizeTrial, where: Path, target: Target, log: int
) -> tuple[Sequence[Path], tuple[str, ...]]:
    """Return the program's modules at this size, and notes. If the size is larger than any capture,
    the step is grown from smaller captures, with a note.
    """

    def at(size: int, folder: Path) -> Sequence[Path]:
        smaller = replace(trial, devices=size)
        return capture_modules(
            filled(request.words, smaller),
            folder,
            target=target,
            devices=Devices(size, topology=smaller.topology),
            quiet_s=request.quiet_s,
            choose=request.module,
            until_step=True,
            output=log,
        )

    if trial.devices <= MOST_DEVICES:
        return at(trial.devices, where), ()
    sizes = bases(trial.devices, MOST_DEVICES, trial.per_host)
    steps = {}
    # smallest first: it alone is captured if the step cannot be grown
    for size in sizes:
        captured = at(size, where / str(size))
        steps[size] = step = choose_module(captured, request.module)
        if partitioned(step) != step:
            raise UnfitError(
                f"only the program can partition its step, on at most {MOST_DEVICES} GPUs"
            )
    last = steps[sizes[-1]]
    texts = {size: read_bytes(step).decode() for size, step in steps.items()}
    module = grown(texts, trial.devices)
    program = read_bytes(where / str(sizes[-1]) / PROGRAM)
    write_files({where / last.name: module, where / PROGRAM: program})
    return [where / last.name], (
        f"its module is grown from captures at {', '.join(map(str, sizes))} GPUs",
    )


def _priced(
    request: Scale, empty: ScaleRow, made: _Made
) -> tuple[ScaleRow, Prediction]:
    hardware = hardware_of(request)
    module = made.module
    profile = _profile(request, made, hardware)
    prediction = predict(module, profile, hardware)
    parts = prediction.timeline.breakdown
    memory = made.memory
    known = () if profile is None else {cost.name for cost in profile.costs}
    warnings = (
        *made.warnings,
        *unmodelled_warnings(module, known),
        *assumed_warnings(module, hardware, is_named=request.names_network),
        *prediction.timeline.warnings,
        *_doubt(prediction),
        *(() if profile is None else profile.warnings),
    )
    costs_are = "estimated" if profile is None else prediction.costs_are
    covered_share = None if profile is None else _covered_share(prediction)
    exposed = exposed_by_collective(module, prediction, hardware)
    operations = operations_of(module, prediction)
    least, most = prediction.interval_us
    most_us = most if isfinite(most) else None
    fitted = replace(
        empty,
        argument_bytes=memory.get("argument"),
        temp_bytes=memory.get("temp"),
        memory_bytes=memory.get("total"),
        limit_bytes=made.limit_bytes or None,
    )
    row = replace(
        fitted,
        module=module.name,
        step_us=prediction.step_us,
        least_us=least,
        most_us=most_us,
        compute_us=parts.compute_us,
        exposed_us=parts.exposed_communication_us,
        copy_us=parts.exposed_copy_us,
        idle_us=parts.idle_us,
        ceiling_us=prediction.shortest_us,
        by_collective=exposed,
        operations=operations,
        costs_are=costs_are,
        covered_share=covered_share,
        warnings=warnings,
    )
    return row, prediction


def _profile(request: Scale, made: _Made, hardware: Hardware) -> Profile | None:
    """Return the measured costs under this row's names."""
    if request.profile is None:
        return None
    given = read_profile(request.profile)
    if request.measured_on is None:
        return given
    before = _table(request.measured_on)
    after = _table(made.path)
    check_source(given, before, request.profile)
    return replace(
        carry(given, before, after, scale_by(before, after, hardware)).profile,
        warnings=given.warnings,
    )


def _table(path: Path) -> LookupTable:
    """Return what XLA looks up for a scheduled module, by the names that LHS saw."""
    dumps = read_dumps([path.parent] if path.is_file() else [path])
    module = max(
        (item for item in dumps.modules if item.is_scheduled),
        key=lambda item: len(item.instructions),
    )
    return LookupTable(module, dumps.lhs_module(module.name))


def _covered_share(prediction: Prediction) -> float:
    """Return the share of computing time, 0 to 1, whose cost is not an estimate."""
    timeline = prediction.timeline
    compute = timeline.stream == Stream.COMPUTE
    given = timeline.origin != ORIGINS.index(Origin.ESTIMATED)
    total_us = float(timeline.duration_us[compute].sum())
    given_us = float(timeline.duration_us[compute & given].sum())
    return given_us / total_us if total_us else 0.0


def _doubt(prediction: Prediction) -> Iterator[str]:
    """Yield a note if uncertain costs may add more than `MUCH_DOUBT` to the step."""
    if prediction.steps_us.most_data > (1 + MUCH_DOUBT) * prediction.step_us:
        why = prediction.uncertain[0].range.why
        yield f"ranges are wide: {why}; measure it, and give --profile"
