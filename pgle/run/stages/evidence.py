"""What a real stage left behind, and what its log and files say went wrong."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pgle.costs.profile.files import read_profile
from pgle.errors import UserError
from pgle.files import AnyPath
from pgle.run.ask.nsys import DOWNLOAD
from pgle.run.confirm import ConfirmRequest, confirm
from pgle.run.directory.directory import STEP_FILES, RankFiles
from pgle.run.directory.manifest import StageRecord
from pgle.run.inputs.step_times import STEP_WORDS, StepLines, console_records, read_runs, write_steps
from pgle.run.process.process import mentions
from pgle.xla.log.events import EMPTY_TRACE, NSYS_FAILED, NSYS_FAILED_WORDS, PROFILER_TROUBLE, PROFILER_WORDS
from pgle.xla.log.module_verdict import BOUNDS, Bounds, ModuleVerdict, ProfileUse

AUTO_PGLE = "AutoPGLE is on as well (JAX_ENABLE_PGLE) and got an empty trace; unset it, or use 'pgle auto'"
BLOCK_BYTES = 1 << 20
LINE_CHARACTERS = 10_000  # more of a line is not looked at
FEW_EXECUTIONS = 5  # fewer in a window without step marks give a warning; the first is often left out as warm-up


def lines_about(log: Path, words: Collection[bytes]) -> Iterator[str]:
    """The lines of a log that contain one of the words (in small letters); logs may have gigabytes."""
    with log.open("rb") as file:
        while block := file.read(BLOCK_BYTES) + file.readline():
            if not mentions(block, words):
                continue
            for line in block.splitlines(keepends=True):
                if mentions(line, words):
                    yield line[:LINE_CHARACTERS].decode(errors="replace")


def trouble(log: Path) -> list[str]:
    """What the lines of a log say went wrong with profiling, each once."""
    found = set()
    for line in lines_about(log, PROFILER_WORDS):
        if EMPTY_TRACE in line:  # it names CUPTI's error as one of the things that may have been
            found.add(AUTO_PGLE)
        else:
            found |= {text for pattern, text in PROFILER_TROUBLE if pattern.search(line)}
    return [AUTO_PGLE] * (AUTO_PGLE in found) + [text for _, text in PROFILER_TROUBLE if text in found]


def keep_steps(files: RankFiles, lines: StepLines, facts: Mapping[str, Any]) -> None:
    """Leave one steps file of this rank: the program's own, or one made from the step lines it printed.

    Helper processes that mark steps as well have files of their own, which are renamed to ``helper-…``.
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
    records = console_records(list(lines_about(files.log, STEP_WORDS)), lines.lines, facts)
    if records:
        write_steps(files.steps, records)


def step_times(files: RankFiles) -> tuple[float, ...]:
    """Step times of the slowest rank, of those ranks that have written theirs."""
    if not any(files.folder.glob(STEP_FILES)):
        return ()
    try:
        return tuple(float(seconds) for seconds in read_runs(str(files.folder))[0].step_time_s)
    except UserError:
        return ()


def keep_own_trace(files: RankFiles, facts: Mapping[str, Any], started: float) -> Path | None:
    """Link the trace that the program made itself, where ours did not come to be.

    Args:
        files: of this rank.
        facts: ``own_traces`` are the folders that the program gave to its profiler.
        started: when the stage began, seconds since the epoch: older files in them are not of this run.

    Returns:
        The trace file; None where there is none.
    """
    if files.traces():
        return None
    folders = [Path(folder) for folder in facts.get("own_traces", ())]
    found = [path for folder in folders for path in folder.rglob("*.xplane.pb") if path.stat().st_mtime >= started]
    mine = [path for path in found if path.name.startswith(f"{facts.get('host', socket.gethostname())}.")] or found
    if not mine:
        return None
    newest = max(mine, key=lambda path: path.stat().st_mtime)
    files.trace.with_name(f"{files.trace.name}.xplane.pb").symlink_to(newest.resolve())
    return newest


def why_no_trace(capture: str, files: RankFiles, facts: Mapping[str, Any]) -> str:
    """Why a profiler left nothing that can be read, with what to do: one line."""
    why, remedy = _why_no_window(capture, files, facts)
    messages: list[str] = []
    if capture == "nsys":
        messages = [line.strip() for line in lines_about(files.log, NSYS_FAILED_WORDS) if NSYS_FAILED.match(line)]
    quoted = f" (nsys says: {' '.join(dict.fromkeys(messages))[:500]})" if messages else ""
    return f"no trace: {why}{quoted}; {remedy}"


