"""Stages that run the user's program for real, alone or under `nsys profile`, with the capture hook
inside. Then collect steps, trace and verdict, and explain failures from the log and files.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pgle.errors import UserError, WorkloadError
from pgle.files import open_bytes, read_bytes, sha256
from pgle.masking import mask_json
from pgle.next import Next
from pgle.run.ask.jaxlib import installed
from pgle.run.ask.nsys import DOWNLOAD, find_importer, find_nsys
from pgle.run.compiler.worker import mask_configs
from pgle.run.directory.directory import STEP_FILES, RankFiles
from pgle.run.directory.facts import HookFacts, read_facts, read_sources
from pgle.run.directory.manifest import StageRecord, imported_files, waiting
from pgle.run.hook import hook_config, with_hook
from pgle.run.inputs.step_times import (
    STEP_WORDS,
    StepLines,
    console_records,
    read_runs,
    write_steps,
)
from pgle.run.process import terminal
from pgle.run.process.compilers import interpreter
from pgle.run.process.efforts import EFFORTS, with_efforts
from pgle.run.process.environment import ChildEnvironment, build_environment
from pgle.run.process.launchers import find_rank
from pgle.run.process.process import (
    check_program,
    ended,
    launch,
    mentions,
    refused_flag,
)
from pgle.run.stages.stage import (
    StageRequest,
    StageResult,
    begin_record,
    confirm_stage,
    end_record,
    files_of_profile,
)
from pgle.xla.flags.text import Flag, kept_flags, parse_flags, same_value, typed_flag
from pgle.xla.log.messages import (
    EMPTY_TRACE,
    NSYS_FAILED,
    NSYS_FAILED_WORDS,
    NSYS_NOT_READY,
    PROFILER_TROUBLE,
    PROFILER_WORDS,
)
from pgle.xla.log.verdict import ModuleVerdict

# 128 + SIGTERM: how a program ends if nsys stops it after its capture range
ENDED_BY_NSYS = 143


def nsys_command(command: Sequence[str], report: Path) -> tuple[str, ...]:
    """Return the words that run a command under nsys. `report` is the path of its report, without
    the suffix.

    CUDA and NVTX only: the default adds OS calls and OpenGL, which make reports large. The window
    is the CUDA profiler range that the hook opens; With ``stop`` the program continues after the
    range; by default nsys would end it.
    """
    nsys = find_nsys()
    if nsys is None:
        raise UserError(
            "nsys is not installed",
            where="--capture nsys",
            remedy=f"use --capture jax, or see {DOWNLOAD}",
        )
    return (
        str(nsys.path),
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--force-overwrite=true",
        "--output",
        str(report),
        *command,
    )


OWN_FAILURE = 1  # the exit code of nsys's own failures
# how often nsys is started if it fails before the program runs, as a third of the starts do on a
# busy machine
NSYS_STARTS = 8
NOT_READY = "sem_open: No such file or directory, a race inside nsys on a busy machine"


def start_nsys(
    start: Callable[[], int], files: RankFiles
) -> tuple[int, tuple[str, ...]]:
    """Run a program under nsys. Return its exit code, and warnings. `start` runs nsys, again if it
    failed before the program ran.
    """
    for failures in range(NSYS_STARTS):
        before = files.log.stat().st_size if files.log.exists() else 0
        code = start()
        is_own = code == OWN_FAILURE and not files.seen.exists()
        if not (is_own and _is_not_ready(files.log, before)):
            code, warnings = judge_end(code, files)
            if not failures:
                return code, warnings
            again = (
                f"nsys failed before it ran the program ({NOT_READY}); "
                f"start {failures + 1} of {NSYS_STARTS} ran it"
            )
            return code, (*warnings, again)
        if failures + 1 < NSYS_STARTS:
            # otherwise the log would mix with the log of the start that ran the program
            os.truncate(files.log, before)
    raise UserError(
        (
            f"nsys failed {NSYS_STARTS} times before it ran the program "
            f"({NOT_READY}; see {files.log})"
        ),
        where="--capture nsys",
        remedy=(
            "start it again when this machine has less to do, install a newer nsys, "
            "or use --capture jax"
        ),
    )


def _is_not_ready(log: Path, start: int) -> bool:
    """Whether a log, from byte `begin` on, shows that nsys failed before the program ran."""
    with log.open("rb") as file:
        file.seek(start)
        said = file.read(BLOCK_BYTES).decode(errors="replace")
    return NSYS_NOT_READY.search(said) is not None


def judge_end(code: int, files: RankFiles) -> tuple[int, tuple[str, ...]]:
    """Derive the program's exit code from that of `nsys profile`. Also return warnings about the
    report.
    """
    left = files.report.with_suffix(".qdstrm")
    warnings = []
    if left.exists() and not files.report.exists():
        how = "does"
        if not find_importer():
            how = "needs QdstrmImporter for it, which is not installed here"
        warnings.append(
            f"nsys left {left} and could not import it; 'pgle convert' {how}"
        )
    if code == ENDED_BY_NSYS and files.report.exists():
        return 0, (
            *warnings,
            "nsys ended the program after its capture range (exit code 143); the report is whole",
        )
    return code, tuple(warnings)


def is_readable(files: RankFiles) -> bool:
    """Whether a profiler left a trace that this machine can read. Raw recordings of nsys need its
    importer.
    """
    return any(path.suffix != ".qdstrm" or find_importer() for path in files.traces())


_WINDOW = re.compile(
    r"auto|all|steps:(?P<first>\d+)(-(?P<last>\d+))?|seconds:\d+(\.\d+)?"
)


def checked_window(text: str) -> str:
    """Return a window in the hook's form; raise `UserError` if it is invalid."""
    found = _WINDOW.fullmatch(text)
    if found is None or (found["last"] and int(found["last"]) < int(found["first"])):
        raise UserError(
            f"no such window: {text!r}",
            where="--window",
            remedy="say auto, steps:5-10, seconds:10 or all",
        )
    return text


