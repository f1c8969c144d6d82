"""What pgle can use in a folder: run directories, rehearsals, traces, dumps, profiles, programs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from pgle.errors import UserError
from pgle.next import typed
from pgle.run.directory.directory import MANIFEST, STORED, RunDirectory
from pgle.run.inputs.next_command import following
from pgle.trace.nsys import SQLITE_MAGIC
from pgle.xla.hlo.dumps import fingerprint_of

DEPTH = 4  # folders below the first; a profiler's log directory nests its xplanes three deep
MOST = 5000  # entries that are looked at: an answer at once, also in a home directory

PROGRAM = "JAX program"
TRACE = "timeline.trace.json"
PAGE_FILES = ("timeline.html", "timeline.svg", TRACE, STORED)  # its files in a folder
UNSCHEDULED = "HLO not of a GPU yet"  # dumps of the CPU compiler, and of programs as XLA first saw them

SEARCHED_BYTES = 64 << 20  # of a trace, for the name of a module
_MODULE = re.compile(r"module_\d+\.(.+?)\.(?:sm_|gpu_|[\w.]*after_optimizations)")

ByKind: TypeAlias = Mapping[str, Sequence[Path]]
Next: TypeAlias = Callable[[Path, ByKind], str]


@dataclass(frozen=True, slots=True)
class Sight:
    """Files of one kind."""

    kind: str  # what they are, in words
    paths: tuple[Path, ...]  # where, newest first; started programs before imported ones
    command: str  # what to type for the newest; several are lines


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder holds, the kinds that say most first."""

    folder: Path  # that was looked at
    sights: tuple[Sight, ...]  # one of each kind that is there
    complete: bool  # False where the folder holds more than was looked at


def look(folder: Path) -> Found:
    """Look at the names in a folder, and if a name does not tell, at the first bytes of the file."""
    by_kind: dict[str, list[Path]] = {}
    seen = 0
    for path, kind in _entries(folder):
        seen += 1
        if kind and path not in by_kind.setdefault(kind, []):
            by_kind[kind].append(path)
        if seen >= MOST:
            break
    scheduled = by_kind.get("HLO dump", [])
    by_kind[UNSCHEDULED] = [path for path in by_kind.get(UNSCHEDULED, []) if path not in scheduled]
    for kind, paths in by_kind.items():
        paths.sort(key=lambda path: (kind == PROGRAM and not _head(path, b"__main__"), -_time(path), path))
    sights = [
        Sight(kind, tuple(by_kind[kind]), command(by_kind[kind][0], by_kind))
        for kind, command in _NEXT.items()
        if by_kind.get(kind)
    ]
    return Found(folder, tuple(sights), seen < MOST)


def dump_near(folder: Path, modules: Mapping[str, Collection[str]]) -> Path | None:
    """The folder below this one with the HLO dump of one of these modules.

    Args:
        folder: where to look.
        modules: their fingerprints by name, none where they are not known. Of several folders with a module of that
            name the first with its fingerprint; where all have the same that is not asked, since other modes change it.

    Returns:
        None if absent, or of several different ones none is known to be the right one.
    """
    found: dict[Path, list[Path]] = {}
    for path, kind in islice(_entries(folder), MOST):
        if kind == "HLO dump" and path not in found:
            files = [file for file in path.iterdir() if any(f".{module}." in file.name for module in modules)]
            found |= {path: files} if files else {}
    wanted = {fingerprint for fingerprints in modules.values() for fingerprint in fingerprints}
    if len(found) < 2 or not wanted:
        return next(iter(found), None)
    prints = {path: set(map(_fingerprint, files)) for path, files in found.items()}
    known = [path for path in prints if wanted & prints[path]]
    is_one = all(here == next(iter(prints.values())) for here in prints.values())  # ranks of one job
    return next(iter(known or (found if is_one else ())), None)


def _fingerprint(dump: Path) -> str:
    """That of a final module; empty where it has none or cannot be read."""
    try:
        return fingerprint_of(dump) if "after_optimizations" in dump.name else ""
    except UserError:
        return ""


