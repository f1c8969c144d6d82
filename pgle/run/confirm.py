"""`pgle confirm` as a function: a log, and perhaps a schedule dump, to a verdict."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from pgle.costs.fit.lookup import LookupTable, is_sound
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, Progress, as_path, check_file, open_bytes, read_head
from pgle.run.experiment.directory import RankFiles, RunDirectory, StageFolder
from pgle.run.launch.hook import read_facts
from pgle.xla.hlo.schedule_dump import find_schedule_dumps, read_schedule_dump
from pgle.xla.log.blocks import Log, collect
from pgle.xla.log.events import Event, read_events
from pgle.xla.log.schedule_evidence import ScheduleEvidence, schedule_evidence
from pgle.xla.log.verdict import LogVerdict, judge

STDIN = "-"
_GIVE = "give the log of the run, stdout and stderr together"


@dataclass(frozen=True)
class ConfirmRequest:
    """What to confirm.

    Attributes:
        log: path of the log (``.gz`` and ``.xz`` are read), ``-`` for stdin, or a run directory: its perf stage.
        module: regular expression for the main module; None: the weightiest.
        schedule: schedule dump, or a directory that holds some; None: the log alone, of a run directory its own.
        profile: of the run; None: the one that the log names, where it is still there.
        unreadable: why a profile that was named cannot be read.
        release: version of jax that wrote the log, ``0.6.2``; None: guessed from its wordings.
        named: somebody named this log, so an empty one is a mistake; that of a program which said nothing is not.
        whole: the program is known to have ended by itself, so that the log is not cut.
    """

    log: str
    module: str | None = None
    schedule: AnyPath | None = None
    profile: Profile | None = None
    unreadable: str = ""
    release: str | None = None
    named: bool = False
    whole: bool = False


@dataclass(frozen=True)
class _Source:
    """The log of one rank, or of all, the schedule dumps beside it, and whether the program ended by itself."""

    log: str
    rank: str = ""
    schedule: AnyPath | None = None
    whole: bool = False


def given_profile(path: AnyPath | None, *, needed: bool) -> tuple[Profile | None, str]:
    """The profile that somebody named, or why it cannot be read, where the log may give a verdict all the same.

    Raises:
        UserError: it cannot be read, and nothing else is asked of it: `needed`.
    """
    try:
        return (None if path is None else read_profile(path)), ""
    except UserError as error:
        if needed:
            raise
        return None, str(error)


def confirm(request: ConfirmRequest, *, progress: Progress | None = None) -> LogVerdict:
    """The verdict on a log: its lines, gathered into a block per module, judged beside the schedule dump.

    What a schedule dump could add, but does not for lack of a profile or of a dump, is a warning.

    Raises:
        UserError: the log, or a path that was given, cannot be read.
    """
    release = _release(request.release)
    sources = _sources(request)
    log = collect(event for source in sources for event in _events(source, request, progress))
    evidence: dict[str, ScheduleEvidence] = {}
    warnings: tuple[str, ...] = ()
    try:
        evidence = _evidence(request, sources, log)
    except UserError as error:
        warnings = (f"the schedule dump was not looked at: {error}",)
    verdict = judge(
        log,
        module=request.module,
        schedule=evidence if len(sources) > 1 else evidence.get(sources[0].rank),
        names=tuple(cost.name for cost in request.profile.costs) if request.profile else (),
        release=release,
        whole=all(source.whole for source in sources),
    )
    return replace(verdict, warnings=(*verdict.warnings, *warnings))


def _release(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = re.match(r"\d+(?:\.\d+)+", text)
    if numbers is None:
        raise UserError(f"--jax {text!r} is not a version of jax", remedy="write it like 0.6.2")
    return tuple(map(int, numbers[0].split(".")))


def _sources(request: ConfirmRequest) -> list[_Source]:
    """The log, or of a run directory those that the ranks of its perf stage left."""
    if request.schedule is not None:
        _check_schedule(request.schedule)
    if request.log == STDIN or not as_path(request.log).is_dir():
        return [_Source(request.log, schedule=request.schedule, whole=request.whole)]
    folder = as_path(request.log)
    stage = StageFolder(RunDirectory(Path(str(folder))), "perf")
    names = [re.fullmatch(r"output(?:\.rank(\d+))?\.log", path.name) for path in sorted(stage.path.glob("output*.log"))]
    ranks = [int(name[1] or 0) for name in names if name]
    if not ranks:
        what = "a directory without the log of a perf stage (perf/output.log)"
        raise UserError(what, where=folder, remedy="run `pgle perf`, or name a log")
    found = [_source(stage.rank(rank), rank, request) for rank in ranks]
    return found if len(found) > 1 else [replace(found[0], rank="")]


def _source(files: RankFiles, rank: int, request: ConfirmRequest) -> _Source:
    dumps = files.hlo if files.hlo.is_dir() and any(files.hlo.rglob("*.schedule.*")) else None
    ended = bool(read_facts(files).get("finished"))
    return _Source(str(files.log), str(rank), request.schedule or dumps, request.whole or ended)


def _check_schedule(schedule: AnyPath) -> None:
    if not schedule.exists():
        raise UserError("no such file or directory", where=schedule, remedy="check the path")
    stages = [folder for folder in ("profile", "baseline", "perf") if (schedule / folder / "hlo").is_dir()]
    if len(stages) > 1:  # each has a schedule of the same module, and only one of them is the log's
        what = f"holds the stages {', '.join(stages)}"
        raise UserError(what, where=schedule, remedy=f"name the log's own: {schedule}/perf")


def _events(source: _Source, request: ConfirmRequest, progress: Progress | None) -> Iterator[Event]:
    with _open(source.log, may_be_empty=request.schedule is not None or not request.named) as stream:
        yield from read_events(stream, rank=source.rank, progress=progress)


def _open(log: str, *, may_be_empty: bool) -> IO[bytes]:
    if log == STDIN:
        return sys.stdin.buffer
    path = as_path(log)
    if {".pbtxt", ".pb"} & set(path.suffixes[-2:]):  # .hlo.pb.xz too
        raise UserError("a profile or a dump by its name, not a log", where=log, remedy=_GIVE)
    check_file(path, pipe=True)
    _check_log(path, may_be_empty)
    return open_bytes(path, pipe=True)


def _check_log(path: AnyPath, may_be_empty: bool) -> None:
    """Raise `UserError` where a file holds nothing, or no text; pipes and archives are taken as they come."""
    if not path.is_file() or path.suffix in (".gz", ".xz"):
        return
    head = read_head(path, 4096)
    if not head and not may_be_empty:
        raise UserError("an empty file", where=path, remedy=_GIVE)
    if head.count(0) > len(head) // 10 or head.startswith(b"SQLite format 3"):
        raise UserError("not a log, but binary", where=path, remedy=_GIVE)


def _evidence(request: ConfirmRequest, sources: Sequence[_Source], log: Log) -> dict[str, ScheduleEvidence]:
    """What the schedule dumps prove of the main module, by rank."""
    dumps = {source.rank: source.schedule for source in sources if source.schedule is not None}
    if not dumps:
        return {}
    profile = request.profile or _profile_of(log, request.unreadable)
    wanted = request.module or (f"^{re.escape(log.main_module)}$" if log.main_module else "")
    return {rank: _compare(path, wanted, profile) for rank, path in dumps.items()}


def _profile_of(log: Log, unreadable: str) -> Profile:
    """The profile that the log says was read."""
    blocks = [block for said in log.ranks.values() for block in said.last.values()]
    named = next((block.profile for block in blocks if block.profile), "")
    if unreadable or not named or not as_path(named).exists():
        what = unreadable or "it proves nothing without the profile"
        raise UserError(what, remedy="" if unreadable else "pass --profile PROFILE")
    return read_profile(as_path(named))


def _compare(schedule: AnyPath, wanted: str, profile: Profile) -> ScheduleEvidence:
    """What the dump of the module that `wanted` matches proves; where that is empty, the only one there is."""
    dumps = find_schedule_dumps(schedule)
    found = [path for name, path in dumps.items() if re.search(wanted, name)]
    if not found:
        having = ", ".join(sorted(dumps)[:5]) or "no schedule dump"
        raise UserError(
            f"no schedule dump of {wanted.strip('^$') or 'a module'} (it has {having})",
            where=schedule,
            remedy="dump with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true', LHS on",
        )
    if len(found) > 1 and not wanted:
        raise UserError(f"holds dumps of {len(found)} modules", where=schedule, remedy="choose one with --module")
    dump = read_schedule_dump(found[0])
    table = LookupTable(dump.module, dump.module)
    costs = table.costs(profile)
    covered = [name for name, cost in costs.items() if is_sound(cost) and not table.rows[name].differs(cost)]
    optional = [name for name, row in table.rows.items() if row.is_optional and name not in costs]
    evidence = schedule_evidence(dump, {name: cost.cost_us for name, cost in costs.items()})
    return replace(evidence, covered=len(covered), wanted=len(table.rows) - len(optional))
