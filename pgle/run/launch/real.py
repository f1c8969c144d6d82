"""Stages that run the user's program for real, on GPUs or on CPU devices, with the capture hook inside."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgle.errors import UserError, WorkloadError
from pgle.run.experiment.manifest import StageRecord
from pgle.run.experiment.recording import begin_record, end_record
from pgle.run.experiment.stage import StageRequest, StageResult
from pgle.run.launch.console_steps import STEP_WORDS, StepLines
from pgle.run.launch.environment import ChildEnvironment, build_environment, user_flags
from pgle.run.launch.evidence import (
    AUTO_PGLE,
    hook_warnings,
    keep_own_trace,
    keep_steps,
    step_times,
    trace_warnings,
    trouble,
    verdict,
)
from pgle.run.launch.files import RealFiles, make_folder, profile_files, read_facts, with_hook, write_hook_config
from pgle.run.launch.nsys_profile import judge_end, nsys_command
from pgle.run.launch.process import launch
from pgle.run.launch.ranks import find_rank
from pgle.xla.log.reasons import ModuleVerdict


def run_real(request: StageRequest, *, force: bool = False) -> StageResult:
    """Run a stage on this rank; other ranks are waited for by nobody.

    Raises:
        UserError: the request cannot be met; nothing was run.
        WorkloadError: the program failed; the run directory is complete all the same.
    """
    _check(request)
    files = RealFiles(request.files, find_rank())
    traced_by_nsys = request.is_traced and request.capture == "nsys"
    command = nsys_command(request.command, files.trace) if traced_by_nsys else request.command
    child = _environment(request, files)
    make_folder(request, files, force=force)
    write_hook_config(request, files, tuple(flag.text for flag in child.plan.flags))
    inputs = () if request.profile is None else profile_files(request.profile)
    record = begin_record(
        request.run_dir, request.stage, request.command, child, python=_interpreter(request.command),
        rank=files.rank.rank, ranks=max(files.rank.size, files.rank.rank + 1), inputs=inputs,
    )  # fmt: skip
    lines = StepLines(files.control)
    started = time.time()
    try:
        values = with_hook(child.values, files.hook)
        code = launch(command, values, files.log, lines, words=STEP_WORDS, stdout=request.stdout)
    except UserError as error:
        end_record(request.run_dir, record, error.exit_code, warnings=(str(error),))
        raise
    nsys_says: tuple[str, ...] = ()
    if traced_by_nsys:
        code, nsys_says = judge_end(code, files.trace)
    return _complete(request, files, record, code, lines, started, [item.message for item in child.warnings], nsys_says)


def _complete(
    request: StageRequest,
    files: RealFiles,
    record: StageRecord,
    code: int,
    lines: StepLines,
    started: float,
    planned: Sequence[str],
    nsys_says: Sequence[str],
) -> StageResult:
    """Everything after the program has ended."""
    facts = read_facts(files)
    keep_steps(files, lines, facts)
    own = keep_own_trace(files, facts, started) if request.is_traced else None
    found = [
        *nsys_says,
        *hook_warnings(files, facts),
        *(line for line in trouble(files.log) if request.stage != "auto" or line != AUTO_PGLE),
        *trace_warnings(request, files, facts, own),
    ]
    judged = verdict(request, files, facts)
    kept = {"hook": facts, **_judged(judged)}
    if facts.get("xla_flags"):
        record = replace(record, xla_flags=facts["xla_flags"])
    topology: dict[str, Any] = {name: facts[name] for name in ("platform", "devices", "process_count") if name in facts}
    end_record(request.run_dir, replace(record, topology=topology), code, warnings=found, facts=kept)
    if code:
        why = "".join(f"; {line}" for line in found if line.startswith("no trace"))
        raise WorkloadError(code, f"{request.command[0]} ended with exit code {code}; see {files.log}{why}")
    warnings = tuple(dict.fromkeys([*planned, *found]))
    times = step_times(files)
    return StageResult(
        request, False, code, judged, times, _said(judged, facts), warnings, rank=files.rank.rank
    )  # fmt: skip


def _check(request: StageRequest) -> None:
    if not request.command:
        raise UserError("no command given", remedy=f"say: pgle {request.stage} -- python train.py")
    if shutil.which(request.command[0]) is None:
        raise UserError("cannot be started (no such program)", where=request.command[0], remedy="check the command")


def _environment(request: StageRequest, files: RealFiles) -> ChildEnvironment:
    environ = dict(os.environ)
    if request.flags:
        environ["XLA_FLAGS"] = " ".join([user_flags(environ).text, *request.flags]).strip()

    def build(python: str | None) -> ChildEnvironment:
        return build_environment(
            request.mode,
            python=python,
            environ=environ,
            dump_to=str(files.hlo.resolve()),
            stablehlo_to=str(files.stage.ir.resolve()) if request.stage == "profile" and files.rank.is_main else "",
            profile="" if request.profile is None else str(request.profile),
            cache=request.cache,
        )

    python = _interpreter(request.command)
    try:
        child = build(python)
    except UserError:
        if python is None:
            raise
        child = build(None)  # a starter without jaxlib; the program itself may have it
    return replace(child, values={**child.values, **request.environment})


def _interpreter(command: Sequence[str]) -> str | None:
    """The Python of the user's command where it names one, to ask which flags its jaxlib knows; else ours."""
    return shutil.which(command[0]) if Path(command[0]).name.startswith("python") else None


def _judged(judged: ModuleVerdict | None) -> dict[str, str]:
    return {} if judged is None else {"verdict": judged.verdict.value, "why": judged.why, "proof": judged.proof}


def _said(judged: ModuleVerdict | None, facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts for the report."""
    said = {"module": judged.module if judged else ""}
    if "platform" in facts:
        said["devices"] = f"{facts['devices']} {facts['platform']}"
    window = facts.get("window", {})
    if "steps" in window:
        said["window"] = "steps {}-{}".format(*window["steps"])
    elif "seconds" in window:
        count = f"{window['executions']} executions in " if "executions" in window else ""
        said["window"] = f"{count}{window['seconds']:g} s"
    return said
