"""A trace and the HLO dumps of its program become costs: per module, per instruction, robust to warm-up.

1. `traced_programs`, `select_programs` (naming.py): the executables in the trace, and the requested ones.
2. `name_instructions` (naming.py): under which name the time of each traced instruction is filed.
3. `align_program`, `renumbered` (ranks.py): execution numbers that mean the same execution on every device.
4. `find_executions`, `measured_window` (trace/windows.py): every execution; warm-up and truncated ones are left out.
5. `collect_samples` (samples.py): GPU activities → launches → occurrences of an instruction.
6. `rank_skew_us` (samples.py): how much longer compute takes on the slowest rank.
7. `compute_costs`, `collective_costs`, `loop_costs` (samples.py): the statistic over occurrences, and over whole loops;
   collectives without the wait for the last rank.
8. `measured_profile`: the costs of all programs under the names that a profile spells, with where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgle import __version__
from pgle.costs.measure.contention import UNMEASURED, Contention, LaunchGaps, measure_contention, measure_launch
from pgle.costs.measure.naming import (
    Naming,
    TracedProgram,
    name_instructions,
    select_programs,
    traced_programs,
    with_embedded_hlo,
)
from pgle.costs.measure.ranks import AlignedProgram, Alignment, CollectiveEnds, align_program, rank_ids, renumbered
from pgle.costs.measure.samples import (
    collect_samples,
    collective_costs,
    compute_costs,
    loop_costs,
    rank_skew_us,
)
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.costs.statistic import Statistic, parse_statistic
from pgle.errors import UserError, some
from pgle.masking import kept_flags
from pgle.next import PROFILE
from pgle.trace.table import ActivityKind, Trace
from pgle.trace.windows import MeasuredWindow, find_executions, measured_window
from pgle.xla.hlo.dumps import Dumps, first_names

MODULES_SHOWN = 3  # modules that are named where a warning is about several


@dataclass(frozen=True)
class ProgramCosts:
    """The costs of one program."""

    program: TracedProgram  # what they are of
    costs: tuple[Cost, ...]  # one per name, ordered by name
    window: MeasuredWindow  # the executions they stand on
    left_out: Mapping[str, tuple[str, ...]]  # traced names that are no cost, by reason
    warnings: tuple[str, ...] = ()  # one line each
    launch: LaunchGaps | None = None  # gaps between kernels; None where too few were seen
    contention: Contention | None = None  # of kernels, while collectives run; None if the trace does not show it
    ranks: int = 0  # how many meet in the largest collective; 0 where no HLO says it
    # JAX's global ids of the devices that ran it; empty where the trace does not say all of them
    rank_ids: tuple[int, ...] = ()
    ends: tuple[CollectiveEnds, ...] = ()  # when its collectives ended on each device

    @property
    def skew_us(self) -> float | None:
        """How much longer compute takes per step on the slowest rank than typically; None on a single device."""
        known = [(cost.skew_us, cost.samples) for cost in self.costs if cost.skew_us is not None]
        return sum(skew * samples for skew, samples in known) / self.window.used if known else None


def warnings_of(found: ProgramCosts, alignment: Alignment) -> tuple[str, ...]:
    """What the user should know, one line each."""
    window, label, given = found.window, found.program.key.name, len(found.window.devices)
    collectives = [cost for cost in found.costs if cost.kind == CostKind.COLLECTIVE]
    lines = []
    if window.seen and window.used == given and not window.dropped:
        lines.append(
            f"{label}: one execution per device in the window, so warm-up cannot be recognised; trace 5 or more steps"
        )
    if collectives and given < max(found.ranks, 2):
        lines.append(
            f"{label}: {given} of {found.ranks or 'several'} ranks given: "
            "collective costs include the wait for the others; give all traces"
        )
    if noisy := [cost for cost in collectives if cost.samples > 2 and cost.spread > 0.5]:
        worst = max(noisy, key=lambda cost: cost.cost_us * cost.spread)
        count = "1 collective varies" if len(noisy) == 1 else f"{len(noisy)} collectives vary"
        lines.append(
            f"{label}: {count} by more than 50 % between executions: {worst.name} takes {worst.min_us:.0f} to "
            f"{worst.max_us:.0f} µs"
        )
    if collectives and (line := alignment.describe(window.fewest, window.steps_seen)):
        lines.append(f"{label}: {line}; trace the same steps on all")
    if collectives and found.program.hlo is None:
        lines.append(
            f"{label}: no HLO, so names of collectives may differ from the ones that LHS looks up; pass --hlo DUMP_DIR"
        )
    missing = found.left_out.get("not in the HLO module", ())
    if missing:
        lines.append(f"{label}: {len(missing)} traced names are not in its HLO module ({', '.join(missing[:3])})")
    return tuple(lines)


def folded(lines: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Each remark once, with the modules that it is about.

    Args:
        lines: module and line, which begins with ``MODULE: ``.
    """
    modules: dict[str, dict[str, None]] = {}
    for module, line in lines:
        modules.setdefault(line.removeprefix(f"{module}: "), {})[module] = None
    return tuple(f"{some(names, MODULES_SHOWN)}: {line}" for line, names in modules.items())


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AggregateOptions:
    """How samples become costs."""

    # over the executions, devices and loop iterations of a compute instruction
    stat: Statistic = field(default_factory=lambda: parse_statistic("median"))
    # over executions, of the time after the last rank arrived
    collective_stat: Statistic = field(default_factory=lambda: parse_statistic("median"))
    keep_all: bool = False  # use warm-up and truncated executions too


