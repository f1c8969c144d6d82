"""Flags of each kind of run and named presets, each setting with its reason, adapted to a jaxlib release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pgle.errors import UserError, suggestion
from pgle.next import REHEARSE_FLAG, TUNE
from pgle.xla.collectives import ASYNC_FLAGS
from pgle.xla.flags.catalogue import catalogue, known_flags, known_in, release
from pgle.xla.flags.text import COMMAND_BUFFER, Finding, Flag, FlagList, as_bool, format_flags, merge_flags, parse_flags

LHS = "xla_gpu_enable_latency_hiding_scheduler"
SOL = "xla_gpu_enable_analytical_sol_latency_estimator"
PROFILE_PATH = "xla_gpu_pgle_profile_file_or_directory_path"
DISABLE_ASYNC = "xla_gpu_disable_async_collectives"
COMBINING = "xla_gpu_experimental_enable_heuristic_collective_combining"

ASYNC_KINDS = ",".join(ASYNC_FLAGS)  # the list of the JAX-Toolbox guide, for releases before `ALL_KINDS_SINCE`
ALL_KINDS_SINCE = "0.5.3"
"""First release found to take ``allcollectives``; 0.4.38 aborts on it, those between were not asked."""

OPT_LEVEL = "xla_gpu_experimental_pipeline_parallelism_opt_level"

JAX = "docs.jax.dev gpu_performance_tips"
NVIDIA = "JAX-Toolbox GPU_performance.md"
NVIDIA_PGLE = "JAX-Toolbox PGLE.md"
MEASURED = "run with jaxlib 0.10.2 and 0.12.0.1"


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting of a preset or a mode."""

    name: str  # of the setting
    value: str  # what it is set to
    reason: str  # why, one clause
    source: str  # who says so
    is_flag: bool = True  # True for XLA_FLAGS, False for an environment variable

    @property
    def flag(self) -> Flag:
        """It as a flag."""
        return Flag(self.name, self.value)


ON = Choice(LHS, "true", "moves compute between the start and the done of collectives", JAX)
NO_GRAPHS = Choice(COMMAND_BUFFER, "", "command buffers hide single operations from profilers", NVIDIA_PGLE)
SYNC = Choice(DISABLE_ASYNC, "allcollectives", "no collective shares the GPU while it is measured", NVIDIA_PGLE)
SAME = Choice(COMBINING, "false", "keeps the same collectives in every run, with a profile and without", MEASURED)
LOG = Choice("TF_CPP_MIN_LOG_LEVEL", "0", "shows the lines by which XLA confirms a profile", JAX, is_flag=False)
ORDER = Choice("CUDA_DEVICE_MAX_CONNECTIONS", "1", "kernels run in the order LHS gave them", NVIDIA, is_flag=False)

_PIPELINE_SINCE = "0.11.1"  # from here on xla_gpu_enable_pipelined_X are aliases of xla_gpu_pipeline_X
_OLD_PIPELINE_PARALLEL = (
    Choice("xla_gpu_enable_pipelined_p2p", "true", "overlaps send and receive with compute", NVIDIA),
    Choice("xla_gpu_collective_permute_decomposer_threshold", "1024", "splits transfers into send and receive", NVIDIA),
    Choice("xla_gpu_lhs_enable_gpu_async_tracker", "true", "lets LHS see streams", NVIDIA),
)

STREAMS = "xla_gpu_multi_streamed_windowed_einsum"
THRESHOLD = "xla_gpu_threshold_for_windowed_einsum_mib"

SPLIT_WITHOUT_GPU_SINCE = "0.11.2"
"""First release found to split matmuls when it compiles without a GPU; 0.7.2, 0.10.2 and 0.11.0 do not."""
BROKEN = "0.10.2"  # the verifier refuses its own multi-streamed loops on GPUs (jax-ml/jax#39200)


def for_release(choices: tuple[Choice, ...], version: str) -> tuple[tuple[Choice, ...], tuple[Finding, ...]]:
    """The choices as a release knows them: replaced where it has another name, left out with a finding where none."""
    fitted: list[Choice] = []
    findings: list[Finding] = []
    for choice in choices:
        candidates = _replacements(choice, version)
        known = tuple(item for item in candidates if not item.is_flag or known_in(item.name, version) is not False)
        fitted.extend(known)
        if not known and not _needless(choice, version):
            message = f"left out: jaxlib {version} does not know it"
            findings.append(Finding("warning", "left-out", choice.name, message))
        elif known and known[0].name != choice.name:
            message = f"replaced by {format_flags(item.flag for item in known)} in jaxlib {version}"
            findings.append(Finding("note", "replaced", choice.name, message))
    return tuple(fitted), tuple(findings)


