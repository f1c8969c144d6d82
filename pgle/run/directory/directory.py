"""The run directory of an experiment: only this file knows the paths in it. Also the folder of an
answer.

RUN/manifest.json         what was run, with what, and what came of it;
                          ``manifest.rank0003.json`` of rank 3
RUN/captured/             StableHLO of a program that ran on CPU devices, for the simulated GPU
RUN/profile.pbtxt         the cost profile, with its sidecar ``profile.pbtxt.json``
RUN/profiles/profile-HASH.pbtxt   the same, under the name that XLA is given
RUN/STAGE/                profile, baseline, perf, auto or auto-nsys; an older run is STAGE.1 …
    output.log facts.json steps.jsonl hlo/    of rank 0; ``output.rank0003.log`` … of rank 3
    ir/                   StableHLO of every function that rank 0 compiled
    trace/rank0003…       a folder of the JAX profiler or a report of nsys
    .hook.seen .traced    notes of the hook inside the program
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Literal, TypeAlias, TypeGuard, get_args

from pgle.errors import UserError, points_into
from pgle.files import AnyPath, Json, is_bare, read_head
from pgle.next import Next

StageName: TypeAlias = Literal["profile", "baseline", "perf", "auto", "auto-nsys"]

# the stages whose step times are compared
COMPARED: tuple[StageName, StageName] = ("baseline", "perf")
# stage of the manifest: the program ran on CPU devices, and its modules were kept
CAPTURE = "capture"
CAPTURED = "captured"  # folder of that stage
LOG = "output.log"
MANIFEST = "manifest.json"
#: the JSON page of a rehearsal or a search for flags, in its folder
STORED = "report.json"
#: the HTML page of `rehearse` and of `tune`, next to `STORED`
TIMELINE = "timeline.html"
STEP_FILES = "steps*.jsonl"  # step times of a stage: one file, or one per rank

RANK_LABEL = "rank{:04d}"
_LOG = re.compile(r"output(?:\.rank(\d+))?\.log")

RANK_FILES = {
    "log": "output{suffix}.log",
    "facts": "facts{suffix}.json",
    "steps": "steps{suffix}.jsonl",
    "hlo": "hlo{suffix}",
    "ir": "ir",
    "trace": "trace/{label}",
    "seen": ".hook{suffix}.seen",
    "claim": ".traced.{label}",
}
"""The names of a rank's files in its stage, by the fields of `RankFiles`. The hook uses them too,
since only it may know the rank.
"""

# suffixes that profilers write; viewers add other files
TRACES = (".xplane.pb", ".nsys-rep", ".qdstrm")


def rank_suffix(rank: int) -> str:
    """Return the suffix of a rank's files: empty for rank 0, ``.rank0003`` for rank 3."""
    return "" if rank == 0 else f".{RANK_LABEL.format(rank)}"


