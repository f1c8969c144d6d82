"""Findings about compute: scatters, slow matrix products, and values that are computed again."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.findings import (
    ROWS,
    EvidenceRow,
    Observation,
    evidence_of,
    total_us,
)
from pgle.analyze.layers import MeasuredInstruction, TrainingPhase
from pgle.costs.estimate.estimate import compute_us
from pgle.costs.profile.value import has_remat
from pgle.errors import in_percent, in_words, many
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Hardware

SLOW_PRODUCT = 0.5  # a matrix product is slow below this share of the expected speed
# share of the memory limit; a program that needs less has room to keep values
SPARE_MEMORY = 0.5

_LOWER = (
    "compute them in bf16, or in f32 with TF32 (jax_default_matmul_precision=tensorfloat32), "
    "if the model bears it"
)
_UNASKED = (
    "the HLO allows them there: let XLA choose other kernels (--xla_gpu_autotune_level=4), "
    "and pad odd sides to 8"
)


def scatters(step: MeasuredStep) -> Observation:
    """Find scatters, which write row by row. They are identified by HLO (alone or in a fusion),
    without HLO by name.
    """
    ours = [item for item in step.compute if _is_scatter(item, step.module)]
    us = total_us(ours)
    return Observation(
        us,
        f"{many(len(ours), 'scatter')}, {in_words(us)} a step; "
        "what replaces them takes time too",
        evidence_of((item, item.us, item.cost.shape) for item in ours),
        "write the gradient of the lookup as a matrix product with one-hot rows, or sort the "
        "indices first (indices_are_sorted, unique_indices)",
    )


def _is_scatter(item: MeasuredInstruction, module: Module | None) -> bool:
    if module is None or item.instruction is None:
        return "scatter" in item.cost.name
    if item.instruction.opcode == "fusion":
        fused = module.called_instructions(item.instruction)
        return any(inner.opcode == "scatter" for inner in fused)
    return item.instruction.opcode == "scatter"


def slow_matmuls(step: MeasuredStep) -> Observation | None:
    """Find matrix products below half of the expected speed."""
    if step.module is None or step.hardware is None:
        return None
    slow = list(_slow_products(step, step.module, step.hardware))
    slow.sort(key=lambda row: -row[1])
    return Observation(
        sum(us for _, us, _ in slow),
        f"{many(len(slow), 'matrix product')} at less than half the speed expected on "
        f"{step.hardware.name.upper()}",
        evidence_of(slow),
        "check layouts and sides that are not a multiple of 8, and what overlaps them; let XLA "
        "autotune them (--xla_gpu_autotune_level=4)",
    )


def _slow_products(
    step: MeasuredStep, module: Module, hardware: Hardware
) -> Iterator[tuple[MeasuredInstruction, float, str]]:
    """Slow matrix products, each with the microseconds that it costs a step, and a note."""
    for item in step.compute:
        if item.instruction is None or not _fits_tensor_cores(item):
            continue
        took_us = item.cost.cost_us
        best_us = compute_us(module, item.instruction, hardware)
        if best_us < SLOW_PRODUCT * took_us:
            lost_us = (took_us - best_us) * item.count
            yield item, lost_us, f"{in_words(took_us)}, expected {in_words(best_us)}"


def _fits_tensor_cores(item: MeasuredInstruction) -> bool:
    """Whether an instruction may multiply on the Tensor Cores, by its HLO."""
    return item.work is not None and bool(item.work.tensor_cores)


def off_tensor_cores(step: MeasuredStep) -> Observation:
    """Find matrix products that run without Tensor Cores, by their kernels' names, else by type and
    precision.
    """
    off = [item for item in step.compute if item.tensor_cores is False]
    us = total_us(off)
    unasked_us = total_us(filter(_fits_tensor_cores, off))
    remedy = _UNASKED if unasked_us > 0.5 * us else _LOWER
    on = "" if step.hardware is None else f" of {step.hardware.name}"
    what = f"{many(len(off), 'matrix product')} off the Tensor Cores{on}"
    return Observation(
        us * (1 - _f32_speed(step.hardware)),
        f"{what}: {step.percent(us)} of the step",
        evidence_of((item, item.us, _precision(item)) for item in off),
        remedy,
        reached=us / step.step_us,
    )


def _f32_speed(hardware: Hardware | None) -> float:
    """The speed of f32 divided by the speed of TF32 on Tensor Cores; 0 for an unknown GPU."""
    if hardware is None or not hardware.tflops:
        return 0.0
    return hardware.tflops["f32"] / hardware.tflops["tf32"]


def _precision(item: MeasuredInstruction) -> str:
    """The precision in which it multiplied, and the one in the HLO if that differs, in words."""
    if item.ran is None:
        return f"{item.dtype} in full precision"
    notes = []
    if item.work is not None and item.work.tensor_cores:
        notes.append(f"the HLO asks for {item.work.dtype}")
    if item.ran.kernel != item.cost.name:
        notes.append(f"{item.dtype} by {item.ran.kernel}")
    return "; ".join(notes) or f"{item.dtype}"


def rematerialised_for_nothing(step: MeasuredStep) -> Observation | None:
    """Find values that the program computes again although there is memory to keep them."""
    layers = step.layers
    memory = step.memory
    if layers is None or memory is None or memory.used_share is None:
        return None
    if memory.used_share > SPARE_MEMORY:
        return None
    phase = TrainingPhase.REMATERIALISED
    again = [layer for layer in layers.scopes if layer.phase == phase]
    again.sort(key=lambda layer: -layer.us)
    rows = []
    for layer in again[:ROWS]:
        kernels = many(layer.instructions, "kernel")
        rows.append(EvidenceRow(layer.name or "(no scope)", layer.us, kernels))
    by_xla = (
        item
        for item in step.compute
        if item.instruction is not None and has_remat(item.instruction.name)
    )
    us = layers.phase_us(phase) - total_us(by_xla)
    limit_gib = (memory.limit_bytes or 0) / 2**30
    return Observation(
        us,
        f"{step.percent(us)} of the step computes values again, and the program needs "
        f"{in_percent(memory.used_share, 0)} of the {limit_gib:.3g} GiB that it can have",
        tuple(rows),
        "keep more: another jax.checkpoint policy, or none",
    )
