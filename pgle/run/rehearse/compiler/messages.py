"""What a request becomes for the compiler's process: XLA flags, environment, one line of JSON; and what cannot be."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.files import check_file
from pgle.run.rehearse.compiler.dumps import BEFORE, Stage, dump_before
from pgle.run.rehearse.compiler.request import RehearsalRequest
from pgle.xla.flags.catalogue import catalogue
from pgle.xla.flags.text import format_flags, typed_flag
from pgle.xla.hlo.proto import MAX_HLO_BYTES

EVIDENCE_FLAGS = ("--xla_dump_hlo_as_proto=true", "--xla_dump_latency_hiding_schedule=true")
"""What every rehearsal adds to the flags; neither changes a fingerprint or a schedule."""

OF_JAX = "--jax_"
"""What flags begin with that are settings of jax: options of the compilation (`environment.EFFORTS`)."""

PROFILE_FLAG = "--xla_gpu_pgle_profile_file_or_directory_path"
ONLY, _DISABLED = "--xla_enable_hlo_passes_only=", "--xla_disable_hlo_passes="
# Observed in jaxlib 0.10.2 and 0.12.0.1 (TF_CPP_VMODULE=hlo_pass_pipeline=1): pipelines and passes of each stage. Those
# that earlier pipelines have, too, are left out (dce, tuple-simplifier, sanitize-constant-names before scheduling;
# algsimp, which merges bitcasts, before combining): they would run once more before the stage, and change what is
# scheduled (a step of four pipeline stages: by 1.5 %).
PASSES: dict[Stage, str] = {
    "combining": (
        "rename_fusions,dus-accumulator-zero-init-elimination,gpu-all-gather-combiner,gpu-all-reduce-combiner,"
        "gpu-reduce-scatter-combiner,collective-permute-combiner,collective-backend-assigner,"
        "collective-kernel-strategy-annotator,collective-fusion,collective-domain-assigner,group-collectives-by-key,"
        "all-reduce-contiguous,async-collective-creator,async-collective-annotator,stream-attribute-annotator,"
        "async-stream-attribute-wrapper,explicit-stream-annotation-async-wrapper,"
        "explicit-collectives-group-async-wrapper,collectives-schedule-linearizer,fusion-wrapper,autotuner,"
        "conv-fp8-fallback,config-assigner,propagate-call-metadata,loop-schedule-linearizer,copy-insertion,"
        "constant-fill-copy-rewriter,copy_fusion,sanitize-constant-names"
    ),
    "scheduling": (
        "pre-scheduling-passes,dynamic-slice-copy-fusion-async-wrapper,gpu-copy-async-wrapper,latency-hiding-scheduler,"
        "legalize-scheduling-annotations,scheduling-instruction-annotator,scheduled-gpu-module,"
        "post-scheduler-xla-transforms,post-scheduling-passes,async-to-sync-converter,"
        "gpu-convert-async-collectives-to-sync,remat-pipeline,rematerialization,stream-attribute-annotator,"
        "cse_barrier_expander,fusion-wrapper,fusion-dispatch-pipeline,fusion-block-level-rewriter,"
        "fusion-dynamic-memcpy-rewriter,pdl-launch-annotation"
    ),
}
SCHEDULER_FLAGS = frozenset(
    ("--xla_gpu_analytical_latency_estimator_options", "--xla_gpu_experimental_collective_perf_table_path",
     "--xla_gpu_experimental_matmul_perf_table_path",
     *(f"--{setting.name}" for setting in catalogue().values() if setting.stage == "schedule"))
)  # fmt: skip
"""Flags that only the passes from scheduling on read."""

_COMBINER_FLAG = re.compile(r"--xla_gpu_\w+_combine_threshold_bytes=")
"""Flags that only the passes from combining on read."""
MOST_DEVICES = 1 << 20
"""Of a topology: XLA makes a description of each, and more than a million is a slip of the keyboard."""


def xla_flags(request: RehearsalRequest, folder: Path) -> str:
    """The XLA_FLAGS of the compilation; the request's own flags come last and so win."""
    flags = [f"--xla_dump_to={folder}", *EVIDENCE_FLAGS]
    if request.before_stages or request.until_scheduling:
        flags.append(dump_before(BEFORE if request.before_stages else ["scheduling"]))
    if request.profile is not None and request.profile_as == "flag":
        flags.append(f"{PROFILE_FLAG}={request.profile.resolve()}")
    return format_flags(typed_flag(flag) for flag in [*flags, *_with_passes(request)] if not flag.startswith(OF_JAX))


