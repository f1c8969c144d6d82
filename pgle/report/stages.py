"""An experiment: a stage, `pgle auto`, and all stages, as pages and as JSON."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType

from pgle.costs.profile.coverage import Coverage
from pgle.errors import many, printable
from pgle.masking import kept_argv
from pgle.next import Commands, Next, to_way
from pgle.report import compare, text
from pgle.report.confirm import USE_TONES, main_lines, use_line
from pgle.report.conversions import costs_line
from pgle.report.next_steps import after_stages
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Tone
from pgle.report.text import live
from pgle.run.convert import Conversion
from pgle.run.directory.directory import free
from pgle.run.inputs.next_command import ProgramLaunch, by_every_rank, following
from pgle.run.stages.auto import AutoResult
from pgle.run.stages.pipeline import STAGES, Pipeline
from pgle.run.stages.stage import StageResult
from pgle.trace.table import SIMULATED as NO_GPU
from pgle.xla.flags.presets import MEASURES_ALONE
from pgle.xla.log.verdict import ProfileUse

SIMULATED = "Simulated: no GPU was measured."


def troubles(result: StageResult) -> tuple[str, ...]:
    """What a rank says whose page nobody prints."""
    failed = (
        (f"{result.request.stage} failed: {result.failed}",) if result.failed else ()
    )
    return (*result.warnings, *failed)


def stage_page(result: StageResult) -> Page:
    """Step times, and of a perf stage whether XLA used the profile; compiler and flags in a
    section.
    """
    request, run = result.request, result.request.run
    lines: list[str] = []
    tone: Tone = "good"
    verdict = (
        f"{request.stage}: {steps_line(result) or result.facts.get('window') or 'done'}"
    )
    if result.failed:
        verdict, tone = f"{request.stage} failed: {result.failed}", "bad"
    elif result.verdict is not None:
        verdict, tone = use_line(result.verdict), USE_TONES[result.verdict.verdict]
        lines = [steps_line(result), *main_lines(result.verdict)]
    goes_on = (result.good or result.verdict is None) and not result.failed
    command = following(run) if goes_on else None
    starts = command is not None and command.name in ("perf", "profile")
    if by_every_rank(run) and starts:
        lines.append("Start the next command on every rank.")
    lines.append(SIMULATED if result.simulated else "")
    return Page(
        title=f"pgle {request.stage} {run.path}",
        identity=(*identity(result.facts), str(request.folder.path)),
        verdict=printable(verdict),
        tone=tone,
        notes=tuple(map(printable, lines)),
        sections=(
            Section(
                "stage",
                "What was run",
                tuple(map(Prose, map(printable, _about(result)))),
            ),
        ),
        way=to_way([command]),
        warnings=result.warnings,
    )


def identity(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Module, devices and compiler, as far as a stage recorded them."""
    jaxlib = f"jaxlib {facts['jaxlib']}" if facts.get("jaxlib") else ""
    return tuple(
        printable(word)
        for word in (facts.get("module"), facts.get("devices"), jaxlib)
        if word
    )


def steps_line(result: StageResult) -> str:
    """``40 steps, 5.92 ms each``; empty if no step was seen."""
    if not result.step_times_s:
        return ""
    middle = figures.time(statistics.median(result.step_times_s) * 1e6)
    return f"{many(len(result.step_times_s), 'step')}, {middle} each"


def _about(result: StageResult) -> Iterator[str]:
    facts, is_profile = result.facts, result.request.stage == "profile"
    if facts.get("program"):
        yield f"program: {facts['program']}"
    if facts.get("flags"):
        yield f"XLA_FLAGS {facts['flags']}"
    if is_profile:
        window = f" ({facts['window']})" if "window" in facts else ""
        yield from (f"trace {path}{window}" for path in result.request.folder.traces())
    if result.simulated:
        alone = figures.time(float(facts["predicted_step_us"]))
        yield f"The schedule alone takes {alone}. Kernels vary, and every rank waits for the slowest."
        if is_profile and result.request.mode == MEASURES_ALONE:
            yield "Collectives are synchronous in this run only, so that each can be measured alone."


