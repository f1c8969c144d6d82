"""Progress of long work: a bar on stderr where that is a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with (done, total) in any unit; total 0 means unknown. Pure layers take one as an optional argument."""


@contextmanager
def progress(description: str) -> Iterator[Progress]:
    """A bar that appears at the first call of the yielded function."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    from pgle.report.text import console

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with RichProgress(*columns, console=console(stderr=True), transient=True) as rich_bar:
        task = rich_bar.add_task(description, total=None)
        yield lambda done, total: rich_bar.update(task, completed=done, total=total or None)
