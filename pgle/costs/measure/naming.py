"""Programs of a trace, joined to their HLO modules, and the name under which each traced instruction is filed.

A program id is the running number of a module in its process. A rank that compiles one helper module more than the
others has other ids from then on, and jit compiles again under a new one; kept separate, collectives of such a rank
would never be compared with the other ranks' executions, so `unite_programs` makes them one.

XLA looks costs up by the name an instruction had when LHS ran. Compute instructions keep that name. Collectives may
not: newer XLA renames synchronous ones, and a generic ``async-start`` runs under the name it wraps. What
belongs to an instruction without being it (the ``reduce.N`` kernel of a fusion, a ``.remat`` copy) is its owner's time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgle.costs.profile.lookup import LookupRow, LookupTable
from pgle.costs.profile.value import Cost, CostKind, Origin, likely_kind, strip_remat
from pgle.errors import UserError, choices
from pgle.trace.table import Codes, Device, ModuleKey, Trace, distinct, totals
from pgle.trace.windows import compute_ns
from pgle.xla.collectives import loops, owner
from pgle.xla.hlo.module import Module

MIN_NAME_OVERLAP = 0.9
"""An HLO module of another program id is taken for a program when it has this share of the instruction names."""

BLOCK = 1 << 18  # rows that are looked at together


@dataclass(frozen=True)
class TracedProgram:
    """One executable, as every process of a job runs it."""

    key: ModuleKey  # name and program id
    index: int  # into `Trace.modules`
    instructions: tuple[int, ...]  # the ones that it ran, as indices into `Trace.instructions`, ascending
    hlo: Module | None  # its final HLO module, None where none was given or embedded
    fingerprints: tuple[str, ...]  # of the HLO modules of all processes; autotuning can make them differ
    gpu_time_ns: int  # total time of its activities in the trace
    compute_ns: int  # without collectives
    lhs_module: Module | None = None  # as LHS saw it, from a schedule dump; None if absent


def traced_programs(trace: Trace, modules: Sequence[Module]) -> tuple[Trace, tuple[TracedProgram, ...]]:
    """The programs of a trace, the one with most compute first, and the trace with one module index for each.

    Args:
        modules: HLO modules from dumps; without, modules in the trace separate programs of one name.
    """
    found = find_programs(trace, modules)
    times = Counter(program.key.name for program in found)
    named = [with_embedded_hlo(trace, item) if times[item.key.name] > 1 else item for item in found]
    return unite_programs(trace, named)


def with_embedded_hlo(trace: Trace, program: TracedProgram) -> TracedProgram:
    """The program with the HLO that the trace embeds, where it has none from a dump."""
    if program.hlo is not None or program.key not in trace.hlo:
        return program
    from pgle.xla.hlo.proto import module_from_bytes  # protocol buffers: most conversions of nsys do without

    module = module_from_bytes(trace.hlo[program.key], f"HLO of {program.key.name} embedded in the trace")
    fingerprints = (module.fingerprint,) if module.fingerprint else ()
    return replace(program, hlo=module, fingerprints=fingerprints)


def find_programs(trace: Trace, modules: Sequence[Module]) -> tuple[TracedProgram, ...]:
    """The programs of a trace, the one with most compute (the main module) first."""
    times, busy = totals(trace.module, trace.duration_ns, len(trace.modules)), compute_ns(trace)
    ran = _values_by_module(trace.module, trace.instruction, len(trace.instructions))
    programs = []
    for index, key in enumerate(trace.modules):
        instructions = tuple(ran.get(index, ()))
        found = _modules_of(key, {trace.instructions[code] for code in instructions}, modules)
        fingerprints = tuple(dict.fromkeys(module.fingerprint for module in found if module.fingerprint))
        hlo = found[0] if found else None
        programs.append(TracedProgram(key, index, instructions, hlo, fingerprints, int(times[index]), int(busy[index])))
    return _by_time(programs)


def _by_time(programs: Sequence[TracedProgram]) -> tuple[TracedProgram, ...]:
    return tuple(sorted(programs, key=lambda program: (-program.compute_ns, -program.gpu_time_ns, program.key.name)))


def _modules_of(key: ModuleKey, names: set[str], modules: Sequence[Module]) -> tuple[Module, ...]:
    """The HLO modules of one executable, the ones with its program id first, then the ones that only share its name."""
    named = [module for module in modules if module.name == key.name]
    same_id = [module for module in named if module.program_id == key.program_id]
    if same_id or not named:
        return tuple(same_id)

    def overlap(module: Module) -> float:
        return len(names & module.instructions.keys()) / max(len(names), 1)

    return tuple(module for module in sorted(named, key=overlap, reverse=True) if overlap(module) >= MIN_NAME_OVERLAP)


def select_programs(programs: Sequence[TracedProgram], selector: str) -> tuple[TracedProgram, ...]:
    """The programs that ``--module`` names.

    Args:
        selector: ``auto`` (the main module), ``all``, or a regular expression searched in module names.

    Raises:
        UserError: nothing matches.
    """
    if selector == "auto":
        return tuple(programs[:1])
    if selector == "all":
        return tuple(programs)
    chosen = tuple(program for program in programs if re.search(selector, program.key.name))
    if not chosen:
        remedy = choices(selector, (program.key.name for program in programs))
        raise UserError("no module of the trace matches", where=f"--module {selector}", remedy=remedy)
    return chosen


def unite_programs(trace: Trace, programs: Sequence[TracedProgram]) -> tuple[Trace, tuple[TracedProgram, ...]]:
    """Programs of one name that are the same, as one: of equal fingerprint, or of other processes with equal names.

    Returns:
        The trace with one module index for each program, executions numbered over all its ids by time; and the
        programs, the one with most compute first.
    """
    if len({program.key.name for program in programs}) == len(programs):
        return trace, tuple(programs)
    ran_on = _values_by_module(trace.module, trace.device, len(trace.devices))
    processes = {index: {trace.devices[code].process for code in codes} for index, codes in ran_on.items()}
    groups: list[list[TracedProgram]] = []
    for program in sorted(programs, key=lambda item: (item.key.name, item.key.program_id or 0)):
        same = (group for group in groups if group[0].key.name == program.key.name)
        partner = next((group for group in same if _is_one(processes, group, program)), None)
        groups.append([program]) if partner is None else partner.append(program)
    if len(groups) == len(programs):
        return trace, tuple(programs)
    module, execution = trace.module.copy(), trace.execution.astype(np.int32)  # united ones are more than each
    united = []
    for group in groups:
        if len(group) > 1:
            rows = np.flatnonzero(np.isin(trace.module, [program.index for program in group]))
            execution[rows] = _numbered_by_time(trace, rows)
            module[rows] = group[0].index
        united.append(_united(group))
    return replace(trace, module=module, execution=execution), _by_time(united)


def _united(group: Sequence[TracedProgram]) -> TracedProgram:
    return replace(
        group[0],
        instructions=tuple(sorted({code for program in group for code in program.instructions})),
        hlo=next((program.hlo for program in group if program.hlo is not None), None),
        fingerprints=tuple(dict.fromkeys(one for program in group for one in program.fingerprints)),
        gpu_time_ns=sum(program.gpu_time_ns for program in group),
        compute_ns=sum(program.compute_ns for program in group),
    )


def _values_by_module(module: Codes, values: Codes, count: int) -> dict[int, list[int]]:
    """The distinct values of each module's rows, ascending, in one pass whatever the number of modules."""
    present = np.empty(0, np.int64)
    for first in range(0, len(module), BLOCK):
        keys = module[first : first + BLOCK].astype(np.int64) * count + values[first : first + BLOCK]
        present = distinct(np.concatenate((present, distinct(keys))))
    found: dict[int, list[int]] = {}
    for key in present.tolist():
        found.setdefault(key // count, []).append(key % count)
    return found


def _is_one(processes: Mapping[int, set[str]], group: Sequence[TracedProgram], program: TracedProgram) -> bool:
    if any(set(other.fingerprints) & set(program.fingerprints) for other in group):
        return True
    of_group = set().union(*(processes.get(other.index, set()) for other in group))
    if of_group & processes.get(program.index, set()):
        return False  # one process tells its modules apart
    mine, theirs = set(program.instructions), set(group[0].instructions)
    return len(mine & theirs) >= MIN_NAME_OVERLAP * len(mine | theirs)


def _numbered_by_time(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
    """Running number of each row's (module, execution) on its device, by first start; -1 stays."""
    result = trace.execution[rows].astype(np.int32)
    known = np.flatnonzero(result >= 0)
    device, module = trace.device[rows[known]].astype(np.int64), trace.module[rows[known]]
    executions = int(result.max(initial=0)) + 1
    pair = device * len(trace.modules) + module
    if np.count_nonzero(np.bincount(pair)) == len(distinct(device)):
        return result  # on each device one module, numbered as it is
    keys, first, inverse = np.unique(pair * executions + result[known], return_index=True, return_inverse=True)
    of_device = keys // executions // len(trace.modules)
    order = np.lexsort((first, of_device))  # rows of a device are ordered by start
    number = np.empty(len(keys), np.int32)
    number[order] = np.arange(len(keys)) - np.searchsorted(of_device[order], of_device[order])
    result[known] = number[inverse]
    return result


_LOOP = CostKind.LOOP  # asked for once: a member of an enum takes as long as all else of a name
_NEVER_A_COST = {"while", "conditional", "call", "get-tuple-element", "tuple", "bitcast", "parameter", "constant"}


FiledLoop = tuple[Cost, list[int]]
"""A loop of the entry computation, whose cost covers all its iterations, and what runs in it, as indices into
`Trace.instructions`."""


@dataclass(frozen=True, eq=False)
class Naming:
    """How the instruction names of a trace map to the names that one program's costs are filed under."""

    target: npt.NDArray[np.int32]  # int32[len(trace.instructions)], index into `filed`; -1: not a cost of this program
    filed: tuple[Cost, ...]  # the names to file costs under, each with what is known of it before it is measured
    # Of each of `filed`: the instruction of the final module whose time it is, empty without HLO; and
    owners: tuple[str, ...]
    # occurrences per execution of the module (of a name with rematerialised copies the sum of all; 0 if unknown); and
    occurrences: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], ...], ...]  # replica groups of a collective; empty: all devices
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # traced names that are no cost, by reason
    loops: tuple[FiledLoop, ...] = ()  # by name; without HLO there are no loops to know of

    @cached_property
    def communicates(self) -> npt.NDArray[np.bool_]:
        """bool[max(names, 1)]: which names are collectives."""
        return np.array([item.kind == CostKind.COLLECTIVE for item in self.filed] or [False])

    @cached_property
    def iterations(self) -> npt.NDArray[np.int32]:
        """int32[max(names, 1)]: `occurrences`; where unknown, launches with nothing in between are one."""
        return np.array(self.occurrences or [0], dtype=np.int32)

    @property
    def collective_instructions(self) -> npt.NDArray[np.bool_]:
        """bool[len(trace.instructions)]: which traced names are collectives of the program."""
        return (self.target >= 0) & self.communicates[self.target]

    @property
    def instruction_iterations(self) -> npt.NDArray[np.int64]:
        """int64[len(trace.instructions)]: how often each runs in an execution of its module; 0 where unknown."""
        return np.where(self.target >= 0, self.iterations[self.target], 0).astype(np.int64)


