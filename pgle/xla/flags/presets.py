"""Named sets of settings, each with its reason, adapted to a jaxlib release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pgle.errors import UserError, suggestion
from pgle.next import REHEARSE_FLAG, THRESHOLDS, TUNE
from pgle.xla.flags.catalogue import known_flags, release
from pgle.xla.flags.choices import (
    JAX,
    LHS,
    LOG,
    NVIDIA,
    NVIDIA_PGLE,
    ON,
    OPT_LEVEL,
    ORDER,
    PROFILE_PATH,
    RENAMES_SINCE,
    STREAMS,
    THRESHOLD,
    Choice,
    collective_matmul,
    fit,
)  # fmt: skip
from pgle.xla.flags.modes import MODES, PROFILE_MODES
from pgle.xla.flags.text import COMMAND_BUFFER, Finding, Flag, format_flags

MAXTEXT = "MaxText 0.2.5 configs/gpu/a3"

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
    "maxtext": (
        "what MaxText's scripts for H100 set (Llama 2 7B on 128 GPUs, Llama 3.1 405B on 1,024)",
        (
            ON,
            Choice("xla_gpu_enable_triton_gemm", "false", "takes cuBLAS for matmuls", MAXTEXT),
            Choice(COMMAND_BUFFER, "", "no CUDA graphs", MAXTEXT),
            Choice("xla_gpu_enable_highest_priority_async_stream", "true", "collectives start first", MAXTEXT),
            *(
                Choice(f"xla_gpu_{kind}_combine_threshold_bytes", size, "joins collectives of a layer", MAXTEXT)
                for kind, size in (
                    ("all_reduce", LAYER_BYTES), ("all_gather", "134217728"), ("reduce_scatter", "134217728"),
                )
            ),
            *(replace(choice, source=MAXTEXT) for choice in (*_PIPELINED, _BUFFERED, *_ANY_DIM)),
            Choice("xla_disable_hlo_passes", "rematerialization", "LHS bounds memory itself; may run out", MAXTEXT),
        ),
    ),
}  # fmt: skip


_START = f"a start that '{TUNE}' should beat"
_OTHER_FINGERPRINT = "changes the module's fingerprint: use bare names, or the performance run's fingerprint"
_REMARKS: dict[str, tuple[str, ...]] = {
    "pgle-profile-sync": (_OTHER_FINGERPRINT,),
    "pgle-profile-sync-legacy": (_OTHER_FINGERPRINT,),
    "fsdp": (
        f"{_START}: simulated, an FSDP step that scans over its layers (eight H100) gets 6 % shorter by it than with "
        "the profile alone; on 64 GB200 a mixture of experts was measured 2.4 % longer with its pipelining flags, and "
        "7.1 % with double buffering too",
        f"the combine thresholds are a start; '{THRESHOLDS}' computes them",
    ),
    "recommended": (
        _START,
        "the combine thresholds of 1 GiB come from documents that are older than XLA's present scheduler: smaller ones "
        f"often beat them; '{THRESHOLDS}' computes a layer's, "
        f"'{REHEARSE_FLAG}' compares",
    ),
    "maxtext": (
        f"{_START}: simulated, a step of Llama 3.1 70B on 128 H100 gets 1.8 % longer by it than with the profile "
        "alone, since XLA runs collectives whose results nothing reads",
    ),
    "pipeline-parallel": (
        f"{_START}: simulated on eight H100, a ring of stages gets 4 % longer by it than with the profile alone",
    ),
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


def _lost_names(name: str, version: str) -> tuple[Finding, ...]:
    if name != "pgle-profile-sync-legacy" or release(version) < release(RENAMES_SINCE):
        return ()
    message = (
        f"jaxlib {version} renames collectives after scheduling, and with LHS off nothing leads back to the names "
        "PGLE needs: 1 of 12 collectives of an FSDP step matched, with pgle-profile-sync 12 (rehearsed with 0.12.0.1)"
    )
    return (Finding("warning", "names-lost", LHS, message, "use pgle-profile-sync"),)
