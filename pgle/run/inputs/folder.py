"""The content of a folder, and what to type next for it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from pgle.errors import UserError
from pgle.files import open_bytes
from pgle.next import Next
from pgle.run.directory.directory import MANIFEST, STORED
from pgle.run.inputs.next_command import time_written
from pgle.trace.nsys import SQLITE_MAGIC
from pgle.xla.hlo.dumps import fingerprint_of

#: levels below the folder; a profiler's log directory nests its xplanes three deep
DEPTH = 4
#: most entries that are examined, so that even a home directory is answered at once
MOST = 5000
HEAD_BYTES = 1 << 15  # bytes read from a file whose name does not tell its kind

RUN = "run directory"
PROGRAM = "JAX program"
# dumps of the CPU compiler, and of programs before XLA's passes
UNSCHEDULED = "HLO not of a GPU yet"
DUMP = "HLO dump"


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of files that pgle reads or makes."""

    name: str  # what they are, in words
    files: str  # pattern of the names
    # one of these words is in the first `HEAD_BYTES`; none: the name is enough
    heads: tuple[bytes, ...] = ()
    whole: bool = False  # the whole folder is one thing, whatever else it contains
    sidecar: bool = False  # the words may also be in the file's sidecar
    #: only in the folder itself; deeper files are parts of something else
    at_top: bool = False
    # words of the command, without the path; none: `_commands` decides
    words: tuple[str, ...] = ()


_KINDS = (
    FileKind(RUN, re.escape(MANIFEST), (b"pgle.manifest/",), whole=True),
    FileKind(
        "rehearsal or search",
        re.escape(STORED),
        (b"pgle.report/",),
        whole=True,
        words=("report",),
    ),
    FileKind(  # a binary profile is recognized by its sidecar
        "cost profile",
        r"(?!.*\.(xplane|hlo)\.pb$).*\.(pbtxt|pb)",
        (b"costs", b'"modules"'),
        sidecar=True,
        words=("show",),
    ),
    FileKind("nsys report", r".*\.nsys-rep"),
    FileKind("nsys report", r".*\.sqlite", (SQLITE_MAGIC,)),
    FileKind("JAX profiler trace", r".*\.xplane\.pb"),
    FileKind(
        UNSCHEDULED,
        r".*\.(before|cpu_after)_optimizations\..*",
        words=("rehearse",),
    ),
    FileKind(
        DUMP, r".*(_optimizations\.txt|\.hlo\.pb)(\.xz|\.gz)?", words=("predict",)
    ),
    FileKind("StableHLO module", r".*\.mlir", words=("rehearse",)),
    FileKind(
        "console log",
        r".*\.(log|out)",
        (b"step", b"PGLE", b"hlo"),
        words=("confirm",),
    ),
    FileKind(
        PROGRAM,
        r".*\.py",
        (b"import jax", b"from jax"),
        at_top=True,
        words=("rehearse", "--devices", "8", "--", "python"),
    ),
)
"""Kinds of files, the most informative first. The first kind that matches a file counts."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The files of one kind in a folder, and what to do with them."""

    kind: str  # what they are, in words
    # paths, newest first; programs that were run come before imported ones
    paths: tuple[Path, ...]
    # what to type for the newest; for a run directory its own facts decide
    commands: tuple[Next, ...]


@dataclass(frozen=True, slots=True)
class FolderContents:
    """The content of a folder, the most informative kinds first."""

    folder: Path  # the examined folder
    sights: tuple[Sight, ...]  # one of each kind that is there
    complete: bool  # whether the whole folder was examined


def contents_of(folder: Path) -> FolderContents:
    """Examine the names in a folder. If a name does not suffice, read the file's first bytes."""
    found: dict[str, dict[Path, None]] = {kind.name: {} for kind in _KINDS}
    entries = list(islice(_entries(folder), MOST))
    seen = len(entries)
    for path, name in entries:
        if name:
            found[name][path] = None
    found[UNSCHEDULED] = {
        path: None for path in found[UNSCHEDULED] if path not in found[DUMP]
    }
    paths = {
        name: sorted(group, key=lambda path: (-time_written(path), path))
        for name, group in found.items()
        if group
    }
    paths.get(PROGRAM, []).sort(key=lambda path: not _has(path, b"__main__"))
    words = {kind.name: kind.words for kind in _KINDS}
    sights = (
        Sight(
            name,
            tuple(group),
            _commands(name, words[name], group[0], paths.get(DUMP, ())),
        )
        for name, group in paths.items()
    )
    return FolderContents(folder, tuple(sights), seen < MOST)


