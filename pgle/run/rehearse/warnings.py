"""What a rehearsal has to warn of: costs that nobody knows, memory that is short, collectives that nothing reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pgle.costs.estimate.ranges import PARTITIONED_LATER, opaque_warnings
from pgle.run.rehearse.compiler.request import RehearsalResult
from pgle.run.rehearse.settings import MEMORY_FRACTION
from pgle.schedule.moves import Placement
from pgle.schedule.predict import Prediction
from pgle.xla.flags.choices import LHS, SOL
from pgle.xla.flags.text import FlagList, typed_flag
from pgle.xla.hlo.module import Module
from pgle.xla.log.wordings import SCHEDULER_MEMORY
from pgle.xla.targets import Target

TPU_KERNEL = "tpu_custom_call"  # what jax lowers Pallas to for TPUs

NEAR = 0.03
"""Part of the memory limit. On one public program 3.7 GiB less of 138.2 (2.7 %) ended rematerialisation, and the step
got shorter by several per cent (marin-community/marin, pull request 8070)."""

UNREAD_SHARE = 0.001  # of the step; less than that is not worth a line


def memory_warnings(compiled: RehearsalResult, allocator_bytes: int, target: Target) -> list[str]:
    """Whether memory is so short that XLA schedules for memory and not for speed.

    Args:
        compiled: with LHS.
        allocator_bytes: what the job's allocator has; 0: unknown.
        target: the GPU.
    """
    found = SCHEDULER_MEMORY.search(compiled.log.read_text(errors="replace"))
    used, limit = (int(found[1]), int(found[2])) if found else (0, 0)
    need, have = compiled.memory_bytes or 0, allocator_bytes or target.memory_bytes
    remedy = f"raise {MEMORY_FRACTION[0]} as the job has it, rematerialise more, or take a larger --target"
    if need > have:
        return [
            f"the step needs {_gib(need)} and jax's allocator has {_gib(have)} of {target.name}: it does not fit, and "
            f"XLA then schedules for memory, not for speed; {remedy}"
        ]
    if used > limit:
        return [
            f"the scheduler is short of memory ({_gib(used)} of temporaries, {_gib(limit)} left for them), so it "
            f"overlaps less compute with collectives; {remedy}"
        ]
    return near_limit(need, have)


def near_limit(need: int, have: int) -> list[str]:
    """Whether a program is so near the memory limit that a small change of its memory changes what XLA makes of it.

    Args:
        need: bytes that XLA plans for.
        have: bytes of the job's allocator.
    """
    if abs(need - have) > NEAR * have:
        return []
    return [
        f"{_gib(need)} of {_gib(have)} are needed, within {NEAR:.0%} of the memory limit: the gain may turn, since XLA "
        "computes values again to stay below it"
    ]


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def unread_warnings(prediction: Prediction, placed: Iterable[Placement]) -> list[str]:
    """Collectives that run though nothing reads their results."""
    unread = [item for item in placed if item.unread]
    took = sum(item.cost_us * item.count for item in unread)
    if took < UNREAD_SHARE * prediction.step_us:
        return []
    return [
        f"{len(unread)} collectives ({unread[0].name} …) run though nothing reads their results: {took / 1e3:,.0f} ms "
        "of communication a step; the collective pipeliner leaves them where one reduction reads another's result, and "
        "XLA removes no collective: do without --xla_gpu_enable_pipelined_all_reduce (xla_gpu_pipeline_all_reduce)"
    ]


def custom_call_warnings(module: Module, measured: Collection[str]) -> list[str]:
    """What is not known of the custom calls of a scheduled module: their costs, or how they would be partitioned.

    Args:
        module: the module.
        measured: names of instructions whose costs are.
    """
    lines = opaque_warnings(module, measured)
    targets = {item.custom_call_target for item in module.walk()}
    if TPU_KERNEL in targets:
        lines.append(
            f"{TPU_KERNEL} is a kernel for TPUs, which no GPU runs, so this program was lowered for TPUs: lower it for "
            "GPUs (lowering_platforms=('cuda',)), or rehearse the program itself"
        )
    if PARTITIONED_LATER in targets:
        lines.append(
            f"how the program partitions its {PARTITIONED_LATER} calls (jax's custom_partitioning) is not in the "
            "module: their operands are gathered here; rehearse the program itself, with a Python that has jax's CUDA "
            "plugin, or a job's *.after_spmd_partitioner dump (--xla_dump_to)"
        )
    return lines


def lhs_warnings(flags: Iterable[str], *, runs: bool) -> list[str]:
    """Whether LHS runs though the user's flags turn it off.

    Args:
        flags: of the user, ``--name=value``; the last of a name counts.
        runs: whether the compilation left a schedule dump of LHS.
    """
    if not runs or FlagList(tuple(map(typed_flag, flags))).is_true(LHS) is not False:
        return []
    return [
        f"LHS runs though --{LHS} is false: on this GPU --{SOL} turns it on, and it is on by default; for a schedule "
        f"without LHS add --{SOL}=false"
    ]


def belief_warnings(believed_us: float | None, step_us: float) -> list[str]:
    """Whether LHS without a profile takes more time to be exposed than the whole step has.

    jaxlib 0.11 takes asynchronous fusions of slices for milliseconds.
    """
    if believed_us is None or believed_us <= step_us:
        return []
    return [
        f"without a profile LHS expects {believed_us / 1e3:,.1f} ms of exposed time, more than the predicted step of "
        f"{step_us / 1e3:,.1f} ms: its guesses are far off, and so may be its order; use a profile, or compare with "
        "another jaxlib"
    ]
