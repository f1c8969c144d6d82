"""Turn a trace, with HLO dumps of its program, into costs per module and instruction, robust to
warm-up.

`measure` finds the programs of a trace, and calls `aggregate`:

1. `traced_programs`, `select_programs`: join the executables in the trace to their HLO modules, and
   choose the requested ones.

`aggregate`, for all programs together:

2. `name_instructions` (profile/lookup.py): find the name under which each traced instruction's time
   is filed.
3. `align_program`, `renumbered` (alignment.py): give each execution the same number on every
   device.
4. `find_executions`, `measured_window` (trace/steady.py): find every execution, and leave out
   warm-up and truncated ones.

`_program_costs`, for each program:

5. `collect_samples` (samples.py): GPU activities → launches → occurrences of an instruction.
6. `rank_skew_us` (skew.py): how much longer compute takes on the slowest rank.
7. `compute_costs`, `collective_costs`, `loop_costs` (samples.py): the statistic over occurrences
   and over whole loops. Collectives do not include the wait for the last rank.

Finally, called by `pgle.run.convert`:

8. `measured_profile`: the costs of all programs under the names that a profile uses, with their
   provenance.

A program id is the running number of a module in its process. A rank that compiles one more helper
module than the others has other ids from then on. jit also gives a new id when it compiles again.
Such a rank's collectives must be compared with the other ranks' executions, so `unite_programs`
makes one program of them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgle import __version__
from pgle.costs.measure.alignment import (
    AlignedProgram,
    Alignment,
    CollectiveEnds,
    align_program,
    rank_ids,
    renumbered,
)
from pgle.costs.measure.contention import (
    UNMEASURED,
    Contention,
    LaunchGaps,
    measure_contention,
    measure_launch,
)
from pgle.costs.measure.samples import (
    Statistic,
    collect_samples,
    collective_costs,
    compute_costs,
    loop_costs,
    parse_statistic,
)
from pgle.costs.measure.skew import rank_skew_us
from pgle.costs.profile.lookup import Naming, group_of_device, name_instructions
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.errors import UserError, choices, many, some
from pgle.next import PROFILE
from pgle.trace.columns import (
    BLOCK_ROWS,
    NO_ROWS,
    Codes,
    Flags,
    distinct,
    running_numbers,
    totals,
)
from pgle.trace.steady import (
    MeasuredWindow,
    compute_ns,
    find_executions,
    measured_window,
)
from pgle.trace.table import ModuleKey, Trace
from pgle.xla.flags.text import kept_flags
from pgle.xla.hlo.dumps import Dumps
from pgle.xla.hlo.module import Module

MIN_NAME_OVERLAP = 0.9
"""An HLO module with another program id belongs to a program if it has this share of the
instruction names.
"""


@dataclass(frozen=True)
class TracedProgram:
    """One executable, as all processes of a job run it."""

    key: ModuleKey  # name and program id
    index: int  # index into `Trace.modules`
    # the instructions that ran, as indices into `Trace.instructions`, ascending
    instructions: tuple[int, ...]
    # its final HLO module; None if neither a dump nor the trace holds it
    hlo: Module | None
    # fingerprints of the HLO modules of all processes; autotuning can make them differ
    fingerprints: tuple[str, ...]
    gpu_time_ns: int  # total time of its activities in the trace, in ns
    compute_ns: int  # `gpu_time_ns` without collectives
    # the module as LHS saw it, from a schedule dump; None if there is none
    lhs_module: Module | None = None


def traced_programs(
    trace: Trace, modules: Sequence[Module]
) -> tuple[Trace, tuple[TracedProgram, ...]]:
    """Return the programs of a trace, the one with the most compute first.

    Args:
        modules: HLO modules from dumps. Without them, the modules that the trace embeds separate
            programs of one name.

    Returns:
        The trace with one module index for each program, and the programs.
    """
    found = find_programs(trace, modules)
    times = Counter(program.key.name for program in found)
    named = []
    for program in found:
        if times[program.key.name] > 1:
            program = with_embedded_hlo(trace, program)
        named.append(program)
    return unite_programs(trace, named)


def with_embedded_hlo(trace: Trace, program: TracedProgram) -> TracedProgram:
    """Add the HLO that the trace embeds to a program, if no dump had its HLO."""
    if program.hlo is not None or program.key not in trace.hlo:
        return program
    # imports protocol buffers, which most conversions of nsys traces do not need
    from pgle.xla.hlo.proto import module_from_bytes

    module = module_from_bytes(
        trace.hlo[program.key], f"HLO of {program.key.name} embedded in the trace"
    )
    fingerprints = (module.fingerprint,) if module.fingerprint else ()
    return replace(program, hlo=module, fingerprints=fingerprints)


def find_programs(trace: Trace, modules: Sequence[Module]) -> tuple[TracedProgram, ...]:
    """Return the programs of a trace, the one with the most compute (the main module) first."""
    gpu_time_ns = totals(trace.module, trace.duration_ns, len(trace.modules))
    busy_ns = compute_ns(trace)
    ran = _values_by_module(trace.module, trace.instruction, len(trace.instructions))
    programs = []
    for index, key in enumerate(trace.modules):
        instructions = tuple(ran.get(index, ()))
        names = {trace.instructions[code] for code in instructions}
        found = _modules_of(key, names, modules)
        fingerprints = dict.fromkeys(module.fingerprint for module in found)
        fingerprints.pop("", None)
        program = TracedProgram(
            key=key,
            index=index,
            instructions=instructions,
            hlo=found[0] if found else None,
            fingerprints=tuple(fingerprints),
            gpu_time_ns=int(gpu_time_ns[index]),
            compute_ns=int(busy_ns[index]),
        )
        programs.append(program)
    return _by_time(programs)


def _by_time(programs: Sequence[TracedProgram]) -> tuple[TracedProgram, ...]:
    """Return programs ordered by compute time, the most first."""
    return tuple(
        sorted(
            programs,
            key=lambda program: (
                -program.compute_ns,
                -program.gpu_time_ns,
                program.key.name,
            ),
        )
    )


def _modules_of(
    key: ModuleKey, names: set[str], modules: Sequence[Module]
) -> tuple[Module, ...]:
    """Return the HLO modules of one executable.

    If some have its program id, only these. Otherwise modules of its name with `MIN_NAME_OVERLAP`,
    the best first.
    """
    named = [module for module in modules if module.name == key.name]
    same_id = [module for module in named if module.program_id == key.program_id]
    if same_id or not named:
        return tuple(same_id)

    def overlap(module: Module) -> float:
        """Return the share of the traced instructions that a module has."""
        return len(names & module.instructions.keys()) / max(len(names), 1)

    return tuple(
        module
        for module in sorted(named, key=overlap, reverse=True)
        if overlap(module) >= MIN_NAME_OVERLAP
    )


def select_programs(
    programs: Sequence[TracedProgram], selector: str
) -> tuple[TracedProgram, ...]:
    """Return the programs that ``--module`` selects.

    Args:
        selector: ``auto`` (the main module), ``all``, or a regular expression searched in module
            names.

    Raises:
        UserError: nothing matches.
    """
    if selector == "auto":
        return tuple(programs[:1])
    if selector == "all":
        return tuple(programs)
    chosen = tuple(
        program for program in programs if re.search(selector, program.key.name)
    )
    if not chosen:
        remedy = choices(selector, (program.key.name for program in programs))
        raise UserError(
            "no module of the trace matches",
            where=f"--module {selector}",
            remedy=remedy,
        )
    return chosen


def unite_programs(
    trace: Trace, programs: Sequence[TracedProgram]
) -> tuple[Trace, tuple[TracedProgram, ...]]:
    """Join entries of one name that are the same program.

    Entries are the same if they share a fingerprint, or if different processes ran them with nearly
    the same instruction names.

    Returns:
        The trace with one module index for each program, and executions numbered by time over all
        its ids. Then the programs, the one with the most compute first.
    """
    if len({program.key.name for program in programs}) == len(programs):
        return trace, tuple(programs)
    groups = _groups_of_same(trace, programs)
    if len(groups) == len(programs):
        return trace, tuple(programs)
    module = trace.module.copy()
    # a united program has more executions than each of its entries, so numbers may need more bits
    execution = trace.execution.astype(np.int32)
    united = []
    for group in groups:
        if len(group) > 1:
            indices = [program.index for program in group]
            rows = np.flatnonzero(np.isin(trace.module, indices))
            execution[rows] = _numbered_by_time(trace, rows)
            module[rows] = group[0].index
        united.append(_united(group))
    return replace(trace, module=module, execution=execution), _by_time(united)


def _groups_of_same(
    trace: Trace, programs: Sequence[TracedProgram]
) -> list[list[TracedProgram]]:
    """Group the entries that are the same program, by name and program id."""
    ran_on = _values_by_module(trace.module, trace.device, len(trace.devices))
    processes = {
        index: {trace.devices[code].process for code in codes}
        for index, codes in ran_on.items()
    }
    by_name: defaultdict[str, list[_Alike]] = defaultdict(list)
    for program in sorted(
        programs, key=lambda item: (item.key.name, item.key.program_id or 0)
    ):
        ran_by = processes.get(program.index, set())
        groups = by_name[program.key.name]
        group = next((one for one in groups if one.has(program, ran_by)), None)
        if group is None:
            group = _Alike()
            groups.append(group)
        group.add(program, ran_by)
    return [group.programs for group in chain.from_iterable(by_name.values())]


@dataclass
class _Alike:
    """Entries of one name that are the same program; in a large job one per rank."""

    programs: list[TracedProgram] = field(default_factory=list)
    fingerprints: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)  # the processes that ran them

    def has(self, program: TracedProgram, processes: set[str]) -> bool:
        """Whether an entry is the same program as these."""
        if not self.fingerprints.isdisjoint(program.fingerprints):
            return True
        if not self.processes.isdisjoint(processes):
            return False  # different entries in one process are different modules
        mine = set(program.instructions)
        theirs = set(self.programs[0].instructions)
        return len(mine & theirs) >= MIN_NAME_OVERLAP * len(mine | theirs)

    def add(self, program: TracedProgram, processes: set[str]) -> None:
        """Add a program that ran in some processes."""
        self.programs.append(program)
        self.fingerprints.update(program.fingerprints)
        self.processes |= processes


def _united(group: Sequence[TracedProgram]) -> TracedProgram:
    """Join several entries of the same program."""
    instructions: set[int] = set()
    fingerprints: dict[str, None] = {}
    for program in group:
        instructions.update(program.instructions)
        fingerprints |= dict.fromkeys(program.fingerprints)
    modules = (program.hlo for program in group if program.hlo is not None)
    return replace(
        group[0],
        instructions=tuple(sorted(instructions)),
        hlo=next(modules, None),
        fingerprints=tuple(fingerprints),
        gpu_time_ns=sum(program.gpu_time_ns for program in group),
        compute_ns=sum(program.compute_ns for program in group),
    )


def _values_by_module(module: Codes, values: Codes, count: int) -> dict[int, list[int]]:
    """Return the distinct values of each module's rows, ascending. One pass over the rows serves
    all modules.

    Args:
        count: more than the largest value.
    """
    present = NO_ROWS
    for first in range(0, len(module), BLOCK_ROWS):
        keys = (
            module[first : first + BLOCK_ROWS].astype(np.int64) * count
            + values[first : first + BLOCK_ROWS]
        )
        present = distinct(np.concatenate((present, distinct(keys))))
    found: dict[int, list[int]] = {}
    for key in present.tolist():
        found.setdefault(key // count, []).append(key % count)
    return found


def _numbered_by_time(
    trace: Trace, rows: npt.NDArray[np.intp]
) -> npt.NDArray[np.int32]:
    """Number each row's (module, execution) on its device by first start; -1 stays."""
    result = trace.execution[rows].astype(np.int32)
    known = np.flatnonzero(result >= 0)
    device = trace.device[rows[known]].astype(np.int64)
    module = trace.module[rows[known]]
    # sorted instead of counted in a table, because a job has thousands of devices, each with its
    # own ids
    pairs = distinct(device * len(trace.modules) + module)
    if len(pairs) == len(distinct(device)):
        return result  # each device ran one module, whose numbers are right
    most = int(result.max(initial=0)) + 1
    item = module.astype(np.int64) * most + result[known]
    # rows of a device are ordered by start
    result[known] = running_numbers(device, item)
    return result


