"""From XLA's log to a verdict per rank and module: was the cost profile used, and which line proves it."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from pgle.xla.log.blocks import Block, Log, RankLog
from pgle.xla.log.module_verdict import BOUNDS, Bounds, ModuleVerdict, ProfileUse, Remedy
from pgle.xla.log.reasons import Context, judge_block, judge_fit, judge_silence, refused_flag, with_fit
from pgle.xla.log.schedule_evidence import ScheduleEvidence
from pgle.xla.log.wordings import LISTS_SINCE, Kind

_WORST_FIRST = (
    ProfileUse.WRONG_FORMAT,
    ProfileUse.NOT_USED,
    ProfileUse.USED_WITHOUT_MATCHES,
    ProfileUse.PARTLY_USED,
    ProfileUse.CANNOT_TELL,
    ProfileUse.USED,
)
_NEGATIVE = (ProfileUse.WRONG_FORMAT, ProfileUse.NOT_USED)


@dataclass(frozen=True)
class LogVerdict:
    """The verdict on a log."""

    # on the main module, that of the rank that is worst off: the module asked for, else the weightiest
    main: ModuleVerdict
    # on all modules of the program, the main one first; each as the rank has it that is worst off
    modules: tuple[ModuleVerdict, ...]
    # what each rank did with the profile, by its label, where the log tells ranks by labels
    ranks: Mapping[str, ProfileUse] = field(default_factory=dict)
    sub_modules: int = 0  # how many modules of kernel autotuner and fusions were left out
    # for how many modules each profile was parsed, sub-modules and all ranks included
    reads: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what else the log gives away


@dataclass(frozen=True)
class _Rank:
    """The verdict on what one rank logs: on its main module, and on all of its program, the weightiest first."""

    main: ModuleVerdict
    modules: tuple[ModuleVerdict, ...]


def judge(
    log: Log,
    *,
    module: str | None = None,
    schedule: ScheduleEvidence | Mapping[str, ScheduleEvidence] | None = None,
    names: Sequence[str] = (),
    release: tuple[int, ...] | None = None,
    whole: bool = False,
    bounds: Bounds = BOUNDS,
) -> LogVerdict:
    """Judge a log: each rank by itself, then all by the one that is worst off.

    Args:
        log: what `pgle.xla.log.blocks.collect` made of its events.
        module: regular expression for the main module; None: the module of `schedule`, else the one with the most
            scheduler memory, instructions or compile time.
        schedule: what a schedule dump says of the same compilation, or by rank what its own says; it beats the log,
            but one dump does not clear a rank whose log speaks against it.
        names: names in the profile, in file order; they tell how far a 2024 XLA got before its first miss.
        release: of jax, where known: from 0.5.1 on a log without missing instructions proves that all matched.
        whole: the program ended by itself, so that silence at the end of the log means something.
    """
    ranks = log.ranks or {"": RankLog()}
    if len(ranks) > 1 and not ranks.get("", RankLog()).last:  # lines that no rank has written, such as a launcher's
        ranks = {rank: item for rank, item in ranks.items() if rank}
    context = Context(
        RankLog(),
        names=tuple(names),
        common_miss=_common_miss(ranks.values()),
        lists_missing=log.lists_missing or (release is not None and release >= LISTS_SINCE),
        whole=whole,
        release=release,
        bounds=bounds,
    )
    judged = {}
    for rank, rank_log in ranks.items():
        own = schedule.get(rank) if isinstance(schedule, Mapping) else schedule
        is_its_own = isinstance(schedule, Mapping) or len(ranks) == 1
        judged[rank] = _judge_rank(replace(context, log=rank_log, schedule=own), module, is_its_own=is_its_own)
    main, modules = _combined(judged)
    return LogVerdict(
        main=main,
        modules=modules,
        ranks={rank: item.main.verdict for rank, item in judged.items()} if any(judged) else {},
        sub_modules=max(len(item.sub_modules) for item in ranks.values()),
        reads=dict(sum((item.reads for item in ranks.values()), Counter())),
        warnings=tuple(_warnings(log.ranks)),
    )


def _judge_rank(context: Context, module: str | None, *, is_its_own: bool) -> _Rank:
    schedule = context.schedule
    wanted = module if module is not None else (rf"^{re.escape(schedule.module)}$" if schedule else None)
    by_name: dict[str, list[Block]] = {}
    for (_, name, _), block in context.log.last.items():
        by_name.setdefault(name, []).append(block)
    weightiest_first = sorted(by_name.items(), key=lambda item: max(block.weight for block in item[1]), reverse=True)
    modules = [_judge_module(context, name, blocks) for name, blocks in weightiest_first]
    main = first = _main(context, modules, wanted)
    if schedule is not None and (is_its_own or (main.verdict not in _NEGATIVE and modules)):
        main = _with_schedule(main, schedule, context.bounds)
    main = _with_contradictions(context, main)
    dump = schedule.source if schedule is not None and schedule.module == main.module else ""
    filled = _filled(main, dump)
    return _Rank(filled, tuple(filled if item is first else _filled(item) for item in modules))


def _filled(item: ModuleVerdict, dump: str = "") -> ModuleVerdict:
    """A verdict whose remedy names the profile and the dump, where they are known, so that it can be typed."""
    remedy = item.remedy
    if item.profile and not item.profile.startswith("fdo_profile"):
        remedy = re.sub(r"(?<= )PROFILE\b", lambda _: shlex.quote(item.profile), remedy)
    if dump:
        remedy = re.sub(r"(?<=--hlo )DUMP\b", lambda _: shlex.quote(str(PurePath(dump).parent)), remedy)
    return replace(item, remedy=remedy)


def _common_miss(ranks: Iterable[RankLog]) -> str:
    """The first missing name of most modules (2024 wording): most likely the first name of the profile."""
    missed = (block.lines.get(Kind.NAME_NOT_IN_MODULE) for rank in ranks for block in rank.last.values())
    counts = Counter(line.subject for line in missed if line is not None)
    return counts.most_common(1)[0][0] if counts and counts.most_common(1)[0][1] > 1 else ""


def _judge_module(context: Context, name: str, blocks: Sequence[Block]) -> ModuleVerdict:
    """The verdict on a module by the last that each thread says of it: that of the thread that is worst off.

    A thread that compiles a module twice, as AutoPGLE does, is judged by the second time; of modules without a name,
    by the weightiest.
    """
    last: dict[str, Block] = {}
    for block in sorted(blocks, key=lambda item: (item.order,) if name else item.weight):
        last[block.thread] = block
    judged = [judge_block(context, name, block) for block in last.values()]
    return replace(_worst(judged), times=context.log.times[name])


def _worst(verdicts: Iterable[ModuleVerdict]) -> ModuleVerdict:
    return min(verdicts, key=lambda item: _WORST_FIRST.index(item.verdict))


def _main(context: Context, modules: Sequence[ModuleVerdict], wanted: str | None) -> ModuleVerdict:
    """The verdict on the main module; where the log never names it, the one on the unnamed module, or on the log."""
    if wanted is None and modules:
        return modules[0]
    named = next((item for item in modules if wanted and item.module and re.search(wanted, item.module)), None)
    unnamed = next((item for item in modules if not item.module), None)
    return named or unnamed or judge_silence(context, wanted)


def _with_schedule(main: ModuleVerdict, schedule: ScheduleEvidence, bounds: Bounds) -> ModuleVerdict:
    """Let the schedule dump decide on its module: it holds the costs that the scheduler believed."""
    if main.module and main.module != schedule.module:
        return main
    main = replace(main, module=schedule.module)
    if schedule.agrees:
        judged = judge_fit(with_fit(replace(main, why="the profile has costs for the module"), schedule), bounds)
        said = f"; the log says otherwise: {main.why}" if main.verdict in _NEGATIVE else ""
        return replace(judged, why=f"{judged.why}; {schedule.sentence}{said}")
    why = schedule.sentence if main.line is None else f"{schedule.sentence}; the log: {main.why}"
    if not schedule.compared:
        return replace(main, why=why, remedy=str(Remedy.NO_NAMES))
    silent = main.verdict is ProfileUse.CANNOT_TELL or not main.remedy
    return replace(main, verdict=ProfileUse.NOT_USED, why=why, remedy=str(Remedy.NOT_GIVEN) if silent else main.remedy)


def _with_contradictions(context: Context, main: ModuleVerdict) -> ModuleVerdict:
    """No module counts as used while another line says otherwise, and nothing but another process explains it.

    All modules of one process look the profile up in the same file, so one that was scheduled without it belongs to
    another process. Where each module has a profile of its own (AutoPGLE, a directory), others on its thread may lack
    one.
    """
    log = context.log
    if not main.verdict.took_costs:
        return main
    if Kind.FLAG_REFUSED in log.lines:
        return _contradicted(main, refused_flag(main, log.lines[Kind.FLAG_REFUSED]), "")
    users = [block for block in log.last.values() if block.module in ("", main.module) and block.took_profile]
    for block in log.last.values():
        same_thread = [user for user in users if user.thread == block.thread]
        own = any(user.profile_is_its_own for user in same_thread)
        again = bool(block.module) and any(user.order > block.order for user in same_thread)
        if block.lacked_profile and users and block.module in ("", main.module) and not (own or again):
            other = judge_block(context, main.module, block)
            if other.verdict in _NEGATIVE:
                return _contradicted(main, other, block.thread if not same_thread else "")
    return main


def _contradicted(main: ModuleVerdict, other: ModuleVerdict, thread: str) -> ModuleVerdict:
    claim = f"line {main.line} says it was used" if main.line is not None else "the schedule dump says it was used"
    whose = f"thread {thread}: " if thread else ""
    why = f"{whose}{other.why}; {claim}: several processes, or several runs, write this log"
    return replace(other, module=main.module, why=why, remedy=f"{other.remedy}; {Remedy.RANKS}", times=main.times)


def _combined(judged: Mapping[str, _Rank]) -> tuple[ModuleVerdict, tuple[ModuleVerdict, ...]]:
    """The verdicts of all ranks in one: each module as the rank has it that is worst off."""
    if len(judged) == 1:
        (only,) = judged.values()
        return only.main, (only.main, *(item for item in only.modules if item is not only.main))
    mains = {rank: item.main for rank, item in judged.items()}
    name = next((item.module for item in mains.values() if item.module), "")
    main = _of_ranks({rank: replace(item, module=item.module or name) for rank, item in mains.items()})
    if main.verdict is not ProfileUse.USED and ProfileUse.USED in (item.verdict for item in mains.values()):
        main = replace(main, remedy=f"{main.remedy}; {Remedy.RANKS}" if main.remedy else str(Remedy.RANKS))
    by_name: dict[str, dict[str, ModuleVerdict]] = {}
    for rank, judgement in judged.items():
        for item in judgement.modules:
            if item is not judgement.main:
                by_name.setdefault(item.module, {})[rank] = item
    return main, (main, *map(_of_ranks, by_name.values()))


def _of_ranks(verdicts: Mapping[str, ModuleVerdict]) -> ModuleVerdict:
    worst = _worst(verdicts.values())
    ranks = tuple(rank for rank, item in verdicts.items() if item.verdict is worst.verdict)
    times = sum(item.times for item in verdicts.values())
    if len(ranks) == len(verdicts):
        return replace(worst, ranks=ranks, times=times)
    some = ", ".join(rank or "(no label)" for rank in ranks[:4]) + (", …" if len(ranks) > 4 else "")
    why = f"on {len(ranks)} of {len(verdicts)} ranks ({some}): {worst.why}"
    return replace(worst, ranks=ranks, times=times, why=why)


def _warnings(ranks: Mapping[str, RankLog]) -> Iterable[str]:
    hits = sorted({name for item in ranks.values() for name in item.cache_hits})
    for rank, rank_log in ranks.items():
        where = f"rank {rank}, " if rank else ""
        if line := rank_log.lines.get(Kind.DISCARDED):
            yield f"{where}line {line.line}: the accuracy checker failed a compilation ({Remedy.CHECKER})"
        if line := rank_log.lines.get(Kind.EMPTY_TRACE):
            yield f"{where}line {line.line}: AutoPGLE recorded nothing ({Remedy.EMPTY_TRACE})"
    if hits:
        yield f"{len(hits)} modules came from JAX's compilation cache and say nothing ({', '.join(hits[:3])})"
