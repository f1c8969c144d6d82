"""Panels as text: how busy each kind of activity is, in shades, and where communication is exposed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgle.report.text import duration
from pgle.report.timeline.scene import Panel, Style, shown
from pgle.trace.intervals import Intervals, covered

_SHADES = " ░▒▓█"
_KINDS = {"compute": (Style.COMPUTE, Style.MATMUL), "communication": (Style.COMMUNICATION,), "copy": (Style.COPY,)}


def text_timeline(panels: Sequence[Panel], width: int = 100, until_us: float = 0.0) -> str:
    """A block of lines per panel, `width` columns wide; up to a time, or all where it is 0."""
    longest, cells = until_us or shown(panels), width - 16
    edges = np.linspace(0.0, max(longest, 1e-9), cells + 1)

    def share(busy: Intervals) -> np.ndarray:
        return covered(busy, edges[:-1], edges[1:]) / np.diff(edges)

    lines: list[str] = []
    for panel in panels:
        costs = panel.note.removeprefix("predicted from ") if panel.note != "predicted from measured costs" else ""
        label = f" ({costs})" if costs not in ("", "predicted", "measured") else ""
        facts = panel.facts.split(" · ")
        lines.append(f"{panel.label}: {', '.join([facts[0] + label, *facts[1:]])}")
        for kind, styles in _KINDS.items():
            busy = panel.busy(*styles)
            if len(busy):
                shades = np.ceil(share(busy) * (len(_SHADES) - 1) - 1e-9).astype(int)
                lines.append(f"{kind:>14}  {''.join(_SHADES[shade] for shade in shades).rstrip()}")
        marks = "".join("^" if part > 0.5 else "'" if part > 0.05 else " " for part in share(panel.exposed))
        if marks.strip():
            lines.append(f"{'exposed':>14}  {marks.rstrip()}")
    lines.append(f"{'':16}0{duration(longest):>{cells - 1}}")
    return "\n".join(lines) + "\n"
