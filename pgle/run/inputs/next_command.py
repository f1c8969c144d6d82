"""What to type next: by the files in a run directory, and by what else is in a folder.

Each command can be typed unchanged: it has the program's own words and the options of the earlier stages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pgle.errors import UserError
from pgle.masking import kept_argv
from pgle.next import quoted, typed
from pgle.run.directory.directory import COMPARED, MANIFEST, STORED, RunDirectory, free
from pgle.run.directory.manifest import Manifest, StageRecord, extend_manifest, now, read_manifest
from pgle.trace.nsys import SQLITE_MAGIC
from pgle.xla.flags.text import Flag, format_flags, parse_flags
from pgle.xla.hlo.dumps import fingerprint_of

if TYPE_CHECKING:
    from pgle.steps.compare import Comparison

COMPARE = "compare"  # stage of the manifest: the step times were compared
UNKNOWN = ("COMMAND",)  # placeholder for an unknown program

_OPTIONS: Mapping[str, str | None] = dict.fromkeys(("target", "devices", "topology", "choose"))
_OF_PROFILING = {"mode": "sync", "window": "auto"}
"""Options of all stages and of stages that profile, with the default, which is not repeated."""


@dataclass(frozen=True)
class Launch:
    """How a program is run by pgle."""

    words: tuple[str, ...] = UNKNOWN  # of its command line
    options: tuple[str, ...] = ()  # of every command of pgle that starts programs
    profiling: tuple[str, ...] = ()  # options of commands that profile it
    capture: str = ""  # the profiler; empty: left to the machine
    run: RunDirectory | None = None  # the run directory in which it was measured; None: it was not yet

    def with_flags(self, flags: Sequence[str]) -> Launch:
        """The same with more XLA flags."""
        return replace(self, options=(*self.options, *(f"--flag={flag}" for flag in flags)))

    def on_gpus(self) -> Launch:
        """The same where there are GPUs: a workload of pgle that was only compiled has to run there."""
        ours = any(word.startswith("pgle.workloads.") for word in self.words)
        words = tuple(word for word in self.words if not (ours and word == "--compile-only"))
        return replace(self, words=words, capture="")

    def line(self, command: str, run_dir: Path, *more: object) -> str:
        """``pgle run``, ``profile`` or ``perf`` of the program into a run directory."""
        capture = ("--capture", self.capture) if self.capture else ()
        profiling = () if command == "perf" else self.profiling
        options = (*capture, *self.options, *profiling, *more)
        return typed("pgle", command, "--run-dir", run_dir, *options, "--", *kept_argv(self.words))


def launch_of(run: RunDirectory) -> Launch:
    """How the program of a run directory was run; what its profile stage was asked for says most."""
    asked = _asked(run)
    if not asked:
        return Launch(run=run)
    options = _words(asked, _OPTIONS)
    judged = run.judged_flags.read_text().splitlines() if run.judged_flags.is_file() else []
    options += [f"--flag={flag.word}" for flag in _flags(asked) if flag.word not in judged]
    options += ["--flags-file", str(run.judged_flags)] if judged else []
    profiling = tuple(_words(asked, _OF_PROFILING))
    return Launch(tuple(asked["command"]), tuple(options), profiling, asked.get("capture") or "", run)


def _words(asked: Mapping[str, Any], defaults: Mapping[str, str | None]) -> list[str]:
    """The options that do not have their default."""
    named = [name for name, default in defaults.items() if asked.get(name, default) != default]
    return [word for name in named for word in (f"--{name}", str(asked[name]))]


def following(run: RunDirectory) -> str:
    """The command that leads on: to the stage that is missing or out of date, then to the comparison, to the page."""
    baseline, perf = (run.stage(name).path for name in COMPARED)
    profile, traces = run.found_profile, run.stage("profile").trace_files()
    if profile is None and not perf.exists():
        return typed("pgle", "convert", run.path) if traces else launch_of(run).line("profile", run.path, "--force")
    if profile is not None and any(_written_before(profile, trace) for trace in traces):
        return typed("pgle", "convert", "--force", run.path)
    if not perf.exists():
        return launch_of(run).line("perf", run.path)
    if profile is not None and _written_before(run.stage("perf").rank().log, profile):
        return launch_of(run).line("perf", run.path, "--force")
    if not baseline.exists():
        return launch_of(run).line("perf", run.path, "--baseline")
    return report_or_analyze(run) if _is_compared(_manifest(run)) else typed("pgle", "compare", baseline, perf)


def report_or_analyze(run: RunDirectory) -> str:
    """The page on a run; where that is written already, where the step's time goes."""
    page = run.path / "report.html"
    return typed("pgle", "analyze", run.path) if page.exists() else typed("pgle", "report", run.path, "-o", page)


