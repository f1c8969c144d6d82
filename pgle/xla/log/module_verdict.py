"""The verdict on one module: whether it used the profile, why, which line proves it, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING

from pgle.next import (
    AUTO,
    COMPLETE,
    CONVERT_ALL,
    FLAGS_LINT,
    PERF_SIMULATED,
    PROFILE,
    REHEARSE,
    REWRITE,
    SHOW,
    VERIFY,
    quoted,
    word_of,
)

if TYPE_CHECKING:
    from pgle.xla.log.schedule_evidence import ScheduleEvidence


class ProfileUse(StrEnum):
    """Whether a module was scheduled with the profile."""

    USED = "used"
    PARTLY_USED = "partly-used"
    USED_WITHOUT_MATCHES = "used-without-matches"
    NOT_USED = "not-used"
    WRONG_FORMAT = "wrong-format"
    CANNOT_TELL = "cannot-tell"

    @property
    def took_costs(self) -> bool:
        """Whether the scheduler took costs from the profile, enough of them or not."""
        return self in (ProfileUse.USED, ProfileUse.PARTLY_USED)


MOSTLY_UNKNOWN = 0.5  # below this share of a module's instructions the likeliest cause is a profile of another program


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a profile must cover of a module at least: `verify` asks before a run, `confirm` after it."""

    # share of the module's time; a log alone knows no times, and there it is the share of its instructions
    time: float = 0.95
    # what is left of the step, as a share, without the weight of collectives that have no cost
    collectives: float = 0.99

    def are_met(self, time: float, kept: float = 1.0) -> bool:
        """Whether both are reached; `kept` is compared with `collectives`."""
        return time >= self.time and kept >= self.collectives


BOUNDS = Bounds()  # where nobody asks for others


@dataclass(frozen=True)
class ModuleVerdict:
    """The verdict on one module."""

    module: str  # its name; empty where the log names none
    verdict: ProfileUse  # whether the profile was used
    why: str  # the reason, in words
    line: int | None = None  # number of the line that proves it; None where nothing in the log does
    proof: str = ""  # that line, without its prefix
    remedy: str = ""  # what to do; empty where nothing is to be done
    profile: str = ""  # what was read: a path, or ``fdo_profile (text)``; empty where unknown
    found: int | None = None  # what XLA counts as found; None where it does not say
    # what XLA counts as missing; None where it does not say. 0 is also said by silence (0.5.1 and newer).
    missing: int | None = None
    missing_names: tuple[str, ...] = ()  # of some or all of them
    covered: int | None = None  # instructions with a cost of their own; None where nobody counts them
    # instructions that want one: XLA's `missing` also counts what no schedule needs, its `found` some twice and those
    # that got the cost of another program's instruction
    wanted: int | None = None
    # share of the module's time that these costs cover, as `pgle verify` weighs it; None where only a log speaks
    time_coverage: float | None = None
    # what is left of the step without the weight of collectives that have no cost; None likewise
    kept_share: float | None = None
    mismatched: int | None = None  # instructions that got the cost of another opcode or shape; None likewise
    fingerprint: str = ""  # where the log gives it
    times: int = 1  # how often the log schedules it
    ranks: tuple[str, ...] = ()  # the labels of the ranks that this verdict is about, where the log has several

    def with_fit(self, dump: ScheduleEvidence | None) -> ModuleVerdict:
        """The verdict with what a schedule dump of the same module says of the profile's fit, where there is one."""
        if dump is None or dump.wanted is None or self.module not in ("", dump.module):
            return self
        return replace(
            self,
            covered=dump.covered,
            wanted=dump.wanted,
            time_coverage=dump.time_coverage,
            kept_share=dump.kept_share,
            mismatched=dump.mismatched,
        )

    def by_fit(self, bounds: Bounds) -> ModuleVerdict:
        """The verdict on a module that took costs from the profile: were there enough of them?"""
        if self.wanted is None or self.covered is None:
            return replace(self, verdict=ProfileUse.USED, remedy="")
        covered, wanted = self.covered, self.wanted
        by_count = covered / wanted if wanted else 1.0
        share = by_count if self.time_coverage is None else self.time_coverage
        kept = 1.0 if self.kept_share is None else self.kept_share
        if covered == wanted:
            return replace(
                self,
                verdict=ProfileUse.USED,
                why=f"the profile has a cost for each of the {wanted} instructions",
                remedy="",
            )
        is_enough = bounds.are_met(share, kept)
        of = "" if self.time_coverage is None else " of the step's time as XLA plans it"
        no_times = "; a log tells no times" if self.time_coverage is None else ""
        asked = "" if share >= bounds.time else f" (asked for: {bounds.time:.1%}{no_times})"
        why = f"the profile has costs for {covered or 'none'} of the {wanted} instructions, {share:.1%}{of}{asked}"
        if share >= bounds.time and kept < bounds.collectives:
            most = f"at most {1 - bounds.collectives:.1%}"
            why += f"; collectives without a cost weigh {1 - kept:.1%} of the step ({most})"
        if self.mismatched:
            why += f"; {self.mismatched} got the cost of another opcode or shape of that name"
        why += "; XLA guessed the others"
        return replace(
            self,
            verdict=ProfileUse.USED if is_enough else ProfileUse.PARTLY_USED,
            why=why,
            remedy=str(Remedy.FOREIGN if by_count < MOSTLY_UNKNOWN else Remedy.PARTIAL),
        )

    def filled(self, dump: str = "") -> ModuleVerdict:
        """The verdict with a remedy that can be typed: it names the profile and the dump, where they are known."""
        remedy = self.remedy
        if self.profile and not self.profile.startswith("fdo_profile"):
            remedy = re.sub(r"(?<= )PROFILE\b", lambda _: quoted(word_of(PurePath(self.profile))), remedy)
        if dump:
            remedy = re.sub(r"(?<=--hlo )DUMP\b", lambda _: quoted(word_of(PurePath(dump).parent)), remedy)
        return replace(self, remedy=remedy)


