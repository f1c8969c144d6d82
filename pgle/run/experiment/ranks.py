"""Which process of a job this is, from the variables that launchers set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# (launcher, rank, size); the first whose variables are set counts. Those that a user sets by hand come first.
# Slurm sets SLURM_PROCID and SLURM_NTASKS in the batch script too; only `srun` sets SLURM_STEP_NUM_TASKS.
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

UNKNOWN = 0  # size of a job that does not tell it


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job."""

    rank: int = 0  # 0 … size-1
    size: int = 1  # processes of the job; `UNKNOWN` where there may be others
    launcher: str = ""  # whose variables these are; empty for a single process

    @property
    def is_alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1


def find_rank(environ: Mapping[str, str] | None = None) -> Rank:
    """The rank of this process; a single process where no launcher's variables make sense."""
    env = os.environ if environ is None else environ
    for launcher, rank, size in LAUNCHERS:
        number, count = _number(env, rank), _number(env, size)
        if number is not None and count is not None and 0 <= number < count and count > 1:
            return Rank(number, count, launcher)
    index = _number(env, INDEXED_JOB)
    return Rank() if index is None or index < 0 else Rank(index, UNKNOWN, "kubernetes")


def _number(env: Mapping[str, str], name: str) -> int | None:
    try:
        return int(env[name])
    except (KeyError, ValueError):
        return None
