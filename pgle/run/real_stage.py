"""Stages that run the user's program for real, on GPUs or on CPU devices, with the capture hook inside."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgle.errors import UserError, WorkloadError
from pgle.files import write_files
from pgle.run.confirm import ConfirmRequest, confirm
from pgle.run.environment import ChildEnvironment, build_environment
from pgle.run.launch import launch
from pgle.run.manifest import StageRecord, extend_manifest, read_manifest, record_file
from pgle.run.masking import kept_argv, kept_environment
from pgle.run.ranks import Rank, find_rank
from pgle.run.stage import StageFiles, StageRequest, StageResult, new_folder, now
from pgle.steps.collect_console import read_console
from pgle.xla.schedule_dump import find_schedule_dumps
from pgle.xla.verdict import ModuleVerdict

HOOK_SITE = Path(__file__).parent / "hook_site"
_WINDOW = re.compile(r"auto|steps:\d+(-\d+)?|seconds:\d+(\.\d+)?")
_STEP_LINE = re.compile(r"\bstep[s]?\b\D{0,3}(\d+)", re.IGNORECASE)

# What a log says where profilers get in each other's way (CUPTI allows one subscriber before CUDA 13.2).
_TROUBLE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED|cuptiSubscribe.*max limit reached"),
        "another profiler (nsys, DCGM) holds CUPTI, so the trace has no GPU activities; stop it, or use --capture nsys",
    ),
    (
        re.compile(r"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
        "the driver lets only administrators profile; set NVreg_RestrictProfilingToAdminUsers=0 (see pgle doctor)",
    ),
    (re.compile(r"Another profiling session active"), "two profiler sessions at once in one process; one was lost"),
    (re.compile(r"PGLE collected an empty trace"), "JAX_ENABLE_PGLE is on as well; unset it in a profile run"),
    (
        re.compile(r"Nsight Systems.*(cannot|could not|failed)", re.IGNORECASE),
        "nsys reports a problem; see the log",
    ),
)


def run_real(request: StageRequest, *, force: bool = False) -> StageResult:
    """Run a stage.

    Raises:
        UserError: the request cannot be met; nothing was run.
        WorkloadError: the program failed; the run directory is complete all the same.
    """
    if not request.command:
        raise UserError("no command given", remedy=f"say: pgle {request.stage} -- python train.py")
    if not _WINDOW.fullmatch(request.window):
        raise UserError(f"unknown window {request.window!r}", remedy="say auto, steps:5-10 or seconds:10")
    rank = find_rank()
    files = request.files
    _prepare(request, rank, force)
    hook = _write_hook_config(request, rank)
    child = _environment(request, files)
    started = now()
    record = _record(request, rank, child, started)
    extend_manifest(request.run_dir, record)
    watcher = _StepLines(hook)
    command = _nsys_command(request, rank) if request.capture == "nsys" else request.command
    environment = _with_hook(child.values, hook)
    code = launch(command, environment, _log(files, rank), watcher)
    warnings = [finding.message for finding in child.warnings]
    warnings += _after(request, rank)
    if request.capture == "nsys":
        code = _nsys_code(code, request, rank, warnings)
    times = _step_times(files, rank)
    verdict = _verdict(request, rank)
    facts = _facts(files, rank)
    record = replace(
        record,
        ended=now(),
        exit_code=code,
        versions=facts.get("versions", {}),
        topology={key: facts[key] for key in ("platform", "devices", "process_count") if key in facts},
        facts={"hook": facts, **({} if verdict is None else {"verdict": verdict.verdict.value})},
        warnings=tuple(warnings),
    )
    extend_manifest(request.run_dir, record)
    if code:
        raise WorkloadError(code, f"{request.command[0]} ended with exit code {code}; {files.folder} has its output")
    said = {"module": verdict.module if verdict else "", "devices": f"{facts.get('devices', '?')}"}
    return StageResult(request, False, code, verdict, times, said, tuple(dict.fromkeys(warnings)))


def _suffix(rank: Rank) -> str:
    return "" if rank.is_main else f".rank{rank.rank:04d}"


def _log(files: StageFiles, rank: Rank) -> Path:
    return files.log.with_name(f"output{_suffix(rank)}.log")


def _prepare(request: StageRequest, rank: Rank, force: bool) -> None:
    """Make the stage's folder. Ranks share it: only a single process may set an old one aside."""
    if rank.size == 1:
        new_folder(request.files, force=force)
    else:
        request.files.folder.mkdir(parents=True, exist_ok=True)
        if _log(request.files, rank).exists():
            raise UserError(
                f"rank {rank.rank} has run {request.stage} into it already",
                where=request.run_dir,
                remedy="choose another --run-dir",
            )
        _check_same_profile(request, rank)
    request.files.trace.mkdir(exist_ok=True)