@dataclass(frozen=True, eq=False)
class Measured:
    """What a trace says of the costs of its programs."""

    trace: Trace  # with one module index for each program
    programs: tuple[TracedProgram, ...]  # all of them, the one with most compute first
    costs: tuple[ProgramCosts, ...]  # of the chosen programs, in the same order
    options: AggregateOptions  # the statistics

    @property
    def warnings(self) -> tuple[str, ...]:
        """Remarks on the costs, one line each."""
        lines = folded((found.program.key.name, line) for found in self.costs for line in found.warnings)
        if bool((self.trace.kind == ActivityKind.HOST).all()):
            return ("recorded on CPU devices: these costs are no GPU's, do not give them to a GPU run", *lines)
        return lines


def measure(
    trace: Trace, dumps: Dumps | None = None, *, module: str = "auto", options: AggregateOptions | None = None
) -> Measured:
    """The costs of the instructions of a trace.

    Args:
        dumps: of the profiled run; without, modules embedded in the trace are used.
        module: ``auto`` (the main module), ``all``, or a regular expression searched in module names.

    Raises:
        UserError: the trace has no activity of an instruction, no module matches, or no cost is left.
    """
    dumps, options = dumps or Dumps(), options or AggregateOptions()
    if len(trace) == 0:
        lost = ", ".join(f"{item.count} {item.reason}" for item in trace.unresolved)
        raise UserError(
            f"no GPU activity belongs to an HLO instruction ({lost or 'the trace is empty'})",
            where=_source(trace),
            remedy=f"trace with NVTX and CUDA on and --xla_gpu_enable_command_buffer= ('{PROFILE}' does)",
        )
    trace, programs = traced_programs(trace, dumps.modules)
    chosen = [with_embedded_hlo(trace, program) for program in select_programs(programs, module)]
    lhs_modules = {name: dumps.lhs_module(name) for name in {program.key.name for program in chosen}}
    chosen = [replace(program, lhs_module=lhs_modules[program.key.name]) for program in chosen]
    if dumps.paths and all(program.hlo is None for program in chosen):
        raise UserError(
            f"no module of the dump is {chosen[0].key.name} (it has {first_names(dumps.modules)})",
            where=dumps.paths[0],
            remedy="give the dump of the profiled run, or --module",
        )
    costs = tuple(found for found in aggregate(trace, chosen, options) if found.costs)
    if not costs:
        raise UserError("no cost could be taken from the trace", where=_source(trace), remedy="trace whole steps")
    return Measured(trace, programs, costs, options)


def _source(trace: Trace) -> str:
    return trace.sources[0].path if trace.sources else ""


def aggregate(
    trace: Trace, programs: Sequence[TracedProgram], options: AggregateOptions | None = None
) -> tuple[ProgramCosts, ...]:
    """The costs of each program."""
    namings = [name_instructions(trace, program, program.lhs_module) for program in programs]
    aligned = [align_program(trace, program, naming) for program, naming in zip(programs, namings, strict=True)]
    numbered = renumbered(trace, programs, aligned)
    executions = find_executions(numbered, np.logical_or.reduce([naming.collective_instructions for naming in namings]))
    options = options or AggregateOptions()
    windows = [measured_window(executions, program.index, options.keep_all) for program in programs]
    return tuple(
        _program_costs(numbered, program, naming, ranks, *window, options)
        for program, naming, ranks, window in zip(programs, namings, aligned, windows, strict=True)
    )


