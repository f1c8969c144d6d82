"""Which process of a job this is, according to the launcher's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# (launcher, rank, size); the first launcher whose variables are set counts. Variables that a user
# sets by hand come first. Slurm sets SLURM_PROCID and SLURM_NTASKS in the batch script too; only
# `srun` sets SLURM_STEP_NUM_TASKS.
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
"""Set in an indexed Kubernetes job, such as a JobSet starts. No variable has the job's size."""

UNKNOWN = 0  # size of a job if no variable has it


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job."""

    rank: int = 0  # from 0 to size-1
    size: int = 1  # number of processes; `UNKNOWN` if there may be others
    #: the launcher whose variables were found; empty for a single process
    launcher: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1


def find_rank(env: Mapping[str, str] = os.environ) -> Rank:
    """Find the rank of this process. If no launcher has valid variables, return a single
    process.
    """
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
