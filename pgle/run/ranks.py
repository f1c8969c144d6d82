"""Which process of a job this is, from the variables that launchers set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# (launcher, rank, size, local rank); the first whose rank and size are set counts. JAX's own variables come first: a
# user who sets them has overruled the launcher.
LAUNCHERS: tuple[tuple[str, str, str, str], ...] = (
    ("jax", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_LOCAL_PROCESS_ID"),
    ("slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("jobset", "JOB_COMPLETION_INDEX", "JOBSET_REPLICAS", ""),
    ("node", "NODE_RANK", "NNODES", ""),
)


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job.

    Attributes:
        rank: 0 … size-1.
        size: processes of the job.
        local_rank: on its host; 0 where unknown.
        launcher: what told us; empty for a single process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    launcher: str = ""

    @property
    def is_main(self) -> bool:
        """Whether this process speaks for the job."""
        return self.rank == 0


def find_rank(environ: Mapping[str, str] | None = None) -> Rank:
    """The rank of this process; a single process where no launcher's variables make sense."""
    env = os.environ if environ is None else environ
    for launcher, rank, size, local in LAUNCHERS:
        number, count = _number(env, rank), _number(env, size)
        if number is not None and count is not None and 0 <= number < count and count > 1:
            return Rank(number, count, _number(env, local) or 0, launcher)
    return Rank()


def _number(env: Mapping[str, str], name: str) -> int | None:
    try:
        return int(env[name])
    except (KeyError, ValueError):
        return None