PROGRAM_FILES = (".py", ".sh", ".mlir")
"""Suffixes of files on a command line that are inputs of the program. The program may write files
with other suffixes.
"""


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank in one stage."""

    folder: Path  # folder of the stage, shared by all ranks
    label: str  # ``rank0003``
    suffix: str  # of file names; empty for rank 0
    log: Path  # what the rank printed, with XLA's log lines
    facts: Path  # the hook's findings
    steps: Path  # step times, JSON lines
    hlo: Path  # XLA's dumps; several ranks would overwrite each other's in one folder
    ir: Path  # StableHLO of every function that rank 0 compiled
    trace: Path  # the folder of its trace; nsys adds its suffix to this name
    seen: Path  # exists once a Python with the hook has started
    #: exists once a process of the rank traces, so that its helper processes do not
    claim: Path

    @property
    def report(self) -> Path:
        """The report of nsys: `trace` with its suffix."""
        return self.trace.with_name(f"{self.label}.nsys-rep")

    @property
    def schedule_dumps(self) -> Path | None:
        """The folder of dumps, if LHS left a schedule dump in it."""
        found = next(self.hlo.rglob("*.schedule.*"), None)
        return None if found is None else self.hlo

    def traces(self) -> tuple[Path, ...]:
        """The trace files that profilers have left for this rank."""
        return _trace_files(self.trace.parent, self.label)

    def outputs(self) -> tuple[Path, ...]:
        """The files and dump folders that the stage has left for this rank."""
        ir = () if self.suffix else (self.ir,)
        kept = (
            path
            for path in (self.log, self.facts, self.steps, self.hlo, *ir)
            if path.exists()
        )
        return (*kept, *self.traces())


@dataclass(frozen=True)
class StageFolder:
    """Where one stage keeps its files."""

    run: RunDirectory
    name: StageName

    @property
    def path(self) -> Path:
        """RUN/STAGE."""
        return self.run.path / self.name

    def rank(self, rank: int = 0) -> RankFiles:
        """The files of a rank."""
        label = RANK_LABEL.format(rank)
        suffix = rank_suffix(rank)
        names = (
            name.format(label=label, suffix=suffix) for name in RANK_FILES.values()
        )
        return RankFiles(
            self.path, label, suffix, *(self.path / name for name in names)
        )

    def ranks_with_log(self) -> dict[int, RankFiles]:
        """The ranks that have printed something, with their files."""
        logs = sorted(self.path.glob("output*.log"))
        named = (_LOG.fullmatch(path.name) for path in logs)
        ranks = [int(name[1] or 0) for name in named if name]
        return {rank: self.rank(rank) for rank in ranks}

    def outputs(self) -> tuple[Path, ...]:
        """The files that the stage has left for all ranks, including those of other processes than
        the main one.
        """
        kept = (
            path
            for path in sorted(self.path.iterdir())
            if path.name[0] != "." and path.name != "trace"
        )
        return (*kept, *self.trace_files())

    def trace_files(self) -> tuple[Path, ...]:
        """Every file that a profiler wrote, of all ranks."""
        return _trace_files(self.path / "trace")

    def dumps(self) -> tuple[Path, ...]:
        """The folder of HLO that XLA dumped on the first rank; None if there is no dump."""
        hlo = self.rank().hlo
        return (hlo,) if hlo.is_dir() else ()

    def traces(self) -> tuple[Path, ...]:
        """The traces, one per rank. A raw recording of nsys is left out if its report exists."""
        folder = self.path / "trace"
        if not folder.is_dir():
            return ()
        found = sorted(path for path in folder.iterdir() if path.name[0] != ".")
        traces = [path for path in found if _may_be_trace(path)]
        reports = {path.stem for path in found if path.suffix == ".nsys-rep"}
        recorded = {path for path in traces if path.suffix == ".qdstrm"}
        imported = {path for path in recorded if path.stem in reports}
        return tuple(path for path in traces if path not in imported)

    def make(self, *, again: bool) -> str:
        """Make the folder. Rename an older run's folder to the next free name, and return that
        name.

        Raises `UserError` if it holds something already, and `again` is false.
        """
        older = set_aside(self.path) if self.check(again=again) else ""
        self.path.mkdir(parents=True, exist_ok=True)
        return older

    def check(self, *, again: bool) -> bool:
        """Whether the folder holds files, which `make` would set aside.

        Raises `UserError` if it holds something already, and `again` is false.
        """
        found = list(self.path.iterdir()) if self.path.exists() else []
        # A launcher that was killed before its stage was recorded leaves only notes.
        if not again and not all(path.name.startswith(".") for path in found):
            raise UserError(
                f"stage {self.name} was run into it already",
                where=self.run.path,
                remedy=(
                    "choose another --run-dir or pass --force to run it again and keep "
                    "the old files"
                ),
            )
        return bool(found)


@dataclass(frozen=True)
class RunDirectory:
    """Where one experiment lives."""

    path: Path

    def stage(self, name: StageName) -> StageFolder:
        """Return the folder of a stage."""
        return StageFolder(self, name)

    @property
    def is_recorded(self) -> bool:
        """Whether pgle has run a stage in it."""
        return self.manifest().is_file()

    def manifest(self, rank: int = 0) -> Path:
        """Return the records of a rank."""
        return self.path / f"manifest{rank_suffix(rank)}.json"

    def sibling(self, suffix: str) -> Path:
        """Return the folder ``NAME-SUFFIX`` next to this one."""
        return self.path.with_name(f"{self.path.name}-{suffix}")

    @property
    def profile(self) -> Path:
        """Path of the cost profile that `pgle run` writes, and `pgle convert RUN` by default."""
        return self.path / "profile.pbtxt"

    @property
    def judged_flags(self) -> Path:
        """XLA flags that the baseline ran without, because the run judges them."""
        return self.path / "flags.txt"

    @property
    def found_profile(self) -> Path | None:
        """The existing cost profile, in either form; None if there is none."""
        forms = (self.profile, self.profile.with_suffix(".pb"))
        return next((path for path in forms if path.is_file()), None)

    @property
    def dump_to_cover(self) -> Path:
        """The HLO of the module that uses the profile: from the baseline, else from the profile
        run.
        """
        dumps = self.stage("baseline").dumps()
        return next(iter(dumps), self.stage("profile").rank().hlo)

    @property
    def captured(self) -> Path:
        """Modules of a program that ran on CPU devices."""
        return self.path / CAPTURED

    def profile_to_use(self) -> Path:
        """`found_profile`; raises `UserError` if absent."""
        if self.found_profile is None:
            raise UserError(
                "no profile there yet",
                where=self.path,
                remedy=f"pass --profile, or make one: {Next.of('convert', self.path)}",
            )
        return self.found_profile

    @contextmanager
    def held(self, *, shared: bool = False) -> Iterator[None]:
        """Lock the directory against other pgle processes. With `shared`, other ranks of the same
        stage may use it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a+")
        except OSError as error:
            raise UserError(
                f"cannot be written ({error.strerror})",
                where=self.path,
                remedy="choose another",
            ) from None
        with lock:
            try:
                fcntl.flock(
                    lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
                )
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip()[:200] or "of another rank"
                raise UserError(
                    f"another pgle ({holder}) is at work in it",
                    where=self.path,
                    remedy="wait until it has ended, or choose another --run-dir",
                ) from None
            except OSError:
                pass  # this file system has no locks
            if not shared:
                lock.truncate(0)
                lock.write(f"process {os.getpid()} on {os.uname().nodename}\n")
                lock.flush()
            yield