def _why_no_window(capture: str, files: RankFiles, facts: Mapping[str, Any]) -> tuple[str, str]:
    if not facts:
        return _why_no_facts(files), "profile a program that compiles with jax"
    if not facts.get("finished"):
        if "window_closed" in facts and "window" not in facts:
            remedy = (
                f"trace with the other profiler (--capture {'jax' if capture == 'nsys' else 'nsys'}), or fewer steps"
            )
            return "the program was killed, or crashed, while its profiler was stopped (jax-ml/jax#40260)", remedy
        when = "while it was traced" if "window_opened" in facts else "before its steps were traced"
        remedy = "let it end by itself, or trace earlier and shorter (--window seconds:1)"
        return f"the program was killed {when}", remedy
    window = facts.get("window", {})
    remedy = window.get("remedy", "see the log, and what 'pgle doctor' says of profilers")
    if "none" in window:
        return window["none"], remedy
    if capture == "nsys" and facts.get("platform") == "cpu":
        return "jax ran on CPU devices, which nsys does not trace", "run it on GPUs, or use --capture jax"
    if capture == "nsys":
        return "nsys left no report of the window", f"install all of Nsight Systems ({DOWNLOAD}), or use --capture jax"
    return "the profiler wrote nothing", remedy


def hook_warnings(files: RankFiles, facts: Mapping[str, Any]) -> list[str]:
    """What kept the hook from its work."""
    if not facts:
        return [f"{_why_no_facts(files)}: no steps, no trace"]
    found = []
    if facts.get("xla_flags_restored"):
        found.append("the program replaces XLA_FLAGS; what pgle had added was added again before jax read it")
    return found


def _why_no_facts(files: RankFiles) -> str:
    """Why the hook found nothing out: it was not loaded, or had nothing to watch."""
    if files.seen.exists():
        return "the program compiled nothing with jax, or in a process to which it gave another PYTHONPATH"
    return (
        "the capture hook was not loaded (python -I, -S or -E, a changed PYTHONPATH, an environment that is cleared, "
        "behind which pgle has to stand: kubectl exec POD -- pgle …; or no Python in the program)"
    )


def verdict(
    profile: AnyPath | None, files: RankFiles, facts: Mapping[str, Any], bounds: Bounds = BOUNDS
) -> ModuleVerdict | None:
    """Of a perf stage, what the log and the schedule dump of this rank prove."""
    if profile is None:
        return None
    platform = str(facts.get("platform", ""))
    if platform == "cpu":
        why = "jax ran on CPU devices, whose compiler has no latency-hiding scheduler and reads no profile"
        remedy = "run it on GPUs, or see what a GPU would do: --capture simulated"
        return ModuleVerdict("", ProfileUse.CANNOT_TELL, why, remedy=remedy, profile=str(profile))
    if not facts and not files.seen.exists() and not files.log.stat().st_size:
        why = "the program left neither log lines nor facts"
        return ModuleVerdict("", ProfileUse.CANNOT_TELL, why, profile=str(profile))
    return confirm(
        ConfirmRequest(
            files.log,
            schedule=files.schedule_dumps,
            profile=read_profile(profile),
            release=facts.get("versions", {}).get("jax"),
            whole=bool(facts.get("finished")),
            bounds=bounds,
        )
    ).main


def few_executions(facts: Mapping[str, Any]) -> list[str]:
    """A warning where the program ended soon after the trace had begun."""
    count = facts.get("window", {}).get("executions", FEW_EXECUTIONS)
    if count >= FEW_EXECUTIONS:
        return []
    return [
        f"the program ended soon after the trace had begun (executions of its heaviest module in it: {count}); "
        "let it run longer, or trace all of it: --window all"
    ]


def reported(judged: ModuleVerdict | None, facts: Mapping[str, Any], record: StageRecord) -> dict[str, str]:
    """Facts for the report."""
    found = {"module": judged.module if judged else "", "flags": record.xla_flags}
    found["jaxlib"] = facts.get("versions", {}).get("jaxlib") or record.versions.get("jaxlib", "")
    if "platform" in facts:
        found["devices"] = f"{facts['devices']} {facts.get('device_kind') or facts['platform']}"
    window = facts.get("window", {})
    if "steps" in window:
        found["window"] = "steps {}-{}".format(*window["steps"])
    elif "seconds" in window:
        count = f"{window['executions']} executions in " if "executions" in window else ""
        found["window"] = f"{count}{window['seconds']:g} s"
    return found