class Remedy(StrEnum):
    """What to do about a verdict; each names the next thing to type or to change."""

    FORMAT = f"the suffix decides: .pbtxt is text, .pb is binary; check it with `{SHOW}`, rewrite it with `{REWRITE}`"
    PATH = "give an absolute path: ~ is not expanded, and a relative one counts from the process's working directory"
    DIRECTORY = (
        f"name a file in it after the module's fingerprint (`{CONVERT_ALL}`), or give one .pbtxt file; "
        "disabled async collectives, combine thresholds and device count change fingerprints"
    )
    NOT_GIVEN = (
        "check --xla_gpu_pgle_profile_file_or_directory_path in XLA_FLAGS: the file must end in .pbtxt or .pb "
        "(other suffixes are ignored without a word)"
    )
    SILENT = (
        "set --xla_gpu_enable_latency_hiding_scheduler=true (an explicit false disables the profile since 0.11.2; "
        "unset does so before 0.5.1), and end the profile's name in .pbtxt or .pb"
    )
    CHECKER = f"leave --xla_gpu_pgle_accuracy_checker at its default (…_WARN); `{VERIFY}` shows what is missing"
    PARTIAL = f"see what is missing with `{VERIFY}`, fill it with `{COMPLETE}`"
    FOREIGN = (
        "this profile was made by another program, flags or jax version: profile this program with "
        f"`{PROFILE}`; `{VERIFY}` shows what fits"
    )
    NO_NAMES = f"the profile is of another program, XLA version or fingerprint: compare with `{VERIFY}`"
    STALE = (
        "the profile is of another compilation: profile again with this run's flags and jax; "
        f"`{VERIFY}` shows what fits"
    )
    OTHER_MODULE = f"normal for helper modules; for the main module see `{VERIFY}`"
    OLD_XLA = (
        "say which jax it was (--jax 0.6.2), or run with "
        "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true' and pass "
        "`--schedule DIR --profile PROFILE`"
    )
    CACHE = "compile again: JAX_ENABLE_COMPILATION_CACHE=false, or an empty JAX_COMPILATION_CACHE_DIR"
    LEVEL = (
        "set TF_CPP_MIN_LOG_LEVEL=0 in the environment before Python starts (JAX hides INFO lines), or pass --schedule"
    )
    EMPTY_TRACE = f"another profiler, such as nsys, holds CUPTI: run `{AUTO}` without it first"
    FLAG = f"see `{FLAGS_LINT}`"
    MODULE = "choose another --module"
    WHOLE_LOG = "give the whole log of the run"
    WHOLE_OR_SILENT = f"{WHOLE_LOG}; if this is all of it, {SILENT}"
    CPU = f"run it on GPUs, or see what a GPU would do: `{REHEARSE}`, `{PERF_SIMULATED}`"
    RANKS = "give every rank the same profile, flags and log level: ranks with different schedules deadlock"


_WORST_FIRST = (
    ProfileUse.WRONG_FORMAT,
    ProfileUse.NOT_USED,
    ProfileUse.USED_WITHOUT_MATCHES,
    ProfileUse.PARTLY_USED,
    ProfileUse.CANNOT_TELL,
    ProfileUse.USED,
)
"""The order in which verdicts of several threads or ranks count."""


def worst_of(verdicts: Iterable[ModuleVerdict]) -> ModuleVerdict:
    """The verdict of the thread, or of the rank, that is worst off."""
    return min(verdicts, key=lambda item: _WORST_FIRST.index(item.verdict))
