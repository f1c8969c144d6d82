"""`pgle convert`: traces and HLO dumps in, profiles and their sidecars out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgle.costs.measure.measured import AggregateOptions, Measured, fingerprints, measure, measured_profile
from pgle.costs.measure.naming import Program
from pgle.costs.profile.files import SUFFIXES, check_suffix
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, Progress
from pgle.run.inputs.traces import read_traces, run_dirs
from pgle.run.process.executor import PROCESSES
from pgle.run.profiles import Written, check_output, write_profiles
from pgle.xla.hlo.dumps import read_dumps


@dataclass(frozen=True)
class ConvertRequest:
    """What to convert."""

    inputs: tuple[AnyPath, ...]  # traces; several are merged
    out: AnyPath  # ``.pbtxt``, ``.pb``, or a directory for one file per module
    hlo: tuple[AnyPath, ...] = ()  # HLO dump files or directories; without, modules embedded in the trace are used
    module: str = "auto"  # ``auto``, ``all`` or a regular expression
    options: AggregateOptions = field(default_factory=AggregateOptions)  # statistics
    fingerprint_names: bool = False  # write ``fingerprint::name`` even for one module
    target: str | None = None  # GPU whose estimates fill the gaps; None leaves gaps
    force: bool = False  # overwrite
    executor: str = PROCESSES  # where several inputs are read, as `pgle.run.process.executor` says it


@dataclass(frozen=True)
class Conversion:
    """What a conversion found and wrote."""

    measured: Measured  # the costs that the profiles hold, with the trace that they come from
    written: tuple[Written, ...]  # the profiles

    @property
    def gpu_time_us(self) -> float:
        """Time of all activities on all devices."""
        return float(self.measured.trace.duration_ns.sum()) / 1e3

    @property
    def other_modules(self) -> Mapping[str, float]:
        """Modules of the trace that were not converted, with their share of GPU time."""
        chosen, total = {found.program.key for found in self.measured.costs}, self.gpu_time_us
        return {
            _label(program): program.gpu_time_ns / 1e3 / total
            for program in self.measured.programs
            if program.key not in chosen and total > 0
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line each."""
        return tuple(dict.fromkeys((*self.measured.trace.warnings, *self.measured.warnings)))


def default_output(inputs: Sequence[AnyPath]) -> AnyPath:
    """Where a profile goes when the user does not say: into the run directory that is converted.

    Raises:
        UserError: the input is no run directory.
    """
    runs = run_dirs(inputs)
    if len(inputs) == len(runs) == 1:
        return runs[0].profile
    raise UserError("where to write the profile is not given", remedy="say -o profile.pbtxt")


def default_hlo(inputs: Sequence[AnyPath]) -> tuple[AnyPath, ...]:
    """The HLO dumps of the run directories among the inputs."""
    dumps = [run.stage("profile").rank().hlo for run in run_dirs(inputs)]
    return tuple(path for path in dumps if path.is_dir())


def convert(request: ConvertRequest, *, progress: Progress | None = None) -> Conversion:
    """Read, measure and write.

    Raises:
        UserError: an input is bad, nothing matches, or the output exists; nothing is then written.
    """
    _check_output(request)
    trace = read_traces(request.inputs, where=request.executor, progress=progress)
    measured = measure(trace, read_dumps(request.hlo), module=request.module, options=request.options)
    profiles = _profiles(measured, request)
    written = write_profiles(profiles, force=request.force, inputs=(*request.inputs, *request.hlo))
    return Conversion(measured, written)


def _check_output(request: ConvertRequest) -> None:
    """Fail before any long work where nothing could be written."""
    out = request.out
    if out.suffix in SUFFIXES:
        check_output(out, force=request.force, inputs=(*request.inputs, *request.hlo))
    elif (out.suffix or out.exists()) and not out.is_dir():
        check_suffix(out)


def _profiles(measured: Measured, request: ConvertRequest) -> dict[AnyPath, Profile]:
    """The profiles to write, by path."""
    if request.out.suffix in SUFFIXES:
        several = request.fingerprint_names or len(measured.costs) > 1
        return {request.out: _profile(measured, request.target, fingerprint_names=several)}
    return {
        request.out / f"{fingerprint}.pbtxt": _profile(replace(measured, costs=(found,)), request.target)
        for found in measured.costs
        for fingerprint in fingerprints(found)
    }


def _profile(measured: Measured, target: str | None, *, fingerprint_names: bool = False) -> Profile:
    """The profile of measured costs, its gaps filled with estimates for `target` where there is one."""
    profile = measured_profile(measured, fingerprint_names=fingerprint_names)
    if target is None:
        return profile
    from pgle.costs.lookup.complete import complete_profile
    from pgle.xla.targets import find_hardware, load_target

    hardware = find_hardware(load_target(target))
    for found in measured.costs:
        module = found.program.hlo
        if module is None:
            what = f"no HLO of {found.program.key.name} to complete"
            raise UserError(what, where="--complete", remedy="pass --hlo DUMP")
        for fingerprint in fingerprints(found) if fingerprint_names else (module.fingerprint,):
            named = replace(module, fingerprint=fingerprint)
            profile = complete_profile(profile, named, hardware, lhs_module=found.program.lhs_module).profile
    return profile


def _label(program: Program) -> str:
    number = "" if program.key.program_id is None else f" ({program.key.program_id})"
    return program.key.name + number
