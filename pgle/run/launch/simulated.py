"""Stages where there is no GPU: XLA's own compiler schedules the program, the simulated GPU runs it.

The program itself is started once, on virtual CPU devices, only to capture what it compiles. Compilation, schedule,
log lines and the profile's use are real; every time is simulated, and everything written says so.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from pgle.errors import UserError
from pgle.files import write_files
from pgle.run.ask.flag_probe import installed
from pgle.run.confirm import ConfirmRequest, confirm
from pgle.run.experiment.manifest import FileRecord, StageRecord, extend_manifest, record_file
from pgle.run.experiment.stage import StageFiles, StageRequest, StageResult, new_folder, now
from pgle.run.launch.capture_modules import capture_modules, choose_module, modules_in
from pgle.run.launch.masking import kept_argv
from pgle.run.rehearse.compile import RehearsalRequest, RehearsalResult, rehearse_compile
from pgle.schedule.predict import predict
from pgle.schedule.simulated_gpu import record
from pgle.trace.table import Trace
from pgle.trace.windows import find_executions
from pgle.trace.xplane.writer import write_xplane
from pgle.xla.flags.modes import flags_for
from pgle.xla.flags.text import Flag, parse_flags
from pgle.xla.hlo.reader import read_module
from pgle.xla.log.reasons import ModuleVerdict
from pgle.xla.targets import load_target

PROFILED_STEPS = 8
"""Executions in a simulated profile window."""

TIMED_STEPS = 40
"""Executions of a simulated baseline or performance run."""


def run_simulated(request: StageRequest, *, force: bool = False) -> StageResult:
    """Run a stage on the simulated GPU.

    Raises:
        UserError: the program compiles nothing, the CUDA plugin is missing, or the stage was run before.
        WorkloadError: the program failed before it had compiled anything.
    """
    started = now()
    module_path = _program(request)
    new_folder(request.files, force=force)
    target = load_target(request.target)
    jaxlib = installed(None).jaxlib
    plan = flags_for(request.mode, jaxlib, " ".join(request.flags), profile=str(request.profile or ""))
    compiled = rehearse_compile(
        RehearsalRequest(
            module=module_path,
            target=target.text,
            portable_target=target.portable_text,
            dump_dir=request.files.hlo,
            topology=request.topology or f"1x1x{request.devices}",
            flags=tuple(map(_unquoted, parse_flags(plan.xla_flags).flags)),
            profile=None,  # the plan's flags name it
        )
    )
    shutil.copyfile(compiled.log, request.files.log)
    module = read_module(compiled.after_optimizations)
    prediction = predict(module, None, target, expand_loops=True)
    executions = PROFILED_STEPS if request.stage == "profile" else TIMED_STEPS
    trace = record(
        module, prediction.timeline, ranks=compiled.num_partitions, executions=executions,
        seed=request.seed + {"profile": 0, "baseline": 1, "perf": 2}[request.stage],
    )  # fmt: skip
    if request.stage == "profile":
        _write_trace(request.files, trace, compiled)
    times = _write_steps(request.files, trace)
    verdict = _verdict(request, compiled)
    facts = {
        "module": compiled.module_name,
        "program": module_path.name,
        "fingerprint": compiled.fingerprint,
        "target": target.name,
        "predicted_step_us": f"{prediction.step_us:.3f}",
        "predicted_exposed_us": f"{prediction.exposed_us:.3f}",
    }
    extend_manifest(
        request.run_dir,
        StageRecord(
            stage=request.stage,
            mode=request.mode,
            argv=kept_argv(request.command),
            xla_flags=plan.xla_flags,
            versions={"jaxlib": compiled.jaxlib},
            topology={"simulated": True, "target": target.name, "devices": compiled.num_partitions},
            started=started,
            ended=now(),
            exit_code=0,
            inputs=_inputs(request, module_path),
            facts={**facts, **({} if verdict is None else {"verdict": verdict.verdict.value, "proof": verdict.proof})},
        ),
    )
    warnings = tuple(finding.message for finding in plan.warnings)
    return StageResult(request, True, 0, verdict, times, facts, warnings)


def _unquoted(flag: Flag) -> str:
    """A flag as a rehearsal takes it, which quotes values with blanks itself."""
    return flag.key if flag.value is None else f"{flag.key}={flag.value}"


def _program(request: StageRequest) -> Path:
    """The program's heaviest module, captured in this run directory before or now."""
    folder = request.run_dir / "captured"
    stamp = folder / "command.json"
    words = json.dumps({"command": kept_argv(request.command), "devices": request.devices})
    if stamp.is_file() and (not request.command or stamp.read_text() == words) and modules_in(folder):
        return choose_module(modules_in(folder), None)
    if not request.command:
        raise UserError("no program", where=request.run_dir, remedy="give one: pgle profile … -- python train.py")
    if stamp.is_file():
        raise UserError(
            "belongs to another command", where=request.run_dir, remedy="choose another --run-dir for this command"
        )
    if len(request.command) == 1 and request.command[0].endswith(".mlir"):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(request.command[0], folder / "jax_ir0000_given_compile.mlir")
        found = modules_in(folder)
    else:
        found = capture_modules(request.command, folder, devices=request.devices, quiet_s=request.quiet_s)
    write_files({stamp: words})
    return choose_module(found, None)


def _write_trace(files: StageFiles, trace: Trace, compiled: RehearsalResult) -> None:
    data = write_xplane(trace, hlo={trace.modules[0]: compiled.after_optimizations.read_bytes()})
    write_files({files.trace / "simulated.xplane.pb": data})


def _write_steps(files: StageFiles, trace: Trace) -> tuple[float, ...]:
    """Step times of the slowest rank, from the start of one execution to that of the next."""
    found = find_executions(trace, np.zeros(max(len(trace.instructions), 1), dtype=bool))
    ranks = len(trace.devices)
    starts = found.start_ns.reshape(ranks, -1)
    ends = found.end_ns.reshape(ranks, -1)
    begins = np.concatenate([starts, ends[:, -1:]], axis=1)
    times = tuple((np.diff(begins, axis=1).max(axis=0) / 1e9).tolist())
    lines = [
        json.dumps({"step": step, "step_time_s": round(seconds, 9), "simulated": True})
        for step, seconds in enumerate(times)
    ]
    write_files({files.steps(): "\n".join(lines) + "\n"})
    return times


def _verdict(request: StageRequest, compiled: RehearsalResult) -> ModuleVerdict | None:
    if request.profile is None:
        return None
    found = confirm(ConfirmRequest(str(compiled.log), schedule=compiled.schedule, profile=request.profile))
    return found.main


def _inputs(request: StageRequest, module: Path) -> tuple[FileRecord, ...]:
    paths = [module] if request.profile is None else [module, request.profile]
    return tuple(record_file(path, request.run_dir) for path in paths)