def name_instructions(trace: Trace, program: TracedProgram, lhs_module: Module | None = None) -> Naming:
    """Decide for every instruction name of a program where its time goes.

    Args:
        program: with or without HLO. Without, every name is filed as it is and its kind is a guess.
        lhs_module: the module as LHS saw it (schedule dump), where there is one.
    """
    filed: dict[str, tuple[Cost, LookupRow | None]] = {}
    left_out: dict[str, list[str]] = {}
    codes = np.full(len(trace.instructions), -1, dtype=np.int32)
    table = None if program.hlo is None else LookupTable(program.hlo, lhs_module)
    order: dict[str, int] = {}
    runs: dict[str, dict[str, int]] = {}
    for code in program.instructions:
        name = trace.instructions[code]
        found = _file_by_guess(name) if table is None else _file(table, name)
        if isinstance(found, str):
            left_out.setdefault(found, []).append(name)
            continue
        cost, row = found
        known = filed.get(cost.name)
        if known is None or (known[0].trace_name and not cost.trace_name):
            filed[cost.name] = found
        executions = 0 if row is None or not row.is_counted else row.executions
        runs.setdefault(cost.name, {})["" if row is None else row.instruction.name] = executions
        codes[code] = order.setdefault(cost.name, len(order))
    times = [sum(counts.values()) if all(counts.values()) else 0 for counts in runs.values()]
    kept = [filed[name] for name in order]
    return Naming(
        target=codes,
        filed=tuple(cost for cost, _ in kept),
        owners=tuple("" if row is None else row.instruction.name for _, row in kept),
        occurrences=tuple(times),
        groups=tuple(() if row is None else row.groups for _, row in kept),
        left_out={reason: tuple(names) for reason, names in left_out.items()},
        loops=() if program.hlo is None else _loops(trace, program, program.hlo),
    )