def _replacements(choice: Choice, version: str) -> tuple[Choice, ...]:
    """What a release wants instead of the choice; the choice itself where nothing else."""
    at = release(version)
    if choice.name.startswith("xla_gpu_enable_pipelined_") and at >= release(_PIPELINE_SINCE):
        name = choice.name.replace("enable_pipelined", "pipeline")
        return (replace(choice, name=name, value="on"),) if name in catalogue() else (choice,)
    if choice.name == DISABLE_ASYNC and choice.value == "allcollectives" and at < release(ALL_KINDS_SINCE):
        return (replace(choice, value=ASYNC_KINDS),)
    if choice.name == OPT_LEVEL and not catalogue()[choice.name].known_in(version):
        return _OLD_PIPELINE_PARALLEL
    if _needless(choice, version):
        return ()
    return (choice,)


def _needless(choice: Choice, version: str) -> bool:
    """Whether a release does it by itself, so that leaving it out loses nothing."""
    setting = catalogue().get(choice.name)
    if setting is None or not choice.name.endswith(("_combine_by_dim", "_collective_combining")):
        return False
    return setting.default(version) in (choice.value, None)


def collective_matmul(jaxlib: str, *, streams: bool) -> Iterator[Finding]:
    """Traps of splitting matmuls with a release; `streams`: on several streams."""
    if release(jaxlib) == release(BROKEN) and streams:
        message = (
            f"on GPUs jaxlib {BROKEN} fails to compile what it splits if a device's share of a dimension is above "
            "1024 ('async_computation expected to contain only the root', jax-ml/jax#39200)"
        )
        yield Finding("warning", "fails", STREAMS, message, f"set --{STREAMS}=false, or take another jaxlib")
    if release(jaxlib) < release(SPLIT_WITHOUT_GPU_SINCE):
        message = (
            f"a rehearsal will not show its effect: without a GPU jaxlib {jaxlib} leaves matmuls whole, whatever the "
            f"threshold, sharding or shape ({SPLIT_WITHOUT_GPU_SINCE} and newer split them)"
        )
        remedy = f"rehearse with jaxlib {SPLIT_WITHOUT_GPU_SINCE} or newer, or look for collective-permute in a dump"
        yield Finding("note", "not-rehearsed", THRESHOLD, message, f"{remedy} of a GPU run")


Mode: TypeAlias = Literal["sync", "async", "baseline", "perf"]

PROFILE_MODES: tuple[Mode, ...] = ("sync", "async")  # the ones that measure
MEASURES_ALONE: Mode = "sync"  # keeps every collective synchronous, to measure each alone

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
    choices, left_out = for_release((*MODES[mode][1], *given, LOG, *_dumps(dump_to)), at)
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
    if user.is_true(LHS) is False:
        found.append(Finding("warning", "lhs-off", LHS, _lhs_off(mode, version), "remove it"))
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