def _program_costs(
    trace: Trace,
    program: TracedProgram,
    naming: Naming,
    ranks: AlignedProgram,
    kept: Flags,
    window: MeasuredWindow,
    options: AggregateOptions,
) -> ProgramCosts:
    """The costs of one program, from its rows in a trace: kernel by kernel, downward."""
    samples = collect_samples(trace, program.index, naming, kept)
    of_collective = naming.communicates[samples.name]
    skew_us = rank_skew_us(samples, ~of_collective, len(naming.filed))
    costs = [
        *compute_costs(samples, ~of_collective, skew_us, naming.filed, options.stat),
        *collective_costs(samples, of_collective, naming, trace.devices, options.collective_stat),
        *loop_costs(trace, program.index, naming.loops, kept, options.stat),
    ]
    costs.sort(key=lambda cost: cost.name)
    found = ProgramCosts(
        program=program,
        costs=tuple(cost._replace(origin=Origin.SIMULATED) for cost in costs) if trace.simulated else tuple(costs),
        window=window,
        left_out=naming.left_out,
        launch=measure_launch(trace, program.index, kept, naming),
        ranks=max((len(group) for groups in naming.groups for group in groups), default=0),
        rank_ids=rank_ids(trace, window.devices),
        ends=ranks.windows,
        contention=_contention(trace, program, naming, kept),
    )
    return replace(found, warnings=warnings_of(found, ranks.alignment))


def _contention(trace: Trace, program: TracedProgram, naming: Naming, kept: Flags) -> Contention | None:
    """None without HLO. Of a simulated GPU no factors, since they are the model's own."""
    if program.hlo is None:
        return None
    found = measure_contention(trace, program.index, kept, program.hlo, naming)
    return replace(found, product=UNMEASURED, other=UNMEASURED) if found and trace.simulated else found


def measured_profile(measured: Measured, *, fingerprint_names: bool = False) -> Profile:
    """The costs of all programs as one profile.

    Args:
        fingerprint_names: name costs ``fingerprint::name``, which several programs in one profile need.

    Raises:
        UserError: a fingerprint that a name needs is not known.
    """
    named = [
        (found, name) for found in measured.costs for name in (fingerprints(found) if fingerprint_names else ("",))
    ]
    return Profile(
        costs=tuple(cost._replace(fingerprint=name) if name else cost for found, name in named for cost in found.costs),
        provenance=_provenance(measured),
        warnings=measured.warnings,
    )


def fingerprints(found: ProgramCosts) -> Sequence[str]:
    """The fingerprints of a program, at least one.

    Raises:
        UserError: none is known.
    """
    if not found.program.fingerprints:
        raise UserError(
            f"the fingerprint of module {found.program.key.name} is not known",
            remedy="pass --hlo DUMP_DIR of the run, or write one .pbtxt with --module",
        )
    return found.program.fingerprints


def _provenance(measured: Measured) -> dict[str, object]:
    """For the sidecar: tool, inputs, statistics, flags, and of each module the executions that its costs stand on."""
    return {
        "tool": f"pgle {__version__}",
        "inputs": [
            {"name": Path(source.path).name, "format": source.format, "version": source.version}
            for source in measured.trace.sources
        ],
        "stat": measured.options.stat.name,
        "collective_stat": measured.options.collective_stat.name,
        "xla_flags": kept_flags(measured.trace.xla_flags),
        "modules": [
            {
                "name": found.program.key.name,
                "program_id": found.program.key.program_id,
                "fingerprints": list(found.program.fingerprints),
                "hlo": found.program.hlo is not None,
                "executions_used": found.window.used,
                "executions_seen": found.window.seen,
                "executions_dropped": {str(number): why for number, why in found.window.dropped.items()},
                "devices": len(found.window.devices),
                "ranks": found.ranks,
                "rank_ids": list(found.rank_ids),
                "step_us": found.window.span_us if isfinite(found.window.span_us) else None,
                "names": len(found.costs),
                "collectives": sum(cost.kind == CostKind.COLLECTIVE for cost in found.costs),
                "launch": None if found.launch is None else asdict(found.launch),
                "contention": None if found.contention is None else asdict(found.contention),
            }
            for found in measured.costs
        ],
    }