def _entries(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each folder and file with the thing it tells of and its kind, empty where it tells of none.

    Links to folders are followed, after the other folders; none is entered twice, so that no loop is endless.
    """
    entered: set[tuple[int, int]] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        place = Path(here)
        names = set(files)
        known = _identity(place)
        if known in entered:
            folders.clear()
            continue
        entered.add(known)
        yield place, ""
        if MANIFEST in names and _head(place / MANIFEST, b"pgle.manifest/"):
            folders.clear()
            yield place, "run directory"
            continue
        if STORED in names and _head(place / STORED, b"pgle.report/"):
            folders.clear()
            yield place, "search for flags" if "search.json" in names else "rehearsal"
            continue
        depth = len(place.relative_to(folder).parts)
        deeper = depth < DEPTH and "pyvenv.cfg" not in names
        inside = sorted(
            (name for name in folders if name[0] != "."), key=lambda name: ((place / name).is_symlink(), name)
        )
        folders[:] = inside if deeper else []
        for name in sorted(files):
            yield _kind(place, name, depth == 0)


def _identity(folder: Path) -> tuple[int, int]:
    """The same for all names of one folder; of a folder that no longer exists, for no name."""
    try:
        found = folder.stat()
    except OSError:
        return -1, -1
    return found.st_dev, found.st_ino


def _kind(place: Path, name: str, at_top: bool) -> tuple[Path, str]:
    path = place / name
    if name.endswith((".nsys-rep", ".sqlite")):
        export_too = name.endswith(".sqlite") and path.with_suffix(".nsys-rep").exists()
        return path, "" if export_too or not _is_report(path) else "nsys report"
    if name.endswith(".xplane.pb"):  # LOGDIR/plugins/profile/TIME/HOST.xplane.pb
        nested = len(place.parts) > 3 and place.parts[-3:-1] == ("plugins", "profile")
        return place.parents[2] if nested else path, "JAX profiler trace"
    if name.removesuffix(".xz").removesuffix(".gz").endswith(("_optimizations.txt", ".hlo.pb")):
        return place, UNSCHEDULED if re.search(r"\.(before|cpu_after)_optimizations\.", name) else "HLO dump"
    if name.endswith(".mlir"):
        return path, "StableHLO module"
    if name.endswith((".pbtxt", ".pb")) and (_head(path, b"costs") or (place / f"{name}.json").exists()):
        return path, "cost profile"
    if name.endswith((".log", ".out")) and _head(path, b"step", b"PGLE", b"hlo"):
        return path, "console log"
    if name.endswith(".py") and at_top and _head(path, b"import jax", b"from jax"):
        return path, PROGRAM
    return path, ""


def _is_report(path: Path) -> bool:
    return path.suffix == ".nsys-rep" or _head(path, SQLITE_MAGIC)


def _head(path: Path, *words: bytes) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(1 << 15)
    except OSError:
        return False
    return any(word in head for word in words)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _of_trace(trace: Path, by_kind: ByKind) -> str:
    """Where the step's time goes, then its profile."""
    hlo = _hlo(by_kind, lambda module: _holds(trace, module.encode()))
    return f"{typed('pgle', 'analyze', trace, *hlo)}\n{typed('pgle', 'convert', trace, '-o', 'profile.pbtxt', *hlo)}"


def _of_profile(profile: Path, by_kind: ByKind) -> str:
    """Its coverage, where a dump has the module that its sidecar names."""
    sidecar = profile.with_name(f"{profile.name}.json")
    hlo = _hlo(by_kind, lambda module: _holds(sidecar, f'"{module}"'.encode()))
    return typed("pgle", "verify" if hlo else "show", profile, *hlo)


def _hlo(by_kind: ByKind, belongs: Callable[[str], bool]) -> tuple[object, ...]:
    """The first dump whose largest module belongs to a file: small ones are the same in many programs."""
    for dump in by_kind.get("HLO dump", ()):
        found = [(path.stat().st_size, name[1]) for path in dump.iterdir() if (name := _MODULE.match(path.name))]
        if found and belongs(max(found)[1]):
            return "--hlo", dump
    return ()


def _holds(path: Path, word: bytes) -> bool:
    """Whether a file, or one in a folder, has a word in its first `SEARCHED_BYTES`."""
    files = sorted(path.rglob("*.xplane.pb"))[:1] if path.is_dir() else [path]
    for file in files:
        with suppress(OSError), file.open("rb") as content:
            if word in content.read(SEARCHED_BYTES):
                return True
    return False


def _plain(command: str) -> Next:
    return lambda path, _: f"{command} {typed(path)}"


_NEXT: dict[str, Next] = {
    "run directory": lambda path, _: following(RunDirectory(path)),
    "search for flags": _plain("pgle report"),
    "rehearsal": _plain("pgle report"),
    "cost profile": _of_profile,
    "nsys report": _of_trace,
    "JAX profiler trace": _of_trace,
    "HLO dump": _plain("pgle predict"),
    UNSCHEDULED: _plain("pgle rehearse"),
    "StableHLO module": _plain("pgle rehearse"),
    "console log": _plain("pgle confirm"),
    PROGRAM: _plain("pgle rehearse --devices 8 -- python"),
}
"""What to type next for each kind, the kinds that say most first."""
