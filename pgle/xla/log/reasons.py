"""The verdict on what one rank logs: on each module, from the block that is about it or from its silence; on the main
one, with the schedule dump and the lines that contradict it.

No verdict rests on what is missing at the end of a log, unless the log is known to be whole: it may have been cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgle.xla.log.blocks import Block, RankLog
from pgle.xla.log.events import Event
from pgle.xla.log.module_verdict import BOUNDS, Bounds, ModuleVerdict, ProfileUse, Remedy, worst_of
from pgle.xla.log.schedule_evidence import ScheduleEvidence
from pgle.xla.log.wordings import CLONES, Kind

_NEGATIVE = (ProfileUse.WRONG_FORMAT, ProfileUse.NOT_USED)


@dataclass(frozen=True)
class RankVerdict:
    """The verdict on what one rank logs: on its main module, and on all of its program, the weightiest first."""

    main: ModuleVerdict
    modules: tuple[ModuleVerdict, ...]


@dataclass(frozen=True)
class Context:
    """What else bears on the verdict on a block."""

    log: RankLog  # all of the rank's log
    names: tuple[str, ...] = ()  # in the profile, in file order
    common_miss: str = ""  # the first missing name of most modules, in the wording of 2024
    lists_missing: bool = False  # this XLA lists the instructions without a cost
    whole: bool = False  # the program is known to have ended by itself, so that the log is not cut
    release: tuple[int, ...] | None = None  # of jax; None where unknown
    schedule: ScheduleEvidence | None = None  # what a schedule dump says of the main module
    bounds: Bounds = BOUNDS  # what a profile must cover to count as used


def judge_rank(context: Context, module: str | None, *, is_its_own: bool) -> RankVerdict:
    """Judge the modules of one rank.

    Args:
        module: regular expression for the main one; None: the schedule dump's, else the weightiest.
        is_its_own: whether the schedule dump is of this rank, so that it beats its log.
    """
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
    typed = main.filled(dump)
    return RankVerdict(typed, tuple(typed if item is first else item.filled() for item in modules))


def _judge_module(context: Context, name: str, blocks: Sequence[Block]) -> ModuleVerdict:
    """The verdict on a module by each thread's last lines about it: the worst thread's verdict.

    A thread that compiles a module twice, as AutoPGLE does, is judged by the second time; of modules without a name,
    by the weightiest.
    """
    last: dict[str, Block] = {}
    for block in sorted(blocks, key=lambda item: (item.order,) if name else item.weight):
        last[block.thread] = block
    judged = [_judge_block(context, name, block) for block in last.values()]
    return replace(worst_of(judged), times=context.log.times[name])


def _main(context: Context, modules: Sequence[ModuleVerdict], wanted: str | None) -> ModuleVerdict:
    """The verdict on the main module; where the log never names it, the one on the unnamed module, or on the log."""
    if wanted is None and modules:
        return modules[0]
    named = next((item for item in modules if wanted and item.module and re.search(wanted, item.module)), None)
    unnamed = next((item for item in modules if not item.module), None)
    return named or unnamed or _judge_silence(context, wanted)


def _with_schedule(main: ModuleVerdict, schedule: ScheduleEvidence, bounds: Bounds) -> ModuleVerdict:
    """Let the schedule dump decide on its module: it holds the costs that the scheduler believed."""
    if main.module and main.module != schedule.module:
        return main
    main = replace(main, module=schedule.module)
    if schedule.agrees:
        judged = replace(main, why="the profile has costs for the module").with_fit(schedule).by_fit(bounds)
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
        return _contradicted(main, _refused_flag(main, log.lines[Kind.FLAG_REFUSED]), "")
    users = [block for block in log.last.values() if block.module in ("", main.module) and block.took_profile]
    for block in log.last.values():
        same_thread = [user for user in users if user.thread == block.thread]
        own = any(user.profile_is_its_own for user in same_thread)
        again = bool(block.module) and any(user.order > block.order for user in same_thread)
        if block.lacked_profile and users and block.module in ("", main.module) and not (own or again):
            other = _judge_block(context, main.module, block)
            if other.verdict in _NEGATIVE:
                return _contradicted(main, other, block.thread if not same_thread else "")
    return main


def _contradicted(main: ModuleVerdict, other: ModuleVerdict, thread: str) -> ModuleVerdict:
    claim = f"line {main.line} says it was used" if main.line is not None else "the schedule dump says it was used"
    whose = f"thread {thread}: " if thread else ""
    why = f"{whose}{other.why}; {claim}: several processes, or several runs, write this log"
    return replace(other, module=main.module, why=why, remedy=f"{other.remedy}; {Remedy.RANKS}", times=main.times)


def _judge_block(context: Context, name: str, block: Block) -> ModuleVerdict:
    """The verdict on a module by the last that the log says of its scheduling on one rank."""
    lines = block.lines
    base = ModuleVerdict(
        name,
        ProfileUse.CANNOT_TELL,
        "the log says nothing about its scheduling",
        remedy=str(Remedy.WHOLE_LOG),
        profile=block.profile,
        found=block.found,
        missing=block.missing,
        missing_names=tuple(sorted(block.missing_names)),
        fingerprint=block.fingerprint,
    )
    if line := lines.get(Kind.DISCARDED):
        why = "the accuracy checker failed the compilation"
        return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.CHECKER)
    if block.took_profile:
        return _judge_used(context, base, block)
    if line := lines.get(Kind.UNREADABLE):
        where = f" at {lines[Kind.SYNTAX].subject}" if Kind.SYNTAX in lines else ""
        is_last_try = "fdo" not in line.text.lower() or block.is_past_lookup or context.whole
        use = ProfileUse.WRONG_FORMAT if is_last_try else ProfileUse.CANNOT_TELL  # else the flag's file comes next
        return _proved(base, use, f"the profile cannot be parsed{where}", line, Remedy.FORMAT)
    if line := lines.get(Kind.NO_SUCH_FILE):
        return _judge_no_file(context, base, block, line)
    if line := lines.get(Kind.READ):
        why = "the profile was parsed, but no line says that the scheduler took it"
        return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.WHOLE_LOG)
    if block.listed:
        return replace(base, why="the log begins in the middle of XLA's list of instructions without a cost")
    if line := lines.get(Kind.OTHER_ESTIMATOR):
        why = f"scheduled with XLA's {line.subject} model, without a profile"
        return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.NOT_GIVEN)
    if line := lines.get(Kind.LHS_RAN):
        first = context.log.lines.get(Kind.INFO)
        if first is not None and first.line == line.line and not context.whole:
            why = "the scheduler ran, but the log begins there: what it said of the profile may be cut off"
            return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.WHOLE_LOG)
        why = "the scheduler ran, but no profile was found for it"
        return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.NOT_GIVEN)
    return base


def _judge_no_file(context: Context, base: ModuleVerdict, block: Block, line: Event) -> ModuleVerdict:
    """There is no such file; in a directory of profiles there may be one for the module that comes next."""
    if not block.fingerprint_sought:
        return _proved(base, ProfileUse.NOT_USED, "the profile file does not exist", line, Remedy.PATH)
    base = replace(base, fingerprint=base.fingerprint or block.fingerprint_sought)
    why = "the directory has no file for this fingerprint"
    others = any(other.profile for other in context.log.last.values())
    remedy = Remedy.OTHER_MODULE if others else Remedy.DIRECTORY
    no_clones = context.release is not None and not CLONES[0] <= context.release < CLONES[1]
    if context.whole or (Kind.LHS_RAN in block.lines and (block.closed or no_clones) and not context.log.is_open):
        return _proved(base, ProfileUse.NOT_USED, why, line, remedy)
    why += ", but the log may end before the step itself is scheduled: other modules have files of their own"
    return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.DIRECTORY)


def _judge_used(context: Context, base: ModuleVerdict, block: Block) -> ModuleVerdict:
    """The module was scheduled with a profile: did any of its names match?"""
    lines = block.lines
    counted = lines.get(Kind.FOUND) or lines.get(Kind.MISSING)
    proof = counted or lines[Kind.FOUND_PROFILE]
    past_lookup = block.is_past_lookup or context.whole
    if counted is not None:
        # Where INFO is hidden nothing follows the list.
        is_all = Kind.FOUND in lines and Kind.MISSING in lines and block.listed >= (block.missing or 0)
        if past_lookup or (is_all and Kind.FOUND_PROFILE not in lines):
            return _judge_counted(context, base, block, proof)
        why = f"XLA found {block.found or 0} instructions in the profile, but the log ends before it scheduled them"
        return _proved(base, ProfileUse.CANNOT_TELL, why, proof, Remedy.WHOLE_LOG)
    if line := lines.get(Kind.NAME_NOT_IN_MODULE):
        return _judge_2024(context, base, line)
    if context.lists_missing and past_lookup:
        why = "XLA names no instruction without a cost, so each has one from the profile"
        return _proved(replace(base, missing=0), ProfileUse.USED, why, proof, "")
    if block.costs_found:
        why = f"XLA took {block.costs_found} costs from the profile; this log does not say how many it lacked"
        return _proved(base, ProfileUse.USED, why, proof, "")
    if context.lists_missing:
        why = "XLA gave the profile to its scheduler, but the log ends before it could name instructions without a cost"
        return _proved(base, ProfileUse.CANNOT_TELL, why, proof, Remedy.WHOLE_LOG)
    why = (
        "XLA gave the profile to its scheduler and names no instruction without a cost: from jax 0.5.1 on that proves "
        "that each has one, before it proves nothing, and the log does not say which jax it is"
    )
    return _proved(base, ProfileUse.CANNOT_TELL, why, proof, Remedy.OLD_XLA)


def _judge_counted(context: Context, base: ModuleVerdict, block: Block, proof: Event) -> ModuleVerdict:
    if block.found is None or block.missing is None:
        why = "the log holds only one of XLA's two counts, of instructions with and without a cost"
        return _proved(base, ProfileUse.CANNOT_TELL, why, proof, Remedy.WHOLE_LOG)
    covered, wanted = block.covered
    base = replace(base, covered=covered, wanted=wanted).with_fit(context.schedule)
    if not base.found:
        why = f"the profile has a cost for none of the {base.wanted} instructions"
        return _proved(base, ProfileUse.USED_WITHOUT_MATCHES, why, proof, Remedy.NO_NAMES)
    judged = base.by_fit(context.bounds)
    return _proved(judged, judged.verdict, judged.why, proof, judged.remedy)


def _judge_2024(context: Context, base: ModuleVerdict, line: Event) -> ModuleVerdict:
    """XLA of early 2024 looks the profile's names up in the module, in file order, and names the first it lacks."""
    name = line.subject
    if name in context.names:
        before = context.names.index(name)
        if before:
            why = (
                f"the module has the first {before} of the profile's {len(context.names)} names, and not the next, "
                f"{name}; XLA looked no further"
            )
            return _proved(base, ProfileUse.USED, why, line, Remedy.STALE)
    elif context.common_miss and name != context.common_miss:
        why = f"the module lacks the name {name}; it has those before it, such as {context.common_miss}"
        return _proved(base, ProfileUse.USED, why, line, Remedy.STALE)
    why = f"XLA gave the profile to its scheduler, but the module lacks its name {name}, and XLA looked no further"
    return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.OTHER_MODULE)


