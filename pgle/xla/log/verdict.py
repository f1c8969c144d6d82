"""Judge XLA's log per rank and module: whether it used the profile, which line proves it, and what
to do.

A log may be cut. So no verdict relies on missing lines at its end, unless the log is known to be
whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from pathlib import PurePath
from types import MappingProxyType

from pgle.errors import in_percent, some
from pgle.next import (
    AUTO,
    COMPLETE,
    CONVERT_ALL,
    FLAGS_LINT,
    PERF_SIMULATED,
    PROFILE,
    REHEARSE,
    SHOW,
    VERIFY,
    Next,
    Sentence,
)
from pgle.xla.log.read import Event, LineKind, Log, RankLog, SchedulingBlock

# From the first of these jax releases until before the second, XLA first schedules a copy of a
# module.
CLONES = ((0, 7, 2), (0, 9))
# first jax release whose XLA lists the instructions without a cost
LISTS_SINCE = (0, 5, 1)


NOTHING = Sentence()


class ProfileUse(StrEnum):
    """Whether a module was scheduled with the profile."""

    USED = "used"
    PARTLY_USED = "partly-used"
    USED_WITHOUT_MATCHES = "used-without-matches"
    DIFFERENT = "different-profiles"
    """Each rank used a profile, but not the same one. Their schedules differ, which deadlocks."""
    ENDED = "ended"
    """The scheduler took costs from the profile, but the program ended early."""
    NOT_USED = "not-used"
    WRONG_FORMAT = "wrong-format"
    CANNOT_TELL = "cannot-tell"

    @property
    def took_costs(self) -> bool:
        """Whether the scheduler took costs from the profile, even if too few."""
        return self in (ProfileUse.USED, ProfileUse.PARTLY_USED)


# If the profile has costs for less than this share of a module's instructions, it is probably
# another program's.
MOSTLY_UNKNOWN = 0.5


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least that a profile must cover of a module. `verify` checks it before a run, `confirm`
    after it.
    """

    # share of the module's time. A log alone has no times, so there it is the share of
    # instructions.
    time: float = 0.95
    # share of the step that remains without the weight of collectives that lack a cost
    collectives: float = 0.99

    def are_met(self, time: float, kept: float = 1.0) -> bool:
        """Whether both bounds are met. `kept` is compared with `collectives`."""
        return time >= self.time and kept >= self.collectives


BOUNDS = Bounds()  # the default bounds


@dataclass(frozen=True, kw_only=True)
class KnownCoverage:
    """What a profile covers of a module. A field is None if it is unknown."""

    covered: int | None = None  # instructions with a cost of their own
    # instructions that need a cost. XLA's `missing` also counts instructions that no schedule
    # needs. XLA's `found` counts some twice, and counts those with the cost of another program's
    # instruction.
    wanted: int | None = None
    # share of the module's time that these costs cover, as `pgle verify` weighs it; a log alone
    # does not tell
    time_coverage: float | None = None
    # share of the step that remains without the weight of collectives that lack a cost
    kept_share: float | None = None
    # instructions that got the cost of another opcode or shape
    mismatched: int | None = None


@dataclass(frozen=True)
class ScheduleEvidence:
    """The costs that the scheduler used, compared with the profile's."""

    module: str  # name of the dump's module
    compared: int  # scheduled instructions for which the profile has a cost
    equal: int  # how many of `compared` have the profile's cost in the schedule
    instructions: int  # scheduled instructions that take time
    source: str  # the dump
    coverage: KnownCoverage | None = None  # what the profile covers of the module

    @property
    def sentence(self) -> str:
        """The finding in words."""
        if not self.compared:
            return (
                f"none of the {self.instructions} instructions in the schedule "
                "dump has a cost in the profile"
            )
        if self.equal == self.compared:
            return "the schedule dump shows that XLA took them"
        return (
            f"the schedule dump shows that XLA took {self.equal or 'none'} of the "
            f"{self.compared} costs that can be "
            "seen in it"
        )

    @property
    def agrees(self) -> bool:
        """Whether the scheduler used the profile: at least half of the compared costs are equal."""
        return self.compared > 0 and self.equal >= self.compared / 2