def _commands(
    kind: str, words: Sequence[str], path: Path, dumps: Sequence[Path]
) -> tuple[Next, ...]:
    """Return what to type for a path of a kind. A trace is read with the folder's HLO dump, if
    there is only one.
    """
    if words:
        return (Next.of(*words, path),)
    if kind == RUN:
        return ()
    hlo = ("--hlo", dumps[0]) if len(dumps) == 1 else ()
    analyze = Next.of("analyze", path, *hlo)
    return analyze, Next.of("convert", path, "-o", "profile.pbtxt", *hlo)


def dump_near(folder: Path, modules: Mapping[str, Collection[str]]) -> Path | None:
    """Find the folder below this one with the HLO dump of one of these modules, given by name with
    known fingerprints.

    If several folders have a module of that name, take the first with a known fingerprint. If all
    fingerprints are equal, they are not compared, because other modes change them. None if absent
    or ambiguous.
    """
    dumps = dict.fromkeys(
        path for path, kind in islice(_entries(folder), MOST) if kind == DUMP
    )
    named = {
        path: [
            file
            for file in path.iterdir()
            if any(f".{name}." in file.name for name in modules)
        ]
        for path in dumps
    }
    found = [path for path, files in named.items() if files]
    wanted = set(chain.from_iterable(modules.values()))
    if len(found) < 2 or not wanted:
        return next(iter(found), None)
    prints = {path: set(map(_fingerprint, named[path])) for path in found}
    known = [path for path in found if wanted & prints[path]]
    # the dumps of one job's ranks
    is_one = all(here == prints[found[0]] for here in prints.values())
    return next(iter(known or (found if is_one else ())), None)


def _fingerprint(dump: Path) -> str:
    """Return the fingerprint of a final module; empty if it has none or cannot be read."""
    try:
        return fingerprint_of(dump) if "after_optimizations" in dump.name else ""
    except UserError:
        return ""


def _whole_kind(folder: Path, files: Sequence[str]) -> FileKind | None:
    """Return the kind of a folder as a whole, from the names of its files; None if it is not such a
    folder.
    """
    for kind in _KINDS:
        if kind.whole and any(_is_of(kind, folder / name) for name in files):
            return kind
    return None


def _entries(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each folder and file, the thing that it belongs to, and its kind (empty if none).

    Links to folders are followed last, and no folder is entered twice, so loops end.
    """
    entered: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        place = Path(here)
        known = os.path.realpath(here)
        if known in entered:
            folders.clear()
            continue
        entered.add(known)
        yield place, ""
        whole = _whole_kind(place, files)
        if whole is not None:
            folders.clear()
            yield place, whole.name
            continue
        depth = len(place.relative_to(folder).parts)
        deeper = depth < DEPTH and "pyvenv.cfg" not in files
        folders[:] = [name for name in folders if deeper and name[0] != "."]
        folders.sort(key=lambda name: ((place / name).is_symlink(), name))
        here_kinds = [
            kind for kind in _KINDS if not kind.whole and not (kind.at_top and depth)
        ]
        for path in (place / name for name in sorted(files)):
            kind = next((kind.name for kind in here_kinds if _is_of(kind, path)), "")
            is_export = (
                path.suffix == ".sqlite" and path.with_suffix(".nsys-rep").exists()
            )
            yield _thing(path, kind), "" if is_export else kind


def _is_of(kind: FileKind, path: Path) -> bool:
    if not re.fullmatch(kind.files, path.name):
        return False
    if not kind.heads or _has(path, *kind.heads):
        return True
    return kind.sidecar and _has(path.with_name(f"{path.name}.json"), *kind.heads)


def _thing(path: Path, kind: str) -> Path:
    """Return what a file is part of: a dump, or LOGDIR of
    LOGDIR/plugins/profile/TIME/HOST.xplane.pb.
    """
    if kind in (DUMP, UNSCHEDULED):
        return path.parent
    is_logged = path.parts[-4:-2] == ("plugins", "profile")
    return path.parents[3] if is_logged and len(path.parts) > 4 else path


def _has(path: Path, *words: bytes) -> bool:
    """Whether a file has one of the words in its first bytes."""
    try:
        with open_bytes(path) as file:
            head = file.read(HEAD_BYTES)
    except UserError:
        return False
    return any(word in head for word in words)
