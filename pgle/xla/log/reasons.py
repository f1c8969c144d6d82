"""The rules of the verdict on one module: from the block of the log that is about it, or from its silence.

No verdict rests on what is missing at the end of a log, unless the log is known to be whole: it may have been cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pgle.xla.log.blocks import Block, RankLog
from pgle.xla.log.events import Event
from pgle.xla.log.module_verdict import BOUNDS, MOSTLY_UNKNOWN, Bounds, ModuleVerdict, ProfileUse, Remedy
from pgle.xla.log.schedule_evidence import ScheduleEvidence
from pgle.xla.log.wordings import CLONES, Kind


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


def judge_block(context: Context, name: str, block: Block) -> ModuleVerdict:
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
    base = with_fit(replace(base, covered=covered, wanted=wanted), context.schedule)
    if not base.found:
        why = f"the profile has a cost for none of the {base.wanted} instructions"
        return _proved(base, ProfileUse.USED_WITHOUT_MATCHES, why, proof, Remedy.NO_NAMES)
    judged = judge_fit(base, context.bounds)
    return _proved(judged, judged.verdict, judged.why, proof, judged.remedy)


def with_fit(base: ModuleVerdict, dump: ScheduleEvidence | None) -> ModuleVerdict:
    """A verdict with what a schedule dump of the same module says of the profile's fit, where there is one."""
    if dump is None or dump.wanted is None or base.module not in ("", dump.module):
        return base
    return replace(
        base,
        covered=dump.covered,
        wanted=dump.wanted,
        time_coverage=dump.time_coverage,
        kept_share=dump.kept_share,
        mismatched=dump.mismatched,
    )


def judge_fit(base: ModuleVerdict, bounds: Bounds) -> ModuleVerdict:
    """The verdict on a module that took costs from the profile: were there enough of them?"""
    if base.wanted is None or base.covered is None:
        return replace(base, verdict=ProfileUse.USED, remedy="")
    covered, wanted = base.covered, base.wanted
    by_count = covered / wanted if wanted else 1.0
    share = by_count if base.time_coverage is None else base.time_coverage
    kept = 1.0 if base.kept_share is None else base.kept_share
    if covered == wanted:
        return replace(
            base,
            verdict=ProfileUse.USED,
            why=f"the profile has a cost for each of the {wanted} instructions",
            remedy="",
        )
    is_enough = bounds.are_met(share, kept)
    of = "" if base.time_coverage is None else " of the step's time as XLA plans it"
    no_times = "; a log tells no times" if base.time_coverage is None else ""
    asked = "" if share >= bounds.time else f" (asked for: {bounds.time:.1%}{no_times})"
    why = f"the profile has costs for {covered or 'none'} of the {wanted} instructions, {share:.1%}{of}{asked}"
    if share >= bounds.time and kept < bounds.collectives:
        why += f"; collectives without a cost weigh {1 - kept:.1%} of the step (at most {1 - bounds.collectives:.1%})"
    if base.mismatched:
        why += f"; {base.mismatched} got the cost of another opcode or shape of that name"
    why += "; XLA guessed the others"
    return replace(
        base,
        verdict=ProfileUse.USED if is_enough else ProfileUse.PARTLY_USED,
        why=why,
        remedy=str(Remedy.FOREIGN if by_count < MOSTLY_UNKNOWN else Remedy.PARTIAL),
    )


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
        why = (
            f"the module lacks the profile's name {name}; it has those before it, such as {context.common_miss}, and "
            "XLA looked no further"
        )
        return _proved(base, ProfileUse.USED, why, line, Remedy.STALE)
    why = f"XLA gave the profile to its scheduler, but the module lacks its name {name}, and XLA looked no further"
    return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.OTHER_MODULE)


def judge_silence(context: Context, wanted: str | None) -> ModuleVerdict:
    """No line about the scheduling of the main module: why not?"""
    log = context.log
    base = ModuleVerdict("", ProfileUse.CANNOT_TELL, "")
    hit = next((event for name, event in log.cache_hits.items() if wanted is None or re.search(wanted, name)), None)
    if line := log.lines.get(Kind.FLAG_REFUSED):
        return refused_flag(base, line)
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


def refused_flag(base: ModuleVerdict, line: Event) -> ModuleVerdict:
    """The verdict where XLA ended over a flag."""
    why = f"XLA ended over a flag{': ' + line.subject if line.subject else ''}"
    return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.FLAG)


def _proved(base: ModuleVerdict, verdict: ProfileUse, why: str, line: Event, remedy: str) -> ModuleVerdict:
    return replace(base, verdict=verdict, why=why, line=line.line, proof=line.text.strip(), remedy=str(remedy))
