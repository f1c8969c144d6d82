"""`pgle scale` as a function: every size and variant of a program, side by side, and what that says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.errors import UserError
from pgle.files import read_bytes, sha256
from pgle.run.ask.jax_private.programs import partitions_of
from pgle.run.capture.captured import devices_of
from pgle.run.directory.directory import RunDirectory
from pgle.run.process.environment import check_compiler
from pgle.run.process.process import check_program, executor
from pgle.run.scale.record import Record, digests
from pgle.run.scale.row import OF_JAX, RowRequest, ScaleRequest, make_row
from pgle.scale.answer import Answer, answer
from pgle.scale.fit import fits
from pgle.scale.plan import Trial, check_names, trials
from pgle.scale.row import Row
from pgle.xla.hlo.reader import read_module
from pgle.xla.targets import Hardware, load_target

OnRow = Callable[[Row, int, int], None]
"""Called with each row, how many are there, and how many there will be; 0: not known."""


@dataclass(frozen=True)
class Scaling:
    """What was found."""

    request: ScaleRequest
    rows: tuple[Row, ...]  # in the order of the request
    answer: Answer
    hardware: Hardware
    resumed: int  # rows that were there before


def scale(request: ScaleRequest, on_row: OnRow = lambda row, done, total: None) -> Scaling:
    """Make all rows and judge them.

    Raises:
        UserError: the command, a size or a placeholder is bad, or the folder holds rows of another program.
    """
    request = _with_run(request)
    wanted = _of_files(request) if request.are_files else _of_command(request)
    if missing := set(request.measured) - {trial.devices for trial in wanted}:
        remedy = f"add {min(missing)} to --devices"
        raise UserError(f"no step is predicted for {min(missing)} GPUs", where="--measured", remedy=remedy)
    record = Record(request.out, _about(request))
    with executor(len(wanted)) as pool:
        making = _Making(request, pool, record, on_row)
        rows = making.fitted(wanted) if request.fit else making.rows(wanted)
    return Scaling(request, rows, answer(rows, request.measured), request.hardware, record.resumed)


def _with_run(request: ScaleRequest) -> ScaleRequest:
    """The request with the profile of a run directory as a file, and the dump next to it that it was measured on."""
    profile = request.profile
    if profile is not None and profile.is_dir():
        profile = RunDirectory(profile).found_profile
        if profile is None:
            raise UserError("holds no profile", where=request.profile, remedy="give a profile, or a run directory")
    if profile is None or request.measured_on is not None:
        return replace(request, profile=profile)
    runs = [run for run in map(RunDirectory, profile.resolve().parents[:2]) if run.is_recorded]
    dumps = [run.stage("profile").rank().hlo for run in runs]
    return replace(request, profile=profile, measured_on=next((path for path in dumps if path.is_dir()), None))


def _of_command(request: ScaleRequest) -> tuple[Trial, ...]:
    if not request.devices:
        raise UserError("no sizes", where="--devices", remedy="say --devices 8,64,512")
    check_names(request.words, request.vary)
    if request.fit and request.fit not in request.vary:
        remedy = f"add --vary {request.fit}=1,2,4,8: values that need more and more memory"
        raise UserError("is not varied", where=f"--fit {request.fit}", remedy=remedy)
    check_program(request.words)
    check_compiler(request.words, by_name=True)
    return trials(request.devices, request.hardware.devices_per_host, request.vary)


def _of_files(request: ScaleRequest) -> tuple[Trial, ...]:
    """A trial for each file, by the devices that it is for."""
    if not (request.words or request.unfit):
        raise UserError("no sizes", remedy="give devices=(8, 64, 512)")
    if request.vary or request.fit or len(request.devices) > 1:
        remedy = "leave out --vary, --fit and --devices, and give a file for each size; or give the program"
        raise UserError("a module has one size", where=request.words[0], remedy=remedy)
    per_host = request.hardware.devices_per_host
    sizes = [_devices_in(Path(word), request.devices) for word in request.words]
    several = len(set(sizes)) < len(sizes)
    found = (
        Trial(count, per_host, (("module", path.name),) if several else (), str(path.resolve()), _digest(path))
        for path, count in zip(map(Path, request.words), sizes, strict=True)
    )
    missing = (Trial(count, per_host, unfit=why) for count, why in request.unfit.items())
    return tuple(sorted((*found, *missing), key=lambda trial: trial.devices))


def _digest(path: Path) -> str:
    return sha256(read_bytes(path))[:12]


def _devices_in(path: Path, asked: Sequence[int]) -> int:
    if path.suffix in OF_JAX:
        found = devices_of(path)
    elif (
        (data := read_bytes(path)).lstrip().startswith(b"HloModule")
    ):  # its shardings may say it, where its head does not
        partitions, replicas = partitions_of(data.decode(errors="replace"))
        found = (partitions or 1) * replicas
    else:
        found = read_module(path).num_devices
    if asked and found not in (None, 1, asked[0]):
        raise UserError(f"is for {found} GPUs", where=path, remedy="leave out --devices")
    found = asked[0] if asked else found
    if not found:
        raise UserError("does not say for how many GPUs it is", where=path, remedy="give it alone, with --devices N")
    return found


def _about(request: ScaleRequest) -> Mapping[str, object]:
    """All that a row depends on, but its size and values."""
    profile = request.profile
    return {
        "command": [] if request.are_files else list(request.words),  # the row of a file has its digest
        "files": {} if request.are_files else digests(request.words),
        "target": sha256(load_target(request.target).text.encode()),
        "per_host": request.per_host,
        "network_gb_s": request.network_gb_s,
        "profile": None if profile is None else sha256(read_bytes(profile)),
        "measured_on": None if request.measured_on is None else str(request.measured_on),
        "flags": list(request.flags),
        "choose": request.choose,
    }


class _Making:
    """Rows, from the record where they are on it."""

    def __init__(self, request: ScaleRequest, pool: Executor, record: Record, on_row: OnRow) -> None:
        self._request, self._pool, self._record, self._on_row = request, pool, record, on_row
        self._measured_on = request.measured_on
        self._made = 0

    def rows(self, wanted: Sequence[Trial], total: int | None = None) -> tuple[Row, ...]:
        """The rows of these trials, side by side."""
        self._find_measured(wanted)
        found = {trial: row for trial in wanted if (row := self._record.known(trial)) is not None}
        for row in found.values():
            self._say(row, len(wanted) if total is None else total)
        # the largest first, since they take longest
        missing = sorted((trial for trial in wanted if trial not in found), key=lambda trial: -trial.devices)
        begun = {self._pool.submit(make_row, self._row(trial)): trial for trial in missing}
        for done in as_completed(begun):
            found[begun[done]] = row = done.result()
            self._record.add(begun[done], row)
            self._say(row, len(wanted) if total is None else total)
        return tuple(found[trial] for trial in wanted)

    def fitted(self, wanted: Sequence[Trial]) -> tuple[Row, ...]:
        """Of every size and variant the row with the last value that fits; the values are bisected."""
        groups = fits(wanted, self._request.fit)
        while ahead := [group for group in groups if not group.done]:
            made = self.rows([group.next for group in ahead], total=0)
            known = dict(zip(ahead, made, strict=True))
            groups = [group.tried(known[group]) if group in known else group for group in groups]
        return tuple(group.result(self._request.fit) for group in groups)

    def _find_measured(self, wanted: Sequence[Trial]) -> None:
        """With a profile the first row that has a step comes first: others carry its costs from there."""
        if self._request.profile is None or self._measured_on is not None:
            return
        for trial in wanted:
            row = self._record.known(trial)
            if row is None:
                row = make_row(self._row(trial))
                self._record.add(trial, row)
            if not row.failure:
                self._measured_on = self._request.out.resolve() / row.scheduled
                return

    def _say(self, row: Row, total: int) -> None:
        self._made += 1
        self._on_row(row, self._made, total)

    def _row(self, trial: Trial) -> RowRequest:
        profile = self._request.profile
        paths = {"out": self._request.out.resolve(), "profile": profile and profile.resolve()}
        return RowRequest(**{**vars(self._request), **paths, "measured_on": self._measured_on}, trial=trial)
