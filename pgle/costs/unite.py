"""One program under several program ids becomes one: ranks count compiled modules differently, and jit compiles again.

A program id is the running number of a module in its process. A rank that compiles one helper module more than the
others has other ids from then on; taken apart, its collectives would never be compared with those of the other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pgle.costs.programs import MIN_NAME_OVERLAP, Program
from pgle.trace.table import Trace


def unite_programs(trace: Trace, programs: Sequence[Program]) -> tuple[Trace, tuple[Program, ...]]:
    """Programs of one name that are the same, as one: of equal fingerprint, or of other processes with equal names.

    Args:
        trace: all ranks in one table.
        programs: of the trace.

    Returns:
        The trace with one module index for each program, executions numbered over all its ids by time; and the
        programs, the one with most GPU time first.
    """
    groups: list[list[Program]] = []
    for program in sorted(programs, key=lambda item: (item.key.name, item.key.program_id or 0)):
        same = (group for group in groups if group[0].key.name == program.key.name)
        partner = next((group for group in same if _is_one(trace, group, program)), None)
        groups.append([program]) if partner is None else partner.append(program)
    if len(groups) == len(programs):
        return trace, tuple(programs)
    module, execution = trace.module.copy(), trace.execution.copy()
    united = []
    for group in groups:
        indices = [index for program in group for index in program.indices]
        if len(group) > 1:
            rows = np.flatnonzero(np.isin(trace.module, indices))
            execution[rows] = _numbered_by_time(trace, rows)
            module[rows] = indices[0]
        united.append(_united(group, indices[:1]))
    by_time = tuple(sorted(united, key=lambda program: (-program.gpu_time_ns, program.key.name)))
    return replace(trace, module=module, execution=execution), by_time


def _united(group: Sequence[Program], indices: Sequence[int]) -> Program:
    return replace(
        group[0],
        indices=tuple(indices),
        hlo=next((program.hlo for program in group if program.hlo is not None), None),
        fingerprints=tuple(dict.fromkeys(one for program in group for one in program.fingerprints)),
        gpu_time_ns=sum(program.gpu_time_ns for program in group),
    )


def _is_one(trace: Trace, group: Sequence[Program], program: Program) -> bool:
    if any(set(other.fingerprints) & set(program.fingerprints) for other in group):
        return True
    taken = [index for other in group for index in other.indices]
    if _processes(trace, taken) & _processes(trace, program.indices):
        return False  # one process tells its modules apart
    ours, theirs = _names(trace, group[0].indices), _names(trace, program.indices)
    return len(ours & theirs) >= MIN_NAME_OVERLAP * len(ours | theirs)


def _processes(trace: Trace, indices: Sequence[int]) -> set[str]:
    used = np.unique(trace.device[np.isin(trace.module, indices)])
    return {trace.devices[device].process for device in used.tolist()}


def _names(trace: Trace, indices: Sequence[int]) -> set[int]:
    return set(np.unique(trace.instruction[np.isin(trace.module, indices)]).tolist())


def _numbered_by_time(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
    """Running number of each row's (module, execution) on its device, by first start; -1 stays."""
    known = trace.execution[rows] >= 0
    device, module, execution, start = (
        column[rows[known]].astype(np.int64) for column in (trace.device, trace.module, trace.execution, trace.start_ns)
    )
    keys = np.stack([device, module, execution])
    found, inverse = np.unique(keys, axis=1, return_inverse=True)
    first = np.full(found.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(first, inverse.ravel(), start)
    order = np.lexsort((first, found[0]))
    begins = np.searchsorted(found[0][order], found[0][order])
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order)) - begins
    result = np.full(len(rows), -1, np.int32)
    result[known] = number[inverse.ravel()]
    return result
