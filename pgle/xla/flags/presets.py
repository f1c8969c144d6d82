"""Named sets of settings, each with its reason, adapted to a jaxlib release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pgle.errors import UserError
from pgle.xla.collectives import ASYNC_FLAGS
from pgle.xla.flags.catalogue import catalogue, known_flags, known_in, release
from pgle.xla.flags.matmul import STREAMS, THRESHOLD, collective_matmul
from pgle.xla.flags.text import Finding, Flag, format_flags

LHS = "xla_gpu_enable_latency_hiding_scheduler"
SOL = "xla_gpu_enable_analytical_sol_latency_estimator"
PROFILE_PATH = "xla_gpu_pgle_profile_file_or_directory_path"
DISABLE_ASYNC = "xla_gpu_disable_async_collectives"
COMMAND_BUFFER = "xla_gpu_enable_command_buffer"

ASYNC_KINDS = ",".join(ASYNC_FLAGS)
"""The list of the JAX-Toolbox guide, for releases before `ALL_KINDS_SINCE`."""
ALL_KINDS_SINCE = "0.5.3"
"""First release found to take ``allcollectives``; 0.4.38 aborts on it, those between were not asked."""
LAYER_BYTES = "1073741824"
"""Combine threshold of NVIDIA's list of recommended flags."""

_OPT_LEVEL = "xla_gpu_experimental_pipeline_parallelism_opt_level"

JAX = "docs.jax.dev gpu_performance_tips"
NVIDIA = "JAX-Toolbox GPU_performance.md"
NVIDIA_PGLE = "JAX-Toolbox PGLE.md"
MEASURED = "run with jaxlib 0.10.2 and 0.12.0.1"


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting of a preset or a mode.

    Attributes:
        name: of the setting.
        value: what it is set to.
        reason: why, one clause.
        source: who says so.
        is_flag: True for XLA_FLAGS, False for an environment variable.
    """

    name: str
    value: str
    reason: str
    source: str
    is_flag: bool = True

    @property
    def flag(self) -> Flag:
        """It as a flag."""
        return Flag(self.name, self.value)


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of settings for one jaxlib release.

    Attributes:
        name: such as ``fsdp``.
        purpose: what it is for, one clause.
        jaxlib: the release it is adapted to.
        choices: the settings, flags first.
        findings: what was left out or replaced, and traps.
    """

    name: str
    purpose: str
    jaxlib: str
    choices: tuple[Choice, ...]
    findings: tuple[Finding, ...] = ()

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


