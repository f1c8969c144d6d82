"""Other versions of the main program in a recording, if it was compiled more than once.

JAX gives each compilation a program id. Two ids under one module name on one device are two
compilations. The arguments had other shapes or types, the static arguments differed, or the same
program was compiled again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pgle.trace.columns import Ints, distinct
from pgle.trace.table import ModuleKey, Trace
from pgle.xla.hlo.module import Module

MOST_CHANGES = 3  # at most so many arguments are named


@dataclass(frozen=True, slots=True)
class Version:
    """Another version of the main program."""

    program_id: int
    usual_id: int  # program id of the version that ran most often on that device
    executions: int  # on one device
    before: int  # how many executions of the usual version began before its first one
    # arguments that differ, in words; empty if unknown or if none does
    changed: tuple[str, ...] = ()
    is_same: bool = False  # its HLO has the fingerprint of the usual version's


def find_versions(
    trace: Trace, name: str, hlo_of: Callable[[ModuleKey], Module | None]
) -> tuple[Version, ...]:
    """The versions of a program except the usual one, ordered by program id.

    Args:
        trace: before the versions of a program are united.
        name: name of the module.
        hlo_of: gives the HLO of an executable; None if unknown.
    """
    keys = {
        code: key
        for code, key in enumerate(trace.modules)
        if key.name == name and key.program_id is not None
    }
    if len(keys) < 2:
        return ()
    found = _most_run(trace, list(keys))
    modules = {key.program_id: hlo_of(key) for key in keys.values()}
    return tuple(
        _compared(one, modules[one.usual_id], modules[one.program_id]) for one in found
    )


def _most_run(trace: Trace, codes: list[int]) -> list[Version]:
    """Each version of some modules, on the device that ran it most often, ordered by program id."""
    found: dict[int, Version] = {}
    rows = np.flatnonzero(np.isin(trace.module, codes))
    for device in distinct(trace.device[rows]).tolist():
        here = rows[trace.device[rows] == device]
        for version in _on_device(trace, here):
            known = found.get(version.program_id)
            if known is None or known.executions < version.executions:
                found[version.program_id] = version
    return [found[number] for number in sorted(found)]


def _on_device(trace: Trace, rows: Ints) -> list[Version]:
    """The versions that one device ran, except the usual one."""
    module = trace.module[rows]
    codes = distinct(module).tolist()
    began = {code: _begins(trace, rows[module == code]) for code in codes}
    usual = max(codes, key=lambda code: len(began[code]))
    found = []
    for code in codes:
        if code == usual:
            continue
        own = began[code]
        version = Version(
            program_id=trace.modules[code].program_id or 0,
            usual_id=trace.modules[usual].program_id or 0,
            executions=len(own),
            before=int(np.searchsorted(began[usual], own[0])),
        )
        found.append(version)
    return found


def _begins(trace: Trace, rows: Ints) -> Ints:
    """int64[executions], start of each in ns, in order of time."""
    execution = trace.execution[rows]
    _, first = np.unique(execution, return_index=True)
    begins: Ints = np.sort(trace.start_ns[rows][first])
    return begins


def _compared(version: Version, usual: Module | None, other: Module | None) -> Version:
    """The version, with its differences from the usual one."""
    if usual is None or other is None:
        return version
    is_same = bool(usual.fingerprint) and usual.fingerprint == other.fingerprint
    changed = tuple(changed_arguments(usual, other))
    return replace(version, changed=changed, is_same=is_same)


def changed_arguments(usual: Module, other: Module) -> list[str]:
    """Arguments of two modules that differ: ``argument 1 (batch): f32[8,128] → f32[8,256]``."""
    before = _arguments(usual)
    after = _arguments(other)
    if len(before) != len(after):
        return [f"{len(before)} → {len(after)} arguments"]
    found = []
    for number, ((name, was), (_, now)) in enumerate(zip(before, after, strict=True)):
        if was != now:
            named = f" ({name})" if name else ""
            found.append(f"argument {number}{named}: {was} → {now}")
    return found[:MOST_CHANGES]


def _arguments(module: Module) -> list[tuple[str, str]]:
    """Name and shape of each argument, in their order."""
    parameters = module.entry_computation.parameters
    ordered = sorted(parameters, key=lambda item: item.parameter_number or 0)
    return [(item.op_name, str(item.shape)) for item in ordered]
