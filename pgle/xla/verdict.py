"""From XLA's log to a verdict per module: was the cost profile used, and which line proves it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pgle.xla.log import Event, is_clone, is_sub_module
from pgle.xla.log_blocks import Block, Blocks, collect
from pgle.xla.schedule_evidence import ScheduleEvidence
from pgle.xla.verdict_texts import Remedy


class Verdict(StrEnum):
    """Whether a module was scheduled with the profile."""

    USED = "used"
    USED_WITHOUT_MATCHES = "used-without-matches"
    NOT_USED = "not-used"
    WRONG_FORMAT = "wrong-format"
    CANNOT_TELL = "cannot-tell"


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
class ModuleVerdict:
    """The verdict on one module.

    Attributes:
        module: its name; empty where the log names none.
        verdict: whether the profile was used.
        why: the reason, in words.
        line: number of the line that proves it; None where nothing in the log does.
        proof: that line, without its prefix.
        remedy: what to do; empty where nothing is to be done.
        profile: what was read: a path, or ``fdo_profile (text)``; empty where unknown.
        found: instructions with a cost; None where XLA does not say.
        missing: instructions without; None where XLA does not say. 0 is also said by silence (0.5.1 and newer).
        missing_names: of some or all of them.
        fingerprint: where the log gives it.
        times: how often the log schedules it.
        ranks: the line prefixes (ranks) that this verdict is about, where the log has several.
    """

    module: str
    verdict: Verdict
    why: str
    line: int | None = None
    proof: str = ""
    remedy: str = ""
    profile: str = ""
    found: int | None = None
    missing: int | None = None
    missing_names: tuple[str, ...] = ()
    fingerprint: str = ""
    times: int = 1
    ranks: tuple[str, ...] = ()


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
        log: the events of `pgle.xla.log.read_events`, or what `collect` made of them.
        module: regular expression for the main module; None: the module of `schedule`, else the one with the most
            scheduler memory, instructions or compile time.
        schedule: what a schedule dump says of the same compilation; it beats the log.
        names: names in the profile, in file order; they tell how far a 2024 XLA got before its first miss.
        release: of jax, where known: from 0.5.1 on a log without missing instructions proves that all matched.
    """
    blocks = log if isinstance(log, Blocks) else collect(log)
    lists = blocks.prints_missing or (release is not None and release >= FIRST_WITH_LISTS)
    context = _Context(blocks, tuple(names), _common_miss(blocks), lists)
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


@dataclass(frozen=True)
class _Context:
    blocks: Blocks
    names: tuple[str, ...]
    common_miss: str
    lists_missing: bool


def _by_module(blocks: Blocks) -> dict[str, list[Block]]:
    groups: dict[str, list[Block]] = {}
    for (_rank, name), block in blocks.last.items():
        groups.setdefault(name, []).append(block)
    return groups


def _common_miss(blocks: Blocks) -> str:
    """The first missing name of most modules (2024 wording): most likely the first name of the profile."""
    counts = Counter(block.not_in_module.subject for block in blocks.last.values() if block.not_in_module)
    return counts.most_common(1)[0][0] if counts and counts.most_common(1)[0][1] > 1 else ""


def _merged(context: _Context, name: str, group: Sequence[Block]) -> ModuleVerdict:
    """One row for a module: the worst of its ranks."""
    verdicts = [(block, _judge_block(context, name, block)) for block in group]
    worst = min((item[1] for item in verdicts), key=lambda item: _WORST_FIRST.index(item.verdict))
    ranks = tuple(sorted({block.rank for block, item in verdicts if item.verdict is worst.verdict and block.rank}))
    times = sum(context.blocks.times[block.rank, name] for block in group)
    why = worst.why
    if len(group) > 1 and len(ranks) < len({block.rank for block in group}):
        why = f"on {len(ranks)} of {len(group)} ranks: {why}"
    return replace(worst, times=times, ranks=ranks if len(group) > 1 else (), why=why)


def _judge_block(context: _Context, name: str, block: Block) -> ModuleVerdict:
    profile = block.read.subject if block.read else ""
    base = ModuleVerdict(name, Verdict.CANNOT_TELL, "", profile=profile, fingerprint=block.fingerprint)
    base = replace(base, found=block.found, missing=block.missing, missing_names=tuple(sorted(block.missing_names)))
    if block.discarded is not None:
        return _proved(base, Verdict.NOT_USED, "the accuracy checker failed the compilation", block.discarded,
                       Remedy.CHECKER)  # fmt: skip
    if block.profile is not None or block.found is not None:
        return _judge_used(context, base, block)
    if block.unreadable is not None:
        where = f" at {block.syntax.subject}" if block.syntax else ""
        return _proved(base, Verdict.WRONG_FORMAT, f"the profile cannot be parsed{where}", block.unreadable,
                       Remedy.FORMAT)  # fmt: skip
    if block.no_file is not None:
        directory = re.search(r"([0-9a-f]{32})\.pb(?:txt)?$", block.no_file.subject)
        why = "the directory has no file for this fingerprint" if directory else "the profile file does not exist"
        found = replace(base, fingerprint=base.fingerprint or (directory[1] if directory else ""))
        remedy = Remedy.DIRECTORY if directory else Remedy.PATH
        if directory and any(other.profile for other in context.blocks.last.values()):
            remedy = Remedy.OTHER_MODULE
        return _proved(found, Verdict.NOT_USED, why, block.no_file, remedy)
    if block.read is not None:
        why = "the profile was parsed, but no line says that the scheduler took it"
        return _proved(base, Verdict.CANNOT_TELL, why, block.read, Remedy.WHOLE_LOG)
    if block.estimator is not None:
        why = f"scheduled with XLA's {block.estimator.subject} model, without a profile"
        return _proved(base, Verdict.NOT_USED, why, block.estimator, Remedy.NOT_GIVEN)
    if block.lhs is not None:
        return _proved(base, Verdict.NOT_USED, "the scheduler ran, but no profile was found for it", block.lhs,
                       Remedy.NOT_GIVEN)  # fmt: skip
    return replace(base, why="the log says nothing about its scheduling", remedy=Remedy.WHOLE_LOG)


