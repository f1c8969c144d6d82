"""Stages without a GPU: XLA's own compiler schedules the program, and the simulated GPU runs it.

The program itself runs once, on virtual CPU devices, only to capture its modules. Compilation,
schedule, log lines and the use of the profile are real. All times are simulated, and all output
says so.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.errors import UserError, WorkloadError
from pgle.files import write_files
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.run.ask.jaxlib import installed
from pgle.run.capture.capture import Devices, capture_modules, devices_for
from pgle.run.capture.captured import (
    capture_warnings,
    choose_module,
    modules_in,
    own_failure,
    partitioned,
    read_captured,
    topology_of_step,
)
from pgle.run.compiler.compile import CompileRequest, compile_once
from pgle.run.directory.directory import CAPTURE, set_aside
from pgle.run.directory.facts import HookFacts
from pgle.run.directory.manifest import (
    MODELLED,
    StageRecord,
    extend_manifest,
    imported_files,
    now,
    read_manifest,
    record_file,
    waiting,
)
from pgle.run.inputs.step_times import write_steps
from pgle.run.process.compilers import check_compiler, compiler_of, interpreter
from pgle.run.process.environment import ChildEnvironment, build_environment
from pgle.run.process.flags import environment_with
from pgle.run.process.process import check_program, ended
from pgle.run.stages.stage import (
    StageRequest,
    StageResult,
    begin_record,
    confirm_stage,
    end_record,
)
from pgle.schedule.predict import predict
from pgle.schedule.record import record as simulate
from pgle.steps.executions import execution_series
from pgle.trace.xplane.writer import write_xplane
from pgle.xla.flags.text import kept_flags
from pgle.xla.targets import load_target
from pgle.xla.vendors import Vendor

PROFILED_STEPS = 8  # executions in a simulated profile window

TIMED_STEPS = 40  # executions of a simulated baseline or performance run

# seeds of the noise by stage, so that stages differ as real runs do
SEEDS = {"profile": 0, "baseline": 1, "perf": 2}


@dataclass(frozen=True)
class SimulatedBackEnd:
    """Runs stages on a simulated GPU."""

    target: str = "h100"  # name of the GPU
    # number of GPUs, and of virtual CPU devices for the captured program; None: from the topology,
    # else from XLA_FLAGS, else 4
    devices: int | None = None
    topology: str | None = None  # ``SxHxD``; None: one host
    # pattern for the names of captured modules; None: the program's step, if it can be recognized
    choose: str | None = None
    # stop the captured program when it has compiled nothing new for so long
    quiet_s: float = 20.0

    @property
    def _devices(self) -> Devices:
        return devices_for(self.devices, topology=self.topology)

    @property
    def _vendor(self) -> Vendor:
        """Return the vendor of the GPU."""
        return load_target(self.target).vendor

    def check(self, request: StageRequest) -> None:
        """Raise `UserError` if a request cannot be met, also because of a flag. This writes
        nothing.
        """
        load_target(self.target)
        for finding in self._child(request).warnings:
            if finding.level == "error":
                raise UserError(
                    finding.message,
                    where=f"--{finding.flag}",
                    remedy=finding.remedy or "leave it out",
                )
        if not request.command and modules_in(request.run.captured):
            return
        check_program(request.command)
        check_compiler(request.command, self._vendor)

    def plan(self, request: StageRequest) -> StageRecord:
        """Describe a run with all that decides its outcome, including the chosen module if it was
        captured.
        """
        planned = request.plan(
            _versions(request.command, self._vendor),
            capture="simulated",
            target=self.target,
            devices=self._devices.count,
            topology=self.topology,
            choose=self.choose,
        )
        captured = modules_in(request.run.captured)
        chosen = [choose_module(captured, self.choose)] if captured else []
        return replace(
            planned,
            inputs=(
                *(record_file(path, request.run.path) for path in chosen),
                *planned.inputs,
            ),
        )

    def run(self, request: StageRequest, *, again: bool, force: bool) -> StageResult:
        """Run a stage on the simulated GPU."""
        target = load_target(self.target)
        module_path = self._program(request, again=again, force=force)
        files = request.folder.rank()
        older = waiting(
            request.run, request.stage, request.folder.make(again=again), force=force
        )
        child = self._child(request, module_path)
        python, notes = compiler_of(request.command, self._vendor)
        topology, remarks = topology_of_step(
            module_path, self.topology or f"1x1x{self._devices.count}"
        )
        record = begin_record(
            request, self.plan(request), child, simulated=True, before=older
        )
        compiled = compile_once(
            CompileRequest(
                module=partitioned(module_path),
                targets=target.texts,
                vendor=target.vendor.name,
                dump_dir=files.hlo,
                topology=topology,
                # the plan quotes values itself
                flags=tuple(flag.word for flag in child.flags.flags),
                profile=None,  # the plan's flags name it
            ),
            python or sys.executable,
        )
        said = (*notes, *compiled.warnings)
        shutil.copyfile(compiled.log, files.log)
        prediction = predict(compiled.scheduled, None, target, expand_loops=True)
        executions = PROFILED_STEPS if request.stage == "profile" else TIMED_STEPS
        trace = simulate(
            compiled.scheduled,
            prediction.timeline,
            ranks=compiled.num_devices,
            executions=executions,
            seed=SEEDS[request.stage],
        )
        if request.stage == "profile":
            data = write_xplane(
                trace, hlo={trace.modules[0]: compiled.after_optimizations.read_bytes()}
            )
            write_files({files.trace.parent / "simulated.xplane.pb": data})
        # a step of views only has no kernel, and so no trace with times
        times = (
            tuple(execution_series(trace, "simulated").step_time_s.tolist())
            if len(trace)
            else ()
        )
        marks = (
            {"step": step, "step_time_s": round(time, 9), "simulated": True}
            for step, time in enumerate(times)
        )
        write_steps(files.steps, marks)
        facts_of_log = HookFacts(finished=True, versions={"jax": compiled.jaxlib})
        verdict = confirm_stage(request, files, facts_of_log)
        facts = {  # for the report
            "module": compiled.module_name,
            "program": module_path.name,
            "fingerprint": compiled.fingerprint,
            "target": target.name,
            "devices": f"{compiled.num_devices} simulated {target.name}",
            "jaxlib": compiled.jaxlib,
            "flags": kept_flags(child.flags.text),
        }
        facts["predicted_step_us"] = f"{prediction.step_us:.3f}"
        facts["predicted_exposed_us"] = f"{prediction.exposed_us:.3f}"
        modelled_us = [round(step_us, 3) for step_us in prediction.steps_us]
        where = {
            "simulated": True,
            "target": target.name,
            "devices": compiled.num_devices,
        }
        assumed = []
        if self._devices.assumed:
            count = self._devices.count
            assumed = [f"{count} devices (assumed): --devices N simulates others"]
        sources = read_captured(request.run.captured).sources
        record = end_record(
            request.run,
            replace(record, topology=where, imported=imported_files(sources)),
            0,
            outputs=request.folder.outputs(),
            facts={**facts, MODELLED: modelled_us},
            verdict=verdict,
            warnings=(*assumed, *remarks, *capture_warnings(module_path), *said),
        )
        return StageResult(
            request,
            simulated=True,
            verdict=verdict,
            step_times_s=times,
            facts=facts,
            warnings=record.warnings,
        )

    def _child(
        self, request: StageRequest, module: Path | None = None
    ) -> ChildEnvironment:
        """Return the flags of the compilation, from the user's environment and the kind of run."""
        program = read_captured(request.run.captured)
        own = program.flags_of(module) if module else program.xla_flags
        return build_environment(
            request.mode,
            python=compiler_of(request.command, self._vendor)[0],
            environ=environment_with(own) if own else os.environ,
            more_flags=request.flags,
            own_dumps=True,
            profile=str(request.profile or ""),
        )

    def _program(self, request: StageRequest, *, again: bool, force: bool) -> Path:
        """Return the module of the program's step, captured now or earlier in this run directory.

        Raises `WorkloadError` if the program failed before it compiled anything.
        """
        folder, run_dir = request.run.captured, request.run.path
        planned = replace(request, profile=None).plan(
            _versions(request.command, self._vendor)
        )
        sees = {
            "command": list(planned.argv),
            "devices": self._devices.count,
            "target": load_target(self.target).device,
        }
        planned = replace(planned, stage=CAPTURE, mode="", asked=sees)
        before = read_manifest(run_dir)
        why = before.why_due(planned, run_dir)
        is_forced, older = force and request.stage == "profile", ""
        if (not why and not is_forced) or (not request.command and modules_in(folder)):
            return choose_module(modules_in(folder), self.choose)
        if folder.exists() and any(folder.iterdir()):
            last = before.last(CAPTURE)
            if not is_forced and not (last and (again or last.exit_code != 0)):
                what = f"belongs to another command, or to another state of it ({why})"
                if not last:
                    what = "holds modules of a run that its manifest does not speak of"
                raise UserError(
                    what,
                    where=run_dir,
                    remedy="choose another --run-dir, or profile again with --force",
                )
            older = waiting(request.run, CAPTURE, set_aside(folder), force=is_forced)
        record = replace(planned, started=now(), before=older)
        extend_manifest(run_dir, record)
        try:
            capture_modules(
                request.command,
                folder,
                target=load_target(self.target),
                devices=self._devices,
                quiet_s=self.quiet_s,
            )
            _check_end(request.command, folder, self._devices)
        except (UserError, WorkloadError) as error:
            end_record(request.run, record, error.exit_code, warnings=(str(error),))
            raise
        record = replace(record, imported=imported_files(read_captured(folder).sources))
        end_record(request.run, record, 0, outputs=[folder])
        return choose_module(modules_in(folder), self.choose)


def _check_end(command: Sequence[str], folder: Path, devices: Devices) -> None:
    """Raise `WorkloadError` if the program failed by its own fault: after its step was executed,
    and not because its results are zeros.
    """
    code, error = own_failure(folder)
    if code:
        how = f"{ended(code)}{error and f' ({error})'} after its step was executed"
        given = () if devices.assumed else ("--devices", devices.count)
        instead = Next.of("rehearse", *given, "--", *kept_argv(command))
        raise WorkloadError(
            code,
            f"{Next(kept_argv(command))} {how}; predict its step all the same: {instead}",
        )


def _versions(command: Sequence[str], vendor: Vendor) -> dict[str, str]:
    """Return the versions of jax in the program's Python, and of jaxlib and its plugin in the
    compiling one.
    """
    program, compiler = (
        installed(python).versions
        for python in (interpreter(command), compiler_of(command, vendor)[0])
    )
    found = {
        **program,
        **{name: version for name, version in compiler.items() if name != "jax"},
    }
    return {name: version for name, version in found.items() if name.startswith("jax")}
