"""Single settings with their reasons, as modes and presets choose them, and what a jaxlib release makes of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pgle.xla.flags.catalogue import catalogue, known_in, release
from pgle.xla.flags.text import COMMAND_BUFFER, Finding, Flag, format_flags
from pgle.xla.kinds import ASYNC_FLAGS

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
RENAMES_SINCE = "0.11.1"
"""From here on collectives that stay synchronous get a new name after scheduling (openxla/xla#46463)."""
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
    if choice.name == OPT_LEVEL and not catalogue()[choice.name].known_in(version):
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
    if setting is None or not choice.name.endswith(("_combine_by_dim", "_collective_combining")):
        return False
    return setting.default(version) in (choice.value, None)


def collective_matmul(jaxlib: str, *, streams: bool) -> Iterator[Finding]:
    """Traps of splitting matmuls with a release; `streams`: on several streams."""
    if release(jaxlib) == release(BROKEN) and streams:
        message = (
            f"on GPUs jaxlib {BROKEN} fails to compile what it splits where a device's share of a dimension is above "
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