@dataclass(frozen=True)
class RealBackEnd:
    """Runs stages on the devices of this machine."""

    # profiler of profile stages; ``none``: only the program runs
    capture: Literal["jax", "nsys", "none"] = "jax"
    # the part to trace: ``auto``, ``steps:A-B``, ``seconds:N`` or ``all``
    window: str = "auto"
    # more variables for the program, which override the user's
    environment: Mapping[str, str] = field(default_factory=dict)
    cache: Path | None = None  # folder of JAX's persistent compilation cache; None: off

    def check(self, request: StageRequest) -> None:
        """Raise `UserError` if a request cannot be met. This writes nothing."""
        check_program(request.command)
        if self._capture(request) == "nsys":
            nsys_command(request.command, Path())

    def plan(self, request: StageRequest) -> StageRecord:
        """Describe a run with all that decides its outcome. Versions are those of the program's
        Python, or ours if the command names none.
        """
        window = {} if self._capture(request) == "none" else {"window": self.window}
        return request.plan(
            installed(interpreter(request.command)).versions,
            capture=self.capture,
            **window,
        )

    def run(self, request: StageRequest, *, again: bool, force: bool) -> StageResult:
        """Run a stage on this rank, without waiting for others, and record it in the manifest.

        `again` renames an older run's folder. With `force` nothing of that run is used. Raises
        `WorkloadError` if the user's program failed.
        """
        rank = find_rank()
        files = request.folder.rank(rank.rank)
        capture = self._capture(request)
        command = (
            nsys_command(request.command, files.trace)
            if capture == "nsys"
            else request.command
        )
        python = interpreter(request.command)
        child = self._child(request, files, python)
        older = waiting(
            request.run, request.stage, _make_folder(request, again=again), force=force
        )
        record = begin_record(
            request, self.plan(request), child, rank=rank, before=older
        )
        flags = tuple(flag.text for flag in (*child.plan.flags, *_typed(request)))
        window = "none" if capture == "none" else self.window
        watched = request.stage in ("auto", "auto-nsys")
        config = hook_config(
            request.folder,
            rank,
            capture=capture,
            window=window,
            flags=flags,
            auto_pgle=watched,
        )
        if capture != "none":
            files.trace.parent.mkdir(exist_ok=True)
        lines = StepLines()
        started = time.time()
        try:
            start = partial(
                launch,
                command,
                with_hook(child.values, config),
                files.log,
                lines,
                words=STEP_WORDS,
                stdout=request.stdout,
                is_shown=not terminal.is_quiet,
            )
            code, warnings = (
                start_nsys(start, files) if capture == "nsys" else (start(), ())
            )
        except UserError as error:
            end_record(request.run, record, error.exit_code, warnings=(str(error),))
            raise
        return self._complete(
            request, record, code, lines=lines, started=started, nsys_warnings=warnings
        )

    def _capture(self, request: StageRequest) -> Literal["jax", "nsys", "none"]:
        return self.capture if request.stage in ("profile", "auto-nsys") else "none"

    def _complete(
        self,
        request: StageRequest,
        record: StageRecord,
        code: int,
        *,
        lines: StepLines,
        started: float,
        nsys_warnings: Sequence[str],
    ) -> StageResult:
        files = request.folder.rank(record.rank)
        for path in files.folder.glob(f"{files.facts.stem}*.json"):
            mask_json(path)
        mask_configs(files.hlo)
        facts = read_facts(files)
        keep_steps(files, lines, facts)
        found = [
            *nsys_warnings,
            *([] if facts else [f"{why_no_facts(files)}: no steps, no trace"]),
            *trouble(files.log),
        ]
        if request.stage == "auto":
            found = [line for line in found if line != AUTO_PGLE_TOO]
        failed = ""
        if self._capture(request) != "none":
            own = keep_own_trace(files, facts, started)
            if own is not None:
                found.append(f"the program traces itself; its own trace is used: {own}")
            if not is_readable(files):
                failed = why_no_trace(self.capture, files, facts)
            elif own is None:
                found += few_executions(facts)
        verdict = confirm_stage(request, files, facts)
        if facts.get("xla_flags"):
            found += _overruled(request, facts["xla_flags"])
            flags = parse_flags(record.xla_flags).flags
            asked = [flag for flag in flags if flag.name in EFFORTS]
            had = with_efforts(facts["xla_flags"], asked).text
            record = replace(record, xla_flags=kept_flags(had))
        topology: dict[str, Any] = {
            name: facts[name]
            for name in ("platform", "devices", "process_count")
            if name in facts
        }
        is_alone = find_rank().is_alone
        outputs = request.folder.outputs() if is_alone else files.outputs()
        sources = read_sources(files, is_alone=is_alone)
        record = end_record(
            request.run,
            replace(record, topology=topology, imported=imported_files(sources)),
            code,
            outputs=outputs,
            warnings=found,
            facts={"hook": facts},
            verdict=verdict,
            failed=failed,
        )
        if code:
            # without facts the program ended before it could leave a trace
            why = f"; {failed}" if failed and facts else ""
            if self._capture(request) != "none" and not failed:
                command = Next.of("convert", request.run.path)
                why = f"; its trace had been written by then: {command}"
            log = request.run.path / (record.aside or request.stage) / files.log.name
            stays = ""
            if record.aside:
                stays = f"; {request.folder.path} is as it was before"
            if refused := refused_flag(log):
                why = f"; XLA says: {refused}; see: {Next.of('flags', 'lint')}"
            if facts.get("ranks_differ"):
                command = Next.of("ranks", request.folder.path)
                why = f"; its ranks do not agree, as the line above says: {command}"
            raise WorkloadError(
                code, f"{request.command[0]} {ended(code)}; see {log}{why}{stays}"
            )
        return StageResult(
            request,
            simulated=False,
            verdict=verdict,
            step_times_s=step_times(files),
            facts=reported(verdict, facts, record),
            warnings=tuple(dict.fromkeys(record.warnings)),
            rank=record.rank,
            failed=failed,
        )

    def _child(
        self, request: StageRequest, files: RankFiles, python: str | None
    ) -> ChildEnvironment:
        keeps_ir = request.stage == "profile" and not files.suffix
        build = partial(
            build_environment,
            request.mode,
            more_flags=request.flags,
            dump_to=str(files.hlo.resolve()),
            stablehlo_to=str(files.ir.resolve()) if keeps_ir else "",
            profile=str(request.profile or ""),
            cache=self.cache,
        )
        try:
            child = build(python=python)
        except UserError:
            if python is None:
                raise
            # the command's first program has no jaxlib, but the program itself may
            child = build(python=None)
        return replace(child, values={**child.values, **self.environment})


