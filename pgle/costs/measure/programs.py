"""Programs: the executables of a trace, grouped over processes and joined to their HLO modules.

A program id is the running number of a module in its process. A rank that compiles one helper module more than the
others has other ids from then on, and jit compiles again under a new one; kept separate, collectives of such a rank
would never be compared with the other ranks' executions, so `unite_programs` makes them one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError, choices
from pgle.trace.column import distinct, totals
from pgle.trace.table import Codes, ModuleKey, Trace
from pgle.trace.windows import compute_ns

if TYPE_CHECKING:
    from pgle.xla.hlo.module import Module

MIN_NAME_OVERLAP = 0.9
"""An HLO module of another program id is taken for a program when it has this share of the instruction names."""

BLOCK = 1 << 18  # rows that are looked at together
MOST_PAIRS = 1 << 26  # pairs of module and value up to which a table of all of them (64 MiB) replaces a set


@dataclass(frozen=True)
class Program:
    """One executable, as every process of a job runs it."""

    key: ModuleKey  # name and program id
    index: int  # into `Trace.modules`
    instructions: tuple[int, ...]  # those that it ran, as indices into `Trace.instructions`, ascending
    hlo: Module | None  # its final HLO module, None where none was given or embedded
    fingerprints: tuple[str, ...]  # of the HLO modules of all processes; autotuning can make them differ
    gpu_time_ns: int  # total time of its activities in the trace
    compute_ns: int  # of those that are no collectives
    lhs_module: Module | None = None  # as LHS saw it, from a schedule dump; None where there is none


def traced_programs(trace: Trace, modules: Sequence[Module]) -> tuple[Trace, tuple[Program, ...]]:
    """The programs of a trace, the one with most compute first, and the trace with one module index for each.

    Args:
        modules: HLO modules from dumps; without, modules in the trace separate programs of one name.
    """
    found = find_programs(trace, modules)
    times = Counter(program.key.name for program in found)
    named = [with_embedded_hlo(trace, item) if times[item.key.name] > 1 else item for item in found]
    return unite_programs(trace, named)


def with_embedded_hlo(trace: Trace, program: Program) -> Program:
    """The program with the HLO that the trace embeds, where it has none from a dump."""
    if program.hlo is not None or program.key not in trace.hlo:
        return program
    from pgle.xla.hlo.proto import module_from_bytes  # protocol buffers take a tenth of a small conversion

    module = module_from_bytes(trace.hlo[program.key], f"HLO of {program.key.name} embedded in the trace")
    fingerprints = (module.fingerprint,) if module.fingerprint else ()
    return replace(program, hlo=module, fingerprints=fingerprints)


def find_programs(trace: Trace, modules: Sequence[Module]) -> tuple[Program, ...]:
    """The programs of a trace, the one with most compute (the main module) first.

    Args:
        modules: HLO modules from dumps; several processes' dumps may be mixed.
    """
    times, busy = totals(trace.module, trace.duration_ns, len(trace.modules)), compute_ns(trace)
    ran = _values_by_module(trace.module, trace.instruction, len(trace.instructions))
    programs = []
    for index, key in enumerate(trace.modules):
        instructions = tuple(ran.get(index, ()))
        found = _modules_of(key, {trace.instructions[code] for code in instructions}, modules)
        fingerprints = tuple(dict.fromkeys(module.fingerprint for module in found if module.fingerprint))
        hlo = found[0] if found else None
        programs.append(Program(key, index, instructions, hlo, fingerprints, int(times[index]), int(busy[index])))
    return _by_time(programs)


def _by_time(programs: Sequence[Program]) -> tuple[Program, ...]:
    return tuple(sorted(programs, key=lambda program: (-program.compute_ns, -program.gpu_time_ns, program.key.name)))


def _modules_of(key: ModuleKey, names: set[str], modules: Sequence[Module]) -> tuple[Module, ...]:
    """The HLO modules of one executable, those with its program id before those that only share its name."""
    named = [module for module in modules if module.name == key.name]
    same_id = [module for module in named if module.program_id == key.program_id]
    if same_id or not named:
        return tuple(same_id)

    def overlap(module: Module) -> float:
        return len(names & module.instructions.keys()) / max(len(names), 1)

    return tuple(module for module in sorted(named, key=overlap, reverse=True) if overlap(module) >= MIN_NAME_OVERLAP)


def select_programs(programs: Sequence[Program], selector: str) -> tuple[Program, ...]:
    """The programs that ``--module`` names.

    Args:
        programs: main module first.
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


def unite_programs(trace: Trace, programs: Sequence[Program]) -> tuple[Trace, tuple[Program, ...]]:
    """Programs of one name that are the same, as one: of equal fingerprint, or of other processes with equal names.

    Returns:
        The trace with one module index for each program, executions numbered over all its ids by time; and the
        programs, the one with most compute first.
    """
    if len({program.key.name for program in programs}) == len(programs):
        return trace, tuple(programs)
    processes = _processes(trace)
    groups: list[list[Program]] = []
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


def _united(group: Sequence[Program]) -> Program:
    return replace(
        group[0],
        instructions=tuple(sorted({code for program in group for code in program.instructions})),
        hlo=next((program.hlo for program in group if program.hlo is not None), None),
        fingerprints=tuple(dict.fromkeys(one for program in group for one in program.fingerprints)),
        gpu_time_ns=sum(program.gpu_time_ns for program in group),
        compute_ns=sum(program.compute_ns for program in group),
    )


def _processes(trace: Trace) -> dict[int, set[str]]:
    """The processes that ran each module."""
    devices = _values_by_module(trace.module, trace.device, len(trace.devices))
    return {index: {trace.devices[code].process for code in codes} for index, codes in devices.items()}


def _values_by_module(module: Codes, values: Codes, count: int) -> dict[int, list[int]]:
    """The distinct values of each module's rows, ascending, in one pass whatever the number of modules."""
    present: set[int] | npt.NDArray[np.bool_]
    size = (int(module.max(initial=0)) + 1) * count
    present = np.zeros(size, np.bool_) if size <= MOST_PAIRS else set()
    for first in range(0, len(module), BLOCK):
        keys = module[first : first + BLOCK].astype(np.int64) * count + values[first : first + BLOCK]
        if isinstance(present, set):
            present.update(distinct(keys).tolist())
        else:
            present[keys] = True
    found: dict[int, list[int]] = {}
    for key in sorted(present) if isinstance(present, set) else np.flatnonzero(present).tolist():
        found.setdefault(key // count, []).append(key % count)
    return found


def _is_one(processes: Mapping[int, set[str]], group: Sequence[Program], program: Program) -> bool:
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