LAYER_BYTES = "1073741824"
"""Combine threshold of NVIDIA's list of recommended flags, which is older than XLA's own choice by memory."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of settings for one jaxlib release."""

    name: str  # such as ``fsdp``
    purpose: str  # what it is for, one clause
    jaxlib: str  # the release it is adapted to
    choices: tuple[Choice, ...]  # the settings, flags first
    findings: tuple[Finding, ...] = ()  # what was left out or replaced, and traps

    @property
    def flags(self) -> tuple[Flag, ...]:
        """The XLA flags."""
        return tuple(choice.flag for choice in self.choices if choice.is_flag)

    @property
    def xla_flags(self) -> str:
        """The XLA flags as text."""
        return format_flags(self.flags)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables other than XLA_FLAGS."""
        return {choice.name: choice.value for choice in self.choices if not choice.is_flag}


_COMBINE = tuple(
    Choice(f"xla_gpu_{kind}_combine_threshold_bytes", LAYER_BYTES, f"joins the {what} of a layer", NVIDIA_PGLE)
    for kind, what in (
        ("all_gather", "weights"),
        ("reduce_scatter", "gradients"),
        ("all_reduce", "replicated gradients"),
    )
)
_PIPELINED = tuple(
    Choice(f"xla_gpu_enable_pipelined_{kind}", "true", f"moves {kind.replace('_', '-')}s across iterations", NVIDIA)
    for kind in ("all_gather", "reduce_scatter", "all_reduce")
)
_BUFFERED = Choice("xla_gpu_enable_while_loop_double_buffering", "true", "neighbouring iterations overlap", NVIDIA)
_ANY_DIM = tuple(
    Choice(f"xla_gpu_enable_{kind}_combine_by_dim", "false", "joins tensors however they are sharded", NVIDIA)
    for kind in ("all_gather", "reduce_scatter")
)

_PRESETS: dict[str, tuple[str, tuple[Choice, ...]]] = {
    "lhs": ("overlap collectives with compute, costs estimated by XLA", (ON,)),
    **{f"pgle-profile-{mode}": MODES[mode] for mode in PROFILE_MODES},
    "pgle-perf": (MODES["perf"][0], (*MODES["perf"][1], LOG)),
    "fsdp": (
        "weights and gradients sharded over devices (FSDP, ZeRO)",
        (ON, *_COMBINE, *_PIPELINED, _BUFFERED, *_ANY_DIM),
    ),
    "pipeline-parallel": (
        "pipeline stages on different devices",
        (
            ON,
            Choice(COMMAND_BUFFER, "", "part of the recipe of the JAX guide", JAX),
            Choice("xla_disable_hlo_passes", "collective-permute-motion", "keeps transfers in their place", JAX),
            Choice(
                OPT_LEVEL,
                "PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE",
                "rearranges the loop so that transfers between stages overlap",
                JAX,
            ),
        ),
    ),
    "collective-matmul": (
        "matmuls with a collective split into chunks that overlap (tensor parallelism)",
        (
            Choice(STREAMS, "true", "chunks run on several streams", NVIDIA),
            Choice(THRESHOLD, "0", "every such matmul is split", NVIDIA),
        ),
    ),
    "recommended": (
        "NVIDIA's list for large models with PGLE",
        (
            ON,
            Choice("xla_gpu_enable_triton_gemm", "false", "takes cuBLAS for matmuls", NVIDIA_PGLE),
            Choice(COMMAND_BUFFER, "", "part of the recipe", NVIDIA_PGLE),
            *_COMBINE,
            *_PIPELINED,
            _BUFFERED,
            *_ANY_DIM,
            Choice("xla_disable_hlo_passes", "rematerialization", "LHS bounds memory itself; may run out", NVIDIA_PGLE),
            ORDER,
        ),
    ),
}


_START = f"a start that '{TUNE}' should beat"
_OTHER_FINGERPRINT = "changes the module's fingerprint: use bare names, or the performance run's fingerprint"
_REMARKS: dict[str, tuple[str, ...]] = {
    "pgle-profile-sync": (_OTHER_FINGERPRINT,),
    "fsdp": (
        f"{_START}: simulated, an FSDP step that scans over its layers (eight H100) gets 6 % shorter by it than with "
        "the profile alone; on 64 GB200 a mixture of experts was measured 2.4 % longer with its pipelining flags, and "
        "7.1 % with double buffering too",
    ),
    "recommended": (
        _START,
        "the combine thresholds of 1 GiB come from documents that are older than XLA's present scheduler: smaller ones "
        f"often beat them; '{TUNE}' finds one, '{REHEARSE_FLAG}' compares",
    ),
    "pipeline-parallel": (
        f"{_START}: simulated on eight H100, a ring of stages gets 4 % longer by it than with the profile alone",
    ),
}


def preset_names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(_PRESETS)


def purpose(name: str) -> str:
    """What a preset is for."""
    return _PRESETS[name][0]


def preset(name: str, version: str | None = None, *, profile: str = "") -> Preset:
    """A preset for a jaxlib release.

    Args:
        version: release to adapt it to; the newest recorded one where None.
        profile: path of the profile, for ``pgle-perf``.

    Raises:
        UserError: no such preset, or ``pgle-perf`` without a profile.
    """
    if name not in _PRESETS:
        remedy = f"{suggestion(name, _PRESETS)} choose one of {', '.join(_PRESETS)}".strip()
        raise UserError(f"no preset called '{name}'", remedy=remedy)
    at = version or known_flags().releases[-1]
    what, choices = _PRESETS[name]
    if name == "pgle-perf":
        if not profile:
            raise UserError("preset pgle-perf needs a profile", remedy="add --profile FILE.pbtxt")
        choices = (choices[0], Choice(PROFILE_PATH, profile, "the measured costs", JAX), *choices[1:])
    fitted, findings = for_release(choices, at)
    remarks = tuple(Finding("note", "remark", "", text) for text in _REMARKS.get(name, ()))
    findings += _ignored(profile if name == "pgle-perf" else "")
    traps = tuple(collective_matmul(at, streams=True)) if name == "collective-matmul" else ()
    return Preset(name, what, at, fitted, (*findings, *remarks, *traps))


def _ignored(profile: str) -> tuple[Finding, ...]:
    """A file name that XLA takes for no profile; a name without suffix may be a directory."""
    if not re.search(r"\.[^./]*$", profile) or profile.endswith((".pbtxt", ".pb")):
        return ()
    message = f"XLA ignores {profile} without a word: a profile's name ends in .pbtxt or .pb"
    return (Finding("warning", "suffix", PROFILE_PATH, message, "rename the file"),)
