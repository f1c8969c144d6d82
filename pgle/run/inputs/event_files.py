"""TensorBoard's event files, read by tensorboard itself (extra ``tensorboard``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from pgle.errors import UserError
from pgle.steps.trackers import EVALUATION, Point, measure_of

SCALARS = "scalars"  # tensorboard's plugin for metrics
EMPTY = (
    ".profile-empty"  # jax's profiler writes one, so that TensorBoard sees its folder
)


def is_event_file(path: Path) -> bool:
    """Whether a name is that of an event file that may hold metrics."""
    return ".tfevents." in path.name and not path.name.endswith(EMPTY)


def holds_events(folder: Path) -> bool:
    """Whether event files lie in a folder."""
    return any(is_event_file(path) for path in folder.iterdir())


def is_of_evaluation(folder: Path) -> bool:
    """Whether a folder has the events of evaluation, as Keras writes ``validation/``."""
    return (
        folder.name.lower() in EVALUATION and folder.is_dir() and holds_events(folder)
    )


def event_points(path: Path) -> Iterator[Point]:
    """The metrics of an event file, or of all in a folder, as one run.

    A value that says nothing of steps is not decoded.
    """
    try:
        from tensorboard.backend.event_processing import plugin_event_accumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        what = "event files are read by tensorboard, which is not installed"
        remedy = "pip install tensorboard, or download the metric as CSV"
        raise UserError(what, where=path, remedy=remedy) from None
    every = {plugin_event_accumulator.TENSORS: 0}
    reader = plugin_event_accumulator.EventAccumulator(str(path), size_guidance=every)
    reader.Reload()
    for tag in reader.Tags()["tensors"]:
        if reader.SummaryMetadata(tag).plugin_data.plugin_name != SCALARS:
            continue
        is_read = measure_of(tag) is not None
        for event in reader.Tensors(tag):
            value = float(make_ndarray(event.tensor_proto)) if is_read else math.nan
            yield Point(tag, event.step, event.wall_time, value)