def _loops(trace: Trace, program: TracedProgram, module: Module) -> tuple[FiledLoop, ...]:
    """The outermost loops, each with the instructions that run inside it."""
    found: dict[str, list[int]] = {}
    for code in program.instructions:
        owning = owner(module, trace.instructions[code])
        around = () if owning is None else loops(module, owning)
        if around and module.instructions[around[0][0]].computation == module.entry:
            found.setdefault(around[0][0], []).append(code)
    return tuple(
        (Cost(name, 0.0, kind=_LOOP, opcode="while", shape=str(module.instructions[name].shape)), found[name])
        for name in sorted(found)
    )


def _file_by_guess(name: str) -> tuple[Cost, None] | str:
    if name.startswith("command_buffer"):
        return "command buffer"
    kind = likely_kind(name)
    if kind is _LOOP:
        return "control flow"
    bare = strip_remat(name)
    return Cost(bare, 0.0, kind=kind, trace_name="" if bare == name else name), None


def _file(table: LookupTable, name: str) -> tuple[Cost, LookupRow] | str:
    """Where the time of a traced name goes, or the reason why nowhere."""
    if name.startswith("command_buffer"):
        return "command buffer"
    row = table.row_of(name)
    if row is None:
        return "not in the HLO module"
    if row.instruction.opcode in _NEVER_A_COST:
        return "control flow"
    cost = row.cost(0.0, Origin.MEASURED)
    return (cost if cost.name == name else cost._replace(trace_name=name)), row


def group_of_device(naming: Naming, devices: Sequence[Device]) -> npt.NDArray[np.int64]:
    """int64[names, devices]: the replica group that a device is in, for each collective; 0 where unknown."""
    table = np.zeros((max(len(naming.filed), 1), max(len(devices), 1)), dtype=np.int64)
    ids = [device.global_id for device in devices]
    if len({device.process for device in devices}) == 1 and all(number is None for number in ids):
        # JAX numbers the devices of a lone process as CUDA does
        members = {number for groups in naming.groups for group in groups for number in group}
        ids = [device.ordinal for device in devices]
        if members != set(ids):
            return table
    if any(number is None for number in ids):
        return table
    for row, groups in enumerate(naming.groups):
        member = {number: index for index, group in enumerate(groups) for number in group}
        table[row] = [member.get(number, 0) if number is not None else 0 for number in ids]
    return table