@dataclass(frozen=True)
class ModuleVerdict(KnownCoverage):
    """The verdict on one module."""

    module: str  # name of the module; empty if the log does not name it
    verdict: ProfileUse  # whether the profile was used
    why: str  # the reason, in words
    line: int | None = None  # number of the line that proves it; None if no line does
    proof: str = ""  # the text of this line, without its prefix
    remedy: Sentence = NOTHING  # what to do; empty if nothing is needed
    # the profile that was read: a path, or ``fdo_profile (text)``; empty if unknown
    profile: str = ""
    # instructions that XLA counts as found; None if it logs no count
    found: int | None = None
    # instructions that XLA counts as missing; None if it logs no count. From 0.5.1 on, no count
    # also means 0.
    missing: int | None = None
    missing_names: tuple[str, ...] = ()  # names of some or all missing instructions
    # True if XLA took the profile but does not list the missing names (before 0.5.1)
    names_unlisted: bool = False
    fingerprint: str = ""  # the module's fingerprint; empty if the log does not give it
    times: int = 1  # how often the log shows it being scheduled
    # labels of the ranks with this verdict, if the log has several
    ranks: tuple[str, ...] = ()

    def with_coverage(self, known: KnownCoverage | None) -> ModuleVerdict:
        """Add what is known of the profile's coverage."""
        return self if known is None else replace(self, **vars(known))

    def held_against(self, bounds: Bounds) -> ModuleVerdict:
        """Judge whether the module took enough costs from the profile to meet the bounds."""
        if self.wanted is None or self.covered is None:
            return replace(self, verdict=ProfileUse.USED, remedy=NOTHING)
        covered, wanted = self.covered, self.wanted
        if covered == wanted:
            why = f"the profile has a cost for each of the {wanted} instructions"
            return replace(self, verdict=ProfileUse.USED, why=why, remedy=NOTHING)
        by_count = covered / wanted
        share = by_count if self.time_coverage is None else self.time_coverage
        kept = 1.0 if self.kept_share is None else self.kept_share
        of = "" if self.time_coverage is None else " of the step's time as XLA plans it"
        no_times = "; a log has no times" if self.time_coverage is None else ""
        asked = (
            ""
            if share >= bounds.time
            else f" (asked for: {in_percent(bounds.time)}{no_times})"
        )
        why = (
            f"the profile has costs for {covered or 'none'} of the {wanted} "
            f"instructions, {in_percent(share)}{of}{asked}"
        )
        if share >= bounds.time and kept < bounds.collectives:
            most = f"at most {in_percent(1 - bounds.collectives)}"
            why += f"; collectives without a cost weigh {in_percent(1 - kept)} of the step ({most})"
        if self.mismatched:
            why += f"; {self.mismatched} got the cost of another opcode or shape of that name"
        enough = bounds.are_met(share, kept)
        return replace(
            self,
            verdict=ProfileUse.USED if enough else ProfileUse.PARTLY_USED,
            why=f"{why}; XLA guessed the others",
            remedy=Remedy.FOREIGN
            if by_count < MOSTLY_UNKNOWN and not enough
            else Remedy.PARTIAL,
        )

    def filled(self, dump: str = "") -> ModuleVerdict:
        """Put the known paths of profile and dump into the commands of the remedy."""
        known: dict[str, object] = {}
        if self.profile and not self.profile.startswith("fdo_profile"):
            known["PROFILE"] = PurePath(self.profile)
        if dump:
            known["DUMP"] = PurePath(dump).parent
        return replace(self, remedy=self.remedy.filled(known))


class Remedy:
    """Remedies for verdicts. Each names the next command or change."""

    FORMAT = Sentence.todo(
        "the suffix decides: .pbtxt is text, .pb is binary; name the file after what it holds, "
        "and check it with ",
        SHOW,
    )
    PATH = Sentence.todo(
        "give an absolute path: ~ is not expanded, and a relative one counts from the process's "
        "working directory"
    )
    DIRECTORY = Sentence.todo(
        "name a file in it after the module's fingerprint (",
        CONVERT_ALL,
        "), or give one .pbtxt file; disabled async collectives, combine thresholds and device "
        "count change fingerprints",
    )
    NOT_GIVEN = Sentence.todo(
        "check --xla_gpu_pgle_profile_file_or_directory_path in XLA_FLAGS: the file must end in "
        ".pbtxt or .pb (XLA silently ignores other suffixes)"
    )
    SILENT = Sentence.todo(
        "set --xla_gpu_enable_latency_hiding_scheduler=true (an explicit false disables the "
        "profile since 0.11.2; unset does so before 0.5.1), and end the profile's name in .pbtxt "
        "or .pb"
    )
    CHECKER = Sentence.todo(
        "leave --xla_gpu_pgle_accuracy_checker at its default (…_WARN); ",
        VERIFY,
        " shows what is missing",
    )
    PARTIAL = Sentence.todo(
        "see what is missing with ", VERIFY, ", fill it with ", COMPLETE
    )
    FOREIGN = Sentence.todo(
        "this profile was made by another program, flags or jax version: profile this program "
        "with ",
        PROFILE,
        "; ",
        VERIFY,
        " shows what fits",
    )
    NO_NAMES = Sentence.todo(
        "the profile is of another program, XLA version or fingerprint: compare with ",
        VERIFY,
    )
    OTHER_MODULE = Sentence.todo(
        "normal for helper modules; for the main module see ", VERIFY
    )
    OLD_XLA = Sentence.todo(
        "say which jax it was (--jax 0.6.2), or run with "
        "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true' and pass ",
        Next(("--schedule", "DIR", "--profile", "PROFILE")),
    )
    CACHE = Sentence.todo(
        "compile again: JAX_ENABLE_COMPILATION_CACHE=false, or an empty "
        "JAX_COMPILATION_CACHE_DIR"
    )
    LEVEL = Sentence.todo(
        "set TF_CPP_MIN_LOG_LEVEL=0 in the environment before Python starts (JAX hides INFO "
        "lines), or pass --schedule"
    )
    EMPTY_TRACE = Sentence.todo(
        "another profiler, such as nsys, holds CUPTI: run ", AUTO, " without it first"
    )
    FLAG = Sentence.todo("see ", FLAGS_LINT)
    MODULE = Sentence.todo("choose another --module")
    WHOLE_LOG = Sentence.todo("give the whole log of the run")
    WHOLE_OR_SILENT = Sentence.todo(f"{WHOLE_LOG}; if this is all of it, {SILENT}")
    CPU = Sentence.todo(
        "run it on GPUs, or see what a GPU would do: ", REHEARSE, ", ", PERF_SIMULATED
    )
    END = Sentence.todo("find out why the program ended, then run it again")
    PGLE_CACHE = Sentence.todo(
        "fill the cache again with JAX_ENABLE_PGLE=true: run each module more often than "
        "JAX_PGLE_PROFILING_RUNS"
    )
    RANKS = Sentence.todo(
        "give every rank the same profile, flags and log level: ranks with different schedules "
        "deadlock"
    )


