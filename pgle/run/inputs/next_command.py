"""What to type next: by the files in a run directory, and by what else is in a folder.

Each command can be typed unchanged: it has the program's own words and the options of the earlier
stages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.files import open_bytes, read_kept
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.requests.option import declared
from pgle.requests.shared import Captured, OnDevices
from pgle.requests.stages import InMode, Windowed
from pgle.run.directory.directory import COMPARED, MANIFEST, STORED, RunDirectory, free
from pgle.run.directory.manifest import Manifest, read_manifest
from pgle.run.process.flags import user_flags
from pgle.trace.nsys import SQLITE_MAGIC
from pgle.xla.flags.text import Flag, format_flags, parse_flags
from pgle.xla.hlo.dumps import fingerprint_of

COMPARE = "compare"  # stage of the manifest: the step times were compared
ON_GPU = "jax"  # the profiler that every GPU has; without a GPU it is refused
UNKNOWN = ("COMMAND",)  # placeholder for an unknown program

_OPTIONS: Mapping[str, object] = {
    item.name: None
    for item in (*declared(OnDevices), *declared(Captured))
    if item.option.is_repeated
}
_OF_PROFILING = {
    item.name: item.default for item in (*declared(InMode), *declared(Windowed))
}
"""Options of all stages and of stages that profile, with the default, which is not repeated."""


@dataclass(frozen=True)
class ProgramLaunch:
    """How a program is run by pgle."""

    words: tuple[str, ...] = UNKNOWN  # of its command line
    options: tuple[str, ...] = ()  # of every command of pgle that starts programs
    profiling: tuple[str, ...] = ()  # options of commands that profile it
    capture: str = ""  # the profiler; empty: left to the machine
    run: RunDirectory | None = (
        None  # the run directory in which it was measured; None: it was not yet
    )

    def with_flags(self, flags: Sequence[str]) -> ProgramLaunch:
        """The same with more XLA flags."""
        return replace(
            self, options=(*self.options, *(f"--flag={flag}" for flag in flags))
        )

    def on_gpus(self) -> ProgramLaunch:
        """The same where there are GPUs: a workload of pgle that was only compiled has to run
        there.
        """
        ours = "pgle.workloads" in self.words
        words = tuple(
            word for word in self.words if not (ours and word == "--compile-only")
        )
        return replace(self, words=words, capture=ON_GPU)

    def line(self, command: str, run_dir: Path, *more: object) -> Next:
        """``pgle run``, ``profile`` or ``perf`` of the program into a run directory."""
        capture = ("--capture", self.capture) if self.capture else ()
        profiling = () if command == "perf" else self.profiling
        options = (*capture, *self.options, *profiling, *more)
        return Next.of(
            command,
            "--run-dir",
            run_dir,
            *options,
            "--",
            *kept_argv(self.words),
        )


def launch_of(run: RunDirectory) -> ProgramLaunch:
    """How the program of a run directory was run; what its profile stage was asked for says
    most.
    """
    asked = _asked(run)
    if not asked:
        return ProgramLaunch(run=run)
    options = _words(asked, _OPTIONS)
    judged = (read_kept(run.judged_flags) or b"").decode(errors="replace").splitlines()
    options += [
        f"--flag={flag.word}" for flag in _flags(asked) if flag.word not in judged
    ]
    options += ["--flags-file", str(run.judged_flags)] if judged else []
    profiling = (
        () if asked.get("mode") in COMPARED else tuple(_words(asked, _OF_PROFILING))
    )
    return ProgramLaunch(
        tuple(asked["command"]),
        tuple(options),
        profiling,
        asked.get("capture") or "",
        run,
    )


def _words(asked: Mapping[str, Any], defaults: Mapping[str, object]) -> list[str]:
    """The options that do not have their default."""
    words = []
    for name, default in defaults.items():
        if asked.get(name, default) != default:
            words += [f"--{name}", str(asked[name])]
    return words


def following(run: RunDirectory) -> Next:
    """The next command: it makes what is missing or out of date. If nothing is, it shows the
    comparison, whose answer names the next step.
    """
    return stage_left(run) or Next.of("compare", run.path)


def stage_left(run: RunDirectory) -> Next | None:
    """The command of what is missing or out of date: a stage or the comparison; None if
    nothing.
    """
    baseline, perf = (run.stage(name).path for name in COMPARED)
    profile = run.found_profile
    traces = run.stage("profile").trace_files()
    if profile is None and not perf.exists():
        again = () if _manifest(run).last("profile") is None else ("--force",)
        return (
            Next.of("convert", run.path)
            if traces
            else launch_of(run).line("profile", run.path, *again)
        )
    if profile is not None and any(_written_before(profile, trace) for trace in traces):
        return Next.of("convert", "--force", run.path)
    if not perf.exists():
        return launch_of(run).line("perf", run.path)
    if profile is not None and _written_before(run.stage("perf").rank().log, profile):
        return launch_of(run).line("perf", run.path, "--force")
    if not baseline.exists():
        return launch_of(run).line("perf", run.path, "--baseline")
    if not is_compared(_manifest(run)):
        return Next.of("compare", baseline, perf)
    return None


def is_searched(run: RunDirectory) -> bool:
    """Whether the run has flags that a search found, or a search in it has found nothing better."""
    if run.judged_flags.exists():
        return True
    searches = [path.parent for path in run.path.glob(f"tuned*/{STORED}")]
    return any(not (folder / "flags.txt").exists() for folder in searches)


def tune(run: RunDirectory) -> Next | None:
    """The search for flags by what was measured in a run; None if it was done."""
    if is_searched(run):
        return None
    return Next.of("tune", run.path, "-o", free(run.path / "tuned"))


def more_runs(run: RunDirectory) -> Next:
    """Pairs of runs of a program, without and with the profile of its run directory."""
    flags = format_flags(_flags(_asked(run)))
    profile = run.found_profile or run.profile
    folder = free(run.path / "abba")
    words = abba_words(3, profile, folder, launch_of(run).words)
    return replace(Next.of("compare", *words), xla_flags=flags)


def abba_words(
    rounds: int, profile: Path | None, folder: Path, words: Sequence[str]
) -> tuple[object, ...]:
    """The words after ``pgle compare`` that run a program, or two, in A-B-B-A order."""
    return (
        "--abba",
        rounds,
        *(("--profile", profile) if profile else ()),
        "--run-dir",
        folder,
        "--",
        *words,
    )


def by_every_rank(run: RunDirectory) -> bool:
    """Whether every rank of a job ran pgle, so that the next command is for a launcher too."""
    return any(record.ranks > 1 for record in _manifest(run).stages)


def is_compared(manifest: Manifest) -> bool:
    """Whether the step times were compared since the last of their stages was run."""
    last = next(
        (
            record.stage
            for record in reversed(manifest.stages)
            if record.stage in (COMPARE, *COMPARED)
        ),
        "",
    )
    return last == COMPARE


def _written_before(path: Path, other: Path) -> bool:
    """Whether a file was last written before another; one that is not there is not."""
    return 0 < _time(path) < _time(other)


def _asked(run: RunDirectory) -> dict[str, Any]:
    """What the stages of a run were asked for; the profile stage says most."""
    manifest = _manifest(run)
    records = (manifest.last(name) for name in ("profile", *COMPARED, "capture"))
    return next(
        (
            dict(record.asked)
            for record in records
            if record is not None and record.asked.get("command")
        ),
        {},
    )


def _flags(asked: dict[str, Any]) -> list[Flag]:
    """The flags that are not in the environment, where the next command has them too."""
    if not asked.get("XLA_FLAGS"):
        return []
    here: tuple[Flag, ...] = ()
    with suppress(UserError):
        here = user_flags(os.environ).flags
    return [flag for flag in parse_flags(asked["XLA_FLAGS"]).flags if flag not in here]


def _manifest(run: RunDirectory) -> Manifest:
    """The records; none where they cannot be read, which the next command says."""
    try:
        return read_manifest(run.path)
    except UserError:
        return Manifest()


DEPTH = 4  # folders below the first; a profiler's log directory nests its xplanes three deep
MOST = 5000  # entries that are looked at: an answer at once, also in a home directory
HEAD_BYTES = 1 << 15  # of a file whose name does not tell

PROGRAM = "JAX program"
# dumps of the CPU compiler, and of programs as XLA first saw them
UNSCHEDULED = "HLO not of a GPU yet"
DUMP = "HLO dump"


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of files that pgle reads or makes."""

    name: str  # what they are, in words
    files: str  # pattern of the names
    heads: tuple[
        bytes, ...
    ] = ()  # one of them is in the first `HEAD_BYTES`; none: the name is enough
    whole: bool = False  # the folder is one thing, whatever else is in it
    sidecar: bool = False  # the head may be that of the file's sidecar instead
    at_top: bool = False  # in folders below they are parts of something else
    words: tuple[
        str, ...
    ] = ()  # of the command, without the path; none: `_commands` knows


