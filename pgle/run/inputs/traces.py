"""Traces on disk: recognize a path, and read several traces as one Trace."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.errors import UserError, some
from pgle.files import AnyPath, Progress, read_head
from pgle.next import Next
from pgle.requests.kinds import PROCESSES
from pgle.run.directory.directory import RunDirectory, is_run_dir
from pgle.trace.nsys import REPORT_MAGIC, SQLITE_MAGIC
from pgle.trace.unread import (
    UNREAD_TABLES,
    is_viewer_file,
    unread_table,
    viewer_file,
)

if TYPE_CHECKING:
    from pgle.trace.table import Trace

REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
EXPORT_SUFFIXES = (".sqlite", ".db")

# bytes of inputs from which several processes read faster than one
PARALLEL_BYTES = 64 << 20


def read_traces(
    paths: Sequence[AnyPath],
    *,
    where: str = PROCESSES,
    progress: Progress | None = None,
) -> Trace:
    """Read the activities of all inputs as one table. Several processes read large inputs.

    Args:
        paths: nsys reports, exports, xplane files, profiler log directories or run directories.
            Duplicates count once.
        where: place of the `workers` that read several inputs.
        progress: gets (inputs read, all inputs).
    """
    from pgle.trace.table import combine, without_repeats

    given = list(chain.from_iterable(map(_files_of, paths)))
    distinct: dict[str, AnyPath] = {}
    for file in given:
        distinct.setdefault(_identity(file), file)
    files = list(distinct.values())
    if len(files) == 1:
        read = [_read(files[0], progress)]
    elif where == PROCESSES and not _is_long(files):
        read = _counted(enumerate(map(_read, files)), len(files), progress)
    else:
        read = _read_by_workers(files, where, progress)
    trace = without_repeats(combine(read))
    if len(files) == len(given):
        return trace
    repeated = f"{len(given) - len(files)} of {len(given)} inputs given twice; each is read once"
    return replace(trace, warnings=(repeated, *trace.warnings))


def _read_by_workers(
    files: Sequence[AnyPath], where: str, progress: Progress | None
) -> list[Trace]:
    """Read the traces with workers, in the order of their files."""
    # import the code that starts processes only if it is needed
    from pgle.run.process.on_worker import Seen
    from pgle.run.process.workers import workers

    there = tuple(file for file in files if isinstance(file, Path))
    with workers(where, len(files), Seen(read=there)) as readers:
        return _counted(readers.results(_read, files), len(files), progress)


def _files_of(path: AnyPath) -> list[AnyPath]:
    """Return the traces that a path names: itself, a run directory's, or a directory's nsys
    reports, as ranks of one job.

    If a report has an export, the export is used.
    """
    if not isinstance(path, Path) or not path.is_dir():
        return [path]
    if not is_run_dir(path):
        reports = sorted(
            item for item in path.iterdir() if item.suffix in (".sqlite", ".nsys-rep")
        )
        ranks = (
            item
            for item in reports
            if item.suffix == ".sqlite" or item.with_suffix(".sqlite") not in reports
        )
        return [*ranks] or [path]
    found = RunDirectory(path).stage("profile").traces()
    if not found:
        raise UserError(
            "run directory without a trace",
            where=path,
            remedy="run 'pgle profile' into it first",
        )
    return list(found)


def _identity(file: AnyPath) -> str:
    """Return a text that is equal for two names of one file: links, ``./a`` and ``a``."""
    return os.path.realpath(file) if isinstance(file, Path) else str(file)


def _is_long(files: Sequence[AnyPath]) -> bool:
    """Whether reading takes longer than starting processes. nsys needs seconds to export even the
    smallest report.
    """
    size_bytes = sum(map(_size_bytes, chain.from_iterable(map(_parts, files))))
    if size_bytes >= PARALLEL_BYTES:
        return True
    return any(isinstance(file, Path) and _is_report(file) for file in files)


def _parts(file: AnyPath) -> Iterator[AnyPath]:
    """Return the files of a folder, or the file itself."""
    parts: Iterable[AnyPath] = file.rglob("*") if file.is_dir() else [file]
    return (part for part in parts if part.is_file())


def _size_bytes(file: AnyPath) -> int:
    return file.stat().st_size if isinstance(file, Path) else file.stat().length


def _counted(
    read: Iterable[tuple[int, Trace]], count: int, progress: Progress | None
) -> list[Trace]:
    """Return the traces, which come with their numbers, in the order of these. Report progress."""
    traces: dict[int, Trace] = {}
    for place, trace in read:
        traces[place] = trace
        if progress is not None:
            progress(len(traces), count)
    return [traces[place] for place in range(count)]


def _read(path: AnyPath, progress: Progress | None = None) -> Trace:
    """Read a trace with the reader of its kind. A report of nsys is exported first, and the export
    is deleted.
    """
    if not path.exists():
        where = path if str(path).strip() else repr(str(path))
        raise UserError(
            "no such file or directory", where=where, remedy="check the path"
        )
    if not (isinstance(path, Path) and _is_report(path)):
        return _read_export(path, progress)
    from pgle.run.ask.nsys import exported

    with exported(path) as export:
        try:
            trace = _read_export(export, progress)
        except UserError as error:
            raise UserError(error.what, where=path, remedy=error.remedy) from None
    source = replace(trace.sources[0], path=str(path), format="nsys-rep")
    return replace(trace, sources=(source,))


def _is_report(path: Path) -> bool:
    if not path.is_file():
        return False
    return path.suffix in REPORT_SUFFIXES or _begins_with(path, REPORT_MAGIC)


def _begins_with(path: Path, *magic: bytes) -> bool:
    """Whether a file begins with one of several signatures."""
    return read_head(path, 64).startswith(magic)


def _read_export(path: AnyPath, progress: Progress | None) -> Trace:
    """Read an export of nsys, an xplane, or the newest run in a log directory of the JAX
    profiler.
    """
    if path.is_dir():
        return _read_directory(path, progress)
    if is_viewer_file(path):
        raise viewer_file(path)
    if isinstance(path, Path):
        head = read_head(path, 64)
        is_of_nsys = head.startswith((SQLITE_MAGIC, REPORT_MAGIC))
        if is_of_nsys and path.suffix in (".gz", ".xz"):  # `read_head` unpacks
            raise UserError("is compressed", where=path, remedy="unpack it first")
        if head.startswith(SQLITE_MAGIC):
            from pgle.trace.nsys.read import read_nsys

            return read_nsys(path, progress=progress)
        if path.suffix in EXPORT_SUFFIXES:
            remedy = "export it again: nsys export --type sqlite REPORT"
            if not head:
                remedy = f"it is empty; {remedy}"
            raise UserError("not a SQLite database", where=path, remedy=remedy)
    if ".xplane.pb" in path.name:
        from pgle.trace.xplane.read import read_xplane

        return read_xplane([path], progress=progress)
    if path.suffix in UNREAD_TABLES:
        raise unread_table(path)
    remedy = "give .nsys-rep, nsys .sqlite, .xplane.pb or a log directory"
    raise UserError("not a trace that pgle knows", where=path, remedy=remedy)


def _read_directory(path: AnyPath, progress: Progress | None) -> Trace:
    suffixes = {item.suffix for item in path.iterdir()}
    if next(path.rglob("*.xplane.pb"), None) is None:
        viewer = next(filter(is_viewer_file, path.rglob("*trace.json*")), None)
        if viewer is not None:
            raise viewer_file(viewer)
    if suffixes & {".parquet", ".arrow"}:
        raise UserError(
            "holds tables of nsys as Parquet or Arrow files",
            where=path,
            remedy="export the report as SQLite: nsys export --type sqlite REPORT",
        )
    from pgle.trace.xplane.read import find_runs, find_xplanes, read_xplane

    runs = find_runs(path)
    trace = read_xplane(find_xplanes(path), progress=progress)
    more = _other_runs(path, runs) if len(runs) > 1 else ()
    return replace(trace, warnings=(*more, *trace.warnings))


ONE_START_S = 60.0
"""Hosts of one job start the profiler within this many seconds. Each host names the directory by
its own clock.
"""


def _other_runs(path: AnyPath, runs: Sequence[Sequence[AnyPath]]) -> tuple[str, ...]:
    """Warn that only the newest run is read, and name an earlier run that may be from other hosts
    of the same job.
    """
    newest, before, *_ = runs
    name = newest[0].parent.name
    older = before[0].parent.name
    line = f"{path.name}: only the newest of {len(runs)} runs is read, {name}"
    others = _hosts(before)
    apart_s = seconds_between(older, name)
    is_far = apart_s is None or apart_s > ONE_START_S
    if is_far or not set(_hosts(newest)).isdisjoint(others):
        return (f"{line}; to read another one, give its directory",)
    who = f"{older} is {apart_s:.0f} s older and of another host ({some(others, 2)})"
    both = f"if both are one job, give both: {before[0].parent} {newest[0].parent}"
    return (f"{line}; {who}: {both}",)


def _hosts(run: Sequence[AnyPath]) -> list[str]:
    """The hosts of a run, by the names of its files."""
    return [file.name.split(".xplane.pb")[0] for file in run]


def seconds_between(one: str, other: str) -> float | None:
    """Return the seconds between two runs, from names such as ``2026_11_28_07_06_55``, which JAX
    writes; None for other names.
    """
    try:
        begun = [datetime.strptime(name, "%Y_%m_%d_%H_%M_%S") for name in (one, other)]
    except ValueError:
        return None
    return (begun[1] - begun[0]).total_seconds()


def run_dirs(paths: Sequence[AnyPath]) -> list[RunDirectory]:
    """The run directories among several paths."""
    return [RunDirectory(path) for path in paths if is_run_dir(path)]


def is_trace(path: AnyPath) -> bool:
    """Whether a path holds traces. Otherwise it can only be a profile, or nothing."""
    if path.is_dir():
        return is_run_dir(path) or not any(map(_is_profile, path.iterdir()))
    if ".xplane.pb" in path.name or path.suffix in (*EXPORT_SUFFIXES, *REPORT_SUFFIXES):
        return True
    if not isinstance(path, Path) or not path.is_file():
        return False
    return _begins_with(path, SQLITE_MAGIC, REPORT_MAGIC)


def _is_profile(item: AnyPath) -> bool:
    return item.suffix in (".pbtxt", ".pb") and ".xplane." not in item.name


def convert_command(path: AnyPath) -> Next:
    """Return the command that makes a profile of a trace. Run directories and xplanes contain their
    HLO.
    """
    if is_run_dir(path):
        return Next.of("convert", path)
    is_nsys = path.suffix in (*EXPORT_SUFFIXES, *REPORT_SUFFIXES)
    hlo = ("--hlo", "DUMP_DIR") if is_nsys else ()
    return Next.of("convert", path, "-o", "profile.pbtxt", *hlo)
