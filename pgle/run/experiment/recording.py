"""Stage records of real runs: what is known before the command starts, and what its end adds."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pgle.files import AnyPath
from pgle.run.doctor.world import read_gpus, this_world
from pgle.run.experiment.manifest import StageRecord, extend_manifest, record_file
from pgle.run.experiment.stage import now
from pgle.run.launch.environment import ChildEnvironment
from pgle.run.launch.masking import kept_argv, kept_environment


def begin_record(
    run_dir: AnyPath,
    stage: str,
    argv: Sequence[str],
    environment: ChildEnvironment,
    *,
    python: str | None = None,
    rank: int = 0,
    ranks: int = 1,
    inputs: Iterable[AnyPath] = (),
    topology: Mapping[str, Any] | None = None,
) -> StageRecord:
    """Write the record of a stage that is about to start: versions, GPUs, driver, flags, variables, host, inputs.

    Args:
        run_dir: of the experiment.
        stage: ``profile``, ``baseline`` or ``perf``.
        argv: the user's command.
        environment: what the command will get.
        python: its interpreter; default: ours.
        rank: of this process.
        ranks: how many there are.
        inputs: files the stage reads.
        topology: what is known of hosts and devices.

    Raises:
        UserError: the interpreter does not run, or the manifest cannot be written.
    """
    world = this_world(python)
    record = StageRecord(
        stage=stage,
        rank=rank,
        ranks=ranks,
        mode=environment.plan.mode,
        argv=kept_argv(argv),
        xla_flags=environment.plan.xla_flags,
        environment=kept_environment(environment.values),
        versions=dict(world.installed.versions),
        gpus=read_gpus(world),
        topology=dict(topology or {}),
        host=socket.gethostname(),
        started=now(),
        inputs=tuple(record_file(path, run_dir) for path in inputs),
        warnings=tuple(finding.line() for finding in environment.warnings),
    )
    extend_manifest(run_dir, record)
    return record


def end_record(
    run_dir: AnyPath,
    record: StageRecord,
    exit_code: int,
    *,
    outputs: Iterable[AnyPath] = (),
    warnings: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
) -> StageRecord:
    """Complete the record of a stage that has ended, and write it.

    Args:
        run_dir: of the experiment.
        record: from `begin_record`.
        exit_code: of the command, 128 + N where signal N ended it.
        outputs: files the stage wrote.
        warnings: what was said during the run.
        facts: results by name, JSON types only.
    """
    ended = replace(
        record,
        ended=now(),
        exit_code=exit_code,
        outputs=tuple(record_file(path, run_dir) for path in outputs),
        warnings=(*record.warnings, *warnings),
        facts={**record.facts, **(facts or {})},
    )
    extend_manifest(run_dir, ended)
    return ended
