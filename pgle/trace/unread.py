"""Files of profilers that pgle does not read, recognised by suffix. Their errors name the file to
use instead.
"""

from __future__ import annotations

from pgle.errors import UserError
from pgle.files import AnyPath

VIEWER_FILES = ("trace.json", "trace.json.gz")
"""Endings of the files that JAX's profiler writes for viewers (Perfetto, chrome://tracing)."""
TABLES_ONLY = (
    ".parquet",
    ".arrow",
    ".parquetdir",
    ".arrowdir",
    ".hdf",
    ".h5",
)
"""Suffixes of other nsys exports that no input of pgle has."""
UNREAD_TABLES = (*TABLES_ONLY, ".jsonl", ".csv")
"""Suffixes of all other nsys exports."""


def is_viewer_file(path: AnyPath) -> bool:
    """Whether a file is a profiler's file for viewers, by its name."""
    return path.name.endswith(VIEWER_FILES)


def viewer_file(path: AnyPath) -> UserError:
    """Return the error for a viewer file.

    Such a file has no HLO and at most a million events. Its xplane is in the same folder.
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
    """Return the error for an nsys export that is no SQLite database."""
    what = f"a table of nsys as {path.suffix[1:]}, which pgle does not read"
    remedy = "export the report as SQLite: nsys export --type sqlite REPORT"
    return UserError(what, where=path, remedy=remedy)


def check_is_read(path: AnyPath) -> None:
    """Raise `UserError` for a viewer file or a table, in a command that takes other inputs too.

    Tables with a suffix that other inputs also have are left to the readers of those inputs.
    """
    if is_viewer_file(path):
        raise viewer_file(path)
    if path.suffix in TABLES_ONLY:
        raise unread_table(path)
