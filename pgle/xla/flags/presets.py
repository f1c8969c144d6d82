"""Flags for each kind of run, and named presets, adapted to a jaxlib release. Each setting has a
reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

from pgle.errors import UserError, suggestion
from pgle.next import REHEARSE_FLAG, TUNE
from pgle.xla.flags.catalogue import (
    ASYNC_KINDS,
    COMBINING,
    DISABLE_ASYNC,
    HOPPER_DEFAULT,
    LHS,
    PROFILE_PATH,
    PROFILE_SWITCHES_ON,
    catalogue,
    known_flags,
    known_in,
    profile_findings,
    release,
)
from pgle.xla.flags.text import (
    COMMAND_BUFFER,
    Flag,
    FlagFinding,
    FlagList,
    FlagPlan,
    format_flags,
    merge_flags,
    parse_flags,
)

ALL_KINDS_SINCE = "0.5.3"
"""First release known to accept ``allcollectives``. 0.4.38 aborts on this value, and the releases
between were not tried.
"""

JAX = "docs.jax.dev gpu_performance_tips"
NVIDIA = "JAX-Toolbox GPU_performance.md"
NVIDIA_PGLE = "JAX-Toolbox PGLE.md"
AMD_MAXTEXT = "ROCm/MAD scripts/jax-maxtext/env_scripts"
MEASURED = "run with jaxlib 0.10.2 and 0.12.0.1"


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting of a preset or a mode."""

    name: str  # name of the setting
    value: str  # value of the setting
    reason: str  # why, in one clause
    source: str  # source of the recommendation
    is_flag: bool = True  # True for XLA_FLAGS, False for an environment variable

    @property
    def flag(self) -> Flag:
        """The setting as a flag."""
        return Flag(self.name, self.value)


ON = Choice(
    LHS, "true", "moves compute between the start and the done of collectives", JAX
)
NO_GRAPHS = Choice(
    COMMAND_BUFFER,
    "",
    "command buffers hide single operations from profilers",
    NVIDIA_PGLE,
)
SYNC = Choice(
    DISABLE_ASYNC,
    "allcollectives",
    "no collective shares the GPU while it is measured",
    NVIDIA_PGLE,
)
SAME = Choice(
    COMBINING,
    "false",
    "keeps the same collectives in every run, with a profile and without",
    MEASURED,
)
LOG = Choice(
    "TF_CPP_MIN_LOG_LEVEL",
    "0",
    "shows the lines by which XLA confirms a profile",
    JAX,
    is_flag=False,
)
ORDER = Choice(
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "1",
    "kernels run in the order LHS gave them",
    NVIDIA,
    is_flag=False,
)


def _of_amd(name: str, value: str, reason: str, *, is_flag: bool = True) -> Choice:
    """Return a setting that AMD's MaxText configurations share."""
    return Choice(name, value, reason, AMD_MAXTEXT, is_flag=is_flag)


_GIB_8 = str(8 << 30)
ROCM = (
    ON,
    _of_amd("xla_gpu_enable_triton_gemm", "false", "takes hipBLASLt for matmuls"),
    _of_amd("xla_gpu_enable_cublaslt", "true", "takes hipBLASLt for matmuls"),
    _of_amd("xla_gpu_autotune_level", "4", "chooses the kernels of matmuls by time"),
    _of_amd(COMMAND_BUFFER, "", "part of the recipe"),
    _of_amd(
        "xla_gpu_all_gather_combine_threshold_bytes",
        _GIB_8,
        "joins the weights of a layer",
    ),
    _of_amd(
        "xla_gpu_reduce_scatter_combine_threshold_bytes",
        _GIB_8,
        "joins the gradients of a layer",
    ),
    _of_amd(
        "xla_gpu_enable_all_gather_combine_by_dim",
        "false",
        "joins gathers of all dimensions",
    ),
    _of_amd(
        "xla_gpu_memory_limit_slop_factor",
        "95",
        "the scheduler may use 95 % of the memory",
    ),
    _of_amd(
        "GPU_MAX_HW_QUEUES",
        "2",
        "one queue for kernels, one for collectives",
        is_flag=False,
    ),
    _of_amd(
        "HIP_FORCE_DEV_KERNARG",
        "1",
        "starts kernels faster",
        is_flag=False,
    ),
    _of_amd(
        "HSA_FORCE_FINE_GRAIN_PCIE",
        "1",
        "GPUs and network cards read each other's memory",
        is_flag=False,
    ),
)
"""Settings that the configurations of gfx950 share, at b43a64cdb470."""