def _judge_used(context: _Context, base: ModuleVerdict, block: Block) -> ModuleVerdict:
    """The module was scheduled with a profile: did any of its names match?"""
    proof = block.counted if block.counted is not None else block.profile
    assert proof is not None
    if base.found is not None or base.missing is not None:
        found, missing = base.found or 0, base.missing or 0
        total = found + missing
        if found == 0:
            why = f"no instruction of the module has a cost in the profile (0 of {total})"
            return _proved(base, Verdict.USED_WITHOUT_MATCHES, why, proof, Remedy.NO_NAMES)
        why = f"{found} of {total} instructions have a cost; the others got XLA's own guess"
        return _proved(base, Verdict.USED, why, proof, Remedy.PARTIAL)
    if block.not_in_module is not None:
        return _judge_2024(context, base, block.not_in_module)
    if context.lists_missing:
        why = "XLA lists no instruction without a cost: every one has one"
        return _proved(replace(base, missing=0), Verdict.USED, why, proof, "")
    if block.costs_found:
        return _proved(base, Verdict.USED, f"{block.costs_found} times a cost of the profile was taken", proof, "")
    why = (
        "the scheduler has the profile and lists nothing as missing: from jax 0.5.1 on that is proof, before it is not"
    )
    return _proved(base, Verdict.CANNOT_TELL, why, proof, Remedy.OLD_XLA)


def _judge_2024(context: _Context, base: ModuleVerdict, line: Event) -> ModuleVerdict:
    """XLA of early 2024 looks the profile's names up in the module, in file order, and names the first it lacks."""
    name = line.subject
    if name in context.names:
        before = context.names.index(name)
        if before:
            why = f"the first {before} of the profile's {len(context.names)} names are in the module, {name} is not"
            return _proved(base, Verdict.USED, why, line, Remedy.STALE)
    elif context.common_miss and name != context.common_miss:
        why = f"{name} is not in the module; the names before it are, {context.common_miss} among them"
        return _proved(base, Verdict.USED, why, line, Remedy.STALE)
    why = f"the profile was given to the scheduler, but already its name {name} is not in the module"
    return _proved(base, Verdict.CANNOT_TELL, why, line, Remedy.OTHER_MODULE)


def _main(context: _Context, verdicts: list[ModuleVerdict], wanted: str | None) -> ModuleVerdict:
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
    return _judge_silence(context.blocks, wanted)


def _judge_silence(blocks: Blocks, wanted: str | None) -> ModuleVerdict:
    """No line about the scheduling of the main module: tell the reasons apart."""
    base = ModuleVerdict("", Verdict.CANNOT_TELL, "")
    hit = next((event for name, event in blocks.cache_hits.items() if wanted is None or re.search(wanted, name)), None)
    if blocks.flag_refused is not None:
        flag = blocks.flag_refused.subject
        why = f"XLA ended over a flag{': ' + flag if flag else ''}"
        return _proved(base, Verdict.NOT_USED, why, blocks.flag_refused, Remedy.FLAG)
    if blocks.discarded is not None:
        why = "the accuracy checker failed the compilation"
        return _proved(base, Verdict.NOT_USED, why, blocks.discarded, Remedy.CHECKER)
    if hit is not None:
        why = "loaded from JAX's compilation cache, so nothing was scheduled in this run"
        return _proved(replace(base, module=hit.module), Verdict.CANNOT_TELL, why, hit, Remedy.CACHE)
    if wanted is not None and blocks.last:
        names = ", ".join(sorted(name for _, name in blocks.last if name and not is_sub_module(name))[:5])
        return replace(base, why=f"no module of the log matches {wanted!r}; it has {names}", remedy=Remedy.MODULE)
    if blocks.info is None:
        return replace(base, why="the log holds no INFO line of XLA: its log level hides them", remedy=Remedy.LEVEL)
    if blocks.compiled is not None:
        why = "XLA compiled and logs at INFO, but neither read a profile nor ran the scheduler"
        return _proved(base, Verdict.NOT_USED, why, blocks.compiled, Remedy.SILENT)
    return replace(base, why="the log shows no compilation", remedy=Remedy.CACHE)


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
        verdict, remedy = Verdict.USED, Remedy.PARTIAL if main.missing else ""
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


def _proved(base: ModuleVerdict, verdict: Verdict, why: str, line: Event, remedy: str) -> ModuleVerdict:
    return replace(base, verdict=verdict, why=why, line=line.line, proof=line.text.strip(), remedy=str(remedy))
