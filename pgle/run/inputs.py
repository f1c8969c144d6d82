"""Traces on disk: what kind of thing a path is, and reading several of them as one Trace."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.errors import UserError
from pgle.files import AnyPath, Progress, read_head
from pgle.run.experiment.directory import RunDirectory

if TYPE_CHECKING:
    from pgle.trace.table import Trace

SQLITE_MAGIC = b"SQLite format 3\0"
NSYS_MAGIC = b"NVIDIA Tegra Profiler Report"
TRACE_SUFFIXES = (".sqlite", ".db", ".nsys-rep", ".qdrep", ".qdstrm")


def read_traces(paths: Sequence[AnyPath], *, progress: Progress | None = None) -> Trace:
    """The activities of all inputs as one table; inputs are read in parallel.

    Args:
        paths: nsys reports, exports or parquet directories, xplane files, profiler log directories, run directories.
            One that is given twice counts once.
        progress: told (inputs read, inputs).

    Raises:
        UserError: an input is missing, of no known kind, or damaged.
    """
    from pgle.trace.combine import combine  # to tell a trace from a profile takes no numpy

    given = [task for path in paths for task in _expand(path)]
    tasks = list({_identity(task): task for task in reversed(given)}.values())[::-1]
    done = 0

    def read(task: AnyPath) -> Trace:
        nonlocal done
        trace = _read_one(task, progress if len(tasks) == 1 else None)
        done += 1
        if progress and len(tasks) > 1:
            progress(done, len(tasks))
        return trace

    trace = combine(_in_parallel(read, tasks) if len(tasks) > 1 else [read(task) for task in tasks])
    if len(tasks) == len(given):
        return trace
    repeated = f"{len(given) - len(tasks)} of {len(given)} inputs given twice; each is read once"
    return replace(trace, warnings=(repeated, *trace.warnings))


def _in_parallel(read: Callable[[AnyPath], Trace], tasks: Sequence[AnyPath]) -> list[Trace]:
    from concurrent.futures import ThreadPoolExecutor  # starts slowly; one input needs no threads

    with ThreadPoolExecutor(max_workers=min(len(tasks), os.cpu_count() or 1)) as pool:
        return list(pool.map(read, tasks))


def _identity(path: AnyPath) -> str:
    """The same for two names of one file: links, ``./a`` and ``a``."""
    return os.path.realpath(path) if isinstance(path, Path) else str(path)


def is_run_dir(path: AnyPath) -> bool:
    """Whether a path is a run directory of `pgle profile`."""
    return isinstance(path, Path) and RunDirectory(path).is_one


def run_dirs(paths: Sequence[AnyPath]) -> list[RunDirectory]:
    """The run directories among several paths."""
    return [RunDirectory(path) for path in paths if isinstance(path, Path) and is_run_dir(path)]


def is_trace(path: AnyPath) -> bool:
    """Whether a path holds traces; else it can only be a profile, or nothing."""
    if not path.exists():
        return ".xplane.pb" in path.name or path.suffix in TRACE_SUFFIXES
    if path.is_dir():
        profiles = (item for item in path.iterdir() if item.suffix in (".pbtxt", ".pb") and ".xplane." not in item.name)
        return is_run_dir(path) or next(profiles, None) is None
    named = ".xplane.pb" in path.name or path.suffix in TRACE_SUFFIXES
    return named or (
        isinstance(path, Path) and path.is_file() and read_head(path, 64).startswith((SQLITE_MAGIC, NSYS_MAGIC))
    )


def convert_command(path: AnyPath) -> str:
    """The command that makes a profile of a trace: a run directory and an xplane hold their HLO."""
    if is_run_dir(path):
        return f"pgle convert {shlex.quote(str(path))}"
    is_nsys = path.suffix in TRACE_SUFFIXES or (
        path.is_dir() and any(item.suffix == ".parquet" for item in path.iterdir())
    )
    return f"pgle convert {shlex.quote(str(path))} -o profile.pbtxt{' --hlo DUMP_DIR' if is_nsys else ''}"


def _expand(path: AnyPath) -> list[AnyPath]:
    """The trace files that a path stands for: itself, or those of a run directory."""
    if isinstance(path, Path) and is_run_dir(path):
        found = RunDirectory(path).stage("profile").traces()
        if not found:
            raise UserError("run directory without a trace", where=path, remedy="run 'pgle profile' into it first")
        return [item for file in found for item in _expand(file)]
    return [path]


def _read_one(path: AnyPath, progress: Progress | None) -> Trace:
    if not path.exists():
        where = path if str(path).strip() else repr(str(path))
        raise UserError("no such file or directory", where=where, remedy="check the path")
    if path.is_dir():
        return _read_directory(path, progress)
    if isinstance(path, Path):
        head = read_head(path, 64)
        if path.suffix in (".gz", ".xz") and head.startswith((SQLITE_MAGIC, NSYS_MAGIC)):
            raise UserError("is compressed", where=path, remedy="unpack it first")
        if head.startswith(SQLITE_MAGIC):
            from pgle.trace.nsys.read import read_nsys

            return read_nsys(path, progress=progress)
        if head.startswith(NSYS_MAGIC) or path.suffix in (".nsys-rep", ".qdrep", ".qdstrm"):
            from pgle.run.ask.nsys import read_report

            return read_report(path, progress=progress)
        if path.suffix in (".sqlite", ".db"):
            remedy = "export it again: nsys export --type sqlite REPORT" if head else "it is empty; export it again"
            raise UserError("not a SQLite database", where=path, remedy=remedy)
    if ".xplane.pb" in path.name:
        from pgle.trace.xplane.read import read_xplane

        return read_xplane([path], progress=progress)
    raise UserError(
        "not a trace that pgle knows", where=path, remedy="give .nsys-rep, nsys .sqlite, .xplane.pb or a log directory"
    )


def _read_directory(path: AnyPath, progress: Progress | None) -> Trace:
    if any(item.suffix in (".parquet", ".arrow") for item in path.iterdir()):
        from pgle.trace.nsys.read import read_nsys

        return read_nsys(Path(path), progress=progress)
    from pgle.trace.xplane.read import count_runs, find_xplanes, read_xplane

    reports = sorted({item.suffix for item in path.iterdir() if item.suffix in (".sqlite", ".nsys-rep")})
    if reports and not count_runs(path):
        raise UserError("a directory of nsys reports", where=path, remedy=f"name them: {path}/*{reports[-1]}")
    files = find_xplanes(path)
    trace = read_xplane(files, progress=progress)
    if (runs := count_runs(path)) < 2:
        return trace
    newest = (
        f"{path.name}: the newest of {runs} runs is taken, {files[0].parent.name}; name a run's directory for another"
    )
    return replace(trace, warnings=(newest, *trace.warnings))