# since this release xla_gpu_enable_pipelined_X are aliases of xla_gpu_pipeline_X
_PIPELINE_SINCE = "0.11.1"


def for_release(
    choices: tuple[Choice, ...], version: str
) -> tuple[tuple[Choice, ...], tuple[FlagFinding, ...]]:
    """Adapt choices to a release: replace a renamed setting, drop an unknown one with a finding."""
    fitted: list[Choice] = []
    findings: list[FlagFinding] = []
    for choice in choices:
        if choice.name == COMBINING and catalogue()[COMBINING].default(version) in (
            choice.value,
            None,
        ):
            continue  # the release does this by default
        now = _replacement(choice, version)
        if now.is_flag and known_in(now.name, version) is False:
            message = f"left out: jaxlib {version} does not know it"
            findings.append(FlagFinding("warning", "left-out", choice.name, message))
            continue
        fitted.append(now)
        if now.name != choice.name:
            message = f"replaced by {now.flag.text} in jaxlib {version}"
            findings.append(FlagFinding("note", "replaced", choice.name, message))
    return tuple(fitted), tuple(findings)


def _replacement(choice: Choice, version: str) -> Choice:
    """Return what a release uses instead of the choice, or the choice itself."""
    at = release(version)
    newer = choice.name.replace("xla_gpu_enable_pipelined_", "xla_gpu_pipeline_")
    if newer != choice.name and newer in catalogue() and at >= release(_PIPELINE_SINCE):
        return replace(choice, name=newer, value=catalogue()[newer].fsdp)
    if (
        choice.name == DISABLE_ASYNC
        and choice.value == "allcollectives"
        and at < release(ALL_KINDS_SINCE)
    ):
        return replace(choice, value=ASYNC_KINDS)
    return choice


Mode: TypeAlias = Literal["sync", "async", "baseline", "perf"]

PROFILE_MODES: tuple[Mode, ...] = ("sync", "async")  # modes that measure
# keeps every collective synchronous, to measure each alone
MEASURES_ALONE: Mode = "sync"

MODES: Mapping[Mode, tuple[str, tuple[Choice, ...]]] = {
    # LHS stays on: only then XLA (0.11.1 and newer) records the names that collectives had in LHS
    "sync": (
        (
            "profile run with every collective measured alone; LHS stays on, which "
            "keeps the names PGLE needs"
        ),
        (ON, SAME, SYNC, NO_GRAPHS),
    ),
    "async": (
        (
            "profile run as the JAX guide has it, LHS and asynchronous collectives on: "
            "collectives share GPU and links"
        ),
        (ON, SAME, NO_GRAPHS),
    ),
    "baseline": ("LHS on, no profile: what PGLE has to beat", (ON, SAME)),
    "perf": ("performance run with a cost profile", (ON, SAME)),
}
"""The purpose and the settings of each kind of run. Log lines and dumps are added to all, the
profile to ``perf``.
"""


def flags_for(
    mode: Mode,
    version: str | None,
    user_flags: str | FlagList = "",
    *,
    dump_to: str = "",
    profile: str = "",
) -> FlagPlan:
    """Plan the flags of one kind of run.

    Args:
        mode: the kind of run.
        version: jaxlib that will run the program; None: the newest recorded one.
        user_flags: the user's XLA_FLAGS. If XLA_FLAGS names a file, its content.
        dump_to: directory for HLO dumps and for the schedule with the costs that LHS assumed;
            empty: no dumps.
        profile: path of the cost profile, required for ``perf`` and not allowed otherwise.
    """
    user = parse_flags(user_flags) if isinstance(user_flags, str) else user_flags
    if user.file:
        raise UserError(
            "XLA_FLAGS names a file", where=user.file, remedy="pass what it holds"
        )
    if mode == "perf" and not profile:
        raise UserError(
            "a performance run needs a profile", remedy="pass --profile FILE"
        )
    if mode != "perf" and profile:
        raise UserError(f"mode {mode} takes no profile", remedy="use mode perf")
    at = version or known_flags().releases[-1]
    given = (
        (Choice(PROFILE_PATH, profile, "the measured costs", JAX),) if profile else ()
    )
    dumps = (
        Choice(
            "xla_dump_to",
            dump_to,
            "the modules as compiled, for names and shapes",
            MEASURED,
        ),
        Choice(
            "xla_dump_hlo_as_proto", "true", "the exact form of the modules", MEASURED
        ),
        Choice(
            "xla_dump_latency_hiding_schedule",
            "true",
            "the cost that LHS believed of every instruction",
            MEASURED,
        ),
    )
    choices, left_out = for_release(
        (*MODES[mode][1], *given, LOG, *(dumps if dump_to else ())), at
    )
    merged = merge_flags(user, [choice.flag for choice in choices if choice.is_flag])
    environment = {
        choice.name: choice.value for choice in choices if not choice.is_flag
    }
    warnings = (*left_out, *merged.warnings, *_consequences(mode, at, user, choices))
    return replace(merged, environment=environment, warnings=warnings)


