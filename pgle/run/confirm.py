"""`pgle confirm` as a function: a log, and perhaps a schedule dump, to a verdict."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO

from pgle.costs.fit.coverage import cover
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, as_path, check_file, open_bytes, read_head
from pgle.report.progress import Progress
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
        profile: the profile of the run; None: the one that the log names, where it is still there.
        release: version of jax that wrote the log, ``0.6.2``; None: guessed from its wordings.
        named: somebody named this log, so an empty one is a mistake; that of a program which said nothing is not.
        whole: the program is known to have ended by itself, so that the log is not cut.
    """

    log: str
    module: str | None = None
    schedule: AnyPath | None = None
    profile: AnyPath | None = None
    release: str | None = None
    named: bool = False
    whole: bool = False


@dataclass(frozen=True)
class _Source:
    """The log of one rank, or of all, and the schedule dumps beside it."""

    log: str
    rank: str = ""
    schedule: AnyPath | None = None


def confirm(request: ConfirmRequest, *, progress: Progress | None = None) -> LogVerdict:
    """The verdict on a log.

    What a schedule dump could add, but does not for lack of a profile or of a dump, is a warning.

    Raises:
        UserError: the log, or a path that was given, cannot be read.
    """
    sources = _sources(request)
    if request.schedule is not None:
        _check_schedule(request.schedule)
    profile, lacks = _profile(request, with_schedule=any(source.schedule is not None for source in sources))
    log = collect(event for source in sources for event in _events(source, request, progress))
    evidence: dict[str, ScheduleEvidence] = {}
    if any(source.schedule is not None for source in sources):
        first = _judge(request, log, profile, {})
        try:
            profile = profile or _profile_of(log)
            for source in sources:
                if source.schedule is not None:
                    evidence[source.rank] = _evidence(request, source.schedule, profile, first.main.module)
        except UserError as error:
            lacks = lacks or str(error)
    verdict = _judge(request, log, profile, evidence if len(sources) > 1 else evidence.get(sources[0].rank))
    if not lacks:
        return verdict
    return replace(verdict, warnings=(*verdict.warnings, f"the schedule dump was not looked at: {lacks}"))


def _release(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = re.match(r"\d+(?:\.\d+)+", text)
    if numbers is None:
        raise UserError(f"--jax {text!r} is not a version of jax", remedy="write it like 0.6.2")
    return tuple(map(int, numbers[0].split(".")))


def _sources(request: ConfirmRequest) -> list[_Source]:
    """The log, or of a run directory those that the ranks of its perf stage left."""
    if request.log == STDIN or not as_path(request.log).is_dir():
        return [_Source(request.log, schedule=request.schedule)]
    folder = as_path(request.log)
    stage = folder / "perf" if (folder / "perf").is_dir() else folder
    found = []
    for log in sorted(stage.glob("output*.log")):
        label = log.name[len("output") : -len(".log")]
        dumps = request.schedule or stage / f"hlo{label}"
        has_dumps = request.schedule is not None or (dumps.is_dir() and any(dumps.rglob("*.schedule.*")))
        found.append(_Source(str(log), label.removeprefix(".rank").lstrip("0") or "0", dumps if has_dumps else None))
    if not found:
        what = "a directory without the log of a perf stage (perf/output.log)"
        raise UserError(what, where=folder, remedy="run `pgle perf`, or name a log")
    return found if len(found) > 1 else [replace(found[0], rank="")]


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


def _profile(request: ConfirmRequest, *, with_schedule: bool) -> tuple[Profile | None, str]:
    """The profile that was given, and why it cannot be read where the log may still give a verdict."""
    if request.profile is None:
        return None, ""
    try:
        return read_profile(request.profile), ""
    except UserError as error:
        if not with_schedule:
            raise
        return None, str(error)


def _judge(
    request: ConfirmRequest,
    log: Log,
    profile: Profile | None,
    evidence: Mapping[str, ScheduleEvidence] | ScheduleEvidence | None,
) -> LogVerdict:
    names = () if profile is None else tuple(cost.name for cost in profile.costs)
    release = _release(request.release)
    return judge(
        log, module=request.module, schedule=evidence or None, names=names, release=release, whole=request.whole
    )


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


def _profile_of(log: Log) -> Profile:
    """The profile that the log says was read."""
    blocks = [block for said in log.ranks.values() for block in said.last.values()]
    named = next((block.read.subject for block in blocks if block.read), "")
    if not named or not as_path(named).exists():
        raise UserError("a schedule dump proves nothing without the profile", remedy="pass --profile PROFILE")
    return read_profile(as_path(named))


def _evidence(request: ConfirmRequest, schedule: AnyPath, profile: Profile, main: str) -> ScheduleEvidence:
    """What the dump of the module `main` proves; where the log names none, of the only one there is."""
    dumps = find_schedule_dumps(schedule)
    wanted = request.module or (f"^{re.escape(main)}$" if main else "")
    found = [path for name, path in dumps.items() if re.search(wanted, name)]
    if not found:
        having = ", ".join(sorted(dumps)[:5]) or "no schedule dump"
        raise UserError(
            f"no schedule dump of {request.module or main or 'a module'} (it has {having})",
            where=schedule,
            remedy="dump with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true', LHS on",
        )
    if len(found) > 1 and not wanted:
        raise UserError(f"holds dumps of {len(found)} modules", where=schedule, remedy="choose one with --module")
    dump = read_schedule_dump(found[0])
    costs = {name: cost.cost_us for name, cost in effective_costs(profile, dump.module.fingerprint).items()}
    count = cover(profile, [dump.module], {dump.module.name: dump}).modules[0].count
    return replace(schedule_evidence(dump, costs), covered=round(count.covered), wanted=round(count.total))