def _typed(request: StageRequest) -> tuple[Flag, ...]:
    """Return the XLA flags of the command line."""
    return tuple(
        flag for flag in map(typed_flag, request.flags) if flag.name not in EFFORTS
    )


def _overruled(request: StageRequest, had: str) -> list[str]:
    """Return the flags of the command line to which the program gave other values, according to its
    XLA_FLAGS.
    """
    values = parse_flags(had).effective()
    wanted = {flag.name: flag for flag in _typed(request)}
    return [
        f"--flag {flag.word} has no effect: the program sets --{name}={values[name]} itself"
        for name, flag in wanted.items()
        if name in values and not same_value(values[name], flag.value)
    ]


def _make_folder(request: StageRequest, *, again: bool) -> str:
    """Make the stage's folder.

    Return the new name of an old folder; empty if there was none. Ranks share the folder without
    waiting, so only a single process renames an old one.
    """
    rank = find_rank()
    older = ""
    files = request.folder.rank(rank.rank)
    if rank.is_alone:
        older = request.folder.make(again=again)
    elif files.log.exists():
        raise UserError(
            f"rank {rank.rank} has run {request.stage} into it already",
            where=request.run.path,
            remedy="choose another --run-dir (--force is for single processes)",
        )
    files.folder.mkdir(parents=True, exist_ok=True)
    if request.profile is not None:
        _check_same_profile(Path(request.profile), files.folder)
    return older


