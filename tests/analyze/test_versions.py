"""A program that was compiled twice in a recording: which version, when, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.rules import find_findings
from pgle.analyze.versions import Version, changed_arguments, find_versions
from pgle.trace.table import ModuleKey, Trace
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.text import module_from_text
from tests.analyze.conftest import Run, repeated

Measure = Callable[..., MeasuredStep]
STEP_US = 1000


def module(shape: str, program_id: int) -> Module:
    text = f"""HloModule jit_step, is_scheduled=true

ENTRY main {{
  x = f32[8]{{0}} parameter(0), metadata={{op_name="params"}}
  y = {shape} parameter(1), metadata={{op_name="batch"}}
  ROOT negate.1 = {shape} negate(y)
}}
"""
    return module_from_text(text.encode(), "module.txt", program_id=program_id)


def two_versions(second: int = 3) -> Trace:
    """Six steps on two devices, one of which has another program id."""
    trace = repeated(Run("negate.1", 0, 900), every=STEP_US, steps=6)
    is_second = trace.execution == second
    execution = np.where(trace.execution > second, trace.execution - 1, trace.execution)
    return replace(
        trace,
        module=is_second.astype(np.int32),
        execution=np.where(is_second, 0, execution).astype(np.int32),
        modules=(ModuleKey("jit_step", 7), ModuleKey("jit_step", 9)),
    )


def none(_: ModuleKey) -> None:
    return None


def test_a_second_program_id_is_another_version_with_its_step() -> None:
    (version,) = find_versions(two_versions(), "jit_step", none)
    assert version == Version(program_id=9, usual_id=7, executions=1, before=3)


def test_the_argument_that_differs_is_named() -> None:
    modules = {7: module("f32[4,16]{1,0}", 7), 9: module("f32[4,20]{1,0}", 9)}
    (version,) = find_versions(
        two_versions(), "jit_step", lambda key: modules[key.program_id or 0]
    )
    assert version.changed == ("argument 1 (batch): f32[4,16] → f32[4,20]",)


def test_equal_arguments_are_no_change() -> None:
    same = module("f32[4]{0}", 1)
    assert changed_arguments(same, same) == []


def test_processes_that_number_one_program_differently_have_one_version() -> None:
    trace = repeated(Run("negate.1", 0, 900), every=STEP_US, steps=4)
    trace = replace(
        trace,
        module=trace.device.astype(np.int32),
        modules=(ModuleKey("jit_step", 7), ModuleKey("jit_step", 9)),
    )
    assert find_versions(trace, "jit_step", none) == ()


def test_the_version_is_a_finding_without_any_compile_range(measured: Measure) -> None:
    trace = two_versions()
    versions = find_versions(trace, "jit_step", none)
    findings = {
        one.id: one for one in find_findings(measured(trace, versions=versions))
    }
    assert (
        "1 other version of jit_step ran: 1 execution, the first after 3 executions"
        in findings["recompilation"].number
    )


@pytest.mark.parametrize(("start", "found"), [(2_300, True), (9_000, False)])
def test_a_compilation_within_the_steps_is_named_with_its_step(
    start: int, found: bool, measured: Measure
) -> None:
    trace = repeated(Run("negate.1", 0, 900), every=STEP_US, steps=6)
    times = np.array([[start, start + 400]], np.int64) * 1000
    step = measured(replace(trace, compiling={"host:1": times}))
    findings = {one.id: one for one in find_findings(step)}
    assert ("recompilation" in findings) == found
    if found:
        number = findings["recompilation"].number
        assert number == "XLA compiles for 400 µs in execution 2, in process host:1"