def tune(run: RunDirectory) -> str:
    """The search for flags by what was measured in a run; empty if one there has found nothing better."""
    searches = [path.parent for path in run.path.glob(f"tuned*/{STORED}")]
    if any(not (folder / "flags.txt").exists() for folder in searches):
        return ""
    return typed("pgle", "tune", run.path, "-o", free(run.path / "tuned"))


def more_runs(run: RunDirectory) -> str:
    """Pairs of runs of a program, without and with the profile of its run directory."""
    flags = format_flags(_flags(_asked(run)))
    before = f'XLA_FLAGS="$XLA_FLAGS "{quoted(flags)} ' if flags else ""
    profile, folder = run.found_profile or run.profile, free(run.path / "abba")
    return before + typed("pgle", "compare", *abba_words(3, profile, folder, launch_of(run).words))


def abba_words(rounds: int, profile: Path | None, folder: Path, words: Sequence[str]) -> tuple[object, ...]:
    """The words after ``pgle compare`` that run a program, or two, in A-B-B-A order."""
    return ("--abba", rounds, *(("--profile", profile) if profile else ()), "--run-dir", folder, "--", *words)


def by_every_rank(run: RunDirectory) -> bool:
    """Whether every rank of a job ran pgle, so that the next command is for a launcher too."""
    return any(record.ranks > 1 for record in _manifest(run).stages)


def record_comparison(run: RunDirectory, found: Comparison) -> None:
    """Keep in the manifest that the step times were compared; where it cannot be written, they were none the less."""
    facts = {"verdict": found.verdict.value, "change": found.change}
    with suppress(UserError, OSError):
        if not _is_compared(read_manifest(run.path)):
            extend_manifest(run.path, StageRecord(COMPARE, started=now(), ended=now(), exit_code=0, facts=facts))


def _is_compared(manifest: Manifest) -> bool:
    """Whether the step times were compared since the last of their stages was run."""
    last = next((record.stage for record in reversed(manifest.stages) if record.stage in (COMPARE, *COMPARED)), "")
    return last == COMPARE


def _written_before(path: Path, other: Path) -> bool:
    """Whether a file was last written before another; one that is not there is not."""
    try:
        return path.stat().st_mtime < other.stat().st_mtime
    except OSError:
        return False


def _asked(run: RunDirectory) -> dict[str, Any]:
    """What the stages of a run were asked for; the profile stage says most."""
    manifest = _manifest(run)
    records = (manifest.last(name) for name in ("profile", *COMPARED, "capture"))
    return next((dict(record.asked) for record in records if record is not None and record.asked.get("command")), {})


def _flags(asked: dict[str, Any]) -> list[Flag]:
    """The flags that are not in the environment, where the next command has them too."""
    if not asked.get("XLA_FLAGS"):
        return []
    from pgle.run.process.environment import user_flags  # asks the installed jaxlib, which most commands leave alone

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

PROGRAM = "JAX program"
PAGE_FILES = ("timeline.html", STORED)  # its files in a folder
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


def contents_of(folder: Path) -> Found:
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
    found = [(kind, by_kind[kind], command) for kind, command in _NEXT.items() if by_kind.get(kind)]
    sights = (Sight(kind, tuple(paths), command(paths[0], by_kind)) for kind, paths, command in found)
    return Found(folder, tuple(sights), seen < MOST)


def dump_near(folder: Path, modules: Mapping[str, Collection[str]]) -> Path | None:
    """The folder below this one with the HLO dump of one of these modules, given by name with known fingerprints.

    Of several folders with a module of that name it is the first with its fingerprint. If all have the same, it is not
    asked, since other modes change it. None if absent, or if no folder is known to be the right one.
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
    entered: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        place = Path(here)
        names = set(files)
        known = os.path.realpath(place)
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
        folders[:] = [name for name in folders if deeper and name[0] != "."]
        folders.sort(key=lambda name: ((place / name).is_symlink(), name))
        for name in sorted(files):
            yield _kind(place, name, depth == 0)


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
