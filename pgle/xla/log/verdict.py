"""From XLA's log to a verdict per rank and module: was the cost profile used, and which line proves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgle.xla.log.blocks import Log, RankLog
from pgle.xla.log.events import LISTS_SINCE, Kind
from pgle.xla.log.evidence import ScheduleEvidence
from pgle.xla.log.module_verdict import (
    BOUNDS,
    Bounds,
    Context,
    ModuleVerdict,
    ProfileUse,
    RankVerdict,
    Remedy,
    judge_rank,
    worst_of,
)


@dataclass(frozen=True)
class LogVerdict:
    """The verdict on a log."""

    # on the main module, the worst rank's: the module asked for, else the weightiest
    main: ModuleVerdict
    # on all modules of the program, the main one first; each as the rank has it that is worst off
    modules: tuple[ModuleVerdict, ...]
    # what each rank did with the profile, by its label, where the log tells ranks by labels
    ranks: Mapping[str, ProfileUse] = field(default_factory=dict)
    sub_modules: int = 0  # how many modules of kernel autotuner and fusions were left out
    # for how many modules each profile was parsed, sub-modules and all ranks included
    reads: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what else the log gives away


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
        judged[rank] = judge_rank(replace(context, log=rank_log, schedule=own), module, is_its_own=is_its_own)
    main, modules = _combined(judged)
    return LogVerdict(
        main=main,
        modules=modules,
        ranks={rank: item.main.verdict for rank, item in judged.items()} if any(judged) else {},
        sub_modules=max(len(item.sub_modules) for item in ranks.values()),
        reads=dict(sum((item.reads for item in ranks.values()), Counter())),
        warnings=tuple(_warnings(log.ranks)),
    )


def _common_miss(ranks: Iterable[RankLog]) -> str:
    """The first missing name of most modules (2024 wording): most likely the first name of the profile."""
    missed = (block.lines.get(Kind.NAME_NOT_IN_MODULE) for rank in ranks for block in rank.last.values())
    counts = Counter(line.subject for line in missed if line is not None)
    return counts.most_common(1)[0][0] if counts and counts.most_common(1)[0][1] > 1 else ""


def _combined(judged: Mapping[str, RankVerdict]) -> tuple[ModuleVerdict, tuple[ModuleVerdict, ...]]:
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
    worst = worst_of(verdicts.values())
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