_WORST_FIRST = (
    ProfileUse.WRONG_FORMAT,
    ProfileUse.NOT_USED,
    ProfileUse.USED_WITHOUT_MATCHES,
    ProfileUse.ENDED,
    ProfileUse.DIFFERENT,
    ProfileUse.PARTLY_USED,
    ProfileUse.CANNOT_TELL,
    ProfileUse.USED,
)
"""Verdicts from the worst to the best. Of several threads or ranks, the worst verdict counts."""


def worst_of(verdicts: Iterable[ModuleVerdict]) -> ModuleVerdict:
    """Return the worst of the verdicts of several threads or ranks."""
    return min(verdicts, key=lambda item: _WORST_FIRST.index(item.verdict))


_NEGATIVE = (ProfileUse.WRONG_FORMAT, ProfileUse.NOT_USED)


@dataclass(frozen=True)
class Context:
    """Facts that the verdict on a block depends on."""

    log: RankLog  # the whole log of the rank
    # True if this XLA lists the instructions without a cost
    lists_missing: bool = False
    whole: bool = False  # True if the program ended by itself, so the log is complete
    release: tuple[int, ...] | None = None  # release of jax; None if unknown
    # the costs in a schedule dump of the main module
    schedule: ScheduleEvidence | None = None
    bounds: Bounds = BOUNDS  # the least that a profile must cover to count as used


def _judge_rank(
    context: Context, module: str | None, *, is_its_own: bool
) -> tuple[ModuleVerdict, ...]:
    """Return the verdicts on the log of one rank: on its main module, then on its other modules,
    weightiest first.

    Args:
        module: regular expression for the main module. None takes the schedule dump's module, else
            the weightiest.
        is_its_own: True if the schedule dump comes from this rank; the dump then overrides the log.
    """
    schedule = context.schedule
    wanted = module
    if module is None and schedule:
        wanted = rf"^{re.escape(schedule.module)}$"
    by_name: dict[str, list[SchedulingBlock]] = {}
    for (_, name, _), block in context.log.last.items():
        by_name.setdefault(name, []).append(block)
    weightiest_first = sorted(
        by_name.items(),
        key=lambda item: max(block.weight for block in item[1]),
        reverse=True,
    )
    scheduled = [
        _judge_module(context, name, blocks) for name, blocks in weightiest_first
    ]
    modules = _with_cached(context.log, scheduled)
    main = first = _main(context, modules, wanted)
    if schedule is not None and (
        is_its_own or (main.verdict not in _NEGATIVE and modules)
    ):
        main = _with_schedule(main, schedule, context.bounds)
    main = _with_contradictions(context, main)
    dump = (
        schedule.source
        if schedule is not None and schedule.module == main.module
        else ""
    )
    return main.filled(dump), *(item.filled() for item in modules if item is not first)


def _judge_module(
    context: Context, name: str, blocks: Sequence[SchedulingBlock]
) -> ModuleVerdict:
    """Return the verdict on a module: the worst over threads of each thread's last lines about it.

    A thread may compile a module twice, as with AutoPGLE. Then the second time counts; for modules
    without a name, the weightiest.
    """
    last: dict[str, SchedulingBlock] = {}
    for block in sorted(
        blocks, key=lambda item: (item.order,) if name else item.weight
    ):
        last[block.thread] = block
    by_thread = [_judge_block(context, name, block) for block in last.values()]
    return replace(worst_of(by_thread), times=context.log.times[name])