MODULES_SHOWN = 3  # most modules to name in one warning


@dataclass(frozen=True)
class ProgramCosts:
    """The costs of one program."""

    program: TracedProgram  # the program
    costs: tuple[Cost, ...]  # one per name, ordered by name
    window: MeasuredWindow  # the executions that were measured
    left_out: Mapping[str, tuple[str, ...]]  # traced names that get no cost, by reason
    warnings: tuple[str, ...] = ()  # one line each
    # gaps between kernels; None if too few were recorded
    launch: LaunchGaps | None = None
    # how much collectives slow kernels; None if the trace does not show it
    contention: Contention | None = None
    ranks: int = 0  # ranks in the largest collective; 0 if no HLO tells
    # JAX's global ids of the devices that ran it; empty if one is unknown
    rank_ids: tuple[int, ...] = ()
    # the times at which its collectives ended on each device
    ends: tuple[CollectiveEnds, ...] = ()

    @property
    def skew_us(self) -> float | None:
        """Extra µs of compute per step on the slowest rank, compared with the median rank; None if
        ranks were not compared.
        """
        known = [
            (cost.skew_us, cost.samples)
            for cost in self.costs
            if cost.skew_us is not None
        ]
        return (
            sum(skew * samples for skew, samples in known) / self.window.used
            if known
            else None
        )


