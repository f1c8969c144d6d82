"""The flags of each kind of run: profile runs, baseline and performance run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pgle.errors import UserError
from pgle.xla.flags.catalogue import known_flags, release
from pgle.xla.flags.choices import (
    ASYNC_KINDS,
    COMBINING,
    DISABLE_ASYNC,
    JAX,
    LHS,
    LOG,
    MEASURED,
    NO_GRAPHS,
    NVIDIA_PGLE,
    ON,
    PROFILE_PATH,
    RENAMES_SINCE,
    SAME,
    SOL,
    SYNC,
    Choice,
    fit,
)  # fmt: skip
from pgle.xla.flags.text import COMMAND_BUFFER, Finding, Flag, FlagList, as_bool, merge_flags, parse_flags

Mode: TypeAlias = Literal["sync", "async", "sync-legacy", "baseline", "perf"]

PROFILE_MODES: tuple[Mode, ...] = ("sync", "async", "sync-legacy")  # those that measure

SYNC_MODES: tuple[Mode, ...] = ("sync", "sync-legacy")
"""Those that keep every collective synchronous, to measure each alone."""

MODES: Mapping[Mode, tuple[str, tuple[Choice, ...]]] = {
    # LHS stays on, since only then XLA (0.11.1 and newer) records the name each collective had when it was scheduled
    "sync": (
        "profile run with every collective measured alone; LHS stays on, which keeps the names PGLE needs",
        (ON, SAME, SYNC, NO_GRAPHS),
    ),
    "async": (
        "profile run as the JAX guide has it, LHS and asynchronous collectives on: collectives share GPU and links",
        (ON, SAME, NO_GRAPHS),
    ),
    "sync-legacy": (
        "profile run of the JAX-Toolbox guide: LHS and asynchronous collectives off",
        (
            Choice(LHS, "false", "no reordering while it is measured", NVIDIA_PGLE),
            Choice(SOL, "false", "up to 0.11.1 LHS=false alone leaves LHS on for Hopper and newer", MEASURED),
            SAME,
            Choice(DISABLE_ASYNC, ASYNC_KINDS, SYNC.reason, NVIDIA_PGLE),
            NO_GRAPHS,
        ),
    ),
    "baseline": ("LHS on, no profile: what PGLE has to beat", (ON, SAME)),
    "perf": ("performance run with a cost profile", (ON, SAME)),
}
"""What each kind of run is for, and its settings; log lines and dumps come to all, the profile to ``perf``."""

HOPPER_DEFAULT = ("0.8.0", "0.11.2")
"""From the first release LHS is on by default on Hopper and newer; before the second, ``=false`` does not stop it."""


@dataclass(frozen=True, slots=True)
class FlagPlan:
    """How a run is to be started."""

    mode: Mode  # the kind of run
    jaxlib: str  # the release it is planned for
    flags: tuple[Flag, ...]  # our flags that are added; a user's flag with another value wins
    xla_flags: str  # the whole XLA_FLAGS, ours first and then the user's text unchanged
    environment: Mapping[str, str]  # other variables to set where the user has not set them
    choices: tuple[Choice, ...]  # everything the mode asks for, with reasons
    warnings: tuple[Finding, ...]  # what gives way, is left out or will go wrong

    @property
    def profile(self) -> str:
        """The profile XLA will be given: the user's own if they set one; empty for none."""
        return parse_flags(self.xla_flags).value(PROFILE_PATH) or ""


def flags_for(
    mode: Mode,
    version: str | None,
    user_flags: str | FlagList = "",
    *,
    dump_to: str = "",
    profile: str = "",
) -> FlagPlan:
    """The flags of one kind of run.

    Args:
        version: the jaxlib that will run it; the newest recorded one where None.
        user_flags: the user's XLA_FLAGS; where it names a file, what the file holds.
        dump_to: directory for HLO dumps and the schedule with the costs that LHS believed; no dumps where empty.
        profile: path of the cost profile; needed by ``perf``, not allowed otherwise.

    Raises:
        UserError: ``perf`` without a profile, a profile with another mode, or flags given as a file name.
    """
    user = parse_flags(user_flags) if isinstance(user_flags, str) else user_flags
    if user.file:
        raise UserError("XLA_FLAGS names a file", where=user.file, remedy="pass what it holds")
    if (mode == "perf") != bool(profile):
        what = "a performance run needs a profile" if mode == "perf" else f"mode {mode} takes no profile"
        raise UserError(what, remedy="pass --profile FILE" if mode == "perf" else "use mode perf")
    at = version or known_flags().releases[-1]
    given = (Choice(PROFILE_PATH, profile, "the measured costs", JAX),) if profile else ()
    choices, left_out = fit((*MODES[mode][1], *given, LOG, *_dumps(dump_to)), at)
    merged = merge_flags(user, [choice.flag for choice in choices if choice.is_flag])
    environment = {choice.name: choice.value for choice in choices if not choice.is_flag}
    warnings = (*left_out, *merged.findings, *_consequences(mode, at, user, choices))
    return FlagPlan(mode, at, merged.added, merged.text, environment, choices, warnings)