_OF_CACHE: Mapping[LineKind, tuple[ProfileUse, str, Sentence]] = {
    LineKind.PGLE_LOADED: (
        ProfileUse.USED,
        "JAX loaded the executable that it had compiled with AutoPGLE's profile",
        NOTHING,
    ),
    LineKind.PGLE_MISSED: (
        ProfileUse.NOT_USED,
        "JAX's cache holds only the executable without PGLE",
        Remedy.PGLE_CACHE,
    ),
    LineKind.PGLE_WRITTEN: (
        ProfileUse.NOT_USED,
        "JAX expected AutoPGLE's executable in its cache, but had to compile the module",
        Remedy.PGLE_CACHE,
    ),
    LineKind.PGLE_GIVEN: (
        ProfileUse.CANNOT_TELL,
        "JAX compiled the module with a profile, but the log does not hold what XLA did with it",
        Remedy.LEVEL,
    ),
}
"""What each kind of JAX's lines about AutoPGLE's executables proves."""


def _with_cached(
    log: RankLog, scheduled: Sequence[ModuleVerdict]
) -> list[ModuleVerdict]:
    """Add JAX's lines about AutoPGLE's executables. The result begins with the best proof about the
    program.

    Modules that XLA scheduled with a profile come first. Then come executables that JAX had to
    compile again, then loaded ones. Within each kind the last comes first, because a program loads
    its helpers before its step. JAX usually misses helpers, because they run too rarely.
    """
    took = [item for item in scheduled if item.verdict.took_costs]
    known = {item.module for item in took}
    said: dict[LineKind, list[ModuleVerdict]] = {}
    for module, line in reversed(log.about_pgle.items()):
        if module not in known:
            use, why, remedy = _OF_CACHE[line.kind]
            base = ModuleVerdict(module, use, why)
            said.setdefault(line.kind, []).append(_proved(base, use, why, line, remedy))
    proved = [
        *said.get(LineKind.PGLE_WRITTEN, ()),
        *said.get(LineKind.PGLE_LOADED, ()),
        *said.get(LineKind.PGLE_MISSED, ()),
    ]
    known |= {item.module for item in proved}
    rest = [item for item in scheduled if item.module not in known]
    known |= {item.module for item in rest}
    given = [
        item for item in said.get(LineKind.PGLE_GIVEN, ()) if item.module not in known
    ]
    return [*took, *proved, *rest, *given]


def _main(
    context: Context, modules: Sequence[ModuleVerdict], wanted: str | None
) -> ModuleVerdict:
    """Return the verdict on the main module. If the log does not name it, return the one on the
    unnamed module, else on the log.
    """
    if wanted is None and modules:
        return modules[0]
    named = next(
        (
            item
            for item in modules
            if wanted and item.module and re.search(wanted, item.module)
        ),
        None,
    )
    unnamed = next((item for item in modules if not item.module), None)
    return named or unnamed or _judge_silence(context, wanted)


def _with_schedule(
    main: ModuleVerdict, schedule: ScheduleEvidence, bounds: Bounds
) -> ModuleVerdict:
    """Let the schedule dump decide on its module, because it holds the costs that the scheduler
    used.
    """
    if main.module and main.module != schedule.module:
        return main
    main = replace(main, module=schedule.module)
    if schedule.agrees:
        used = replace(main, why="the profile has costs for the module").with_coverage(
            schedule.coverage
        )
        used = used.held_against(bounds)
        contrary = (
            f"; the log says otherwise: {main.why}" if main.verdict in _NEGATIVE else ""
        )
        return replace(used, why=f"{used.why}; {schedule.sentence}{contrary}")
    why = (
        schedule.sentence
        if main.line is None
        else f"{schedule.sentence}; the log: {main.why}"
    )
    if not schedule.compared:
        return replace(main, why=why, remedy=Remedy.NO_NAMES)
    silent = main.verdict is ProfileUse.CANNOT_TELL or not main.remedy
    return replace(
        main,
        verdict=ProfileUse.NOT_USED,
        why=why,
        remedy=Remedy.NOT_GIVEN if silent else main.remedy,
    )


def _with_contradictions(context: Context, main: ModuleVerdict) -> ModuleVerdict:
    """Overrule a verdict of use if another line contradicts it, unless another process explains
    that line.

    All modules of one process look the profile up in the same file. So a module that was scheduled
    without it belongs to another process. If each module has its own profile (AutoPGLE, a
    directory), other modules on its thread may lack one.
    """
    log = context.log
    if not main.verdict.took_costs:
        return main
    if LineKind.FLAG_REFUSED in log.lines:
        return _contradicted(
            main, _refused_flag(main, log.lines[LineKind.FLAG_REFUSED]), ""
        )
    users = [
        block
        for block in log.last.values()
        if block.module in ("", main.module) and block.took_profile
    ]
    for block in log.last.values():
        same_thread = [user for user in users if user.thread == block.thread]
        own = any(user.profile_is_its_own for user in same_thread)
        again = bool(block.module) and any(
            user.order > block.order for user in same_thread
        )
        if (
            block.lacked_profile
            and users
            and block.module in ("", main.module)
            and not (own or again)
        ):
            other = _judge_block(context, main.module, block)
            if other.verdict in _NEGATIVE:
                return _contradicted(
                    main, other, block.thread if not same_thread else ""
                )
    return main