def _consequences(
    mode: Mode, version: str, user: FlagList, choices: tuple[Choice, ...]
) -> Iterator[FlagFinding]:
    """Yield how the user's own flags and the release affect this kind of run."""
    measures = mode in PROFILE_MODES
    sets_combining = (
        measures
        and user.value(COMBINING) is None
        and any(item.name == COMBINING for item in choices)
    )
    if user.is_true(LHS) is False:
        yield FlagFinding(
            "warning",
            "lhs-off",
            LHS,
            _lhs_off(mode, version),
            "remove it",
        )
    if mode != "sync" and user.value(DISABLE_ASYNC):
        yield FlagFinding(
            "warning",
            "no-async",
            DISABLE_ASYNC,
            "your flag keeps collectives synchronous, so LHS has nothing to overlap",
            "remove it",
        )
    if user.is_true(COMBINING):
        yield FlagFinding(
            "warning",
            "combining",
            COMBINING,
            "your flag combines collectives by a schedule that a profile changes, "
            "so costs may lose their names",
            "remove it",
        )
    if sets_combining:
        yield FlagFinding(
            "warning",
            "combining",
            COMBINING,
            f"set to false in every stage: jaxlib {version} else combines other "
            "collectives with a profile",
            "set it in your job too",
        )
    if measures and user.value(COMMAND_BUFFER):
        yield FlagFinding(
            "warning",
            "graphs",
            COMMAND_BUFFER,
            "your flag keeps command buffers, which hide single operations from the profiler",
            "remove it for the profile run",
        )
    if mode != "perf" and user.value(PROFILE_PATH):
        yield FlagFinding(
            "warning",
            "has-profile",
            PROFILE_PATH,
            f"your flag gives a profile to a run that must not have one ({mode})",
            "remove it",
        )