def _judge_silence(context: Context, wanted: str | None) -> ModuleVerdict:
    """No line about the scheduling of the main module: why not?"""
    log = context.log
    base = ModuleVerdict("", ProfileUse.CANNOT_TELL, "")
    hit = next((event for name, event in log.cache_hits.items() if wanted is None or re.search(wanted, name)), None)
    if line := log.lines.get(Kind.FLAG_REFUSED):
        return _refused_flag(base, line)
    if line := log.lines.get(Kind.DISCARDED):
        why = "the accuracy checker failed the compilation"
        return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.CHECKER)
    if (line := log.lines.get(Kind.ON_CPU)) and not log.last:
        why = "jax ran on CPU devices, whose compiler has no latency-hiding scheduler and reads no profile"
        return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.CPU)
    if hit is not None:
        why = "loaded from JAX's compilation cache, so nothing was scheduled in this run"
        return _proved(replace(base, module=hit.module), ProfileUse.CANNOT_TELL, why, hit, Remedy.CACHE)
    if wanted is not None and log.last:
        names = ", ".join(sorted({name for _, name, _ in log.last if name})[:5])
        why = f"no module of the log matches {wanted!r}; it has {names or 'none with a name'}"
        return replace(base, why=why, remedy=str(Remedy.MODULE))
    if Kind.INFO not in log.lines:
        why = "the log holds no INFO line of XLA: its log level hides them"
        return replace(base, why=why, remedy=str(Remedy.LEVEL))
    begun = log.lines.get(Kind.COMPILING)
    if done := log.lines.get(Kind.COMPILED) or (begun if context.whole else None):
        why = "XLA compiled and logs at INFO, but neither read a profile nor ran the scheduler"
        return _proved(base, ProfileUse.NOT_USED, why, done, Remedy.SILENT)
    if begun:
        why = "the log ends after a compilation has begun, before a word of profile or scheduler"
        return _proved(base, ProfileUse.CANNOT_TELL, why, begun, Remedy.WHOLE_OR_SILENT)
    return replace(base, why="the log shows no compilation", remedy=str(Remedy.CACHE))


def _refused_flag(base: ModuleVerdict, line: Event) -> ModuleVerdict:
    """The verdict where XLA ended over a flag."""
    why = f"XLA ended over a flag{': ' + line.subject if line.subject else ''}"
    return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.FLAG)


def _proved(base: ModuleVerdict, verdict: ProfileUse, why: str, line: Event, remedy: str) -> ModuleVerdict:
    return replace(base, verdict=verdict, why=why, line=line.line, proof=line.text.strip(), remedy=str(remedy))