def _contradicted(
    main: ModuleVerdict, other: ModuleVerdict, thread: str
) -> ModuleVerdict:
    claim = (
        f"line {main.line} says it was used"
        if main.line is not None
        else "the schedule dump says it was used"
    )
    whose = f"thread {thread}: " if thread else ""
    why = f"{whose}{other.why}; {claim}: several processes, or several runs, write this log"
    return replace(
        other,
        module=main.module,
        why=why,
        remedy=other.remedy.then(Remedy.RANKS),
        times=main.times,
    )


def _judge_block(context: Context, name: str, block: SchedulingBlock) -> ModuleVerdict:
    """Return the verdict on a module from the last lines about its scheduling on one rank."""
    lines = block.lines
    base = ModuleVerdict(
        name,
        ProfileUse.CANNOT_TELL,
        "the log says nothing about its scheduling",
        remedy=Remedy.WHOLE_LOG,
        profile=block.profile,
        found=block.found,
        missing=block.missing,
        missing_names=tuple(sorted(block.missing_names)),
        fingerprint=block.fingerprint,
    )
    if line := lines.get(LineKind.DISCARDED):
        why = "the accuracy checker failed the compilation"
        return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.CHECKER)
    if block.took_profile:
        return _judge_used(context, base, block)
    if line := lines.get(LineKind.UNREADABLE):
        where = (
            f" at {lines[LineKind.SYNTAX].subject}" if LineKind.SYNTAX in lines else ""
        )
        is_last_try = (
            "fdo" not in line.text.lower() or block.is_past_lookup or context.whole
        )
        # else XLA tries the file in the flag next
        use = ProfileUse.WRONG_FORMAT if is_last_try else ProfileUse.CANNOT_TELL
        return _proved(
            base, use, f"the profile cannot be parsed{where}", line, Remedy.FORMAT
        )
    if line := lines.get(LineKind.NO_SUCH_FILE):
        return _judge_no_file(context, base, block, line)
    if line := lines.get(LineKind.READ):
        why = "the profile was parsed, but no line says that the scheduler took it"
        return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.WHOLE_LOG)
    if block.listed:
        return replace(
            base,
            why="the log begins in the middle of XLA's list of instructions without a cost",
        )
    if line := lines.get(LineKind.OTHER_ESTIMATOR):
        why = f"scheduled with XLA's {line.subject} model, without a profile"
        return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.NOT_GIVEN)
    if line := lines.get(LineKind.LHS_RAN):
        first = context.log.lines.get(LineKind.INFO)
        if first is not None and first.line == line.line and not context.whole:
            why = (
                "the scheduler ran, but the log begins there: its lines on the "
                "profile may be cut off"
            )
            return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.WHOLE_LOG)
        why = "the scheduler ran, but no profile was found for it"
        return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.NOT_GIVEN)
    return base


def _judge_no_file(
    context: Context, base: ModuleVerdict, block: SchedulingBlock, line: Event
) -> ModuleVerdict:
    """Return the verdict if the file does not exist.

    In a directory of profiles there may be a file for the next module.
    """
    if not block.fingerprint_sought:
        return _proved(
            base,
            ProfileUse.NOT_USED,
            "the profile file does not exist",
            line,
            Remedy.PATH,
        )
    base = replace(base, fingerprint=base.fingerprint or block.fingerprint_sought)
    why = "the directory has no file for this fingerprint"
    others = any(other.profile for other in context.log.last.values())
    remedy = Remedy.OTHER_MODULE if others else Remedy.DIRECTORY
    no_clones = (
        context.release is not None and not CLONES[0] <= context.release < CLONES[1]
    )
    if context.whole or (
        LineKind.LHS_RAN in block.lines
        and (block.closed or no_clones)
        and not context.log.is_open
    ):
        return _proved(base, ProfileUse.NOT_USED, why, line, remedy)
    why += (
        ", but the log may end before the step itself is scheduled: other "
        "modules have files of their own"
    )
    return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.DIRECTORY)


