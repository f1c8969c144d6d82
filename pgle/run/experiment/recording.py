"""Stage records: what is known before a stage starts, and what its end adds."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgle.masking import kept_argv, kept_environment, kept_flags
from pgle.run.doctor.machine import git_commit, read_gpus, this_machine
from pgle.run.experiment.manifest import FileRecord, StageRecord, extend_manifest, now, record_file
from pgle.run.experiment.previous import put_back
from pgle.run.experiment.stage import StageRequest
from pgle.run.launch.environment import ChildEnvironment
from pgle.xla.log.module_verdict import ModuleVerdict


def begin_record(
    request: StageRequest,
    environment: ChildEnvironment,
    *,
    asked: Mapping[str, Any],
    inputs: tuple[FileRecord, ...],
    python: str | None = None,
    rank: int = 0,
    ranks: int = 1,
    simulated: bool = False,
    before: str = "",
) -> StageRecord:
    """Write the record of a stage that is about to start: versions, GPUs, driver, flags, variables, host, inputs.

    Args:
        request: the stage.
        environment: what the command, or the compiler in its place, will get.
        asked: `BackEnd.asked`.
        inputs: `BackEnd.inputs`.
        python: the interpreter of the command; default: ours.
        rank: of this process, of so many `ranks`.
        ranks: how many there are.
        simulated: the GPUs and variables of this machine do not matter.
        before: `pgle.run.experiment.previous.waiting`.

    Raises:
        UserError: the interpreter does not run, or the manifest cannot be written.
    """
    machine = this_machine(python)
    record = StageRecord(
        stage=request.stage,
        rank=rank,
        ranks=ranks,
        mode=request.mode,
        argv=kept_argv(request.command),
        xla_flags=kept_flags(environment.flags.text),
        environment={} if simulated else kept_environment(environment.values),
        versions={} if simulated else dict(machine.installed.versions),
        commit=git_commit(),
        gpus=() if simulated else read_gpus(machine),
        topology={"simulated": True} if simulated else {},
        host=socket.gethostname(),
        started=now(),
        inputs=inputs,
        warnings=tuple(finding.line() for finding in environment.warnings if finding.level != "note"),
        asked=dict(asked),
        before=before,
    )
    extend_manifest(request.run.path, record)
    return record


def _judged(verdict: ModuleVerdict) -> dict[str, Any]:
    """What is kept of a verdict: enough to judge again by other bounds."""
    kept = {"verdict": verdict.verdict.value, "why": verdict.why, "proof": verdict.proof}
    fit = {"time_coverage": verdict.time_coverage, "kept_share": verdict.kept_share}
    return {**kept, **{name: share for name, share in fit.items() if share is not None}}


def end_record(
    request: StageRequest,
    record: StageRecord,
    exit_code: int,
    *,
    outputs: Iterable[Path] = (),
    warnings: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    verdict: ModuleVerdict | None = None,
    failed: str = "",
) -> StageRecord:
    """Complete the record of a stage that has ended, and write it; fields as in `StageRecord`.

    The verdict of a perf stage is kept among the facts. Where the stage failed and a finished run waits, that is put
    back, and the record says where this one's files are now.
    """
    judged = {} if verdict is None else _judged(verdict)
    ended = replace(
        record,
        ended=now(),
        exit_code=exit_code,
        outputs=tuple(record_file(path, request.run.path) for path in outputs),
        warnings=(*record.warnings, *warnings),
        facts={**record.facts, **(facts or {}), **judged},
        failed=failed,
    )
    if ended.before and not ended.is_done:
        return put_back(request.run, ended)
    extend_manifest(request.run.path, ended)
    return ended
