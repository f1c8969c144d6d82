"""What a trace holds, in forms that a test can state."""

from __future__ import annotations

from pgle.trace.table import Trace


def resolved(trace: Trace) -> list[tuple[str, int, str]]:
    """(module, execution, instruction) of each row."""
    rows = zip(
        trace.module.tolist(),
        trace.execution.tolist(),
        trace.instruction.tolist(),
        strict=True,
    )
    return [
        (trace.modules[module].name, execution, trace.instructions[name])
        for module, execution, name in rows
    ]


def left_out(trace: Trace) -> dict[str, int]:
    return {entry.reason: entry.count for entry in trace.unresolved}