def stage_document(result: StageResult) -> dict[str, object]:
    """``pgle.profile/1``, ``pgle.baseline/1`` or ``pgle.perf/1`` without its name."""
    request = result.request
    return {
        "ok": result.good,
        "run_dir": request.run.path,
        **text.picked(result, "simulated failed verdict"),
        "steps": len(result.step_times_s),
        "median_step_s": statistics.median(result.step_times_s)
        if result.step_times_s
        else None,
        "traces": request.folder.traces() if request.stage == "profile" else (),
        **text.picked(result, "facts warnings"),
    }


def auto_page(result: AutoResult) -> Page:
    """What AutoPGLE did, and which modules it compiled again or took from the cache."""
    notes, run = [], result.stage.request.run.path
    if result.recompiled:
        names = list(result.recompiled)[:3]
        notes.append(
            f"compiled again: {', '.join(names)}{' …' * (len(result.recompiled) > len(names))}"
        )
    notes += [use_line(result.verdict)] if result.verdict is not None else []
    notes.append(steps_line(result.stage))
    if result.handover is not None:
        handed = f"under nsys: {many(len(result.handed_over), 'module')} as AutoPGLE left them"
        notes.append("; ".join(filter(None, (handed, steps_line(result.handover)))))
    modules = [
        f"{name}: compiled again with {size:,} bytes of costs"
        for name, size in result.recompiled.items()
    ]
    modules += [f"{name}: from the cache" for name in result.loaded]
    return Page(
        title=f"pgle auto {run}",
        identity=("AutoPGLE", str(run)),
        verdict=printable(f"{result.outcome}: {result.why}"),
        tone="good" if result.good else "bad",
        notes=tuple(
            map(printable, (*notes, *(f"trace {path}" for path in result.traces)))
        ),
        sections=(
            Section(
                "modules", "Modules", tuple(Prose(printable(line)) for line in modules)
            ),
        ),
        way=to_way(after_auto(result)),
        warnings=result.warnings,
    )


def after_auto(result: AutoResult) -> Commands:
    """Where the traced step goes, or what AutoPGLE brought; if it did nothing, another way."""
    request, run = result.stage.request, result.stage.request.run
    launch = ProgramLaunch(request.command).with_flags(request.flags)
    baseline, auto = run.stage("baseline").path, run.stage("auto").path
    if result.traces:
        return (Next.of("analyze", run.stage("auto-nsys").path),)
    if result.outcome == "no-gpu":
        return (Next.of("rehearse", "--", *kept_argv(request.command)),)
    if not result.worked:
        return (
            launch.line("run", free(run.path.with_name(f"{run.path.name}-stages"))),
        )
    without = (
        () if baseline.is_dir() else (launch.line("perf", run.path, "--baseline"),)
    )
    return (*without, Next.of("compare", baseline, auto))


def auto_document(result: AutoResult) -> dict[str, object]:
    """``pgle.auto/1`` without its name."""
    verdict = result.verdict
    return {
        "ok": result.good,
        **text.picked(result, "outcome why recompiled loaded"),
        "used": None
        if not verdict or verdict.verdict is ProfileUse.CANNOT_TELL
        else verdict.verdict.took_costs,
        "proof": verdict.proof if verdict else "",
        "run_dir": result.stage.request.run.path,
        "cache": result.cache,
        "steps": len(result.stage.step_times_s),
        **text.picked(result, "handed_over traces warnings"),
    }