def _with_passes(request: RehearsalRequest) -> tuple[str, ...]:
    """The request's own flags, by which only the passes of its stage run."""
    if request.passes is None:
        return request.flags
    # XLA takes only one of both lists; what is disabled and comes before the stage has been left out already.
    given = {flag for flag in request.flags if flag.startswith(_DISABLED)}
    disabled = {name for flag in given for name in flag.split("=")[1].split(",")}
    names = ",".join(name for name in PASSES[request.passes].split(",") if name not in disabled)
    return (f"{ONLY}{names}", *(flag for flag in request.flags if flag not in given))


def before_combiners(flags: Iterable[str]) -> tuple[str, ...]:
    """Flags without those that only the passes from combining on read."""
    return tuple(flag for flag in flags if not _COMBINER_FLAG.match(flag))


def message(number: int, request: RehearsalRequest, folder: Path) -> dict[str, Any]:
    """A request under its number, as JSON."""
    option = request.profile if request.profile_as == "option" else None
    return {
        "id": number,
        "module": str(request.module.resolve()),
        "dump_dir": str(folder),
        "target": request.target,
        "portable_target": request.portable_target,
        "allocator_bytes": request.allocator_bytes,
        "topology": request.topology,
        "xla_flags": xla_flags(request, folder),
        "efforts": dict(flag[2:].split("=", 1) for flag in request.flags if flag.startswith(OF_JAX)),
        "fdo_profile": str(option.resolve()) if option is not None else None,
        "to_the_end": request.to_the_end,
        "until_scheduling": request.until_scheduling,
        "as_job": request.as_job,
    }


def check(request: RehearsalRequest) -> None:
    """Refuse what needs no compiler to be refused.

    Raises:
        UserError: the module is missing, the folder is in use, or the topology or a flag has not its form.
    """
    check_file(request.module)
    if request.module.stat().st_size > MAX_HLO_BYTES:
        remedy = "give the module of one program: JAX_DUMP_IR_TO=DIR dumps each to a file of its own"
        raise UserError(f"larger than {MAX_HLO_BYTES:,} bytes", where=request.module, remedy=remedy)
    if request.dump_dir.is_dir() and any(request.dump_dir.iterdir()):
        raise UserError("is not empty", where=request.dump_dir, remedy="choose a new folder")
    if request.topology is not None:
        devices_in(request.topology)
    for flag in request.flags:
        if not flag.startswith("--"):
            raise UserError(f"XLA flag {flag!r} does not begin with --", remedy="write --name=value")


def devices_in(topology: str) -> int:
    """The devices of a topology ``SxHxD``.

    Raises:
        UserError: it is not of that form, or of a size that no machine has.
    """
    if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8}){2}", topology):
        raise UserError(
            f"topology {topology!r} is not SLICESxHOSTSxDEVICES", remedy="write 1x1x8 for one host with eight GPUs"
        )
    slices, hosts, devices = (int(part) for part in topology.split("x"))
    if slices * hosts * devices > MOST_DEVICES:
        raise UserError(
            f"topology {topology} has {slices * hosts * devices:,} devices, more than a rehearsal takes "
            f"({MOST_DEVICES:,})",
            remedy="write 1x1x8 for one host with eight GPUs",
        )
    return slices * hosts * devices


def environment() -> dict[str, str]:
    """The compiler's environment: ours without what would change the compilation."""
    drop = ("XLA_FLAGS", "TF_CPP_", "TF_XLA_", "JAX_", "LIBTPU_INIT_ARGS", "PGLE_HOOK")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    return kept | {
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",  # a GPU that is there is left alone
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # Without it the plugin prints a traceback about missing CUDA libraries, which a rehearsal does not need.
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads, and the process is to fork
        # Pages of 2 MiB where Linux gives them on request (glibc 2.35): XLA's passes follow pointers through gigabytes.
        "GLIBC_TUNABLES": ":".join(filter(None, (kept.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"))),
    }