_KINDS = (
    FileKind("run directory", re.escape(MANIFEST), (b"pgle.manifest/",), whole=True),
    FileKind(
        "rehearsal or search",
        re.escape(STORED),
        (b"pgle.report/",),
        whole=True,
        words=("report",),
    ),
    FileKind(  # a binary profile is known by its sidecar
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
"""Kinds that say most come first; of a file the first that fits."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Files of one kind."""

    kind: str  # what they are, in words
    paths: tuple[
        Path, ...
    ]  # where, newest first; started programs before imported ones
    commands: tuple[Next, ...]  # what to type for the newest


@dataclass(frozen=True, slots=True)
class FolderContents:
    """What a folder holds, the kinds that say most first."""

    folder: Path  # that was looked at
    sights: tuple[Sight, ...]  # one of each kind that is there
    complete: bool  # False where the folder holds more than was looked at


def contents_of(folder: Path) -> FolderContents:
    """Look at the names in a folder, and if a name does not tell, at the first bytes of the
    file.
    """
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
        name: sorted(group, key=lambda path: (-_time(path), path))
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
    """What to type for a path of a kind; a trace is read with the HLO dump of the folder, if there
    is only one.
    """
    if words:
        return (Next.of(*words, path),)
    if kind == "run directory":
        return (following(RunDirectory(path)),)
    hlo = ("--hlo", dumps[0]) if len(dumps) == 1 else ()
    analyze = Next.of("analyze", path, *hlo)
    return analyze, Next.of("convert", path, "-o", "profile.pbtxt", *hlo)


def dump_near(folder: Path, modules: Mapping[str, Collection[str]]) -> Path | None:
    """The folder below this one with the HLO dump of one of these modules, given by name with known
    fingerprints.

    Of several folders with a module of that name it is the first with its fingerprint. If all have
    the same, it is not asked, since other modes change it. None if absent, or if no folder is known
    to be the right one.
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
    is_one = all(
        here == prints[found[0]] for here in prints.values()
    )  # ranks of one job
    return next(iter(known or (found if is_one else ())), None)


def _fingerprint(dump: Path) -> str:
    """That of a final module; empty where it has none or cannot be read."""
    try:
        return fingerprint_of(dump) if "after_optimizations" in dump.name else ""
    except UserError:
        return ""


def _whole_kind(folder: Path, files: Sequence[str]) -> FileKind | None:
    """The kind that a folder is as a whole, by the names of its files; None: it is none."""
    for kind in _KINDS:
        if kind.whole and any(_is_of(kind, folder / name) for name in files):
            return kind
    return None


def _entries(folder: Path) -> Iterator[tuple[Path, str]]:
    """Each folder and file with the thing it tells of and its kind, empty where it tells of none.

    Links to folders are followed, after the other folders; none is entered twice, so that no loop
    is endless.
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
    """What a file is a part of: of a dump, or of LOGDIR/plugins/profile/TIME/HOST.xplane.pb."""
    if kind in (DUMP, UNSCHEDULED):
        return path.parent
    return (
        path.parents[3]
        if path.parts[-4:-2] == ("plugins", "profile") and len(path.parts) > 4
        else path
    )


def _has(path: Path, *words: bytes) -> bool:
    """Whether a file has one of the words in its first bytes."""
    try:
        with open_bytes(path) as file:
            head = file.read(HEAD_BYTES)
    except UserError:
        return False
    return any(word in head for word in words)


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
