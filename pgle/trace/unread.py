"""Files of profilers that pgle does not read: named by their suffix, with what to give instead."""

from __future__ import annotations

from pgle.errors import UserError
from pgle.files import AnyPath

VIEWER_FILES = ("trace.json", "trace.json.gz")
"""How names end of what JAX's profiler writes for viewers (Perfetto, chrome://tracing)."""
TABLES_ONLY = (
    ".parquet",
    ".arrow",
    ".parquetdir",
    ".arrowdir",
    ".hdf",
    ".h5",
)
"""Suffixes of other exports of nsys that no other input of pgle has."""
UNREAD_TABLES = (*TABLES_ONLY, ".jsonl", ".csv")
"""Suffixes of other exports of nsys."""


def is_viewer_file(path: AnyPath) -> bool:
    """Whether a file is the profiler's for viewers, by its name."""
    return path.name.endswith(VIEWER_FILES)


def viewer_file(path: AnyPath) -> UserError:
    """The error on a viewer file.

    It holds no HLO and at most a million events; its xplane is next to it.
    """
    folder = path.parent
    xplanes = sorted(
        item.name for item in folder.iterdir() if item.name.endswith(".xplane.pb")
    )
    remedy = "trace again: the .xplane.pb that JAX's profiler wrote next to it is gone"
    if xplanes:
        remedy = f"give {folder / xplanes[0]}"
    return UserError(
        "the profiler's file for viewers, not the trace", where=path, remedy=remedy
    )


def unread_table(path: AnyPath) -> UserError:
    """The error on an export of nsys that is no SQLite database."""
    what = f"a table of nsys as {path.suffix[1:]}, which pgle does not read"
    remedy = "export the report as SQLite: nsys export --type sqlite REPORT"
    return UserError(what, where=path, remedy=remedy)


def check_is_read(path: AnyPath) -> None:
    """Raise `UserError` for a viewer file or a table, where traces are one input of several.

    Tables whose suffix other inputs have too are left to their readers.
    """
    if is_viewer_file(path):
        raise viewer_file(path)
    if path.suffix in TABLES_ONLY:
        raise unread_table(path)
