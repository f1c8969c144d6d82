"""The layers and source lines of a measured step as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pgle.analyze.layers import (
    Layer,
    Layers,
    Products,
    TrainingPhase,
    folded,
    short_source,
)
from pgle.errors import cut, in_percent
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Column, Part, Prose, Value, table
from pgle.report.text import SCOPE_WIDTH
from pgle.xla.vendors import maker_of

if TYPE_CHECKING:
    from pgle.analyze.analysis import MeasuredStep

ROWS = 200  # rows of a table; `pgle analyze --json` has all
SCOPES = 16  # rows of the table of layers
LEAST = 0.0005  # share of the step; smaller shares are left blank

_PHASES = (
    TrainingPhase.FORWARD,
    TrainingPhase.BACKWARD,
    TrainingPhase.REMATERIALISED,
    TrainingPhase.OPTIMIZER,
)


_LAYER = (
    "layer",
    Column("GPU time", Unit.TIME),
    Column("of the step", Unit.SHARE),
    Column("forward", Unit.SHARE),
    Column("backward", Unit.SHARE),
    Column("recomputed", Unit.SHARE),
    Column("update", Unit.SHARE),
    Column("exposed", Unit.SHARE),
    Column("of roofline", Unit.SHARE),
)
_LINE = (
    "source line",
    Column("GPU time", Unit.TIME),
    Column("of the step", Unit.SHARE),
    Column("instructions", Unit.COUNT),
    Column("of roofline", Unit.SHARE),
)


def layer_parts(layers: Layers, step: MeasuredStep) -> Iterator[Part]:
    """Time by layer and source line, and the share of the GPU's peak that each reaches."""
    for line in products_lines(step):
        yield Prose(line)
    groups = folded(layers.scopes, SCOPES)
    rows = (_scope_row(name, group, step.step_us) for name, group in groups)
    yield table(_LAYER, rows, shown=SCOPES)
    lines = (_line_row(item, step.step_us) for item in layers.lines)
    yield table(_LINE, lines, most=ROWS)


def _line_row(item: Layer, step_us: float) -> tuple[Value, ...]:
    """A row for a source line, with the share of the GPU's peak that it reaches."""
    name = short_source(item.name) or "(no line)"
    roof = _of_roof([item])
    return name, item.us, item.us / step_us, item.instructions, roof


def _scope_row(name: str, group: Sequence[Layer], step_us: float) -> tuple[Value, ...]:
    """A row for layers of one scope: their time, also by phase, and how much is exposed."""
    by_phase: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
    for layer in group:
        if layer.phase in by_phase:
            by_phase[layer.phase] += layer.us
    exposed_us = sum(layer.exposed_us for layer in group)
    shares = [_share_of(us, step_us) for us in (*by_phase.values(), exposed_us)]
    us = sum(layer.us for layer in group)
    return short_scope(name) or "(no scope)", us, us / step_us, *shares, _of_roof(group)


def _share_of(us: float, step_us: float) -> float | None:
    """A time as a share of the step; None if it is too small to show."""
    return us / step_us if us >= LEAST * step_us else None


def _of_roof(group: Sequence[Layer]) -> float | None:
    """The time of the same work at the GPU's peaks, as a share of the measured time."""
    roofline_us = 0.0
    measured_us = 0.0
    for layer in group:
        if layer.roofline_us is not None:
            roofline_us += layer.roofline_us
            measured_us += layer.us
    return roofline_us / measured_us if measured_us > 0 else None


def short_scope(name: str) -> str:
    """Return the last scopes, as many as fit. Other names stay unchanged."""
    if "/" not in name:
        return name
    shortened = name
    rest = name
    while len(shortened) > SCOPE_WIDTH and "/" in rest:
        _, _, rest = rest.partition("/")
        shortened = f"…/{rest}"
    return cut(shortened, SCOPE_WIDTH)


def products_lines(step: MeasuredStep) -> Iterator[str]:
    """Utilisation of the GPU, and the matrix products by type."""
    layers = step.layers
    if layers is not None and layers.mfu is not None and layers.hfu is not None:
        used = f"{figures.share(layers.mfu)} of the peak"
        if layers.hfu > layers.mfu:
            used = f"{used}, {figures.share(layers.hfu)} with recomputation"
        yield f"Model FLOPs utilisation (MFU): {used}."
    units = "Tensor Cores"
    if step.hardware is not None:
        units = maker_of(step.hardware).worded(units)
    for item in step.products:
        where = "" if item.tensor_cores else f", not on the {units}"
        share = figures.share(item.us / step.step_us)
        time = f"{figures.time(item.us)} ({share})"
        yield (
            f"Matrix products in {item.dtype}{where}: {time}{_speed(item)}; "
            f"type from {_type_source(item)}."
        )


def _speed(item: Products) -> str:
    """``, 312 of 989 TFLOP/s``; empty if the operations are not known."""
    if not item.flops:
        return ""
    peak = "" if item.peak_tflops is None else f" of {item.peak_tflops:.4g}"
    return f", {item.tflops:.3g}{peak} TFLOP/s"


def _type_source(item: Products) -> str:
    """Say where the type of the products comes from: kernels, the HLO, or both."""
    named = item.named_us / item.us if item.us else 0.0
    if not named:
        return "HLO"
    if named > 0.995:
        return "kernel names"
    return f"kernel names for {in_percent(named, 0)}, else the HLO"