def _judge_used(
    context: Context, base: ModuleVerdict, block: SchedulingBlock
) -> ModuleVerdict:
    """Return the verdict on a module that was scheduled with a profile: did any of its names
    match?
    """
    lines = block.lines
    counted = lines.get(LineKind.FOUND) or lines.get(LineKind.MISSING)
    past_lookup = block.is_past_lookup or context.whole
    if counted is not None:
        # If INFO lines are hidden, nothing follows the list.
        is_all = (
            LineKind.FOUND in lines
            and LineKind.MISSING in lines
            and block.listed >= (block.missing or 0)
        )
        if past_lookup or (is_all and LineKind.FOUND_PROFILE not in lines):
            return _judge_counted(context, base, block, counted)
        why = (
            f"XLA found {block.found or 0} instructions in the profile, but the "
            "log ends before it scheduled them"
        )
        return _proved(base, ProfileUse.CANNOT_TELL, why, counted, Remedy.WHOLE_LOG)
    proof = lines[LineKind.FOUND_PROFILE]
    if context.lists_missing and past_lookup:
        why = (
            "XLA names no instruction without a cost, so each has one from the profile"
        )
        return _proved(replace(base, missing=0), ProfileUse.USED, why, proof, NOTHING)
    if block.costs_found:
        why = (
            f"XLA took {block.costs_found} costs from the profile; this log does "
            "not say how many it lacked"
        )
        return _proved(base, ProfileUse.USED, why, proof, NOTHING)
    if context.lists_missing:
        why = (
            "XLA gave the profile to its scheduler, but the log ends before it "
            "could name instructions without a cost"
        )
        return _proved(base, ProfileUse.CANNOT_TELL, why, proof, Remedy.WHOLE_LOG)
    why = (
        "the scheduler got the profile, and XLA names no gap; before jax 0.5.1 "
        "that proves nothing"
    )
    base = replace(base, names_unlisted=True)
    return _proved(base, ProfileUse.CANNOT_TELL, why, proof, Remedy.OLD_XLA)


def _judge_counted(
    context: Context, base: ModuleVerdict, block: SchedulingBlock, proof: Event
) -> ModuleVerdict:
    if block.found is None or block.missing is None:
        why = "the log holds only one of XLA's two counts, of instructions with and without a cost"
        return _proved(base, ProfileUse.CANNOT_TELL, why, proof, Remedy.WHOLE_LOG)
    covered, wanted = block.covered
    base = replace(base, covered=covered, wanted=wanted)
    if (dump := context.schedule) is not None and base.module in ("", dump.module):
        base = base.with_coverage(dump.coverage)
    if not base.found:
        why = f"the profile has a cost for none of the {base.wanted} instructions"
        return _proved(
            base, ProfileUse.USED_WITHOUT_MATCHES, why, proof, Remedy.NO_NAMES
        )
    return replace(base, line=proof.line, proof=proof.text.strip()).held_against(
        context.bounds
    )


def _judge_silence(context: Context, wanted: str | None) -> ModuleVerdict:
    """Return the verdict if no line is about the scheduling of the main module, with the likely
    reason.
    """
    log = context.log
    base = ModuleVerdict("", ProfileUse.CANNOT_TELL, "")
    hit = next(
        (
            event
            for name, event in log.cache_hits.items()
            if wanted is None or re.search(wanted, name)
        ),
        None,
    )
    if line := log.lines.get(LineKind.FLAG_REFUSED):
        return _refused_flag(base, line)
    if line := log.lines.get(LineKind.DISCARDED):
        why = "the accuracy checker failed the compilation"
        return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.CHECKER)
    if (line := log.lines.get(LineKind.ON_CPU)) and not log.last:
        why = (
            "jax ran on CPU devices, whose compiler has no latency-hiding "
            "scheduler and reads no profile"
        )
        return _proved(base, ProfileUse.CANNOT_TELL, why, line, Remedy.CPU)
    if hit is not None:
        why = (
            "loaded from JAX's compilation cache, so nothing was scheduled in this run"
        )
        return _proved(
            replace(base, module=hit.module),
            ProfileUse.CANNOT_TELL,
            why,
            hit,
            Remedy.CACHE,
        )
    if wanted is not None and log.last:
        names = ", ".join(sorted({name for _, name, _ in log.last if name})[:5])
        why = f"no module of the log matches {wanted!r}; it has {names or 'none with a name'}"
        return replace(base, why=why, remedy=Remedy.MODULE)
    if LineKind.INFO not in log.lines:
        why = "the log holds no INFO line of XLA: its log level hides them"
        return replace(base, why=why, remedy=Remedy.LEVEL)
    begun = log.lines.get(LineKind.COMPILING)
    if done := log.lines.get(LineKind.COMPILED) or (begun if context.whole else None):
        why = "XLA compiled and logs at INFO, but neither read a profile nor ran the scheduler"
        return _proved(base, ProfileUse.NOT_USED, why, done, Remedy.SILENT)
    if begun:
        why = "the log ends after a compilation has begun, before a word of profile or scheduler"
        return _proved(base, ProfileUse.CANNOT_TELL, why, begun, Remedy.WHOLE_OR_SILENT)
    return replace(base, why="the log shows no compilation", remedy=Remedy.CACHE)


