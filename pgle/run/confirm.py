"""`pgle confirm` as a function: a log, and perhaps a schedule dump, to a verdict."""

from __future__ import annotations

import gzip
import lzma
import re
import sys
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

from pgle.costs.fit.coverage import cover
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, as_path
from pgle.report.progress import Progress
from pgle.xla.hlo.schedule_dump import find_schedule_dumps, read_schedule_dump
from pgle.xla.log.blocks import Blocks
from pgle.xla.log.events import read_events
from pgle.xla.log.gather import collect
from pgle.xla.log.schedule_evidence import ScheduleEvidence, schedule_evidence
from pgle.xla.log.verdict import LogVerdict, judge

STDIN = "-"
_GIVE = "give the log of the run, stdout and stderr together"


@dataclass(frozen=True)
class ConfirmRequest:
    """What to confirm.

    Attributes:
        log: path of the log (``.gz`` and ``.xz`` are read), or ``-`` for stdin.
        module: regular expression for the main module; None: the weightiest.
        schedule: schedule dump, or a directory that holds some; None: the log alone.
        profile: the profile of the run; None: the one that the log names, where it is still there.
        release: version of jax that wrote the log, ``0.6.2``; None: guessed from its wordings.
        named: somebody named this log, so an empty one is a mistake; that of a program which said nothing is not.
    """

    log: str
    module: str | None = None
    schedule: AnyPath | None = None
    profile: AnyPath | None = None
    release: str | None = None
    named: bool = False


def confirm(request: ConfirmRequest, *, progress: Progress | None = None) -> LogVerdict:
    """The verdict on a log.

    Raises:
        UserError: something cannot be read, or --module is not a regular expression.
    """
    if request.module is not None:
        try:
            re.compile(request.module)
        except re.error as error:
            raise UserError(f"--module {request.module!r} is not a regular expression ({error})") from None
    profile = None if request.profile is None else read_profile(request.profile)
    with _open(request.log, may_be_empty=request.schedule is not None or not request.named) as stream:
        try:
            blocks = collect(read_events(stream, progress=progress))
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UserError(f"cannot be read to its end ({error})", where=request.log) from None
    names = () if profile is None else tuple(cost.name for cost in profile.costs)
    release = _release(request.release)
    verdict = judge(blocks, module=request.module, names=names, release=release)
    if request.schedule is None:
        return verdict
    evidence = _evidence(request, request.schedule, profile or _profile_of(verdict, blocks), verdict)
    return judge(blocks, module=request.module, names=names, schedule=evidence, release=release)


def _release(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = re.match(r"\d+(?:\.\d+)+", text)
    if numbers is None:
        raise UserError(f"--jax {text!r} is not a version of jax", remedy="write it like 0.6.2")
    return tuple(map(int, numbers[0].split(".")))


def _open(log: str, *, may_be_empty: bool) -> BinaryIO:
    if log == STDIN:
        return sys.stdin.buffer
    path = as_path(log)
    if {".pbtxt", ".pb"} & set(path.suffixes[-2:]):  # .hlo.pb.xz too
        raise UserError("a profile or a dump by its name, not a log", where=log, remedy=_GIVE)
    try:
        _check_log(path, may_be_empty)
        if path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        if path.suffix == ".xz":
            return cast(BinaryIO, lzma.open(path, "rb"))
        return cast(BinaryIO, path.open("rb"))
    except FileNotFoundError:
        raise UserError("no such file", where=log, remedy=_GIVE) from None
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", where=log, remedy=_GIVE) from None


def _check_log(path: AnyPath, may_be_empty: bool) -> None:
    """Raise `UserError` where a file holds nothing, or no text; pipes and archives are taken as they come."""
    if not path.is_file() or path.suffix in (".gz", ".xz"):
        return
    with path.open("rb") as stream:
        head = stream.read(4096)
    if not head and not may_be_empty:
        raise UserError("an empty file", where=path, remedy=_GIVE)
    if head.count(0) > len(head) // 10 or head.startswith(b"SQLite format 3"):
        raise UserError("not a log, but binary", where=path, remedy=_GIVE)


def _profile_of(verdict: LogVerdict, blocks: Blocks) -> Profile:
    """The profile that the log says was read."""
    named = verdict.main.profile or next((block.read.subject for block in blocks.last.values() if block.read), "")
    if not named or not as_path(named).exists():
        raise UserError("a schedule dump proves nothing without the profile", remedy="pass --profile PROFILE")
    return read_profile(as_path(named))


def _evidence(request: ConfirmRequest, schedule: AnyPath, profile: Profile, verdict: LogVerdict) -> ScheduleEvidence:
    if not schedule.exists():
        raise UserError("no such file or directory", where=schedule, remedy="check the path")
    stages = [folder for folder in ("profile", "baseline", "perf") if (schedule / folder / "hlo").is_dir()]
    if len(stages) > 1:  # each has a schedule of the same module, and only one of them is the log's
        raise UserError(
            f"holds the stages {', '.join(stages)}", where=schedule, remedy=f"name the log's own: {schedule}/perf"
        )
    dumps = find_schedule_dumps(schedule)
    wanted = request.module or (f"^{re.escape(verdict.main.module)}$" if verdict.main.module else "")
    found = [path for name, path in dumps.items() if re.search(wanted, name)]
    if not found:
        having = ", ".join(sorted(dumps)[:5]) or "no schedule dump"
        raise UserError(
            f"no schedule dump of {request.module or verdict.main.module or 'a module'} (it has {having})",
            where=schedule,
            remedy="dump with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true', LHS on",
        )
    if len(found) > 1 and not wanted:
        raise UserError(f"holds dumps of {len(found)} modules", where=schedule, remedy="choose one with --module")
    dump = read_schedule_dump(found[0])
    costs = effective_costs(profile, dump.module.fingerprint)
    evidence = schedule_evidence(dump, {name: cost.cost_us for name, cost in costs.items()})
    count = cover(profile, [dump.module], {dump.module.name: dump}).modules[0].count
    return replace(evidence, covered=round(count.covered), wanted=round(count.total))
