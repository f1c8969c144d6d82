"""GPU work within a step's window that belongs to no instruction: its kinds, and how to record more
about it.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from pgle.trace.columns import Flags
from pgle.trace.table import IN_GRAPHS, ActivityKind, LeftOutReason, OtherWork


class OtherKind(StrEnum):
    """Kinds of GPU work that belongs to no instruction."""

    GRAPHS = "CUDA graphs"
    KERNELS = "kernels outside of XLA programs"
    EARLY = "kernels launched before the recording"
    UNNAMED = "kernels of XLA without an instruction"
    TUNING = "kernels that XLA tries while it compiles"
    COPIES = "copies outside of instructions"


_BY_REASON = {
    LeftOutReason.NO_API_ROW: OtherKind.EARLY,
    LeftOutReason.NO_THUNK: OtherKind.UNNAMED,
    LeftOutReason.NO_MODULE: OtherKind.UNNAMED,
    LeftOutReason.AUTOTUNER: OtherKind.TUNING,
    **dict.fromkeys(IN_GRAPHS, OtherKind.GRAPHS),
}

TO_TELL = {
    OtherKind.GRAPHS: "nsys profile --cuda-graph-trace=node, or no graphs: "
    "--xla_gpu_enable_command_buffer= (empty) in XLA_FLAGS",
    OtherKind.KERNELS: "find what launches them: another library or program; "
    "with nsys, record XLA's ranges too (--trace=cuda,nvtx)",
    OtherKind.EARLY: "start the recording some steps earlier",
    OtherKind.UNNAMED: "record with a newer jax, whose ranges name each instruction",
    OtherKind.TUNING: "start the trace some steps after compilation",
    OtherKind.COPIES: "find what copies: device_get, device_put, or a library's own copies",
}
"""How to record so that the trace identifies the work, by kind."""


def kinds_of(work: OtherWork) -> list[tuple[OtherKind, Flags]]:
    """The kinds that occur, each with bool[m], True for its activities."""
    copies = (work.kind == ActivityKind.MEMCPY) | (work.kind == ActivityKind.MEMSET)
    in_graph = np.isin(work.reason, IN_GRAPHS)
    code = np.full(len(work), list(OtherKind).index(OtherKind.KERNELS), np.int64)
    for reason, kind in _BY_REASON.items():
        code[work.reason == reason] = list(OtherKind).index(kind)
    code[copies & ~in_graph] = list(OtherKind).index(OtherKind.COPIES)
    return [
        (kind, code == at) for at, kind in enumerate(OtherKind) if (code == at).any()
    ]
