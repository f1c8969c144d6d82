"""``pgle.rehearse/1``: a rehearsal as the JSON contract has it."""

from __future__ import annotations

from pathlib import Path

from pgle.report import json
from pgle.report.schedules.rehearse import advice, ceiling_us
from pgle.run.rehearse.rehearse import Rehearsal, Side
from pgle.schedule.moves import Move, Placement
from pgle.schedule.predict import gain


def show_json(result: Rehearsal, picture: Path | None = None) -> None:
    """``pgle.rehearse/1``."""
    json.show("pgle.rehearse/1", {**as_dict(result), "picture": picture})


def as_dict(result: Rehearsal) -> dict[str, object]:
    """The result as the JSON contract has it."""
    return {
        "module": str(result.setting.module),
        "others": result.setting.others,
        "target": result.target.name,
        "devices": result.baseline.compiled.num_devices,
        "jaxlib": result.baseline.compiled.jaxlib,
        "flags": result.setting.flags,
        "used": result.used,
        "modules": [
            {
                "name": result.baseline.module.name,
                **json.picked(result.verdict, "verdict why proof remedy"),
                "matches_job": result.matches_job,
            }
        ],
        "default": None if result.default is None else _side_dict(result.default),
        "baseline": _side_dict(result.baseline),
        "profiled": _side_dict(result.profiled),
        "ceiling_us": ceiling_us(result),
        "moved": [_move_dict(move) for move in result.moves if move.moved],
        "stayed": [_move_dict(move) for move in result.moves if not move.moved],
        "costs_are": result.costs_are,
        "profile": str(result.profile),
        "gain": gain(result.baseline.prediction, result.profiled.prediction),
        "worth": result.worth,
        "next": advice(result),
        "warnings": result.warnings,
    }


def _side_dict(side: Side) -> dict[str, object]:
    timeline, compiled = side.prediction.timeline, side.compiled
    return {
        **json.picked(side.prediction, "step_us interval_us lower_bound contended_us not_modelled"),
        "exposed_us": timeline.breakdown.exposed_communication_us,
        **json.picked(timeline.breakdown, "exposed_copy_us overlap"),
        "bound": timeline.bound,
        "believed": side.compiled.believed,
        **json.picked(compiled, "fingerprint compile_s kept schedule log"),
        "memory_bytes": compiled.memory,
        "hlo": compiled.after_optimizations,
    }


def _move_dict(move: Move) -> dict[str, object]:
    return {"name": move.name, "before": _placement(move.before), "after": _placement(move.after)}


def _placement(placement: Placement | None) -> dict[str, object] | None:
    if placement is None:
        return None
    return {
        **json.picked(placement, "kind sync between cover_us cost_us exposed_us independent_us reason"),
        "executions": placement.count,
    }
