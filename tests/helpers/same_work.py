"""What many tests find anew of one module is found once: the work of its instructions, the names of
its kernels, its estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import pytest

from pgle.analyze import analysis
from pgle.analyze.layers import Work, work_of
from pgle.costs.measure import measured
from pgle.costs.profile import coverage
from pgle.costs.profile.lookup import Naming, name_instructions
from pgle.run import analyze as inputs
from pgle.trace.table import Trace
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.targets import Hardware


@contextmanager
def found_once() -> Iterator[None]:
    """Within, `pgle` in this process measures steps so. It does not search for what a schedule
    could hide.
    """
    works: dict[tuple[int, str], tuple[Module, Work]] = {}
    namings: dict[tuple[object, ...], Naming] = {}

    def work_once(module: Module, instruction: Instruction) -> Work:
        key = id(module), instruction.name
        if key not in works:
            works[key] = module, work_of(module, instruction)
        return works[key][1]

    def named_once(
        trace: Trace, codes: Sequence[int], *modules: Module | None
    ) -> Naming:
        key = trace.instructions, trace.devices, tuple(codes), *map(id, modules)
        if key not in namings:
            namings[key] = name_instructions(trace, codes, *modules)
        return namings[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "name_instructions", named_once)
        patch.setattr(measured, "name_instructions", named_once)
        patch.setattr(inputs, "read_dumps", cache(read_dumps))
        patch.setattr(inputs, "buffers_from_bytes", cache(inputs.buffers_from_bytes))
        patch.setattr(analysis, "work_of", work_once)
        patch.setattr(
            analysis,
            "find_overlap",
            lambda module, costs, found, *_, **__: (None, found),
        )
        yield


@contextmanager
def estimated_once() -> Iterator[None]:
    """Within, coverage estimates an instruction of a module once for each GPU."""

    estimator = coverage.estimator
    known: dict[tuple[int, Hardware], dict[str, float]] = {}
    kept: list[Module] = []  # no other module has the id of one of these

    def estimator_once(
        module: Module, hardware: Hardware
    ) -> Callable[[Instruction], float]:
        estimate = estimator(module, hardware)
        kept.append(module)
        of_module = known.setdefault((id(module), hardware), {})

        def estimate_once(instruction: Instruction) -> float:
            if instruction is not module.instructions.get(instruction.name):
                return estimate(instruction)
            if instruction.name not in of_module:
                of_module[instruction.name] = estimate(instruction)
            return of_module[instruction.name]

        return estimate_once

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coverage, "estimator", estimator_once)
        yield
