"""`pgle analyze`: traces and HLO dumps in, the parts of a step and its findings out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pgle.analyze.analysis import MeasuredStep, measure_step
from pgle.analyze.findings import Finding
from pgle.analyze.memory import Memory, find_memory
from pgle.analyze.rules import find_findings
from pgle.costs.estimate.estimate import hardware_of
from pgle.costs.measure.measured import measure
from pgle.costs.measure.programs import Program
from pgle.errors import UserError
from pgle.files import AnyPath, Progress, as_path, read_bytes
from pgle.run.convert import default_hlo
from pgle.run.inputs import read_traces, run_dirs
from pgle.trace.combine import combine
from pgle.trace.nsys.kernels import WHOLE, read_kernels
from pgle.trace.table import Kind, ModuleKey, Trace
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.buffers import buffers_from_bytes
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.hlo.proto import MAX_HLO_BYTES
from pgle.xla.targets import BUILT_IN, Target, load_target

_NO_ASYNC = "--xla_gpu_disable_async_collectives="


@dataclass(frozen=True)
class AnalyzeRequest:
    """What to analyse.

    Attributes:
        inputs: traces or run directories; several are ranks of one job.
        hlo: HLO dump files or directories; without, those of run directories or embedded ones are used.
        target: the GPU for estimates, by name or description; None: as the HLO dump says.
    """

    inputs: tuple[AnyPath, ...]
    hlo: tuple[AnyPath, ...] = ()
    target: str | None = None


@dataclass(frozen=True)
class Analysis:
    """A step, what it loses, and what to do.

    Attributes:
        step: the main module's.
        findings: the one that could save most first.
        next: what to do first.
        warnings: one line each.
    """

    step: MeasuredStep
    findings: tuple[Finding, ...]
    next: str
    warnings: tuple[str, ...]


def analyze(request: AnalyzeRequest, *, progress: Progress | None = None) -> Analysis:
    """Read the traces and take the main module's step apart.

    Raises:
        UserError: an input is bad, or holds no activity of an XLA program.
    """
    hlo = request.hlo or default_hlo(request.inputs)
    target = load_target(request.target) if request.target else None
    measured = measure(_read(request.inputs, progress), read_dumps(hlo))
    trace, costs = measured.trace, measured.costs[0]
    hardware = find_hardware(target) if target else _hardware(trace, costs.program)
    step = measure_step(trace, costs, hardware, _memory(trace, costs.program, target))
    findings = find_findings(step)
    warnings = (*trace.warnings, *_about_trace(trace, request), *step.costs.warnings)
    return Analysis(step, findings, _next(step, findings, request), tuple(dict.fromkeys(warnings)))


def _read(inputs: Sequence[AnyPath], progress: Progress | None) -> Trace:
    """The traces; nsys exports without XLA's ranges, of PyTorch or recorded without NVTX, by kernel names."""
    try:
        return read_traces(inputs, progress=progress)
    except UserError:
        with suppress(UserError):
            return combine([read_kernels(path) for path in inputs])
        raise


def _hardware(trace: Trace, program: Program) -> Hardware | None:
    """As the HLO says; None without, or where a CPU ran it."""
    return None if program.hlo is None or _on_host(trace) else hardware_of(program.hlo)


def _on_host(trace: Trace) -> bool:
    return bool((trace.kind == Kind.HOST).all())


def _memory(trace: Trace, program: Program, target: Target | None) -> Memory | None:
    """What the main module needs, by XLA's own plan where its dump or the trace embeds it."""
    module = program.hlo
    if module is None or not module.is_scheduled or _on_host(trace):
        return None
    path, data = as_path(module.source), trace.hlo.get(program.key, b"")
    beside: list[AnyPath] = []
    if path.is_file():
        data = read_bytes(path, max_bytes=MAX_HLO_BYTES)
        beside = sorted(path.parent.glob(f"{'.'.join(path.name.split('.')[:2])}.*gpu_target_config.pbtxt*"))
    if target is None and (beside or (hardware := hardware_of(module)).name in BUILT_IN):
        target = load_target(str(beside[0]) if beside else hardware.name)
    return find_memory(module, buffers_from_bytes(data), target.memory_bytes if target else None)


def _about_trace(trace: Trace, request: AnalyzeRequest) -> list[str]:
    """What makes the traced step another one than that of a plain run."""
    lines = []
    if trace.modules == (ModuleKey(WHOLE),):
        lines.append(
            "no XLA ranges, so kernels are of no instruction: steps, ranks, layers and expected times cannot be told; "
            "record a JAX program with 'pgle profile' or nsys profile --trace=cuda,nvtx"
        )
    if _on_host(trace):
        lines.append("recorded on CPU devices: these times are no GPU's")
    if run_dirs(request.inputs) or _NO_ASYNC in trace.xla_flags:
        lines.append(
            "recorded with the flags of a profile run, which may keep collectives synchronous to measure them; "
            "trace a plain run to see what is exposed there"
        )
    return lines


def _next(step: MeasuredStep, findings: tuple[Finding, ...], request: AnalyzeRequest) -> str:
    inputs = shlex.join(str(path) for path in request.inputs)
    if step.costs.program.key.name == WHOLE:
        return "Record the program with XLA's ranges to have it by step and instruction: pgle profile -- COMMAND"
    if step.module is None:
        return f"With the HLO more can be said, by instruction and link: pgle analyze {inputs} --hlo DUMP_DIR"
    if not findings or findings[0].share == 0:
        words = [*map(str, request.inputs), *(f"--hlo={path}" for path in request.hlo), "-o", "profile.pbtxt"]
        return f"Nothing stands out. A profile for the scheduler: pgle convert {shlex.join(words)}"
    first = findings[0]
    return f"Begin with {first.id} (up to {first.share:.1%} of the step): {first.remedy}."
