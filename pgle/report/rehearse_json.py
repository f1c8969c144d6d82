"""``pgle.rehearse/1``: a rehearsal as the JSON contract has it."""

from __future__ import annotations

from pathlib import Path

from pgle.report import json
from pgle.report.rehearse import advice, ceiling_us
from pgle.report.text import warn
from pgle.run.rehearse.rehearse import Rehearsal, Side
from pgle.schedule.moves import Move, Placement
from pgle.schedule.predict import gain


def show_json(result: Rehearsal, picture: Path | None = None) -> None:
    """``pgle.rehearse/1``."""
    json.show("pgle.rehearse/1", {**as_dict(result), "picture": picture})
    warn(result.warnings)


def as_dict(result: Rehearsal) -> dict[str, object]:
    """The result as the JSON contract has it."""
    return {
        "module": str(result.setting.module),
        "others": result.setting.others,
        "target": result.target.name,
        "devices": result.baseline.compiled.num_partitions * result.baseline.compiled.num_replicas,
        "jaxlib": result.baseline.compiled.jaxlib,
        "flags": result.setting.flags,
        "used": result.used,
        "modules": [
            {
                "name": result.baseline.module.name,
                "verdict": result.verdict.verdict,
                "why": result.verdict.why,
                "proof": result.verdict.proof,
                "remedy": result.verdict.remedy,
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
        "look": []
        if result.look is None
        else [
            {"flags": trial.flags, "step_us": trial.step_us, "change": result.look.change(trial)}
            for trial in result.look.trials
        ],
        "next": advice(result),
        "warnings": result.warnings,
    }


def _side_dict(side: Side) -> dict[str, object]:
    timeline = side.prediction.timeline
    return {
        "step_us": timeline.step_us,
        "interval_us": side.prediction.interval_us,
        "exposed_us": timeline.breakdown.exposed_communication_us,
        "exposed_copy_us": timeline.breakdown.exposed_copy_us,
        "overlap": timeline.breakdown.overlap,
        "bound": timeline.bound,
        "believed": side.believed,
        "fingerprint": side.compiled.fingerprint,
        "memory_bytes": side.compiled.memory,
        "compile_s": side.compiled.compile_s,
        "kept": side.compiled.kept,
        "hlo": side.compiled.after_optimizations,
        "schedule": side.compiled.schedule,
        "log": side.compiled.log,
    }


def _move_dict(move: Move) -> dict[str, object]:
    return {"name": move.name, "before": _placement(move.before), "after": _placement(move.after)}


def _placement(placement: Placement | None) -> dict[str, object] | None:
    if placement is None:
        return None
    return {
        "kind": placement.kind,
        "sync": placement.sync,
        "between": placement.between,
        "cover_us": placement.cover_us,
        "cost_us": placement.cost_us,
        "executions": placement.count,
        "exposed_us": placement.exposed_us,
        "independent_us": placement.independent_us,
        "reason": placement.reason,
    }
