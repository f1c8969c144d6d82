"""`pgle auto`: run a command with JAX's own AutoPGLE, report what it did, and trace the result with
nsys.

AutoPGLE traces the first runs of every jitted function, then compiles it again with the costs. It
holds CUPTI while it traces, so nsys sees nothing in the same run. A second run takes the compiled
program from JAX's cache; nsys traces it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pgle.errors import UserError
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.requests.stages import Auto
from pgle.run.ask.jaxlib import installed
from pgle.run.confirm import ConfirmRequest, confirm
from pgle.run.directory.facts import HookFacts, read_facts
from pgle.run.process.compilers import interpreter
from pgle.run.stages.pipeline import has_driver, run_stage
from pgle.run.stages.real import RealBackEnd, checked_window, lines_about
from pgle.run.stages.stage import StageRequest, StageResult
from pgle.xla.flags.catalogue import release
from pgle.xla.log.messages import AUTO_PGLE, EMPTY_TRACE, PGLE_CACHE_WRITE
from pgle.xla.log.verdict import ModuleVerdict

FIRST_HANDOVER = (0, 5, 1)  # first jax with JAX_COMPILATION_CACHE_EXPECT_PGLE

Outcome = Literal[
    "recompiled",
    "loaded",
    "empty-trace",
    "ahead-of-time",
    "too-few-runs",
    "no-gpu",
    "nothing-compiled",
]


@dataclass(frozen=True)
class AutoResult:
    """The results of AutoPGLE."""

    stage: StageResult  # the run
    cache: Path  # the folder of the compiled programs
    # ``recompiled`` or ``loaded`` (from the cache) if it worked; else why not
    outcome: Outcome
    why: str  # the outcome in words, with what to do
    # modules compiled again with costs, and the bytes of the costs
    recompiled: Mapping[str, int]
    # modules that came from the cache and that an earlier run had optimized
    loaded: tuple[str, ...] = ()
    # what XLA's log says about the main module; None if nothing
    verdict: ModuleVerdict | None = None
    # the run under nsys; None if it was not asked for or not possible
    handover: StageResult | None = None
    handed_over: tuple[str, ...] = ()  # modules that the nsys run took from the cache
    traces: tuple[Path, ...] = ()  # traces of the nsys run
    warnings: tuple[str, ...] = ()  # one line each

    @property
    def worked(self) -> bool:
        """Whether AutoPGLE worked, in this run or an earlier one."""
        return self.outcome in ("recompiled", "loaded")

    @property
    def good(self) -> bool:
        """Whether AutoPGLE worked, and, if asked for, nsys traced the result."""
        return self.worked and (self.handover is None or bool(self.handed_over))


def run_auto(request: StageRequest, asked: Auto) -> AutoResult:
    """Run the command of a stage ``auto`` with AutoPGLE; raises `WorkloadError` if the program
    failed.

    Args:
        request: the stage.
        asked: options of the command. The run under nsys is the stage ``auto-nsys``.
    """
    # a launcher may start other processes
    if (
        interpreter(request.command)
        and not has_driver()
        and not os.environ.get("JAX_PLATFORMS")
    ):
        remedy = Next.of("rehearse", "--", *kept_argv(request.command))
        raise UserError(
            "AutoPGLE measures GPU work, and this machine has no driver of a GPU",
            remedy=remedy,
        )
    if asked.then_nsys:
        _check_release(request.command)
    environment = {
        "JAX_ENABLE_PGLE": "true",
        "JAX_PGLE_PROFILING_RUNS": str(asked.runs),
        "JAX_PGLE_AGGREGATION_PERCENTILE": str(asked.percentile),
        **_CACHE_ALL,
    }
    # check it now, because the stage that needs it comes last
    checked_window(asked.window)
    cache = (asked.cache or request.run.path / "auto-cache").resolve()
    back_end = RealBackEnd("none", environment=environment, cache=cache)
    stage = run_stage(request, back_end, force=asked.force)
    files = request.folder.rank(stage.rank)
    facts = read_facts(files)
    outcome, why = _outcome(asked.runs, files.log, facts)
    seen = facts.get("auto_pgle", {})
    recompiled = dict(seen.get("recompiled", {}))
    result = AutoResult(stage, cache, outcome, why, recompiled, warnings=stage.warnings)
    if outcome == "loaded":
        result = replace(result, loaded=tuple(seen.get("hits", ())))
    elif outcome == "recompiled":
        result = replace(result, verdict=confirm(ConfirmRequest(files.log)).main)
    if not asked.then_nsys:
        return result
    return _hand_over(result, asked.window, force=asked.force)


_CACHE_ALL = {
    "JAX_ENABLE_COMPILATION_CACHE": "true",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""Cache every program, also those that compile fast, because each must be found again."""