def _lhs_off(mode: Mode, version: str) -> str:
    at = release(version)
    if at >= release(HOPPER_DEFAULT[1]):
        lost = {
            "perf": "XLA silently ignores the profile",
            "sync": "the names PGLE needs are not recorded",
        }
        return (
            f"your flag turns LHS off in jaxlib {version}: "
            f"{lost.get(mode, 'nothing is overlapped')}"
        )
    if at >= release(PROFILE_SWITCHES_ON) and mode == "perf":
        return f"jaxlib {version} overrules your flag: a profile switches LHS on"
    if at >= release(HOPPER_DEFAULT[0]):
        return (
            f"your flag turns LHS off in jaxlib {version}, but not on Hopper "
            "and newer, where it stays on"
        )
    return f"your flag turns LHS off in jaxlib {version}" + (
        ": the profile is ignored" if mode == "perf" else ""
    )


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of settings for one jaxlib release."""

    name: str  # such as ``fsdp``
    purpose: str  # purpose in one clause
    jaxlib: str  # the release that the preset is adapted to
    choices: tuple[Choice, ...]  # the settings, flags first
    findings: tuple[FlagFinding, ...] = ()  # dropped or replaced settings, and traps

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
        return {
            choice.name: choice.value for choice in self.choices if not choice.is_flag
        }


CUBLAS = Choice(
    "xla_gpu_enable_triton_gemm", "false", "takes cuBLAS for matmuls", NVIDIA_PGLE
)
WITHOUT_GRAPHS = Choice(COMMAND_BUFFER, "", "part of the recipe", NVIDIA_PGLE)
NO_REMAT = Choice(
    "xla_disable_hlo_passes",
    "rematerialization",
    "LHS bounds memory itself; may run out",
    NVIDIA_PGLE,
)


@cache
def presets() -> Mapping[str, tuple[str, tuple[Choice, ...]]]:
    """Return the purpose and the settings of each preset, by name."""

    def fsdp(name: str, reason: str, source: str) -> Choice:
        return Choice(name, catalogue()[name].fsdp, reason, source)

    kinds = {
        "all_gather": "weights",
        "reduce_scatter": "gradients",
        "all_reduce": "replicated gradients",
    }
    combined = [
        fsdp(
            f"xla_gpu_{kind}_combine_threshold_bytes",
            f"joins the {what} of a layer",
            NVIDIA_PGLE,
        )
        for kind, what in kinds.items()
    ]
    pipelined = [
        fsdp(
            f"xla_gpu_enable_pipelined_{kind}",
            f"moves {kind.replace('_', '-')}s across iterations",
            NVIDIA,
        )
        for kind in kinds
    ]
    unrolled = fsdp(
        "xla_gpu_enable_while_loop_double_buffering",
        "neighbouring iterations overlap",
        NVIDIA,
    )
    layers = (*combined, *pipelined, unrolled)
    recommended = (ON, CUBLAS, WITHOUT_GRAPHS, *layers, NO_REMAT, ORDER)
    to_perform, performance = MODES["perf"]
    of_modes = {f"pgle-profile-{mode}": MODES[mode] for mode in PROFILE_MODES}
    return {
        "lhs": ("overlap collectives with compute, costs estimated by XLA", (ON,)),
        **of_modes,
        "pgle-perf": (to_perform, (*performance, LOG)),
        "fsdp": (
            "weights and gradients sharded over devices (FSDP, ZeRO)",
            (ON, *layers),
        ),
        "recommended": ("NVIDIA's list for large models with PGLE", recommended),
        "rocm": ("AMD's list for MaxText on MI350X and MI355X", ROCM),
    }


_START = f"a start that '{TUNE}' should beat"
_OTHER_FINGERPRINT = (
    "changes the module's fingerprint: use bare names, or the "
    "performance run's fingerprint"
)
_REMARKS: dict[str, tuple[str, ...]] = {
    "pgle-profile-sync": (_OTHER_FINGERPRINT,),
    "fsdp": (
        f"{_START}: simulated, an FSDP step that scans over its layers (eight "
        "H100) gets 6 % shorter by it than with "
        "the profile alone; on 64 GB200 a mixture of experts was measured 2.4 % "
        "longer with its pipelining flags, and "
        "7.1 % with double buffering too",
    ),
    "rocm": (
        _START,
        (
            "older files of the same folder set xla_gpu_graph_level, on which jaxlib "
            "ends the program since 0.7.2"
        ),
    ),
    "recommended": (
        _START,
        "the combine thresholds of 1 GiB come from documents that are older than "
        "XLA's present scheduler: smaller ones "
        f"often beat them; '{TUNE}' finds one, '{REHEARSE_FLAG}' compares",
    ),
}


def preset(name: str, version: str | None = None, *, profile: str = "") -> Preset:
    """Return a preset for a jaxlib release.

    Args:
        name: name of the preset.
        version: release to adapt the preset to; None: the newest recorded one.
        profile: path of the profile, for ``pgle-perf``.
    """
    if name not in presets():
        remedy = f"{suggestion(name, presets())} choose one of {', '.join(presets())}".strip()
        raise UserError(f"no preset called '{name}'", remedy=remedy)
    at = version or known_flags().releases[-1]
    what, choices = presets()[name]
    if name == "pgle-perf":
        if not profile:
            raise UserError(
                "preset pgle-perf needs a profile", remedy="add --profile FILE.pbtxt"
            )
        choices = (
            choices[0],
            Choice(PROFILE_PATH, profile, "the measured costs", JAX),
            *choices[1:],
        )
    fitted, findings = for_release(choices, at)
    remarks = tuple(
        FlagFinding("note", "remark", "", text) for text in _REMARKS.get(name, ())
    )
    flags = FlagList(tuple(choice.flag for choice in fitted if choice.is_flag))
    return Preset(
        name, what, at, fitted, (*findings, *profile_findings(flags, at), *remarks)
    )
