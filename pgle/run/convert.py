"""`pgle convert` as a function: make profiles from traces and HLO dumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pgle.costs.measure.measured import (
    AggregateOptions,
    Measured,
    fingerprints,
    measure,
    measured_profile,
)
from pgle.costs.measure.samples import parse_statistic
from pgle.costs.profile.files import (
    SUFFIXES,
    check_suffix,
)
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, Progress, check_exists
from pgle.requests.profiles import Convert
from pgle.run.inputs.traces import read_traces, run_dirs
from pgle.run.written import Written, check_output, write_profiles
from pgle.trace.table import ModuleKey
from pgle.xla.hlo.dumps import read_dumps


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion."""

    # the measured costs, with their trace
    measured: Measured
    written: tuple[Written, ...]  # the profile files

    @property
    def gpu_time_us(self) -> float:
        """Time of all activities on all devices, in microseconds."""
        return float(self.measured.trace.duration_ns.sum()) / 1e3

    @property
    def other_modules(self) -> Mapping[str, float]:
        """Modules of the trace that were not converted, with their share of GPU time (0 to 1)."""
        if self.gpu_time_us <= 0:
            return {}
        chosen = {found.program.key for found in self.measured.costs}
        shares = {}
        for program in self.measured.programs:
            if program.key not in chosen:
                us = program.gpu_time_ns / 1e3
                shares[_program_name(program.key)] = us / self.gpu_time_us
        return shares

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line per warning."""
        return tuple(
            dict.fromkeys((*self.measured.trace.warnings, *self.measured.warnings))
        )


def _program_name(key: ModuleKey) -> str:
    """Return the name of a program, with its id if the trace has one."""
    return key.name if key.program_id is None else f"{key.name} ({key.program_id})"


def default_output(inputs: Sequence[AnyPath]) -> AnyPath:
    """Return the default path of a profile: in the run directory that is converted, else in the
    current folder.
    """
    runs = run_dirs(inputs)
    if len(inputs) == len(runs) == 1:
        return runs[0].profile
    for path in inputs:
        check_exists(path)
    return Path("profile.pbtxt")


def hlo_of(request: Convert) -> tuple[AnyPath, ...]:
    """Return the HLO dumps that the request names; else those of the run directories among the
    inputs.
    """
    if request.hlo:
        return request.hlo
    runs = run_dirs(request.inputs)
    return tuple(chain.from_iterable(run.stage("profile").dumps() for run in runs))


def convert(request: Convert, *, progress: Progress | None = None) -> Conversion:
    """Read the traces, measure, and write the profiles. Check first whether the files can be
    written.
    """
    options = AggregateOptions(
        parse_statistic(request.stat),
        parse_statistic(request.collective_stat),
        request.all_executions,
    )
    out = request.output or default_output(request.inputs)
    hlo = hlo_of(request)
    inputs = (*request.inputs, *hlo)
    if out.suffix in SUFFIXES:
        check_output(out, force=request.force, inputs=inputs)
    elif (out.suffix or out.exists()) and not out.is_dir():
        check_suffix(out)
    trace = read_traces(request.inputs, where=request.executor, progress=progress)
    dumps = read_dumps(hlo)
    measured = measure(trace, dumps, module=request.module, options=options)
    profiles = _profiles(measured, request, out)
    written = write_profiles(profiles, force=request.force, inputs=inputs)
    return Conversion(measured, written)


def _profiles(
    measured: Measured, request: Convert, out: AnyPath
) -> dict[AnyPath, Profile]:
    """Return the profiles to write, by path."""
    if out.suffix in SUFFIXES:
        several = request.fingerprint_names or len(measured.costs) > 1
        return {out: _profile(measured, request.complete, fingerprint_names=several)}
    found: dict[AnyPath, Profile] = {}
    for costs in measured.costs:
        profile = _profile(replace(measured, costs=(costs,)), request.complete)
        for fingerprint in fingerprints(costs):
            found[out / f"{fingerprint}.pbtxt"] = profile
    return found


def _profile(
    measured: Measured, target: str | None, *, fingerprint_names: bool = False
) -> Profile:
    """Return the profile of measured costs. With a `target`, estimates fill its gaps."""
    profile = measured_profile(measured, fingerprint_names=fingerprint_names)
    if target is None:
        return profile
    from pgle.costs.profile.coverage import complete_profile
    from pgle.run.target import same_gpu_of
    from pgle.xla.targets import load_target

    named = load_target(target)
    for found in measured.costs:
        module = found.program.hlo
        if module is None:
            raise UserError(
                f"no HLO of {found.program.key.name} to complete",
                where="--complete",
                remedy="pass --hlo DUMP",
            )
        hardware = same_gpu_of(module, named).hardware
        for fingerprint in (
            fingerprints(found) if fingerprint_names else (module.fingerprint,)
        ):
            renamed = replace(module, fingerprint=fingerprint)
            profile = complete_profile(
                profile, renamed, hardware, lhs_module=found.program.lhs_module
            ).profile
    return profile