def _check_release(command: Sequence[str]) -> None:
    """Refuse a jax that is known to be too old for the nsys run."""
    try:
        version = installed(interpreter(command)).versions["jax"]
    except (UserError, KeyError):
        return
    if release(version) < FIRST_HANDOVER:
        raise UserError(
            f"jax {version} cannot hand over to nsys (0.5.1 can)",
            where="--then-nsys",
            remedy="upgrade jax, or trace a run of 'pgle perf' with --capture nsys",
        )


def _outcome(runs: int, log: Path, facts: HookFacts) -> tuple[Outcome, str]:
    """Determine what AutoPGLE did, from its messages inside the program, or from their absence."""
    seen = facts.get("auto_pgle", {})
    recompiled = {
        name: size for name, size in seen.get("recompiled", {}).items() if size
    }
    if recompiled:
        return (
            "recompiled",
            f"{len(recompiled)} modules were compiled again with measured costs",
        )
    if seen.get("found_optimised"):
        count = seen["found_optimised"]
        why = (
            f"{count} modules came from the cache as an earlier run had optimised them"
        )
        return "loaded", why
    if not facts.get("compilations"):
        return (
            "nothing-compiled",
            "the program compiled nothing with jax, or the hook was not loaded",
        )
    if facts.get("platform") == "cpu":
        return (
            "no-gpu",
            "AutoPGLE measures GPU work, and jax ran on CPU devices; run it on GPUs",
        )
    if any(lines_about(log, (EMPTY_TRACE.lower().encode(),))):
        why = "its traces were empty: another tool holds CUPTI (nsys, DCGM)"
        return "empty-trace", f"{why}; stop that, then use --then-nsys for nsys"
    if seen.get("ahead_of_time"):
        count = seen["ahead_of_time"]
        why = (
            f"the program compiles {count} functions ahead of time (lower().compile())"
        )
        remedy = "call the jitted function instead, or use 'pgle run'"
        return "ahead-of-time", f"{why}, which AutoPGLE does not cover; {remedy}"
    why = f"no function was called more than {runs} times with one compilation"
    return "too-few-runs", f"{why}; run more steps, or say --runs 1"


def _hand_over(result: AutoResult, window: str, *, force: bool) -> AutoResult:
    """Run again under nsys, with the programs that AutoPGLE left in the cache."""
    if not result.worked:
        skipped = "not run under nsys: there is nothing to hand over"
        return replace(result, warnings=(*result.warnings, skipped))
    environment = {
        **_CACHE_ALL,
        "JAX_ENABLE_PGLE": "false",
        "JAX_COMPILATION_CACHE_EXPECT_PGLE": "true",
    }
    request = replace(result.stage.request, stage="auto-nsys")
    back_end = RealBackEnd("nsys", window, environment, result.cache)
    stage = run_stage(request, back_end, force=force)
    files = request.folder.rank(stage.rank)
    seen = read_facts(files).get("auto_pgle", {})
    lines = list(lines_about(files.log, (b"cache miss for pgle", b"cache write")))
    found = {*seen.get("missed", ())}
    for line in lines:
        found.update(re.findall(AUTO_PGLE["missed"], line))
    missed = sorted(found & set(result.recompiled))
    warnings = [
        f"{name} was not in the cache as AutoPGLE had left it" for name in missed
    ]
    if any(PGLE_CACHE_WRITE.search(line) for line in lines):
        warnings.append(
            "the run under nsys compiled anew: its flags or devices differ from the first run's"
        )
    return replace(
        result,
        handover=stage,
        handed_over=tuple(seen.get("loaded", ())),
        traces=request.folder.traces(),
        warnings=(
            *result.warnings,
            *stage.warnings,
            *([stage.failed] if stage.failed else []),
            *warnings,
        ),
    )