def warnings_of(found: ProgramCosts, alignment: Alignment) -> tuple[str, ...]:
    """Return warnings on the costs of a program, one line each."""
    window = found.window
    label = found.program.key.name
    given = len(window.devices)
    lines = []
    if window.seen and window.used == given and not window.dropped:
        lines.append(
            f"{label}: one execution per device in the window, so warm-up cannot be "
            "recognised; trace 5 or more steps"
        )
    collectives = [cost for cost in found.costs if cost.kind == CostKind.COLLECTIVE]
    if collectives:
        lines += _collective_warnings(found, collectives, alignment)
    missing = found.left_out.get("not in the HLO module", ())
    if missing:
        lines.append(
            f"{label}: {len(missing)} traced names are not in its HLO module "
            f"({', '.join(missing[:3])})"
        )
    return tuple(lines)


def _collective_warnings(
    found: ProgramCosts, collectives: Sequence[Cost], alignment: Alignment
) -> Iterator[str]:
    """Yield warnings on the costs of collectives."""
    window = found.window
    label = found.program.key.name
    given = len(window.devices)
    if given < max(found.ranks, 2):
        yield (
            f"{label}: {given} of {found.ranks or 'several'} ranks given: "
            "collective costs include the wait for the others; give all traces"
        )
    noisy = [cost for cost in collectives if cost.samples > 2 and cost.spread > 0.5]
    if noisy:
        worst = max(noisy, key=lambda cost: cost.cost_us * cost.spread)
        count = f"{len(noisy)} collectives vary"
        if len(noisy) == 1:
            count = "1 collective varies"
        yield (
            f"{label}: {count} by more than 50 % between executions: {worst.name} takes "
            f"{worst.min_us:.0f} to {worst.max_us:.0f} µs"
        )
    apart = alignment.describe(window.fewest, window.steps_seen)
    if apart:
        yield f"{label}: {apart}; trace the same steps on all"
    if found.program.hlo is None:
        yield (
            f"{label}: no HLO, so names of collectives may differ from the ones that LHS "
            "looks up; pass --hlo DUMP_DIR"
        )