def _dumps(dump_to: str) -> tuple[Choice, ...]:
    if not dump_to:
        return ()
    return (
        Choice("xla_dump_to", dump_to, "the modules as compiled, for names and shapes", MEASURED),
        Choice("xla_dump_hlo_as_proto", "true", "the exact form of the modules", MEASURED),
        Choice("xla_dump_latency_hiding_schedule", "true", "the cost that LHS believed of every instruction", MEASURED),
    )


def _consequences(mode: Mode, version: str, user: FlagList, choices: tuple[Choice, ...]) -> list[Finding]:
    """What the user's own flags, and the release, do to this kind of run."""
    found: list[Finding] = []
    at = release(version)
    wants_lhs = mode in ("async", "sync", "baseline", "perf")
    if wants_lhs and user.is_true(LHS) is False:
        found.append(Finding("warning", "lhs-off", LHS, _lhs_off(mode, version), "remove it"))
    if mode == "sync-legacy" and at >= release(RENAMES_SINCE):
        message = (
            f"with LHS off, jaxlib {version} leaves nothing that leads from a collective back to the name PGLE needs"
        )
        found.append(Finding("warning", "names-lost", LHS, message, "use --mode sync"))
    if mode in ("async", "baseline", "perf") and user.value(DISABLE_ASYNC):
        message = "your flag keeps collectives synchronous, so LHS has nothing to overlap"
        found.append(Finding("warning", "no-async", DISABLE_ASYNC, message, "remove it"))
    if user.is_true(COMBINING):
        message = "your flag combines collectives by a schedule that a profile changes, so costs may lose their names"
        found.append(Finding("warning", "combining", COMBINING, message, "remove it"))
    elif mode in PROFILE_MODES and user.value(COMBINING) is None and any(item.name == COMBINING for item in choices):
        message = f"set to false in every stage: jaxlib {version} else combines other collectives with a profile"
        found.append(Finding("warning", "combining", COMBINING, message, "set it in your job too"))
    if mode in PROFILE_MODES and user.value(COMMAND_BUFFER):
        message = "your flag keeps command buffers, which hide single operations from the profiler"
        found.append(Finding("warning", "graphs", COMMAND_BUFFER, message, "remove it for the profile run"))
    if mode != "perf" and user.value(PROFILE_PATH):
        message = f"your flag gives a profile to a run that is to be without one ({mode})"
        found.append(Finding("warning", "has-profile", PROFILE_PATH, message, "remove it"))
    if mode == "baseline" and at >= release(HOPPER_DEFAULT[0]) and as_bool(user.value(SOL)) is not False:
        message = (
            "on Hopper and newer GPUs the baseline schedules by XLA's speed-of-light model, elsewhere by constants"
        )
        found.append(Finding("note", "hopper", SOL, message))
    return found


def _lhs_off(mode: Mode, version: str) -> str:
    at = release(version)
    if at >= release(HOPPER_DEFAULT[1]):
        lost = {"perf": "the profile is ignored without a word", "sync": "the names PGLE needs are not recorded"}
        return f"your flag turns LHS off in jaxlib {version}: {lost.get(mode, 'nothing is overlapped')}"
    if at >= release("0.5.1") and mode == "perf":
        return f"your flag is overruled in jaxlib {version}, where a profile switches LHS on"
    if at >= release(HOPPER_DEFAULT[0]):
        return f"your flag turns LHS off in jaxlib {version}, but not on Hopper and newer, where it stays on"
    return f"your flag turns LHS off in jaxlib {version}" + (": the profile is ignored" if mode == "perf" else "")
