"""Programs: the executables of a trace, grouped over processes and joined to their HLO modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pgle.errors import UserError
from pgle.trace.table import ModuleKey, Trace
from pgle.xla.hlo.module import Module

MIN_NAME_OVERLAP = 0.9
"""An HLO module of another program id is taken for a program when it has this share of the instruction names."""


@dataclass(frozen=True)
class Program:
    """One executable, as every process of a job runs it.

    Attributes:
        key: name and program id.
        indices: into `Trace.modules`; several where processes are merged.
        hlo: its final HLO module, None where none was given or embedded.
        fingerprints: of the HLO modules of all processes; autotuning can make them differ.
        gpu_time_ns: total time of its activities in the trace.
    """

    key: ModuleKey
    indices: tuple[int, ...]
    hlo: Module | None
    fingerprints: tuple[str, ...]
    gpu_time_ns: int


def find_programs(trace: Trace, modules: Sequence[Module]) -> tuple[Program, ...]:
    """The programs of a trace, the one with most GPU time (the main module) first.

    Args:
        trace: the activities.
        modules: HLO modules from dumps; several processes' dumps may be mixed.
    """
    times = np.bincount(trace.module, weights=trace.duration_ns, minlength=len(trace.modules))
    by_key: dict[ModuleKey, list[int]] = {}
    for index, key in enumerate(trace.modules):
        by_key.setdefault(key, []).append(index)
    programs = []
    for key, indices in by_key.items():
        found = _modules_of(trace, key, indices, modules)
        fingerprints = tuple(dict.fromkeys(module.fingerprint for module in found if module.fingerprint))
        time = int(sum(times[index] for index in indices))
        programs.append(Program(key, tuple(indices), found[0] if found else None, fingerprints, time))
    return tuple(sorted(programs, key=lambda program: (-program.gpu_time_ns, program.key.name)))


def _modules_of(trace: Trace, key: ModuleKey, indices: Iterable[int], modules: Sequence[Module]) -> tuple[Module, ...]:
    """The HLO modules of one executable, those with its program id before those that only share its name."""
    named = [module for module in modules if module.name == key.name]
    same_id = [module for module in named if module.program_id == key.program_id]
    if same_id or not named:
        return tuple(same_id)
    used = np.unique(trace.instruction[np.isin(trace.module, list(indices))])
    names = {trace.instructions[code] for code in used}

    def overlap(module: Module) -> float:
        return len(names & module.instructions.keys()) / max(len(names), 1)

    return tuple(module for module in sorted(named, key=overlap, reverse=True) if overlap(module) >= MIN_NAME_OVERLAP)


def select_programs(programs: Sequence[Program], selector: str) -> tuple[Program, ...]:
    """The programs that ``--module`` names.

    Args:
        programs: main module first.
        selector: ``auto`` (the main module), ``all``, or a regular expression searched in module names.

    Raises:
        UserError: the expression is invalid or nothing matches.
    """
    if selector == "auto":
        return tuple(programs[:1])
    if selector == "all":
        return tuple(programs)
    try:
        pattern = re.compile(selector)
    except re.error as error:
        raise UserError(f"invalid regular expression ({error})", where=f"--module {selector}") from None
    chosen = tuple(program for program in programs if pattern.search(program.key.name))
    if not chosen:
        names = ", ".join(dict.fromkeys(program.key.name for program in programs[:5]))
        raise UserError("no module of the trace matches", where=f"--module {selector}", remedy=f"it has {names}")
    return chosen