def folded(lines: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Join equal warnings of several modules to one line that names the modules.

    Args:
        lines: pairs of module and line; the line begins with ``MODULE: ``.
    """
    modules: dict[str, dict[str, None]] = {}
    for module, line in lines:
        modules.setdefault(line.removeprefix(f"{module}: "), {})[module] = None
    return tuple(
        f"{some(names, MODULES_SHOWN)}: {line}" for line, names in modules.items()
    )


MEDIAN = parse_statistic("median")


@dataclass(frozen=True)
class AggregateOptions:
    """The statistics that reduce samples to costs."""

    # for compute, over executions, devices and loop iterations
    stat: Statistic = MEDIAN
    # for collectives, over executions, of the time after the last rank arrived
    collective_stat: Statistic = MEDIAN
    keep_all: bool = False  # use warm-up and truncated executions too


@dataclass(frozen=True, eq=False)
class Measured:
    """The costs that a trace gives."""

    trace: Trace  # the trace, with one module index for each program
    # all programs, the one with the most compute first
    programs: tuple[TracedProgram, ...]
    # the costs of the selected programs, in the same order
    costs: tuple[ProgramCosts, ...]
    options: AggregateOptions  # the statistics

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings on the costs, one line each."""
        lines: list[tuple[str, str]] = []
        for found in self.costs:
            name = found.program.key.name
            lines += ((name, line) for line in found.warnings)
        warnings = folded(lines)
        if self.trace.on_host:
            return (
                "recorded on CPU devices: these are not GPU costs; do not give them to a GPU run",
                *warnings,
            )
        return warnings


def measure(
    trace: Trace,
    dumps: Dumps | None = None,
    *,
    module: str = "auto",
    options: AggregateOptions | None = None,
) -> Measured:
    """Measure the costs of a trace's instructions.

    Args:
        dumps: HLO dumps of the profiled run. Without them, modules embedded in the trace are used.
        module: ``auto`` (the main module), ``all``, or a regular expression searched in module
            names.

    Raises:
        UserError: the trace has no activity of an instruction, no module matches, or no cost is
            left.
    """
    dumps = dumps or Dumps()
    options = options or AggregateOptions()
    if len(trace) == 0:
        lost = ", ".join(f"{item.count} {item.reason}" for item in trace.unresolved)
        raise UserError(
            f"no GPU activity belongs to an HLO instruction ({lost or 'the trace is empty'})",
            where=_source(trace),
            remedy=(
                "trace with NVTX and CUDA on and --xla_gpu_enable_command_buffer= "
                f"('{PROFILE}' does)"
            ),
        )
    trace, programs = traced_programs(trace, dumps.modules)
    selected = select_programs(programs, module)
    absent = _not_dumped(trace, selected, dumps)
    if len(absent) == len(selected):
        raise UserError(
            _no_dump_of(absent, dumps),
            where=dumps.paths[0],
            remedy="give the dump of the profiled run, or --module",
        )
    chosen = [with_embedded_hlo(trace, program) for program in selected]
    lhs_modules = {
        name: dumps.lhs_module(name)
        for name in {program.key.name for program in chosen}
    }
    chosen = [
        replace(program, lhs_module=lhs_modules[program.key.name]) for program in chosen
    ]
    embedded = [program for program in absent if program.key in trace.hlo]
    if embedded:
        missing = _no_dump_of(embedded, dumps)
        remark = f"{dumps.paths[0]}: {missing}; the module in the trace is taken"
        trace = replace(trace, warnings=(*trace.warnings, remark))
    costs = tuple(found for found in aggregate(trace, chosen, options) if found.costs)
    if not costs:
        raise UserError(
            "no cost could be taken from the trace",
            where=_source(trace),
            remedy="trace whole steps",
        )
    return Measured(trace, programs, costs, options)


def _not_dumped(
    trace: Trace, programs: Sequence[TracedProgram], dumps: Dumps
) -> list[TracedProgram]:
    """Return the programs without a matching module in the given dumps; empty if no dump was
    given.
    """
    if not dumps.paths:
        return []
    absent = []
    for program in programs:
        names = {trace.instructions[code] for code in program.instructions}
        if not _modules_of(program.key, names, dumps.modules):
            absent.append(program)
    return absent


def _no_dump_of(programs: Sequence[TracedProgram], dumps: Dumps) -> str:
    """Return a message: the dump lacks these programs, and which modules it has."""
    names = dict.fromkeys(program.key.name for program in programs)
    held = ", ".join(dict.fromkeys(module.name for module in dumps.modules[:5]))
    return f"no module of the dump is {some(names, MODULES_SHOWN)} (it has {held})"


def _source(trace: Trace) -> str:
    """Return the path of a trace's first input; empty if it has none."""
    return trace.sources[0].path if trace.sources else ""


def aggregate(
    trace: Trace,
    programs: Sequence[TracedProgram],
    options: AggregateOptions | None = None,
) -> tuple[ProgramCosts, ...]:
    """Return the costs of each program, in the given order."""
    indices = [program.index for program in programs]
    namings = [
        name_instructions(trace, item.instructions, item.hlo, item.lhs_module)
        for item in programs
    ]
    aligned = [
        align_program(trace, index, naming)
        for index, naming in zip(indices, namings, strict=True)
    ]
    numbered = renumbered(trace, indices, aligned)
    executions = find_executions(
        numbered,
        np.logical_or.reduce([naming.collective_instructions for naming in namings]),
    )
    options = options or AggregateOptions()
    windows = [
        measured_window(executions, program.index, options.keep_all)
        for program in programs
    ]
    return tuple(
        _program_costs(numbered, program, naming, ranks, *window, options)
        for program, naming, ranks, window in zip(
            programs, namings, aligned, windows, strict=True
        )
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
    """Return the costs of one program, from its rows in a trace."""
    samples = collect_samples(trace, program.index, naming, kept)
    of_collective = naming.communicates[samples.name]
    groups = group_of_device(naming, trace.devices)
    skew_us = rank_skew_us(samples, ~of_collective, groups[: len(naming.filed)])
    costs = [
        *compute_costs(samples, ~of_collective, skew_us, naming.filed, options.stat),
        *collective_costs(
            samples, of_collective, naming, trace.devices, options.collective_stat
        ),
        *loop_costs(trace, program.index, naming.loops, kept, options.stat),
    ]
    if trace.simulated:
        costs = [cost._replace(origin=Origin.SIMULATED) for cost in costs]
    costs.sort(key=lambda cost: cost.name)
    group_sizes = map(len, chain.from_iterable(naming.groups))
    found = ProgramCosts(
        program=program,
        costs=tuple(costs),
        window=window,
        left_out=naming.left_out,
        launch=measure_launch(trace, program.index, kept, naming),
        ranks=max(group_sizes, default=0),
        rank_ids=rank_ids(trace, window.devices),
        ends=ranks.windows,
        contention=_contention(trace, program, naming, kept),
    )
    lines = (*_lost_records(trace, found), *warnings_of(found, ranks.alignment))
    return replace(found, warnings=lines)


def _lost_records(trace: Trace, found: ProgramCosts) -> Iterator[str]:
    """Yield a warning on executions for which the recorder lost activities, with the devices."""
    lost = found.window.lost
    if not lost:
        return
    counts: Counter[int] = Counter()
    for of_execution in lost.values():
        counts.update(of_execution)
    devices = (trace.devices[device] for device, _ in counts.most_common())
    where = some((f"device {item.ordinal} of {item.process}" for item in devices), 2)
    shown = some((f"execution {number}" for number in sorted(lost)), 5)
    missing = many(sum(counts.values()), "GPU record")
    yield (
        f"{found.program.key.name}: {missing} lost in {shown}, on {where}: left out; record fewer "
        "steps"
    )


def _contention(
    trace: Trace, program: TracedProgram, naming: Naming, kept: Flags
) -> Contention | None:
    """Return the contention that the trace shows; None without HLO.

    A trace of the simulated GPU gives no factors, because they would be the model's own.
    """
    if program.hlo is None:
        return None
    found = measure_contention(trace, program.index, kept, program.hlo, naming)
    if found and trace.simulated:
        return replace(found, product=UNMEASURED, other=UNMEASURED)
    return found


def measured_profile(measured: Measured, *, fingerprint_names: bool = False) -> Profile:
    """Join the costs of all programs to one profile.

    Args:
        fingerprint_names: name costs ``fingerprint::name``, which several programs in one profile
            need.

    Raises:
        UserError: `fingerprint_names` is set, and a program's fingerprint is unknown.
    """
    costs: list[Cost] = []
    for found in measured.costs:
        if not fingerprint_names:
            costs += found.costs
            continue
        for fingerprint in fingerprints(found):
            costs += (cost._replace(fingerprint=fingerprint) for cost in found.costs)
    return Profile(
        costs=tuple(costs),
        provenance=_provenance(measured),
        warnings=measured.warnings,
    )


def fingerprints(found: ProgramCosts) -> Sequence[str]:
    """Return the fingerprints of a program, at least one.

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
    """Return the provenance for the sidecar: tool, inputs, statistics, flags, and a record of each
    module.
    """
    inputs = [
        {
            "name": Path(source.path).name,
            "format": source.format,
            "version": source.version,
        }
        for source in measured.trace.sources
    ]
    return {
        "tool": f"pgle {__version__}",
        "inputs": inputs,
        "stat": measured.options.stat.name,
        "collective_stat": measured.options.collective_stat.name,
        "xla_flags": kept_flags(measured.trace.xla_flags),
        "modules": [_module_record(found) for found in measured.costs],
    }


def _module_record(found: ProgramCosts) -> dict[str, object]:
    """Return the sidecar's record of a module: its executions, and what they gave."""
    program = found.program
    record: dict[str, object] = {
        "name": program.key.name,
        "program_id": program.key.program_id,
        "fingerprints": list(program.fingerprints),
        "hlo": program.hlo is not None,
    }
    window = found.window
    dropped = {str(number): why for number, why in window.dropped.items()}
    record |= {
        "executions_used": window.used,
        "executions_seen": window.seen,
        "executions_dropped": dropped,
        "devices": len(window.devices),
        "ranks": found.ranks,
        "rank_ids": list(found.rank_ids),
        "step_us": window.span_us if isfinite(window.span_us) else None,
    }
    collectives = [cost for cost in found.costs if cost.kind == CostKind.COLLECTIVE]
    record |= {
        "names": len(found.costs),
        "collectives": len(collectives),
        "launch": None if found.launch is None else asdict(found.launch),
        "contention": None if found.contention is None else asdict(found.contention),
    }
    return record