def _refused_flag(base: ModuleVerdict, line: Event) -> ModuleVerdict:
    """Return the verdict if XLA refused a flag and ended."""
    subject = f": {line.subject}" if line.subject else ""
    why = f"XLA ended over a flag{subject}"
    return _proved(base, ProfileUse.NOT_USED, why, line, Remedy.FLAG)


def _proved(
    base: ModuleVerdict, verdict: ProfileUse, why: str, line: Event, remedy: Sentence
) -> ModuleVerdict:
    return replace(
        base,
        verdict=verdict,
        why=why,
        line=line.line,
        proof=line.text.strip(),
        remedy=remedy,
    )


@dataclass(frozen=True)
class LogVerdict:
    """The verdict on a log."""

    # verdicts on all modules of the program: first the requested or the weightiest one. Each is the
    # worst over the ranks.
    modules: tuple[ModuleVerdict, ...]
    # by label, what each rank did with the profile; empty if the log has no labels
    ranks: Mapping[str, ProfileUse] = field(default_factory=dict)
    # number of modules of the kernel autotuner and of fusions that were left out
    sub_modules: int = 0
    # by profile, for how many modules it was parsed, including sub-modules and all ranks
    reads: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # other remarks on the log, one line each

    @property
    def main(self) -> ModuleVerdict:
        """The verdict on the main module."""
        return self.modules[0]


def judge(
    log: Log,
    *,
    module: str | None = None,
    schedule: ScheduleEvidence | Mapping[str, ScheduleEvidence] | None = None,
    release: tuple[int, ...] | None = None,
    whole: bool = False,
    bounds: Bounds = BOUNDS,
    alike: Mapping[str, str] = MappingProxyType({}),
) -> LogVerdict:
    """Judge a log: each rank separately, then all ranks by the worst one.

    Args:
        log: the result of `pgle.xla.log.read.collect`.
        module: regular expression for the main module. None takes the module of `schedule`, else
            the one with the most scheduler memory, instructions or compile time.
        schedule: evidence from a schedule dump of the same compilation, or by rank from its own
            dump. It overrides the log. But one dump does not clear a rank whose log contradicts it.
        release: release of jax, if known. From 0.5.1 on, a log without missing instructions proves
            that all matched.
        whole: True if the program ended by itself, so that silence at the end of the log counts.
        bounds: the least that a profile must cover to count as used.
        alike: path of a profile → another path that holds the same costs.
    """
    ranks = log.ranks or {"": RankLog()}
    unlabelled = ranks.get("", RankLog())
    if len(ranks) > 1 and not unlabelled.last and not unlabelled.about_pgle:
        # lines without a rank, such as a launcher's, do not count as a rank
        ranks = {rank: item for rank, item in ranks.items() if rank}
    if "" not in ranks:  # the launcher may name ranks that wrote no line
        ranks = {
            **ranks,
            **{rank: RankLog() for rank in log.ends if rank and rank not in ranks},
        }
    lists_missing = log.lists_missing or (
        release is not None and release >= LISTS_SINCE
    )
    is_its_own = isinstance(schedule, Mapping) or len(ranks) == 1
    by_rank = {}
    for rank, rank_log in ranks.items():
        own = schedule.get(rank) if isinstance(schedule, Mapping) else schedule
        context = Context(
            log=rank_log,
            lists_missing=lists_missing,
            whole=whole,
            release=release,
            schedule=own,
            bounds=bounds,
        )
        main, *others = _judge_rank(context, module, is_its_own=is_its_own)
        end = None if whole else _end_of(log, rank, ranks)
        by_rank[rank] = (main if end is None else _with_end(main, end), *others)
    uses = {}
    if any(by_rank):
        uses = {rank: verdicts[0].verdict for rank, verdicts in by_rank.items()}
    reads: Counter[str] = sum((item.reads for item in ranks.values()), Counter())
    return LogVerdict(
        modules=_with_one_profile(_combined(by_rank), by_rank, alike),
        ranks=uses,
        sub_modules=max(len(item.sub_modules) for item in ranks.values()),
        reads=dict(reads),
        warnings=tuple(_warnings(log, by_rank, whole=whole)),
    )


def _end_of(log: Log, rank: str, ranks: Mapping[str, RankLog]) -> Event | None:
    """Return the line at which a rank ended early: its own, or one that no known rank has; None if
    there is none.
    """
    of_the_job = [end for name, end in log.ends.items() if name not in ranks]
    first = min(of_the_job, key=lambda end: end.line, default=None)
    return log.ends.get(rank, first)


def _end_words(end: Event) -> str:
    return f"the program ended at line {end.line}: {end.subject}"