ON = Choice(LHS, "true", "moves compute between the start and the done of collectives", JAX)
NO_GRAPHS = Choice(COMMAND_BUFFER, "", "command buffers hide single operations from profilers", NVIDIA_PGLE)
SYNC = Choice(DISABLE_ASYNC, "allcollectives", "no collective shares the GPU while it is measured", NVIDIA_PGLE)
LOG = Choice("TF_CPP_MIN_LOG_LEVEL", "0", "shows the lines by which XLA confirms a profile", JAX, is_flag=False)
ORDER = Choice("CUDA_DEVICE_MAX_CONNECTIONS", "1", "kernels run in the order LHS gave them", NVIDIA, is_flag=False)
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
    "pgle-profile-sync": (
        "profile run with uncontended collectives; LHS stays on, which keeps the names PGLE needs",
        (ON, SYNC, NO_GRAPHS),
    ),
    "pgle-profile-sync-legacy": (
        "profile run of the JAX-Toolbox guide: LHS and asynchronous collectives off",
        (
            Choice(LHS, "false", "no reordering while it is measured", NVIDIA_PGLE),
            Choice(SOL, "false", "up to 0.11.1 LHS=false alone leaves LHS on for Hopper and newer", MEASURED),
            replace(SYNC, value=ASYNC_KINDS),
            NO_GRAPHS,
        ),
    ),
    "pgle-profile-async": ("profile run as the JAX guide has it: LHS and asynchronous collectives on", (ON, NO_GRAPHS)),
    "pgle-perf": ("performance run with a cost profile", (ON, LOG)),
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
                _OPT_LEVEL,
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
    "nccl-single-host": (
        "NCCL between the GPUs of one host",
        tuple(
            Choice(name, value, "may speed up collectives inside one host", JAX, is_flag=False)
            for name, value in (
                ("NCCL_LL128_BUFFSIZE", "-2"),
                ("NCCL_LL_BUFFSIZE", "-2"),
                ("NCCL_PROTO", "SIMPLE,LL,LL128"),
            )
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
}  # fmt: skip

_PIPELINE_SINCE = "0.11.1"
"""From here on xla_gpu_enable_pipelined_X are aliases of xla_gpu_pipeline_X."""
RENAMES_SINCE = "0.11.1"
"""From here on collectives that stay synchronous get a new name after scheduling (openxla/xla#46463)."""
_OLD_PIPELINE_PARALLEL = (
    Choice("xla_gpu_enable_pipelined_p2p", "true", "overlaps send and receive with compute", NVIDIA),
    Choice("xla_gpu_collective_permute_decomposer_threshold", "1024", "splits transfers into send and receive", NVIDIA),
    Choice("xla_gpu_lhs_enable_gpu_async_tracker", "true", "lets LHS see streams", NVIDIA),
)

_REMARKS: dict[str, tuple[str, ...]] = {
    "pgle-profile-sync": ("changes the module's fingerprint: use bare names, or that of the performance run",),
    "pgle-profile-sync-legacy": ("changes the module's fingerprint: use bare names, or that of the performance run",),
    "fsdp": ("the combine thresholds are a start; 'pgle flags thresholds --hlo MODULE' computes them",),
    "recommended": ("the combine thresholds are a start; 'pgle flags thresholds --hlo MODULE' computes them",),
    "nccl-single-host": ("of no use across hosts; NCCL itself advises to set NCCL_PROTO only for debugging",),
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
        name: of the preset.
        version: release to adapt it to; the newest recorded one where None.
        profile: path of the profile, for ``pgle-perf``.

    Raises:
        UserError: no such preset, or ``pgle-perf`` without a profile.
    """
    if name not in _PRESETS:
        raise UserError(f"no preset called '{name}'", remedy=f"choose one of {', '.join(_PRESETS)}")
    at = version or known_flags().releases[-1]
    what, choices = _PRESETS[name]
    if name == "pgle-perf":
        if not profile:
            raise UserError("preset pgle-perf needs a profile", remedy="add --profile FILE.pbtxt")
        choices = (choices[0], Choice(PROFILE_PATH, profile, "the measured costs", JAX), *choices[1:])
    fitted, findings = fit(choices, at)
    remarks = tuple(Finding("note", "remark", "", text) for text in _REMARKS.get(name, ()))
    findings += _ignored(profile if name == "pgle-perf" else "")
    traps = tuple(collective_matmul(at, streams=True)) if name == "collective-matmul" else _lost_names(name, at)
    return Preset(name, what, at, fitted, (*findings, *remarks, *traps))


def _ignored(profile: str) -> tuple[Finding, ...]:
    """A file name that XLA takes for no profile; a name without suffix may be a directory."""
    if not re.search(r"\.[^./]*$", profile) or profile.endswith((".pbtxt", ".pb")):
        return ()
    message = f"XLA ignores {profile} without a word: a profile's name ends in .pbtxt or .pb"
    return (Finding("warning", "suffix", PROFILE_PATH, message, "rename the file"),)


def fit(choices: tuple[Choice, ...], version: str) -> tuple[tuple[Choice, ...], tuple[Finding, ...]]:
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
    if choice.name == "xla_gpu_experimental_pipeline_parallelism_opt_level" and not catalogue()[choice.name].known_in(
        version
    ):
        return _OLD_PIPELINE_PARALLEL
    if _needless(choice, version):
        return ()
    return (choice,)


def _needless(choice: Choice, version: str) -> bool:
    """Whether a release does it by itself, so that leaving it out loses nothing."""
    at = release(version)
    if choice.name == SOL:
        return not release("0.8.0") <= at < release("0.11.2")
    setting = catalogue().get(choice.name)
    by_default = setting is not None and setting.default(version) == choice.value
    return by_default and choice.name.endswith("_combine_by_dim")


def _lost_names(name: str, version: str) -> tuple[Finding, ...]:
    if name != "pgle-profile-sync-legacy" or release(version) < release(RENAMES_SINCE):
        return ()
    message = (
        f"jaxlib {version} renames collectives after scheduling, and with LHS off nothing leads back to the names "
        "PGLE needs: 1 of 12 collectives of an FSDP step matched, with pgle-profile-sync 12 (rehearsed with 0.12.0.1)"
    )
    return (Finding("warning", "names-lost", LHS, message, "use pgle-profile-sync"),)