def _check_same_profile(request: StageRequest, rank: Rank) -> None:
    """Ranks with different profiles get different schedules, and their collectives deadlock."""
    if request.profile is None:
        return
    mine = record_file(request.profile, request.run_dir).sha256
    for other in read_manifest(request.run_dir).of(request.stage):
        for item in other.inputs:
            if other.rank != rank.rank and other.ended == "" and item.sha256 != mine:
                raise UserError(
                    f"rank {other.rank} was given another profile ({item.sha256[:12]}, here {mine[:12]})",
                    where=request.profile,
                    remedy="give every rank the same file, or collectives deadlock",
                )


def _write_hook_config(request: StageRequest, rank: Rank) -> Path:
    files, suffix = request.files, _suffix(rank)
    trace = files.trace / f"rank{rank.rank:04d}"
    config = {
        "rank": rank.rank,
        "steps": str(files.steps(rank.rank).resolve()),
        "facts": str((files.folder / f"facts{suffix}.json").resolve()),
        "trace": str(trace.resolve()),
        "capture": request.capture if request.stage == "profile" else "none",
        "window": request.window if request.stage == "profile" else "none",
        "control": str((files.folder / f".control{suffix}").resolve()),
    }
    path = files.folder / f".hook{suffix}.json"
    write_files({path: json.dumps(config)}, force=True)
    return path.resolve()


def _environment(request: StageRequest, files: StageFiles) -> ChildEnvironment:
    environ = dict(os.environ)
    if request.flags:
        environ["XLA_FLAGS"] = " ".join([environ.get("XLA_FLAGS", ""), *request.flags]).strip()
    return build_environment(
        request.mode,
        python=_interpreter(request.command),
        environ=environ,
        dump_to=str(files.hlo.resolve()),
        stablehlo_to=str(files.ir.resolve()) if request.stage == "profile" else "",
        profile="" if request.profile is None else str(request.profile),
    )


def _interpreter(command: Sequence[str]) -> str | None:
    """The Python of the user's command where it names one, to ask which flags its jaxlib knows; else ours."""
    if Path(command[0]).name.startswith("python"):
        return shutil.which(command[0])
    return None


def _with_hook(values: Mapping[str, str], hook: Path) -> dict[str, str]:
    path = values.get("PYTHONPATH")
    return {
        **values,
        "PYTHONPATH": f"{HOOK_SITE}{os.pathsep}{path}" if path else str(HOOK_SITE),
        "PGLE_HOOK": str(hook),
    }


def _record(request: StageRequest, rank: Rank, child: ChildEnvironment, started: str) -> StageRecord:
    profile = () if request.profile is None else (record_file(request.profile, request.run_dir),)
    return StageRecord(
        stage=request.stage,
        rank=rank.rank,
        ranks=rank.size,
        mode=request.mode,
        argv=kept_argv(request.command),
        xla_flags=child.plan.xla_flags,
        environment=kept_environment(child.values),
        host=socket.gethostname(),
        started=started,
        inputs=profile,
    )


