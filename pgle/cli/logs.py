"""Commands on the output of a job: its log, and the order of collectives on its ranks."""

from __future__ import annotations

from typing import Any

from pgle.api import looks
from pgle.api.answer import Answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.parameters import parameters
from pgle.requests.looks import Confirm, OrderOfRanks


@command(*parameters(Confirm), *opt.PAGE)
def confirm_command(**options: Any) -> Answer[Any]:
    """Read an XLA log after a run: was the profile used, by which module, and what proves it?

    LOG: the output of a run, stdout and stderr together, of any size; - reads stdin. For a run
    directory, pgle reads the log and the schedule dump of the perf stage. Several logs, or a folder
    of logs, are ranks. In one log, pgle tells ranks apart by the labels of srun -l, mpirun,
    torchrun, kubectl and others. Each rank is judged. XLA writes most lines at level INFO, which
    JAX hides: set TF_CPP_MIN_LOG_LEVEL=0 before Python starts. A schedule dump
    (--xla_dump_latency_hiding_schedule=true) proves use without any log line.

    Verdicts: used, partly-used (below a limit of 'pgle verify'), used-without-matches, ended (the
    program crashed, was killed or ran out of time), different-profiles (on several ranks),
    not-used, wrong-format, cannot-tell. The exit code is 0 if the main module used the profile,
    else 1. Without a schedule dump, times are unknown, so --min-time-coverage limits the share of
    instructions.

    \b
    pgle confirm run.log
    pgle confirm rank0.log rank1.log
    python train.py 2>&1 | tee run.log | pgle confirm -
    pgle confirm run.log --schedule dump/ --profile profile.pbtxt
    """
    return looks.confirm(**options)


@command(*parameters(OrderOfRanks), *opt.PAGE)
def ranks_command(**options: Any) -> Answer[Any]:
    """Will all ranks start their collectives in the same order? If not, the job hangs or mixes
    data.

    XLA compiles on every rank by itself. A rank without the profile, or with another jaxlib, flag,
    GPU or autotuning result, may put its collectives in another order. pgle compares only the
    members of a communicator: collectives on disjoint groups may come in any order.

    DUMPS: a folder of --xla_dump_to for each rank, or one folder that holds these. RUN: a run
    directory, or RUN/STAGE. LOGS: of each rank; lines of NCCL_DEBUG=INFO with
    NCCL_DEBUG_SUBSYS=COLL show where ranks differ. pgle also reads what a hung job left. The exit
    code is 0 if all ranks are known to agree, else 1.

    \b
    pgle ranks dumps/rank0 dumps/rank1
    pgle ranks runs/a
    pgle ranks rank0.log rank1.log
    """
    return looks.ranks(**options)
