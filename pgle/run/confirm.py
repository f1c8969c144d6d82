"""`pgle confirm` as a function: return the verdict on a log, with or without a schedule dump."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.errors import UserError
from pgle.files import (
    TEXT_HEAD_BYTES,
    AnyPath,
    Progress,
    as_path,
    check_exists,
    check_file,
    is_text,
    open_bytes,
    read_head,
)
from pgle.next import Next
from pgle.run.directory.directory import RankFiles, RunDirectory, stage_of
from pgle.run.directory.facts import read_facts
from pgle.trace.nsys import SQLITE_MAGIC
from pgle.xla.log.read import Event, Log, RankLog, collect, read_events
from pgle.xla.log.verdict import (
    BOUNDS,
    Bounds,
    LogVerdict,
    ModuleVerdict,
    ScheduleEvidence,
    judge,
)

if TYPE_CHECKING:
    from pgle.costs.profile.value import Profile
    from pgle.run.compiler.compile import CompileResult
    from pgle.xla.hlo.schedule_dump import LhsSchedule

STDIN = "-"  # the path that means stdin


@dataclass(frozen=True)
class ConfirmRequest:
    """The inputs and limits of a verdict on a log."""

    # a file (also ``.gz`` or ``.xz``), `STDIN`, a stage, a folder of logs, or a run directory (its
    # perf stage)
    log: AnyPath
    more: tuple[AnyPath, ...] = ()  # logs of other ranks of the same job
    # regular expression for the main module; None: the module with most work
    module: str | None = None
    # schedule dump, parsed or not, or a directory of dumps; None: the stage's own dump, or no dump
    schedule: AnyPath | LhsSchedule | None = None
    # dump of the final modules, for names that logs before jax 0.5.1 do not list; None: the stage's
    # own dump
    hlo: AnyPath | None = None
    # the run's profile; None: the file that the log names, if it still exists
    profile: Profile | None = None
    # version of jax that wrote the log, such as ``0.6.2``; None: guessed from the log's wording
    release: str | None = None
    # whether the program ended by itself, so that the log is complete
    whole: bool = False
    bounds: Bounds = BOUNDS  # what a profile must cover to count as used


def check_log(path: AnyPath, *, may_be_empty: bool) -> None:
    """Raise `UserError` if a named file is not a log. Pipes and archives are not checked.

    Args:
        path: the file.
        may_be_empty: accept an empty file, which a silent program leaves.
    """
    remedy = "give the log of the run, stdout and stderr together"
    if {".pbtxt", ".pb"} & set(path.suffixes[-2:]):  # also .hlo.pb.xz
        raise UserError(
            "a profile or a dump by its name, not a log", where=path, remedy=remedy
        )
    if str(path) == STDIN or path.is_dir():
        return
    check_file(path, pipe=True)
    if not path.is_file() or path.suffix in (".gz", ".xz"):
        return
    head = read_head(path, TEXT_HEAD_BYTES)
    if not head and not may_be_empty:
        raise UserError("an empty file", where=path, remedy=remedy)
    if not is_text(head) or head.startswith(SQLITE_MAGIC):
        raise UserError("not a log, but binary", where=path, remedy=remedy)


def confirm(request: ConfirmRequest, *, progress: Progress | None = None) -> LogVerdict:
    """Return the verdict on a log, together with its schedule dump if there is one.

    If a schedule dump cannot be judged because a profile or the module's dump is missing, the
    verdict has a warning.
    """
    release = _release(request.release)
    ranks = _by_rank(request)
    log = collect(_all_events(ranks, progress))
    if len(ranks) > 1:  # keep ranks whose log has no events
        log.ranks = {
            rank: log.ranks.get(rank, RankLog()) for rank in {**ranks, **log.ranks}
        }
    evidence: dict[str, ScheduleEvidence] = {}
    warnings: tuple[str, ...] = ()
    try:
        evidence = _evidence(ranks, log)
    except UserError as error:
        _check_dumps(request.schedule)
        warnings = (f"the schedule dump was not looked at: {error}",)
    verdict = judge(
        log,
        module=request.module,
        schedule=evidence if len(ranks) > 1 else next(iter(evidence.values()), None),
        release=release,
        whole=all(one.whole for one in ranks.values()),
        bounds=request.bounds,
        alike=_alike(log),
    )
    if verdict.main.names_unlisted:
        verdict = _by_final_names(verdict, request, next(iter(ranks.values())), log)
    return replace(verdict, warnings=(*verdict.warnings, *warnings))


def _by_final_names(
    verdict: LogVerdict, request: ConfirmRequest, rank: ConfirmRequest, log: Log
) -> LogVerdict:
    """Return the verdict when XLA took the profile but lists no names. The names come from the
    final modules of one rank.
    """
    if rank.hlo is None or not rank.hlo.is_dir():
        return verdict
    try:
        profile = request.profile or _profile_of(log)
        from pgle.run.schedule_evidence import covered_by_final_names

        module, covered = covered_by_final_names(profile, rank.hlo)
    except UserError:
        return verdict
    found = (
        replace(verdict.main, module=module)
        .with_coverage(covered)
        .held_against(request.bounds)
    )
    main = replace(
        found,
        why=f"{found.why}; XLA took the profile, and its names come from the final HLO",
    )
    return replace(verdict, modules=(main, *verdict.modules[1:]))


def confirm_compiled(compiled: CompileResult, profile: Profile) -> ModuleVerdict:
    """Return the verdict on the only module of a compilation that pgle ran to its end."""
    request = ConfirmRequest(
        compiled.log,
        schedule=compiled.lhs,
        hlo=compiled.after_optimizations.parent,
        profile=profile,
        release=compiled.jaxlib,
        whole=True,
    )
    return confirm(request).main


def _release(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = re.match(r"\d+(?:\.\d+)+", text)
    if numbers is None:
        raise UserError(
            f"--jax {text!r} is not a version of jax", remedy="write it like 0.6.2"
        )
    return tuple(map(int, numbers[0].split(".")))


def _by_rank(request: ConfirmRequest) -> dict[str, ConfirmRequest]:
    """Return one request per rank that left a log, by the rank's label. A single log has an empty
    label.
    """
    _check_schedule(request.schedule)
    logs = _logs_of(request)
    if len(logs) > 1:
        return _by_file(request, logs)
    if str(request.log) == STDIN or not request.log.is_dir():
        return {"": _of_file(request)}
    if logs:
        return {"": replace(request, log=logs[0])}
    return _by_rank_of_stage(request)


def _check_schedule(schedule: AnyPath | LhsSchedule | None) -> None:
    """Raise `UserError` if a path does not exist or holds the dumps of several stages."""
    if not isinstance(schedule, os.PathLike):
        return
    dump = as_path(schedule)
    check_exists(dump)
    stages = [
        folder
        for folder in ("profile", "baseline", "perf")
        if (dump / folder / "hlo").is_dir()
    ]
    if len(stages) > 1:
        # each stage has a schedule of this module, and the log belongs to one stage
        raise UserError(
            f"holds the stages {', '.join(stages)}",
            where=schedule,
            remedy=f"name the log's own: {schedule}/perf",
        )


def _check_dumps(schedule: AnyPath | LhsSchedule | None) -> None:
    """Raise `UserError` if a file that the user named is not a schedule dump, or a folder has
    none.
    """
    if not isinstance(schedule, os.PathLike):
        return
    from pgle.run.schedule_evidence import check_dumps

    check_dumps(as_path(schedule))


def _of_file(request: ConfirmRequest) -> ConfirmRequest:
    """Return the request for one log. If a stage holds the log, add the other files of its rank."""
    stage = stage_of(request.log.parent)
    ranks = () if stage is None else stage.ranks_with_log().values()
    own = next((files for files in ranks if files.log == request.log), None)
    return request if own is None else _of_rank(own, request)


def _by_rank_of_stage(request: ConfirmRequest) -> dict[str, ConfirmRequest]:
    """Return one request per rank of a stage; of a run directory, per rank of its perf stage."""
    run = RunDirectory(Path(request.log))
    stage = None if run.is_recorded else stage_of(request.log)
    stage = stage or run.stage("perf")
    if stage.name == "baseline":
        raise UserError(
            "the baseline runs without a profile: nothing to confirm",
            where=request.log,
            remedy=f"say `{Next.of('confirm', stage.run.stage('perf').path)}`",
        )
    found = {
        str(rank): _of_rank(files, request)
        for rank, files in stage.ranks_with_log().items()
    }
    if not found:
        raise UserError(
            "a directory without the log of a perf stage (perf/output.log)",
            where=request.log,
            remedy="run `pgle perf`, or name its logs",
        )
    only, *others = found.values()
    return found if others else {"": only}


LOG_SUFFIXES = (".log", ".out", ".err")
# suffixes to look for if a folder has no file of `LOG_SUFFIXES`
TEXT_SUFFIXES = (".txt",)
_PACKED = (".gz", ".xz")


def logs_in(folder: AnyPath, suffixes: Sequence[str]) -> list[AnyPath]:
    """Return the files of a folder that have one of the suffixes, compressed or not."""
    found = []
    for item in folder.iterdir():
        own = [suffix for suffix in item.suffixes if suffix not in _PACKED]
        if own and own[-1] in suffixes and item.is_file():
            found.append(item)
    return sorted(found, key=str)


def _logs_of(request: ConfirmRequest) -> list[AnyPath]:
    """Return the logs of several ranks: the named ones, or those of a folder without a run
    directory.
    """
    if request.more:
        return [request.log, *request.more]
    folder = request.log
    if str(folder) == STDIN or not folder.is_dir() or stage_of(folder) is not None:
        return []
    if isinstance(folder, Path) and RunDirectory(folder).stage("perf").ranks_with_log():
        return []
    return logs_in(folder, LOG_SUFFIXES) or logs_in(folder, TEXT_SUFFIXES)


def _by_file(
    request: ConfirmRequest, logs: Sequence[AnyPath]
) -> dict[str, ConfirmRequest]:
    """Return one request per rank. Files that differ only in the suffix, such as Slurm's .out and
    .err, belong to one rank.

    The number in the file name is the rank's label. If numbers do not distinguish the files, the
    whole name is the label.
    """
    files: dict[str, list[AnyPath]] = {}
    has_folders = len({log.parent for log in logs}) > 1
    for log in dict.fromkeys(logs):
        suffixes = log.suffixes[-2:] if _packed(log) else log.suffixes[-1:]
        name = log.name.removesuffix("".join(suffixes))
        if has_folders:
            name = f"{log.parent}/{name}"
        files.setdefault(name, []).append(log)
    labels = rank_labels(list(files))
    return {
        label: replace(request, log=first, more=tuple(rest))
        for label, (first, *rest) in zip(labels, files.values(), strict=True)
    }


def _packed(log: AnyPath) -> bool:
    return log.suffix in _PACKED


def rank_labels(names: Sequence[str]) -> list[str]:
    """Return the number that distinguishes each name, such as the 3 of ``rank3``; else the
    names.
    """
    numbers = [re.findall(r"\d+", name) for name in names]
    if len({len(found) for found in numbers}) == 1:
        for column in zip(*numbers, strict=True):
            values = [str(int(number)) for number in column]
            if len(set(values)) == len(names):
                return values
    return list(names)


def _alike(log: Log) -> dict[str, str]:
    """Map each profile that still exists to the first profile with equal bytes."""
    paths = dict.fromkeys(log.profiles)
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for path in paths if len(paths) > 1 else ():
        with suppress(OSError, UserError):
            digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            found[path] = first.setdefault(digest, path)
    return found


def _of_rank(files: RankFiles, request: ConfirmRequest) -> ConfirmRequest:
    ended = bool(read_facts(files).get("finished"))
    return replace(
        request,
        log=files.log,
        schedule=request.schedule or files.schedule_dumps,
        hlo=request.hlo or files.hlo,
        whole=request.whole or ended,
    )


def _all_events(
    ranks: Mapping[str, ConfirmRequest], progress: Progress | None
) -> Iterator[Event]:
    """Yield the events of every log, rank by rank."""
    for rank, one in ranks.items():
        for path in (one.log, *one.more):
            yield from _events(path, rank, progress)


def _events(log: AnyPath, rank: str, progress: Progress | None) -> Iterator[Event]:
    with (
        nullcontext(sys.stdin.buffer)
        if str(log) == STDIN
        else open_bytes(log, pipe=True) as stream
    ):
        yield from read_events(stream, rank=rank, progress=progress)


def _evidence(
    ranks: Mapping[str, ConfirmRequest], log: Log
) -> dict[str, ScheduleEvidence]:
    """Return what the schedule dumps prove about the main module, by rank."""
    dumps = {
        rank: one.schedule for rank, one in ranks.items() if one.schedule is not None
    }
    if not dumps:
        return {}
    request = next(iter(ranks.values()))
    profile = request.profile or _profile_of(log)
    wanted = request.module or (
        f"^{re.escape(log.main_module)}$" if log.main_module else ""
    )
    from pgle.run.schedule_evidence import evidence_of

    return {rank: evidence_of(dump, wanted, profile) for rank, dump in dumps.items()}


def _profile_of(log: Log) -> Profile:
    """Return the profile that XLA read, by the log."""
    named = next(iter(log.profiles), "")
    if not named or not as_path(named).exists():
        raise UserError(
            "it proves nothing without the profile", remedy="pass --profile PROFILE"
        )
    from pgle.costs.profile.files import read_profile

    return read_profile(as_path(named))