def free(path: Path, mark: str = "-", first: int = 2) -> Path:
    """Return this path if nothing exists there, else the first free one of ``NAME-2``, ``NAME-3``
    …
    """
    numbered = (path.with_name(f"{path.name}{mark}{number}") for number in count(first))
    return next(found for found in chain((path,), numbered) if not found.exists())


def set_aside(folder: Path) -> str:
    """Rename an older folder to the next free name, ``profile.1``, ``profile.2`` …, and return the
    name.
    """
    return folder.rename(free(folder, ".", 1)).name


def _may_be_trace(path: Path) -> bool:
    if path.is_dir():
        return any(path.iterdir())
    return path.suffix not in (".json", ".tmp")


def _trace_files(folder: Path, label: str | None = None) -> tuple[Path, ...]:
    """The files that profilers have left in a stage's folder of traces; with a rank's label, only
    that rank's.
    """
    found = (path for path in sorted(folder.rglob("*")) if path.name.endswith(TRACES))
    return tuple(
        path
        for path in found
        if label in (None, path.relative_to(folder).parts[0].split(".")[0])
    )


# The folder of a rehearsal or a search. It is empty at first, one process holds it, and after a
# failure nothing of ours stays. A file in it lists what pgle made there, while one is at work, was
# killed, or can be continued. Only listed files may be deleted.

_UNFINISHED = ".unfinished"
_MOST_BYTES = 1 << 20  # most bytes of that list
_DEEPEST = 3  # ``trials/SETTING/names`` is the deepest folder that is made


@contextmanager
def opened(named: str | None, question: str = "") -> Iterator[Path]:
    """Yield an empty folder for all files of an answer. After a failure pgle deletes its files
    there, unless the message names them.

    The next use deletes what remained, also after a kill. But if the folder has the file `question`
    (see `check_question`), its answer is continued, and all files stay.
    """
    there_before = named is not None and Path(named).exists()
    out = Path(named) if named else new_answer()
    with _held(out):
        mark = out / _UNFINISHED
        if not asked_in(out / question):
            if {path.name for path in out.iterdir()} - {
                *_made(out),
                _UNFINISHED,
            }:  # not the remains of an unfinished answer
                raise UserError(
                    "is not an empty directory",
                    where=out,
                    remedy="choose a new one with -o DIR",
                )
            _remove_made(out)
        mark.touch()
        try:
            yield out
        except BaseException as error:
            if asked_in(out / question):
                pass
            elif named:
                _remove_made(out, error)
                if not there_before and out.is_dir() and not any(out.iterdir()):
                    out.rmdir()
            elif not points_into(error, out):
                shutil.rmtree(out, ignore_errors=True)
            raise
        if not asked_in(out / question):
            mark.unlink(missing_ok=True)


#: how many answers without a chosen folder are kept; the oldest are deleted first
KEPT_ANSWERS = 16
KEPT_BYTES = 1 << 30  # most bytes of these together


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pgle``, by default ``~/.cache/pgle``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgle"


def answers_place() -> Path:
    """Return where answers without a chosen folder are kept: in the user's cache, at most
    `KEPT_ANSWERS`.
    """
    return cache_directory() / "answers"


def forget(path: Path) -> None:
    """Delete the folder of an answer, if the user did not choose it. No output names it any
    more.
    """
    place = answers_place()
    if path.is_relative_to(place) and path != place:
        shutil.rmtree(place / path.relative_to(place).parts[0], ignore_errors=True)


def new_answer() -> Path:
    """Make a new folder for an answer, and delete older ones if needed. If the cache is not
    writable, use the temporary directory.
    """
    place = answers_place()
    try:
        place.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="pgle-", dir=place))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="pgle-answer-"))
    _make_room(place, made)
    return made