def _check_same_profile(profile: Path, folder: Path) -> None:
    """Raise if ranks have different profiles: their schedules would differ, and their collectives
    deadlock. Each rank writes a file named by the hash of its profile, and looks for other hashes.
    """
    content = b"".join(
        path.name.encode() + b"\0" + read_bytes(path)
        for path in files_of_profile(profile)
    )
    mine = sha256(content)[:16]
    (folder / f".profile-{mine}").touch()
    signs = sorted(path.name for path in folder.glob(".profile-*"))
    given = [name.removeprefix(".profile-") for name in signs]
    if given != [mine]:
        other = next(item for item in given if item != mine)
        what = f"another rank was given another profile (sha256 {other}…, this one has {mine}…)"
        remedy = (
            "give every rank the same file and start again in a new --run-dir; else "
            "collectives deadlock"
        )
        raise UserError(what, where=profile, remedy=remedy)


AUTO_PGLE_TOO = (
    "AutoPGLE is on as well (JAX_ENABLE_PGLE) and got an empty trace; unset it, or "
    "use 'pgle auto'"
)
BLOCK_BYTES = 1 << 20
LINE_CHARACTERS = 10_000  # most characters of a line that are searched
# a window without step marks that has fewer gives a warning; the first is often dropped as warm-up
FEW_EXECUTIONS = 5


def lines_about(log: Path, words: Collection[bytes]) -> Iterator[str]:
    """Return the lines of a log that contain one of the lowercase words. Logs may have
    gigabytes.
    """
    with open_bytes(log) as file:
        while block := file.read(BLOCK_BYTES) + file.readline():
            if not mentions(block, words):
                continue
            for line in block.splitlines(keepends=True):
                if mentions(line, words):
                    yield line[:LINE_CHARACTERS].decode(errors="replace")


def trouble(log: Path) -> list[str]:
    """Return profiling problems found in a log's lines, each once."""
    is_empty = False
    found = set()
    for line in lines_about(log, PROFILER_WORDS):
        if EMPTY_TRACE in line:
            # this line also names CUPTI's error, but only as one of several possible causes
            is_empty = True
            continue
        found |= {text for pattern, text in PROFILER_TROUBLE if pattern.search(line)}
    troubles = [AUTO_PGLE_TOO] if is_empty else []
    troubles += [text for _, text in PROFILER_TROUBLE if text in found]
    return troubles


def keep_steps(files: RankFiles, lines: StepLines, facts: HookFacts) -> None:
    """Leave one steps file for this rank: the program's own, or one made from its printed step
    lines.

    Steps files of helper processes are renamed to ``helper-…``.
    """
    mine = files.folder / str(facts.get("steps_file", files.steps.name))
    for path in sorted(files.folder.glob(f"{files.steps.stem}.pid*.jsonl")):
        if path != mine:
            path.rename(path.with_name(f"helper-{path.name}"))
    if mine != files.steps and mine.exists():
        if files.steps.exists():
            files.steps.rename(files.steps.with_name(f"helper-{files.steps.name}"))
        mine.rename(files.steps)
    if files.steps.exists() or not lines.lines:
        return
    records = console_records(
        list(lines_about(files.log, STEP_WORDS)), lines.lines, facts
    )
    if records:
        write_steps(files.steps, records)


def step_times(files: RankFiles) -> tuple[float, ...]:
    """Return the step times of the slowest rank, among ranks that have written theirs."""
    if not any(files.folder.glob(STEP_FILES)):
        return ()
    try:
        return tuple(
            float(seconds) for seconds in read_runs(str(files.folder))[0].step_time_s
        )
    except UserError:
        return ()


