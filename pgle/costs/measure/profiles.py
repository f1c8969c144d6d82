"""Measured costs → a cost profile: names, and what its sidecar says of where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pgle import __version__
from pgle.costs.measure.measured import Measured
from pgle.costs.measure.program_costs import ProgramCosts
from pgle.costs.profile.value import CostKind, Profile, join_name
from pgle.errors import UserError
from pgle.masking import kept_flags


def measured_profile(measured: Measured, *, fingerprint_names: bool = False) -> Profile:
    """The costs of all programs as one profile.

    Args:
        fingerprint_names: name costs ``fingerprint::name``, as those of several programs must be.

    Raises:
        UserError: a fingerprint that a name needs is not known.
    """
    named = [
        (found, name) for found in measured.costs for name in (fingerprints(found) if fingerprint_names else ("",))
    ]
    return Profile(
        costs=tuple(cost._replace(fingerprint=name) if name else cost for found, name in named for cost in found.costs),
        provenance=_provenance(measured),
        warnings=measured.warnings,
        occurrences={
            join_name(fingerprint, name): table
            for found, fingerprint in named
            for name, table in found.occurrences.items()
        },
        ends={fingerprint: found.ends for found, fingerprint in named if found.ends},
    )


def fingerprints(found: ProgramCosts) -> Sequence[str]:
    """The fingerprints of a program, at least one.

    Raises:
        UserError: none is known.
    """
    if not found.program.fingerprints:
        raise UserError(
            f"the fingerprint of module {found.program.key.name} is not known",
            remedy="pass --hlo DUMP_DIR of the run, or write one .pbtxt with --module",
        )
    return found.program.fingerprints


def _provenance(measured: Measured) -> dict[str, object]:
    """For the sidecar: tool, inputs, statistics, flags, and of each module the executions that its costs stand on."""
    return {
        "tool": f"pgle {__version__}",
        "inputs": [
            {"name": Path(source.path).name, "format": source.format, "version": source.version}
            for source in measured.trace.sources
        ],
        "stat": measured.options.stat.name,
        "collective_stat": measured.options.collective_stat.name,
        "xla_flags": kept_flags(measured.trace.xla_flags),
        "modules": [
            {
                "name": found.program.key.name,
                "program_id": found.program.key.program_id,
                "fingerprints": list(found.program.fingerprints),
                "hlo": found.program.hlo is not None,
                "executions_used": found.window.used,
                "executions_seen": found.window.seen,
                "executions_dropped": {str(number): why for number, why in found.window.dropped.items()},
                "devices": found.window.devices,
                "ranks": found.ranks,
                "rank_ids": list(found.rank_ids),
                "step_us": found.window.step_us,
                "names": len(found.costs),
                "collectives": sum(cost.kind == CostKind.COLLECTIVE for cost in found.costs),
                "launch": None if found.launch is None else asdict(found.launch),
                "contention": None if found.contention is None else asdict(found.contention),
            }
            for found in measured.costs
        ],
    }
