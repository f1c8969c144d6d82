"""TensorBoard's event files, read by tensorboard itself (extra ``tensorboard``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from pgle.errors import UserError
from pgle.steps.trackers import EVALUATION, Point, measure_of, number_of

SCALARS = "scalars"  # tensorboard's plugin for metrics
EMPTY = (
    # jax's profiler writes such a file, so that TensorBoard sees its folder
    ".profile-empty"
)


def is_event_file(path: Path) -> bool:
    """Whether a path is an event file that may hold metrics."""
    is_named = ".tfevents." in path.name and not path.name.endswith(EMPTY)
    return is_named and path.is_file()


def holds_events(folder: Path) -> bool:
    """Whether a folder has event files."""
    return any(is_event_file(path) for path in folder.iterdir())


def is_of_evaluation(folder: Path) -> bool:
    """Whether a folder has events of an evaluation, as Keras writes ``validation/``."""
    return (
        folder.name.lower() in EVALUATION and folder.is_dir() and holds_events(folder)
    )


def event_points(path: Path) -> Iterator[Point]:
    """The metrics of an event file, or of all in a folder, as one run.

    Values that are not about steps are not decoded.
    """
    try:
        from tensorboard.backend.event_processing import plugin_event_accumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise UserError(
            "event files are read by tensorboard, which is not installed",
            where=path,
            remedy="pip install tensorboard, or download the metric as CSV",
        ) from None
    files = [path] if path.is_file() else sorted(filter(is_event_file, path.iterdir()))
    every = {plugin_event_accumulator.TENSORS: 0}
    scalars: set[str] = set()  # only the first event of a tag names its plugin
    for file in files:
        reader = plugin_event_accumulator.EventAccumulator(str(file), every)
        reader.Reload()
        for tag, about in reader.AllSummaryMetadata().items():
            if about.plugin_data.plugin_name == SCALARS:
                scalars.add(tag)
        for tag in sorted(scalars.intersection(reader.Tags()["tensors"])):
            is_read = measure_of(tag) is not None
            for event in reader.Tensors(tag):
                value = math.nan
                if is_read:
                    tensor = make_ndarray(event.tensor_proto)
                    if tensor.size != 1:  # such as one value per layer or device
                        continue
                    number = number_of(tensor.item())
                    value = math.nan if number is None else number
                yield Point(tag, event.step, event.wall_time, value)