def _make_room(place: Path, made: Path) -> None:
    """Delete the oldest folders of answers, except those in use."""
    older = [path for path in place.iterdir() if path.is_dir() and path != made]
    older.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    total = 0
    for number, path in enumerate(older, 2):
        total += sum(item.stat().st_size for item in path.rglob("*") if item.is_file())
        if number <= KEPT_ANSWERS and total <= KEPT_BYTES:
            continue
        with suppress(UserError, OSError), _held(path):
            shutil.rmtree(path, ignore_errors=True)


def asked_in(path: Path) -> Json:
    """Return the question that an answer is about, from ``search.json`` in its folder (schema
    ``pgle.search/…``); empty if pgle did not write that file.
    """
    try:
        found = json.loads(read_head(path, 1 << 20))
    except (UserError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    is_ours = str(found.get("schema")).startswith(f"pgle.{path.stem}/")
    return found if is_ours else {}


def check_question(path: Path, asked: Json, of: str) -> None:
    """Raise `UserError` if the folder belongs to an answer to another question.

    Args:
        path: the file with the folder's question; it may be absent.
        asked: all that an answer depends on, as JSON values.
        of: words for the error: what such a folder holds, and what it is about.
    """
    found = asked_in(path)
    other = [name for name in asked if found.get(name) != asked[name]]
    if found and other:
        verb = "differs" if len(other) == 1 else "differ"
        raise UserError(
            f"holds {of} ({', '.join(other)} {verb})",
            where=path,
            remedy="choose a new folder with -o DIR",
        )


def claim(path: Path) -> bool:
    """Before a file or folder is made in a folder of `opened`, add it to the list.

    Returns whether it is on the list, so that pgle may delete it. Raises `OSError` if the list
    cannot be written.
    """
    for out in path.absolute().parents[:_DEEPEST]:
        mark = out / _UNFINISHED
        name = path.absolute().relative_to(out).parts[0]
        if mark.is_file() and not mark.is_symlink():
            if name in _made(out):
                return True
            if (out / name).exists() or (out / name).is_symlink():
                return False
            with mark.open("ab") as file:
                file.write(os.fsencode(f"{name}\n"))
            return True
    return False


def emptied(folder: Path) -> None:
    """Delete a folder that pgle made, and make it anew."""
    check_ours(folder)
    shutil.rmtree(folder, ignore_errors=True)


def check_ours(path: Path) -> None:
    """Refuse to replace files that pgle did not make."""
    if (path.exists() or path.is_symlink()) and not claim(path):
        raise UserError(
            "was not made by pgle, which would replace it",
            where=path,
            remedy="move it away",
        )


def _made(out: Path) -> list[str]:
    """Read the names on the list. They are siblings of the list, never paths elsewhere."""
    mark = out / _UNFINISHED
    if mark.is_symlink() or not mark.is_file():
        return []
    names = (os.fsdecode(name) for name in read_head(mark, _MOST_BYTES).split(b"\n"))
    return [name for name in dict.fromkeys(names) if is_bare(name)]


def _remove_made(out: Path, error: BaseException | None = None) -> None:
    """Delete the listed files, except those that a message names. Then delete the list, unless it
    still names something.
    """
    left = False
    for path in (out / name for name in _made(out)):
        if error is not None and points_into(error, path):
            left = True
            continue
        with suppress(OSError):
            path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(
                path
            )
        left = left or path.exists() or path.is_symlink()
    if not left:
        (out / _UNFINISHED).unlink(missing_ok=True)


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Make the folder, and lock it against other processes."""
    if out.exists() and not out.is_dir():
        raise UserError(
            "is a file, a directory is needed",
            where=out,
            remedy="choose a new one with -o DIR",
        )
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise UserError(
            "another pgle is at work in it",
            where=out,
            remedy="wait, or choose another with -o DIR",
        ) from None
    except OSError:
        pass  # this file system has no locks
    try:
        yield
    finally:
        os.close(folder)


def is_run_dir(path: AnyPath) -> TypeGuard[Path]:
    """Whether a path is a run directory of `pgle profile`."""
    return isinstance(path, Path) and RunDirectory(path).is_recorded


def stage_of(path: AnyPath) -> StageFolder | None:
    """Return the stage that RUN/STAGE names; for a run directory, its profile stage."""
    if is_run_dir(path):
        return RunDirectory(path).stage("profile")
    is_stage = isinstance(path, Path) and path.name in get_args(StageName)
    if is_stage and is_run_dir(path.parent):
        return RunDirectory(path.parent).stage(path.name)  # type: ignore[arg-type]
    return None


def recorded_by(path: AnyPath) -> StageFolder | None:
    """Return the stage that contains a path such as ``RUN/profile/trace``; None if no run directory
    does.
    """
    folders = [path, *path.parents] if isinstance(path, Path) else []
    return next(filter(None, map(stage_of, folders)), None)