class _StepLines:
    """Hands step numbers that the program prints to the hook, which counts them where it has nothing better."""

    def __init__(self, hook: Path) -> None:
        self._control = Path(json.loads(hook.read_text())["control"])

    def __call__(self, line: str) -> None:
        found = _STEP_LINE.search(line)
        if found and len(found[1]) < 12:
            with self._control.open("a") as file:
                file.write(f"{found[1]}\n")


def _nsys_command(request: StageRequest, rank: Rank) -> tuple[str, ...]:
    """`nsys profile` around the command: CUDA and NVTX only, the window by the CUDA profiler range."""
    from pgle.run.nsys import find_nsys

    report = request.files.trace / f"rank{rank.rank:04d}"
    return (
        str(find_nsys().path), "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
        "--cuda-graph-trace=node", "--capture-range=cudaProfilerApi", "--capture-range-end=stop",
        "--force-overwrite=true", "-o", str(report), *request.command,
    )  # fmt: skip


def _nsys_code(code: int, request: StageRequest, rank: Rank, warnings: list[str]) -> int:
    """What nsys's exit code says of the program: 143 is nsys ending it after the capture range."""
    from pgle.run.nsys import import_left_over

    report = request.files.trace / f"rank{rank.rank:04d}.nsys-rep"
    left = report.with_suffix(".qdstrm")
    if left.exists() and not report.exists():
        import_left_over(left)
        warnings.append(f"nsys left {left.name}; it was imported to {report.name}")
    if not report.exists():
        warnings.append("nsys wrote no report: the capture range never began (did the program reach its steady state?)")
    return 0 if code == 143 and report.exists() else code


def _after(request: StageRequest, rank: Rank) -> list[str]:
    """What the log and the files say went wrong."""
    files = request.files
    warnings = []
    facts = _facts(files, rank)
    if not facts:
        warnings.append(
            "the capture hook saw no compilation (no jax in the program, python -I or -S, or another machine): "
            "no steps, no trace"
        )
    with _log(files, rank).open(errors="replace") as log:
        seen = {text for line in log for pattern, text in _TROUBLE if pattern.search(line)}
    warnings += sorted(seen)
    if request.stage == "profile" and facts and request.capture == "jax":
        own = facts.get("own_traces", [])
        traced = list((files.trace / f"rank{rank.rank:04d}").rglob("*.xplane.pb"))
        if own:
            warnings.append(f"the program traces itself into {own[-1]}; convert that instead: pgle convert {own[-1]}")
        elif not traced:
            why = facts.get("window", {}).get("none", "the profiler wrote nothing")
            warnings.append(f"no trace: {why}; choose another --window")
    return warnings


def _facts(files: StageFiles, rank: Rank) -> dict[str, Any]:
    path = files.folder / f"facts{_suffix(rank)}.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _step_times(files: StageFiles, rank: Rank) -> tuple[float, ...]:
    """Step times: the hook's, else those that the program printed."""
    path = files.steps(rank.rank)
    if path.exists():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if not lines or len(lines) > 1:
            return tuple(float(line["step_time_s"]) for line in lines)
    series = read_console(_log(files, rank).read_text(errors="replace"), str(_log(files, rank)))
    if len(series.seconds) == 0:
        return ()
    times = tuple(float(seconds) for seconds in series.seconds)
    if not path.exists():
        text = "".join(json.dumps({"step": i, "step_time_s": s, "printed": True}) + "\n" for i, s in enumerate(times))
        write_files({path: text})
    return times


def _verdict(request: StageRequest, rank: Rank) -> ModuleVerdict | None:
    """Of a perf stage, what the log and the schedule dump of this rank prove."""
    if request.profile is None:
        return None
    dumps = find_schedule_dumps(request.files.hlo) if request.files.hlo.is_dir() else {}
    largest = max(dumps.values(), key=lambda path: Path(path).stat().st_size, default=None)
    log = str(_log(request.files, rank))
    return confirm(ConfirmRequest(log, schedule=largest, profile=request.profile)).main
