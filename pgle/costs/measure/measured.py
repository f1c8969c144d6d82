"""A trace and the HLO dumps of its program → what the instructions of the chosen modules cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pgle.costs.measure.aggregate import AggregateOptions, aggregate
from pgle.costs.measure.program_costs import ProgramCosts, folded
from pgle.costs.measure.programs import Program, find_programs, select_programs, unite_programs
from pgle.errors import UserError
from pgle.trace.table import Kind, Trace
from pgle.xla.hlo.dumps import Dumps, first_names
from pgle.xla.hlo.module import Module


@dataclass(frozen=True)
class Measured:
    """What a trace says of the costs of its programs."""

    trace: Trace  # with one module index for each program
    programs: tuple[Program, ...]  # all of them, the one with most GPU time first
    costs: tuple[ProgramCosts, ...]  # of the chosen programs, in the same order
    dumps: Dumps  # the HLO that names and kinds come from
    options: AggregateOptions  # the statistics

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is to be said of the costs, one line each."""
        lines = folded((found.program.key.name, line) for found in self.costs for line in found.warnings)
        if bool((self.trace.kind == Kind.HOST).all()):
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
            remedy="trace with NVTX and CUDA on and --xla_gpu_enable_command_buffer= ('pgle profile' does)",
        )
    trace, programs = unite_programs(trace, _with_hlo_of_equal_names(trace, find_programs(trace, dumps.modules)))
    chosen = [_with_embedded_hlo(trace, program) for program in select_programs(programs, module)]
    if dumps.paths and all(program.hlo is None for program in chosen):
        raise UserError(
            f"no module of the dump is {chosen[0].key.name} (it has {first_names(dumps.modules)})",
            where=dumps.paths[0],
            remedy="give the dump of the profiled run, or --module",
        )
    costs = aggregate(trace, chosen, options, _lhs_modules(dumps, chosen))
    costs = tuple(found for found in costs if found.costs)
    if not costs:
        raise UserError("no cost could be taken from the trace", where=_source(trace), remedy="trace whole steps")
    return Measured(trace, programs, costs, dumps, options)


def _source(trace: Trace) -> str:
    return trace.sources[0].path if trace.sources else ""


def _with_hlo_of_equal_names(trace: Trace, programs: Iterable[Program]) -> list[Program]:
    """The programs; those that share a name with their HLO, by which they are told apart."""
    found = list(programs)
    times = Counter(program.key.name for program in found)
    return [_with_embedded_hlo(trace, item) if times[item.key.name] > 1 else item for item in found]


def _with_embedded_hlo(trace: Trace, program: Program) -> Program:
    if program.hlo is not None or program.key not in trace.hlo:
        return program
    from pgle.xla.hlo.proto import module_from_bytes  # protocol buffers take a tenth of a small conversion

    module = module_from_bytes(trace.hlo[program.key], f"HLO of {program.key.name} embedded in the trace")
    fingerprints = (module.fingerprint,) if module.fingerprint else ()
    return replace(program, hlo=module, fingerprints=fingerprints)


def _lhs_modules(dumps: Dumps, programs: Sequence[Program]) -> dict[str, Module]:
    """Of those programs of which there is a schedule dump: the module as LHS saw it, by name."""
    names = {program.key.name for program in programs}
    return {name: module for name in names if (module := dumps.lhs_module(name)) is not None}
