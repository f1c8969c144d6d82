"""The layers and source lines of a measured step as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.layers import Layer, Layers, TrainingPhase, folded, short_source
from pgle.errors import cut
from pgle.report.page import figures
from pgle.report.page.value import Part, Prose, Value, table
from pgle.xla.vendors import maker_of

ROWS = 200  # of a table; `pgle analyze --json` has all
SCOPES, SCOPE_WIDTH = (
    16,
    32,
)  # rows of the table of layers, and characters of a layer's name
LEAST = 0.0005  # of the step; less is no row

_PHASES = (
    TrainingPhase.FORWARD,
    TrainingPhase.BACKWARD,
    TrainingPhase.REMATERIALISED,
    TrainingPhase.OPTIMIZER,
)


def layer_parts(layers: Layers, step: MeasuredStep) -> Iterator[Part]:
    """By layer and source line, and how much of the GPU's peak is used."""
    for line in products_lines(step):
        yield Prose(line)
    heads = "layer | GPU time (time) | of the step (share) | forward (share) | backward (share) | recomputed (share)"
    rows = (
        _scope_row(name, group, step.step_us)
        for name, group in folded(layers.scopes, SCOPES)
    )
    yield table(
        f"{heads} | update (share) | exposed (share) | of roofline (share)",
        rows,
        shown=SCOPES,
    )
    lines = (
        (
            short_source(item.name) or "(no line)",
            item.us,
            item.us / step.step_us,
            item.instructions,
            _of_roof([item]),
        )
        for item in layers.lines
    )
    heads = "source line | GPU time (time) | of the step (share) | instructions (count) | of roofline (share)"
    yield table(heads, lines, most=ROWS)


def _scope_row(name: str, group: Sequence[Layer], step_us: float) -> tuple[Value, ...]:
    phases = [
        sum(layer.us for layer in group if layer.phase == phase) for phase in _PHASES
    ]
    shares = (
        us / step_us if us >= LEAST * step_us else None
        for us in (*phases, sum(layer.exposed_us for layer in group))
    )
    us = sum(layer.us for layer in group)
    return short_scope(name) or "(no scope)", us, us / step_us, *shares, _of_roof(group)


def _of_roof(group: Sequence[Layer]) -> float | None:
    """What the same work takes at the GPU's peaks, as a share of its time."""
    known = [
        (layer.roofline_us, layer.us)
        for layer in group
        if layer.roofline_us is not None
    ]
    total = sum(us for _, us in known)
    return sum(roofline for roofline, _ in known) / total if total > 0 else None


def short_scope(name: str) -> str:
    """The last scopes, as many as fit; other names as they are."""
    if "/" not in name:
        return name
    scopes = name.split("/")
    shortened = ("/".join(["…", *scopes[at:]]) for at in range(1, len(scopes)))
    found = next(
        (text for text in (name, *shortened) if len(text) <= SCOPE_WIDTH),
        f"…/{scopes[-1]}",
    )
    return cut(found, SCOPE_WIDTH)


def products_lines(step: MeasuredStep) -> Iterator[str]:
    """Utilisation of the GPU, and the matrix products by type."""
    layers = step.layers
    if layers is not None and layers.mfu is not None and layers.hfu is not None:
        again = (
            f", {figures.share(layers.hfu)} with recomputation"
            if layers.hfu > layers.mfu
            else ""
        )
        yield f"Model FLOPs utilisation (MFU): {figures.share(layers.mfu)} of the peak{again}."
    units = "Tensor Cores"
    if step.hardware is not None:
        units = maker_of(step.hardware).worded(units)
    for item in step.products:
        peak = "" if item.peak_tflops is None else f" of {item.peak_tflops:.4g}"
        where = "" if item.tensor_cores else f", not on the {units}"
        speed = f", {item.tflops:.3g}{peak} TFLOP/s" if item.flops else ""
        named = item.named_us / item.us if item.us else 0.0
        source = (
            "kernel names"
            if named > 0.995
            else f"kernel names for {named:.0%}, else the HLO"
            if named
            else "HLO"
        )
        share = figures.share(item.us / step.step_us)
        yield f"Matrix products in {item.dtype}{where}: {figures.time(item.us)} ({share}){speed}; type from {source}."
