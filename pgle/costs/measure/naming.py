"""Under which name the time of each traced instruction is filed.

XLA looks costs up by the name an instruction had when LHS ran. Compute instructions keep that name. Collectives may
not: newer XLA renames those that stayed synchronous, and a generic ``async-start`` runs under the name it wraps. What
belongs to an instruction without being it (the ``reduce.N`` kernel of a fusion, a ``.remat`` copy) is its owner's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.programs import Program
from pgle.costs.profile.value import CostKind, likely_kind, strip_remat
from pgle.trace.table import Device, Trace

if TYPE_CHECKING:
    from pgle.costs.lookup.table import LookupTable
    from pgle.xla.hlo.module import Module

_LOOP = CostKind.LOOP  # asked for once: a member of an enum takes as long as all else of a name
_NEVER_A_COST = {"while", "conditional", "call", "get-tuple-element", "tuple", "bitcast", "parameter", "constant"}


class Filed(NamedTuple):
    """What is known of one name that costs are filed under."""

    name: str  # when LHS ran
    kind: CostKind  # what the scheduler does with the cost
    opcode: str = ""  # HLO opcode, of a collective the wrapped one; empty without HLO
    shape: str = ""  # result shape, of a collective the wrapped op's shape; empty without HLO
    trace_name: str = ""  # the name in the trace where it differs
    # occurrences per execution of the module, of a name with rematerialised copies the sum of all; 0 if unknown
    iterations: int = 0
    groups: tuple[tuple[int, ...], ...] = ()  # replica groups of a collective; empty: all devices
    owner: str = ""  # the instruction of the final module whose time it is; empty without HLO

    @property
    def traced(self) -> str:
        """The name in the trace."""
        return self.trace_name or self.name


class FiledLoop(NamedTuple):
    """A loop of the entry computation. Its cost covers all its iterations."""

    name: str  # of the ``while``
    shape: str  # of its result
    instructions: list[int]  # what runs in it, as indices into `Trace.instructions`


@dataclass(frozen=True, eq=False)
class Naming:
    """How the instruction names of a trace map to the names that one program's costs are filed under."""

    target: npt.NDArray[np.int32]  # int32[len(trace.instructions)], index into `filed`; -1: not a cost of this program
    filed: tuple[Filed, ...]  # the names to file costs under
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # traced names that are no cost, by reason
    loops: tuple[FiledLoop, ...] = ()  # by name; without HLO there are no loops to know of

    @cached_property
    def communicates(self) -> npt.NDArray[np.bool_]:
        """bool[max(names, 1)]: which names are collectives."""
        return np.array([item.kind == CostKind.COLLECTIVE for item in self.filed] or [False])

    @cached_property
    def iterations(self) -> npt.NDArray[np.int32]:
        """int32[max(names, 1)]: `Filed.iterations`; where unknown, launches with nothing in between are one."""
        return np.array([item.iterations for item in self.filed] or [0], dtype=np.int32)

    @property
    def collective_instructions(self) -> npt.NDArray[np.bool_]:
        """bool[len(trace.instructions)]: which traced names are collectives of the program."""
        return (self.target >= 0) & self.communicates[self.target]

    @property
    def instruction_iterations(self) -> npt.NDArray[np.int64]:
        """int64[len(trace.instructions)]: how often each runs in an execution of its module; 0 where unknown."""
        return np.where(self.target >= 0, self.iterations[self.target], 0).astype(np.int64)


def name_instructions(trace: Trace, program: Program, lhs_module: Module | None = None) -> Naming:
    """Decide for every instruction name of a program where its time goes.

    Args:
        program: with or without HLO. Without, every name is filed as it is and its kind is a guess.
        lhs_module: the module as LHS saw it (schedule dump), where there is one.
    """
    filed: dict[str, Filed] = {}
    left_out: dict[str, list[str]] = {}
    codes = np.full(len(trace.instructions), -1, dtype=np.int32)
    table = None if program.hlo is None else _lookup_table(program.hlo, lhs_module)
    order: dict[str, int] = {}
    runs: dict[str, dict[str, int]] = {}
    for code in program.instructions:
        name = trace.instructions[code]
        found = _file_by_guess(name) if table is None else _file(table, name)
        if isinstance(found, str):
            left_out.setdefault(found, []).append(name)
            continue
        known = filed.get(found.name)
        if known is None or (known.trace_name and not found.trace_name):
            filed[found.name] = found
        runs.setdefault(found.name, {})[found.owner] = found.iterations
        codes[code] = order.setdefault(found.name, len(order))
    times = {name: sum(counts.values()) if all(counts.values()) else 0 for name, counts in runs.items()}  # 0: unknown
    kept = tuple(filed[name]._replace(iterations=times[name]) for name in order)
    loops = () if program.hlo is None else _loops(trace, program, program.hlo)
    return Naming(codes, kept, {reason: tuple(names) for reason, names in left_out.items()}, loops)


def _loops(trace: Trace, program: Program, module: Module) -> tuple[FiledLoop, ...]:
    """The outermost loops, each with the instructions that run inside it."""
    from pgle.xla.hlo.names import loops, owner  # as `_lookup_table`

    found: dict[str, list[int]] = {}
    for code in program.instructions:
        owning = owner(module, trace.instructions[code])
        around = () if owning is None else loops(module, owning)
        if around and module.instructions[around[0][0]].computation == module.entry:
            found.setdefault(around[0][0], []).append(code)
    return tuple(FiledLoop(name, str(module.instructions[name].shape), found[name]) for name in sorted(found))


def _lookup_table(module: Module, lhs_module: Module | None) -> LookupTable:
    from pgle.costs.lookup.table import LookupTable  # with what knows HLO, which a small conversion does without

    return LookupTable(module, lhs_module)


def _file_by_guess(name: str) -> Filed | str:
    if name.startswith("command_buffer"):
        return "command buffer"
    kind = likely_kind(name)
    if kind is _LOOP:
        return "control flow"
    bare = strip_remat(name)
    return Filed(bare, kind, trace_name="" if bare == name else name)


def _file(table: LookupTable, name: str) -> Filed | str:
    """Where the time of a traced name goes, or the reason why nowhere."""
    if name.startswith("command_buffer"):
        return "command buffer"
    row = table.row_of(name)
    if row is None:
        return "not in the HLO module"
    if row.instruction.opcode in _NEVER_A_COST:
        return "control flow"
    return Filed(
        name=row.filed_as,
        kind=row.kind,
        opcode=row.opcode,
        shape=row.shape,
        trace_name="" if row.filed_as == name else name,
        iterations=row.executions if row.is_counted else 0,
        groups=row.groups,
        owner=row.instruction.name,
    )


def group_of_device(filed: Sequence[Filed], devices: Sequence[Device]) -> npt.NDArray[np.int64]:
    """int64[names, devices]: the replica group that a device is in, for each collective; 0 where unknown."""
    table = np.zeros((max(len(filed), 1), max(len(devices), 1)), dtype=np.int64)
    ids = [device.global_id for device in devices]
    if len({device.process for device in devices}) == 1 and all(number is None for number in ids):
        # JAX numbers the devices of a lone process as CUDA does
        members = {number for item in filed for group in item.groups for number in group}
        ids = [device.ordinal for device in devices]
        if members != set(ids):
            return table
    if any(number is None for number in ids):
        return table
    for row, item in enumerate(filed):
        member = {number: index for index, group in enumerate(item.groups) for number in group}
        table[row] = [member.get(number, 0) if number is not None else 0 for number in ids]
    return table
