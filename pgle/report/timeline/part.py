"""Panels as the timeline of a page: what its script draws, the same as text, and a still picture."""

from __future__ import annotations

from collections.abc import Sequence

from pgle.report.page.value import Timeline
from pgle.report.timeline.encode import encode
from pgle.report.timeline.picture import render_svg
from pgle.report.timeline.scene import Panel, text_timeline


def timeline(panels: Sequence[Panel], first_us: float = 0.0) -> Timeline:
    """A timeline of panels.

    Args:
        panels: schedules or devices, one above the other.
        first_us: the part of time that is seen first, from 0; 0: one step, or all if there are no steps.
    """
    window = (0.0, first_us) if first_us else None
    return Timeline(encode(panels, first_us), text_timeline(panels, until_us=first_us), render_svg(panels, window))
