"""Which process of a job this is, as launchers say in environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# (launcher, rank, size); the first whose variables are set counts. Variables that a user sets by
# hand come first. Slurm sets SLURM_PROCID and SLURM_NTASKS in the batch script too; only `srun`
# sets SLURM_STEP_NUM_TASKS.
LAUNCHERS: tuple[tuple[str, str, str], ...] = (
    ("pgle", "PGLE_RANK", "PGLE_RANKS"),
    ("jax", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("jax", "JAX_PROCESS_INDEX", "JAX_PROCESS_COUNT"),
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpich", "PMI_RANK", "PMI_SIZE"),
    ("pmix", "PMIX_RANK", "PMIX_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("jobset", "NODE_RANK", "NNODES"),
)

INDEXED_JOB = "JOB_COMPLETION_INDEX"
"""Set in an indexed Kubernetes job, as a JobSet starts; the size of the job is in no variable."""

UNKNOWN = 0  # size of a job whose size no variable holds


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job."""

    rank: int = 0  # 0 … size-1
    size: int = 1  # processes of the job; `UNKNOWN` if there may be others
    launcher: str = ""  # whose variables these are; empty for a single process

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1


def find_rank(env: Mapping[str, str] = os.environ) -> Rank:
    """The rank of this process; a single process if no launcher's variables make sense."""
    for launcher, rank_variable, size_variable in LAUNCHERS:
        rank = _number(env, rank_variable)
        size = _number(env, size_variable)
        if rank is not None and size is not None and 0 <= rank < size and size > 1:
            return Rank(rank, size, launcher)
    index = _number(env, INDEXED_JOB)
    if index is None or index < 0:
        return Rank()
    return Rank(index, UNKNOWN, "kubernetes")


def _number(env: Mapping[str, str], name: str) -> int | None:
    try:
        return int(env[name])
    except (KeyError, ValueError):
        return None