class Stages:
    """Prints a line for each stage of an experiment; a live line while one runs.

    Args:
        simulated: no program runs that prints lines of its own.
    """

    def __init__(self, *, simulated: bool) -> None:
        self._simulated = simulated
        self._stage, self._again, self._since = "", "", 0.0
        self._running = ExitStack()
        self.warnings: dict[str, None] = {}  # of all stages so far, each once

    def __enter__(self) -> Stages:
        if self._simulated:
            self._running.enter_context(live("checking the program and the compiler"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self._running.close()
        if error is not None:  # otherwise the page has them
            text.warn(self.warnings)

    def announce(self, line: str) -> None:
        """What `Experiment` announces: a stage that begins, again and why, or that is skipped."""
        self._running.close()
        name, _, why = line.partition(": ")
        if name not in STAGES:
            text.say(line)
        elif why == "unchanged, skipped":
            self._stage, self._again = name, ""
            self._print("unchanged")
        else:
            self._stage, self._again, self._since = (
                name,
                why.removeprefix("again, "),
                time.monotonic(),
            )
            if self._simulated:
                self._running.enter_context(live(f"{self._head()}{why}".rstrip()))
            else:
                text.say(f"{self._head()}{why}".rstrip())

    def show(self, part: StageResult | Conversion | Coverage | Pipeline) -> None:
        """What a stage came to, at once: the next may take minutes. At the end the comparison,
        before the page.
        """
        self._running.close()
        if isinstance(part, StageResult):
            use = (
                use_line(part.verdict).partition(": ")[2]
                if part.verdict is not None
                else ""
            )
            self._print(" · ".join(filter(None, (steps_line(part) or "done", use))))
            self.warnings |= dict.fromkeys(part.warnings)
        elif isinstance(part, Conversion):
            self._print(costs_line(part))
            self.warnings |= dict.fromkeys(
                line for line in part.warnings if not line.endswith(NO_GPU)
            )
        elif isinstance(part, Coverage):
            self._print(
                f"{figures.share(_covered(part))} of the step's time has a cost"
            )
        else:
            self._stage, self._again = STAGES[-1], ""
            self._print(
                compare.headline(part.comparison)
                if part.comparison
                else "too few steps"
            )
            if not text.quiet:
                text.console().print()

    def _head(self) -> str:
        number = f"[{STAGES.index(self._stage) + 1}/{len(STAGES)}] "
        return f"{number}{self._stage:<{max(map(len, STAGES))}}  "

    def _print(self, line: str) -> None:
        if text.quiet:
            return
        again = f" · again: {self._again}" if self._again else ""
        took = time.monotonic() - self._since if self._since else 0.0
        seconds = f" · {took:.0f} s" if took >= 1 else ""
        text.console().print(
            printable(f"{self._head()}{line}{seconds}{again}"), soft_wrap=True
        )
        sys.stdout.flush()
        self._since = 0.0


def _covered(coverage: Coverage) -> float:
    return min((module.time.value or 0.0 for module in coverage.main), default=0.0)


def run_page(result: Pipeline, warnings: Iterable[str] = ()) -> Page:
    """Whether the step got faster with the profile; first of all whether XLA found and used it."""
    verdict, tone = _verdict(result)
    found, exposed = result.comparison, ""
    if result.exposed_us is not None:
        before, after = (
            figures.time(us).replace(figures.NONE, "none") for us in result.exposed_us
        )
        exposed = f"exposed communication: {before} → {after} (exposed: the GPU waits, nothing computes)"
    return Page(
        title=f"pgle run {result.run.path}",
        identity=(*identity(result.facts), str(result.run.path)),
        verdict=printable(verdict),
        tone=tone,
        notes=(exposed, SIMULATED if result.simulated else ""),
        sections=()
        if found is None
        else compare.comparison_page(found, result.checks).sections,
        way=to_way(_next(result)),
        warnings=tuple(dict.fromkeys((*warnings, *result.warnings))),
    )


def _verdict(result: Pipeline) -> tuple[str, Tone]:
    if not result.covered:
        share = figures.share(_covered(result.coverage))
        return f"FAILED: the profile covers only {share} of the baseline's step", "bad"
    if not result.used:
        return (
            f"FAILED: XLA did not use the profile{f' ({result.use})' if result.use else ''}",
            "bad",
        )
    if result.comparison is None:
        return "The profile is used; too few steps to compare", "warn"
    failed = any(check.failed for check in result.checks)
    tone = "bad" if failed else compare.TONES.get(result.comparison.verdict, "")
    return compare.headline(result.comparison), tone


def _next(result: Pipeline) -> Commands:
    run = result.run
    if not result.covered:
        return (Next.of("verify", run.profile, "--hlo", run.dump_to_cover),)
    if not result.used:
        return (Next.of("confirm", run.path),)
    return after_stages(run, result.comparison)


def run_document(result: Pipeline) -> dict[str, object]:
    """``pgle.run/1`` without its name."""
    comparison = result.comparison
    return {
        "ok": result.good,
        **text.picked(result, "covered used skipped"),
        "comparison": None
        if comparison is None
        else compare.document(comparison, result.checks),
        "ran": [item.request.stage for item in result.stages],
        "warnings": result.warnings,
    }