def keep_own_trace(files: RankFiles, facts: HookFacts, started: float) -> Path | None:
    """If our trace is missing, link the newest trace that the program itself made; None if there is
    none.

    Traces of this host are preferred. Files from before `started` (seconds since the epoch) in the
    folders of the program's profiler belong to earlier runs.
    """
    if files.traces():
        return None
    found: list[Path] = []
    for folder in facts.get("own_traces", ()):
        traces = Path(folder).rglob("*.xplane.pb")
        found += [path for path in traces if path.stat().st_mtime >= started]
    if not found:
        return None
    host = facts.get("host", socket.gethostname())
    mine = [path for path in found if path.name.startswith(f"{host}.")]
    newest = max(mine or found, key=lambda path: path.stat().st_mtime)
    files.trace.with_name(f"{files.trace.name}.xplane.pb").symlink_to(newest.resolve())
    return newest


def why_no_trace(capture: str, files: RankFiles, facts: HookFacts) -> str:
    """Say in one line why a profiler left nothing readable, and what to do."""
    why, remedy = _why_no_window(capture, files, facts)
    if capture == "nsys":
        lines = lines_about(files.log, NSYS_FAILED_WORDS)
        messages = [line.strip() for line in lines if NSYS_FAILED.match(line)]
        if messages:
            why = f"{why} (nsys says: {' '.join(dict.fromkeys(messages))[:500]})"
    return f"no trace: {why}; {remedy}"


def _why_no_window(capture: str, files: RankFiles, facts: HookFacts) -> tuple[str, str]:
    if not facts:
        return why_no_facts(files), "profile a program that compiles with jax"
    if not facts.get("finished"):
        if "window_closed" in facts and "window" not in facts:
            other = "jax" if capture == "nsys" else "nsys"
            remedy = (
                f"trace with the other profiler (--capture {other}), or fewer steps"
            )
            why = (
                "the program was killed, or crashed, while its profiler was stopped "
                "(jax-ml/jax#40260)"
            )
            return why, remedy
        is_traced = "window_opened" in facts
        when = "while it was traced" if is_traced else "before its steps were traced"
        remedy = (
            "let it end by itself, or trace earlier and shorter (--window seconds:1)"
        )
        return f"the program was killed {when}", remedy
    window = facts.get("window", {})
    remedy = window.get(
        "remedy", "see the log, and what 'pgle doctor' says of profilers"
    )
    if "none" in window:
        return window["none"], remedy
    if capture == "nsys" and facts.get("platform") == "cpu":
        return (
            "jax ran on CPU devices, which nsys does not trace",
            "run it on GPUs, or use --capture jax",
        )
    if capture == "nsys":
        return (
            "nsys left no report of the window",
            f"install all of Nsight Systems ({DOWNLOAD}), or use --capture jax",
        )
    return "the profiler wrote nothing", remedy


def why_no_facts(files: RankFiles) -> str:
    """Say why the hook has no findings: it was not loaded, or had nothing to watch."""
    if files.seen.exists():
        return (
            "the program compiled nothing with jax, or in a process to which it gave "
            "another PYTHONPATH"
        )
    return (
        "the capture hook was not loaded (python -I, -S or -E, a changed "
        "PYTHONPATH, an environment that is cleared, "
        "behind which pgle has to stand: kubectl exec POD -- pgle …; or no Python in the program)"
    )


def few_executions(facts: HookFacts) -> list[str]:
    """Warn if the program ended soon after the trace had begun."""
    count = facts.get("window", {}).get("executions", FEW_EXECUTIONS)
    if count >= FEW_EXECUTIONS:
        return []
    return [
        "the program ended soon after the trace had begun "
        f"(executions of its heaviest module in it: {count}); "
        "let it run longer, or trace all of it: --window all"
    ]


def reported(
    verdict: ModuleVerdict | None, facts: HookFacts, record: StageRecord
) -> dict[str, str]:
    """Add facts about the verdict to the stage's facts."""
    found = {"module": verdict.module if verdict else "", "flags": record.xla_flags}
    versions = {**record.versions, **facts.get("versions", {})}
    found["jaxlib"] = versions.get("jaxlib", "")
    if "platform" in facts:
        found["devices"] = (
            f"{facts['devices']} {facts.get('device_kind') or facts['platform']}"
        )
    window = facts.get("window", {})
    if "steps" in window:
        found["window"] = "steps {}-{}".format(*window["steps"])
    elif "seconds" in window:
        found["window"] = f"{window['seconds']:g} s"
        if "executions" in window:
            found["window"] = f"{window['executions']} executions in {found['window']}"
    return found
