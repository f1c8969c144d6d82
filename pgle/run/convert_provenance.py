"""Where the costs of a conversion come from, for the sidecar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pgle import __version__
from pgle.costs.measure.aggregate import AggregateOptions
from pgle.costs.measure.program_costs import ProgramCosts
from pgle.costs.profile.value import CostKind
from pgle.run.launch.environment import kept_flags
from pgle.trace.table import Trace


def provenance(results: Sequence[ProgramCosts], options: AggregateOptions, trace: Trace) -> dict[str, object]:
    """Tool, inputs, statistics and, of each module, the executions that its costs stand on."""
    return {
        "tool": f"pgle {__version__}",
        "inputs": [
            {"name": Path(source.path).name, "format": source.format, "version": source.version}
            for source in trace.sources
        ],
        "stat": options.stat.name,
        "collective_stat": options.collective_stat.name,
        "xla_flags": kept_flags(trace.xla_flags),
        "modules": [
            {
                "name": result.program.key.name,
                "program_id": result.program.key.program_id,
                "fingerprints": list(result.program.fingerprints),
                "hlo": result.program.hlo is not None,
                "executions_used": result.window.used,
                "executions_seen": result.window.seen,
                "executions_dropped": {str(number): why for number, why in result.window.dropped.items()},
                "devices": result.window.devices,
                "ranks": result.ranks,
                "rank_ids": list(result.rank_ids),
                "step_us": result.window.step_us,
                "names": len(result.costs),
                "collectives": sum(cost.kind == CostKind.COLLECTIVE for cost in result.costs),
                "launch": None if result.launch is None else asdict(result.launch),
            }
            for result in results
        ],
    }
