"""A trace on disk → Trace, whichever profiler wrote it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.errors import UserError
from pgle.files import AnyPath, Progress, read_head
from pgle.trace.nsys import REPORT_MAGIC, SQLITE_MAGIC

if TYPE_CHECKING:  # to tell what a path is takes no numpy
    from pgle.trace.table import Trace

REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
EXPORT_SUFFIXES = (".sqlite", ".db")


def read_trace(path: AnyPath, *, progress: Progress | None = None) -> Trace:
    """Read a trace.

    Args:
        path: an export of nsys (``.sqlite``, or a directory in parquet or arrow form), an xplane, or a log directory of
            the JAX profiler, of which the newest run counts.
        progress: told rows or bytes done, and all.

    Raises:
        UserError: it is of no known kind, or damaged.
    """
    if path.is_dir():
        return _read_directory(path, progress)
    if isinstance(path, Path):
        head = read_head(path, 64)
        if path.suffix in (".gz", ".xz") and head.startswith((SQLITE_MAGIC, REPORT_MAGIC)):
            raise UserError("is compressed", where=path, remedy="unpack it first")
        if head.startswith(SQLITE_MAGIC):
            from pgle.trace.nsys.read import read_nsys

            return read_nsys(path, progress=progress)
        if path.suffix in EXPORT_SUFFIXES:
            remedy = "export it again: nsys export --type sqlite REPORT" if head else "it is empty; export it again"
            raise UserError("not a SQLite database", where=path, remedy=remedy)
    if ".xplane.pb" in path.name:
        from pgle.trace.xplane.read import read_xplane

        return read_xplane([path], progress=progress)
    raise UserError(
        "not a trace that pgle knows", where=path, remedy="give .nsys-rep, nsys .sqlite, .xplane.pb or a log directory"
    )


def _read_directory(path: AnyPath, progress: Progress | None) -> Trace:
    suffixes = {item.suffix for item in path.iterdir()}
    if suffixes & {".parquet", ".arrow"}:
        from pgle.trace.nsys.read import read_nsys

        return read_nsys(Path(path), progress=progress)
    from pgle.trace.xplane.read import find_runs, find_xplanes, read_xplane

    runs = len(find_runs(path))
    if (reports := sorted(suffixes & {".sqlite", ".nsys-rep"})) and not runs:
        raise UserError("a directory of nsys reports", where=path, remedy=f"name them: {path}/*{reports[-1]}")
    files = find_xplanes(path)
    trace = read_xplane(files, progress=progress)
    if runs < 2:
        return trace
    newest = f"{path.name}: the newest of {runs} runs is taken, {files[0].parent.name}"
    return replace(trace, warnings=(f"{newest}; name a run's directory for another", *trace.warnings))