def _with_end(main: ModuleVerdict, end: Event) -> ModuleVerdict:
    """Change the verdict if the program ended early: the schedule may never have run."""
    if main.verdict.took_costs:
        took = "" if main.line is None else f" (line {main.line})"
        why = f"the scheduler took the profile{took}, but {_end_words(end)}"
        return _proved(main, ProfileUse.ENDED, why, end, Remedy.END)
    if main.verdict is ProfileUse.CANNOT_TELL:
        why = f"{_end_words(end)}; before that, {main.why}"
        return _proved(main, ProfileUse.CANNOT_TELL, why, end, Remedy.END)
    return main


def _with_one_profile(
    modules: Sequence[ModuleVerdict],
    by_rank: Mapping[str, tuple[ModuleVerdict, ...]],
    alike: Mapping[str, str],
) -> tuple[ModuleVerdict, ...]:
    """Change the verdict if ranks read different profiles for the main module."""
    main, *others = modules
    ranks_of: dict[str, list[str]] = {}
    for rank, verdicts in by_rank.items():
        if path := verdicts[0].profile:
            ranks_of.setdefault(alike.get(path, path), []).append(rank)
    if len(ranks_of) < 2:
        return tuple(modules)
    uses = (f"{path} on {some(ranks, 4)}" for path, ranks in ranks_of.items())
    why = f"the ranks read different profiles: {some(list(uses), 3)}"
    if _WORST_FIRST.index(main.verdict) < _WORST_FIRST.index(ProfileUse.DIFFERENT):
        return replace(main, why=f"{main.why}; {why}"), *others
    different = replace(
        main, verdict=ProfileUse.DIFFERENT, why=why, remedy=Remedy.RANKS
    )
    return different, *others


def _combined(
    by_rank: Mapping[str, tuple[ModuleVerdict, ...]],
) -> tuple[ModuleVerdict, ...]:
    """Combine the verdicts of all ranks: each module gets its worst verdict."""
    if len(by_rank) == 1:
        return next(iter(by_rank.values()))
    mains = {rank: verdicts[0] for rank, verdicts in by_rank.items()}
    name = next((item.module for item in mains.values() if item.module), "")
    main = _of_ranks(
        {
            rank: replace(item, module=item.module or name)
            for rank, item in mains.items()
        }
    )
    if main.verdict is not ProfileUse.USED and ProfileUse.USED in (
        item.verdict for item in mains.values()
    ):
        main = replace(
            main,
            remedy=main.remedy.then(Remedy.RANKS),
        )
    by_name: dict[str, dict[str, ModuleVerdict]] = {}
    for rank, verdicts in by_rank.items():
        for item in verdicts[1:]:
            by_name.setdefault(item.module, {})[rank] = item
    return main, *map(_of_ranks, by_name.values())


def _of_ranks(verdicts: Mapping[str, ModuleVerdict]) -> ModuleVerdict:
    worst = worst_of(verdicts.values())
    ranks = tuple(
        rank for rank, item in verdicts.items() if item.verdict is worst.verdict
    )
    times = sum(item.times for item in verdicts.values())
    if len(ranks) == len(verdicts):
        return replace(worst, ranks=ranks, times=times)
    some = ", ".join(rank or "(no label)" for rank in ranks[:4]) + (
        ", …" if len(ranks) > 4 else ""
    )
    why = f"on {len(ranks)} of {len(verdicts)} ranks ({some}): {worst.why}"
    return replace(worst, ranks=ranks, times=times, why=why)


_REMARKS = {
    LineKind.DISCARDED: f"the accuracy checker failed a compilation ({Remedy.CHECKER})",
    LineKind.EMPTY_TRACE: f"AutoPGLE recorded nothing ({Remedy.EMPTY_TRACE})",
    LineKind.STUCK: "a thread waits for other ranks and may be stuck",
    LineKind.CAUGHT: "a Python exception, after which the program continued",
}
"""By kind, the meaning of lines of a rank that become warnings."""
_QUOTED = (LineKind.STUCK, LineKind.CAUGHT)


def _warnings(
    log: Log, by_rank: Mapping[str, tuple[ModuleVerdict, ...]], *, whole: bool
) -> Iterable[str]:
    hits = set(chain.from_iterable(item.cache_hits for item in log.ranks.values()))
    silent = sorted(hits.difference(*(item.about_pgle for item in log.ranks.values())))
    shown_ends = {verdicts[0].line for verdicts in by_rank.values()}
    for rank, end in log.ends.items():
        if not whole and end.line not in shown_ends:
            yield f"{_where(rank, end)}: {_end_words(end)}"
    for rank, rank_log in log.ranks.items():
        for kind, what in _REMARKS.items():
            if line := rank_log.lines.get(kind):
                said = f": {line.text}" if kind in _QUOTED else ""
                yield f"{_where(rank, line)}: {what}{said}"
    if silent:
        yield (
            f"{len(silent)} modules came from JAX's compilation cache and say "
            f"nothing ({', '.join(silent[:3])})"
        )


def _where(rank: str, line: Event) -> str:
    return f"rank {rank}, line {line.line}" if rank else f"line {line.line}"
