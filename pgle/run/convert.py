"""`pgle convert`: traces and HLO dumps in, profiles and their sidecars out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgle.costs.measure.aggregate import AggregateOptions, aggregate, provenance
from pgle.costs.measure.program_costs import ProgramCosts, folded
from pgle.costs.measure.programs import Program, find_programs, select_programs, unite_programs
from pgle.costs.profile.files import SUFFIXES, check_suffix, encode_profile, sidecar_path
from pgle.costs.profile.sidecar import sidecar
from pgle.costs.profile.value import Profile, join_name
from pgle.errors import UserError
from pgle.files import AnyPath, Progress, check_absent, sha256, write_files
from pgle.run.inputs import read_traces, run_dirs
from pgle.run.launch.environment import kept_flags
from pgle.trace.table import Kind, Trace, Unresolved
from pgle.xla.hlo.module import Module


@dataclass(frozen=True)
class ConvertRequest:
    """What to convert.

    Attributes:
        inputs: traces; several are merged.
        out: ``.pbtxt``, ``.pb``, or a directory for one file per module.
        hlo: HLO dump files or directories; without, modules embedded in the trace are used.
        module: ``auto``, ``all`` or a regular expression.
        options: statistics.
        fingerprint_names: write ``fingerprint::name`` even for one module.
        target: GPU whose estimates fill the gaps; None leaves gaps.
        force: overwrite.
    """

    inputs: tuple[AnyPath, ...]
    out: AnyPath
    hlo: tuple[AnyPath, ...] = ()
    module: str = "auto"
    options: AggregateOptions = field(default_factory=AggregateOptions)
    fingerprint_names: bool = False
    target: str | None = None
    force: bool = False


@dataclass(frozen=True)
class Written:
    """A profile that was written."""

    path: str
    sha256: str
    names: int


@dataclass(frozen=True)
class Conversion:
    """What a conversion found and wrote.

    Attributes:
        programs: costs by program, main module first.
        written: the profiles.
        activities: GPU activities in the traces.
        gpu_time_us: their time on all devices.
        unresolved: activities of no instruction, by reason.
        other_modules: modules of the trace that were not converted, with their share of GPU time.
        warnings: one line each.
    """

    programs: tuple[ProgramCosts, ...]
    written: tuple[Written, ...]
    activities: int
    gpu_time_us: float
    unresolved: tuple[Unresolved, ...]
    other_modules: Mapping[str, float]
    warnings: tuple[str, ...]


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
    """Read, aggregate and write.

    Raises:
        UserError: an input is bad, nothing matches, or the output exists; nothing is then written.
    """
    as_directory = _check_output(request)
    trace, programs = traced_programs(read_traces(request.inputs, progress=progress), request)
    results = convert_trace(trace, programs, request)
    files, written = _encode(results, request, trace, as_directory)
    write_files(files, force=request.force, inputs=(*request.inputs, *request.hlo))
    total = float(trace.duration_ns.sum()) / 1e3
    chosen = {result.program.key for result in results}
    others = {
        _label(program): program.gpu_time_ns / 1e3 / total
        for program in programs
        if program.key not in chosen and total > 0
    }
    warnings = (*trace.warnings, *_host_only(trace), *_said_of(results))
    return Conversion(results, written, len(trace), total, trace.unresolved, others, tuple(dict.fromkeys(warnings)))


def measured_programs(request: ConvertRequest, *, progress: Progress | None = None) -> tuple[ProgramCosts, ...]:
    """The costs of the chosen programs, main module first; nothing is written.

    Raises:
        UserError: an input is bad, or nothing matches.
    """
    trace, programs = traced_programs(read_traces(request.inputs, progress=progress), request)
    return convert_trace(trace, programs, request)


def traced_programs(trace: Trace, request: ConvertRequest) -> tuple[Trace, tuple[Program, ...]]:
    """The programs of a trace, those that ranks know by different program ids as one.

    Raises:
        UserError: the trace has no activity of an instruction, or a dump is bad.
    """
    if len(trace) == 0:
        lost = ", ".join(f"{item.count} {item.reason}" for item in trace.unresolved)
        raise UserError(
            f"no GPU activity belongs to an HLO instruction ({lost or 'the trace is empty'})",
            where=request.inputs[0],
            remedy="trace with NVTX and CUDA on and --xla_gpu_enable_command_buffer= ('pgle profile' does)",
        )
    dumped = _dumped(request.hlo)
    programs = find_programs(trace, dumped)
    often = Counter(program.key.name for program in programs)
    return unite_programs(
        trace, [_with_embedded_hlo(trace, item) if often[item.key.name] > 1 else item for item in programs]
    )


def convert_trace(trace: Trace, programs: Sequence[Program], request: ConvertRequest) -> tuple[ProgramCosts, ...]:
    """The costs of the selected programs of a trace.

    Raises:
        UserError: no module matches, or no cost is left.
    """
    chosen = select_programs(programs, request.module)
    programs = tuple(_with_embedded_hlo(trace, program) for program in chosen)
    _check_match(programs, request)
    names = {program.key.name for program in programs}
    results = aggregate(trace, programs, request.options, _lhs_modules(request.hlo, names))
    results = tuple(result for result in results if result.costs)
    if not results:
        raise UserError("no cost could be taken from the trace", where=request.inputs[0], remedy="trace whole steps")
    return results


def _check_output(request: ConvertRequest) -> bool:
    """True for a directory of fingerprint-named files; fails before any long work where nothing could be written."""
    out, inputs = request.out, (*request.inputs, *request.hlo)
    if out.suffix in SUFFIXES:
        check_absent(out, force=request.force, inputs=inputs)
        check_absent(sidecar_path(out), force=request.force, inputs=inputs)
        return False
    if str(out) == "-":
        raise UserError("a profile and its sidecar are two files", where="-o -", remedy="say -o profile.pbtxt")
    if (out.suffix or out.exists()) and not out.is_dir():
        check_suffix(out)
    return True


def _with_embedded_hlo(trace: Trace, program: Program) -> Program:
    if program.hlo is not None or program.key not in trace.hlo:
        return program
    from pgle.xla.hlo.proto import module_from_bytes

    module = module_from_bytes(trace.hlo[program.key], f"HLO of {program.key.name} embedded in the trace")
    fingerprints = (module.fingerprint,) if module.fingerprint else ()
    return replace(program, hlo=module, fingerprints=fingerprints)


def _check_match(programs: Sequence[Program], request: ConvertRequest) -> None:
    if request.hlo and all(program.hlo is None for program in programs):
        dumped = _dumped(request.hlo)
        names = ", ".join(dict.fromkeys(module.name for module in dumped[:5]))
        raise UserError(
            f"no module of the dump is {programs[0].key.name} (it has {names})",
            where=request.hlo[0],
            remedy="give the dump of the profiled run, or --module",
        )


def _dumped(paths: Sequence[AnyPath]) -> list[Module]:
    """The modules in HLO dumps."""
    if not paths:
        return []
    from pgle.xla.hlo.reader import read_modules  # protocol buffers take a tenth of a small conversion

    return [module for path in paths for module in read_modules(path)]


def _lhs_modules(paths: Sequence[AnyPath], names: set[str]) -> dict[str, Module]:
    """Modules as LHS saw them, from schedule dumps that lie beside the HLO."""
    if not paths:
        return {}
    from pgle.xla.hlo.schedule_dump import find_schedule_dumps, read_schedule_dump

    found: dict[str, Module] = {}
    for path in paths:
        for name, file in find_schedule_dumps(path).items() if path.is_dir() else ():
            if name in names:
                found.setdefault(name, read_schedule_dump(file).module)
    return found


def _encode(
    results: Sequence[ProgramCosts], request: ConvertRequest, trace: Trace, as_directory: bool
) -> tuple[dict[AnyPath, bytes | str], tuple[Written, ...]]:
    """Content by path: profiles and sidecars."""
    files: dict[AnyPath, bytes | str] = {}
    written = []
    for path, profile in _profiles(results, request, trace, as_directory):
        data = encode_profile(profile, path.suffix)
        files |= {path: data, sidecar_path(path): sidecar(profile, data)}
        written.append(Written(str(path), sha256(data), len(profile)))
    return files, tuple(written)


def _profiles(
    results: Sequence[ProgramCosts], request: ConvertRequest, trace: Trace, as_directory: bool
) -> list[tuple[AnyPath, Profile]]:
    if as_directory:
        return [
            (request.out / f"{fingerprint}.pbtxt", _profile([result], request, trace, prefix=False))
            for result in results
            for fingerprint in _fingerprints(result)
        ]
    prefix = request.fingerprint_names or len(results) > 1
    return [(request.out, _profile(results, request, trace, prefix=prefix))]


def _fingerprints(result: ProgramCosts) -> tuple[str, ...]:
    if not result.program.fingerprints:
        raise UserError(
            f"the fingerprint of module {result.program.key.name} is not known",
            remedy="pass --hlo DUMP_DIR of the run, or write one .pbtxt with --module",
        )
    return result.program.fingerprints


def _profile(results: Sequence[ProgramCosts], request: ConvertRequest, trace: Trace, *, prefix: bool) -> Profile:
    named = [
        (result, fingerprint) for result in results for fingerprint in (_fingerprints(result) if prefix else ("",))
    ]
    costs = [
        replace(cost, fingerprint=fingerprint) if fingerprint else cost
        for result, fingerprint in named
        for cost in result.costs
    ]
    occurrences = {
        join_name(fingerprint, name): table
        for result, fingerprint in named
        for name, table in result.occurrences.items()
    }
    profile = Profile(
        costs=tuple(costs),
        provenance=provenance(results, request.options, trace, kept_flags(trace.xla_flags)),
        warnings=(*_host_only(trace), *_said_of(results)),
        occurrences=occurrences,
        ends={fingerprint: result.ends for result, fingerprint in named if result.ends},
    )
    return profile if request.target is None else _completed(profile, results, request, prefix=prefix)


def _completed(profile: Profile, results: Sequence[ProgramCosts], request: ConvertRequest, *, prefix: bool) -> Profile:
    """The profile with its gaps filled for the modules of `results`."""
    from pgle.run.complete import complete_for  # the estimates are needed only here; the command starts faster without
    from pgle.xla.hardware import find_hardware
    from pgle.xla.targets import load_target

    modules = []
    for program in (result.program for result in results):
        if program.hlo is None:
            raise UserError(f"no HLO of {program.key.name} to complete", where="--complete", remedy="pass --hlo DUMP")
        fingerprints = program.fingerprints if prefix else (program.hlo.fingerprint,)
        modules += [replace(program.hlo, fingerprint=fingerprint) for fingerprint in fingerprints]
    lhs_modules = _lhs_modules(request.hlo, {module.name for module in modules})
    return complete_for(profile, modules, find_hardware(load_target(str(request.target))), lhs_modules)


def _said_of(results: Sequence[ProgramCosts]) -> tuple[str, ...]:
    return folded((result.program.key.name, line) for result in results for line in result.warnings)


def _host_only(trace: Trace) -> tuple[str, ...]:
    """CPU devices run the program, but their times say nothing of a GPU."""
    if bool((trace.kind == Kind.HOST).all()):
        return ("recorded on CPU devices: these costs are no GPU's, do not give them to a GPU run",)
    return ()


def _label(program: Program) -> str:
    number = "" if program.key.program_id is None else f" ({program.key.program_id})"
    return program.key.name + number
