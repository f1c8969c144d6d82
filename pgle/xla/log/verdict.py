"""From XLA's log to a verdict per module: was the cost profile used, and which line proves it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgle.xla.log.blocks import Block, Blocks
from pgle.xla.log.events import Event, is_clone, is_sub_module
from pgle.xla.log.gather import collect
from pgle.xla.log.reasons import Context, ModuleVerdict, Verdict, judge_block, judge_silence
from pgle.xla.log.remedies import Remedy
from pgle.xla.log.schedule_evidence import ScheduleEvidence

_WORST_FIRST = (
    Verdict.WRONG_FORMAT,
    Verdict.NOT_USED,
    Verdict.USED_WITHOUT_MATCHES,
    Verdict.CANNOT_TELL,
    Verdict.USED,
)


FIRST_WITH_LISTS = (0, 5, 1)
"""First release of jax whose XLA lists the instructions that a profile has no cost for."""


@dataclass(frozen=True)
class LogVerdict:
    """The verdict on a log.

    Attributes:
        main: on the main module: the one asked for, else the one that weighs most.
        modules: on all modules of the program, the main one first.
        sub_modules: how many modules of kernel autotuner and fusions were left out.
        reads: for how many modules each profile was parsed, sub-modules included.
        warnings: what else the log gives away.
    """

    main: ModuleVerdict
    modules: tuple[ModuleVerdict, ...]
    sub_modules: int = 0
    reads: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def judge(
    log: Iterable[Event] | Blocks,
    *,
    module: str | None = None,
    schedule: ScheduleEvidence | None = None,
    names: Sequence[str] = (),
    release: tuple[int, ...] | None = None,
) -> LogVerdict:
    """Judge a log.

    Args:
        log: the events of `pgle.xla.log.events.read_events`, or what `collect` made of them.
        module: regular expression for the main module; None: the module of `schedule`, else the one with the most
            scheduler memory, instructions or compile time.
        schedule: what a schedule dump says of the same compilation; it beats the log.
        names: names in the profile, in file order; they tell how far a 2024 XLA got before its first miss.
        release: of jax, where known: from 0.5.1 on a log without missing instructions proves that all matched.
    """
    blocks = log if isinstance(log, Blocks) else collect(log)
    lists = blocks.prints_missing or (release is not None and release >= FIRST_WITH_LISTS)
    context = Context(blocks, tuple(names), _common_miss(blocks), lists, schedule)
    wanted = module if module is not None else (rf"^{re.escape(schedule.module)}$" if schedule else None)
    rows: list[tuple[tuple[int, int, float], ModuleVerdict]] = []
    sub_modules = 0
    for name, group in _by_module(blocks).items():
        if is_sub_module(name) or is_clone(name):
            sub_modules += 1
            continue
        verdict = _merged(context, name, group)
        memory, instructions, seconds = max(block.weight for block in group)
        # What 0.7.2 and 0.8.x say of a step's clone in directory mode names no module and weighs as much as the step.
        rows.append(((memory if name else memory // 2, instructions, seconds), verdict))
    rows.sort(key=lambda row: row[0], reverse=True)
    verdicts = [row[1] for row in rows]
    main = _main(context, verdicts, wanted)
    if schedule is not None:
        main, verdicts = _with_schedule(main, verdicts, schedule)
    others = [item for item in verdicts if item is not main]
    return LogVerdict(main, (main, *others), sub_modules, dict(blocks.reads), tuple(_warnings(blocks)))


def _by_module(blocks: Blocks) -> dict[str, list[Block]]:
    groups: dict[str, list[Block]] = {}
    for (_rank, name), block in blocks.last.items():
        groups.setdefault(name, []).append(block)
    return groups


def _common_miss(blocks: Blocks) -> str:
    """The first missing name of most modules (2024 wording): most likely the first name of the profile."""
    counts = Counter(block.not_in_module.subject for block in blocks.last.values() if block.not_in_module)
    return counts.most_common(1)[0][0] if counts and counts.most_common(1)[0][1] > 1 else ""


def _merged(context: Context, name: str, group: Sequence[Block]) -> ModuleVerdict:
    """One row for a module: the worst of its ranks."""
    verdicts = [(block, judge_block(context, name, block)) for block in group]
    worst = min((item[1] for item in verdicts), key=lambda item: _WORST_FIRST.index(item.verdict))
    ranks = tuple(sorted({block.rank for block, item in verdicts if item.verdict is worst.verdict and block.rank}))
    times = sum(context.blocks.times[block.rank, name] for block in group)
    why = worst.why
    if len(group) > 1 and len(ranks) < len({block.rank for block in group}):
        why = f"on {len(ranks)} of {len(group)} ranks: {why}"
    return replace(worst, times=times, ranks=ranks if len(group) > 1 else (), why=why)


def _main(context: Context, verdicts: list[ModuleVerdict], wanted: str | None) -> ModuleVerdict:
    """The verdict on the main module; where the log never names it, the one on the unnamed module, or on the log."""
    if wanted is not None:
        named = next((item for item in verdicts if item.module and re.search(wanted, item.module)), None)
        if named is not None:
            return named
    unnamed = next((item for item in verdicts if not item.module), None)
    if wanted is None and verdicts:
        return verdicts[0]
    if unnamed is not None:
        return unnamed
    return judge_silence(context.blocks, wanted)


def _with_schedule(
    main: ModuleVerdict, verdicts: list[ModuleVerdict], schedule: ScheduleEvidence
) -> tuple[ModuleVerdict, list[ModuleVerdict]]:
    """Let the schedule dump decide on its module: it holds the costs that the scheduler believed."""
    if main.module and main.module != schedule.module:
        return main, verdicts
    silent = main.verdict is Verdict.CANNOT_TELL
    verdict, remedy = main.verdict, main.remedy
    if not schedule.compared:
        remedy = Remedy.NO_NAMES
    elif schedule.equal >= schedule.compared / 2:
        verdict, remedy = Verdict.USED, Remedy.PARTIAL if main.covered != main.wanted else ""
    else:
        verdict, remedy = Verdict.NOT_USED, Remedy.NOT_GIVEN if silent or not remedy else remedy
    why = schedule.sentence if main.line is None else f"{schedule.sentence}; log: {main.why}"
    new = replace(main, module=schedule.module, verdict=verdict, why=why, remedy=str(remedy))
    return new, [new if item is main else item for item in verdicts]


def _warnings(blocks: Blocks) -> Iterable[str]:
    if blocks.discarded is not None:
        yield f"line {blocks.discarded.line}: the accuracy checker failed a compilation ({Remedy.CHECKER})"
    if blocks.empty_trace is not None:
        yield f"line {blocks.empty_trace.line}: AutoPGLE recorded nothing ({Remedy.EMPTY_TRACE})"
    if blocks.cache_hits:
        some = ", ".join(sorted(blocks.cache_hits)[:3])
        yield f"{len(blocks.cache_hits)} modules came from JAX's compilation cache and say nothing ({some})"
