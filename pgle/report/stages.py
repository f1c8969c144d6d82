"""An experiment as pages and as JSON: one stage, `pgle auto`, or all stages."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from pgle.costs.profile.coverage import Coverage
from pgle.errors import many, printable
from pgle.masking import kept_argv
from pgle.next import Commands, Next, Sentence, to_way
from pgle.report import compare, text
from pgle.report.confirm import USE_TONES, main_lines, use_line
from pgle.report.conversions import costs_line
from pgle.report.next_steps import way_in_run
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Tone
from pgle.report.text import Document, live
from pgle.run.convert import Conversion
from pgle.run.directory.directory import free
from pgle.run.inputs.next_command import ProgramLaunch, by_every_rank
from pgle.run.stages.auto import AutoResult, Outcome
from pgle.run.stages.pipeline import STAGES, Pipeline
from pgle.run.stages.stage import StageResult
from pgle.steps.compare import Comparison
from pgle.steps.series import steady_median_s
from pgle.trace.table import SIMULATED as NO_GPU
from pgle.xla.flags.presets import MEASURES_ALONE
from pgle.xla.log.verdict import ModuleVerdict, ProfileUse

SIMULATED = "Simulated: no GPU was measured."
MOST_NAMES = 3  # modules that a line lists


def troubles(result: StageResult) -> tuple[str, ...]:
    """Return the warnings of a rank whose page is not printed, and its failure if it failed."""
    if not result.failed:
        return result.warnings
    return (*result.warnings, _failure(result))


def _failure(result: StageResult) -> str:
    return f"{result.request.stage} failed: {result.failed}"


def stage_page(result: StageResult) -> Page:
    """Show step times. For a perf stage, also show whether XLA used the profile. A section has
    compiler and flags.
    """
    request = result.request
    run = request.run
    verdict, tone = _stage_verdict(result)
    command = _following(result)
    notes = [*_stage_notes(result)]
    starts = isinstance(command, Next) and command.name in ("perf", "profile")
    if starts and by_every_rank(run):
        notes.append("Start the next command on every rank.")
    if result.simulated:
        notes.append(SIMULATED)
    place = str(request.folder.path)
    about = tuple(Prose(printable(line)) for line in _about(result))
    section = Section("stage", "What was run", about)
    return Page(
        title=f"pgle {request.stage} {run.path}",
        identity=(*identity(result.facts), place),
        verdict=printable(verdict),
        tone=tone,
        notes=tuple(map(printable, notes)),
        sections=(section,),
        way=to_way([command]),
        warnings=result.warnings,
    )


def _stage_verdict(result: StageResult) -> tuple[str, Tone]:
    """Say why the stage failed; else whether XLA used the profile, if the stage knows it."""
    if result.failed:
        return _failure(result), "bad"
    if result.verdict is not None:
        return use_line(result.verdict), USE_TONES[result.verdict.verdict]
    done = steps_line(result) or result.facts.get("window") or "done"
    return f"{result.request.stage}: {done}", "good"


def _stage_notes(result: StageResult) -> Iterator[str]:
    """Step times and proof, if the verdict is about the use of the profile."""
    if result.verdict is not None and not result.failed:
        yield steps_line(result)
        yield from main_lines(result.verdict)


def _following(result: StageResult) -> Next | Sentence:
    """Return the next stage; if this one failed its check, what fixes that."""
    if result.failed:
        return Sentence.todo("mend what the verdict says; then repeat the command")
    return way_in_run(result.request.run)[0]


def identity(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Name module, devices and compiler, as far as a stage recorded them."""
    jaxlib = f"jaxlib {facts['jaxlib']}" if facts.get("jaxlib") else ""
    words = (facts.get("module"), facts.get("devices"), jaxlib)
    return tuple(printable(word) for word in words if word)


def steps_line(result: StageResult) -> str:
    """``40 steps, 5.92 ms each``; empty if no step was seen."""
    median_s = steady_median_s(result.step_times_s)
    if median_s is None:
        return ""
    steps = many(len(result.step_times_s), "step")
    return f"{steps}, {figures.time(median_s * 1e6)} each"


def _about(result: StageResult) -> Iterator[str]:
    """The program, its flags and traces, and what a simulated step assumes."""
    facts = result.facts
    request = result.request
    is_profile = request.stage == "profile"
    if facts.get("program"):
        yield f"program: {facts['program']}"
    if facts.get("flags"):
        yield f"XLA_FLAGS {facts['flags']}"
    if is_profile:
        window = f" ({facts['window']})" if "window" in facts else ""
        for path in request.folder.traces():
            yield f"trace {path}{window}"
    if result.simulated:
        alone = figures.time(float(facts["predicted_step_us"]))
        varies = "Kernels vary, and every rank waits for the slowest."
        yield f"The schedule alone takes {alone}. {varies}"
        if is_profile and request.mode == MEASURES_ALONE:
            yield (
                "Collectives are synchronous in this run only, so that each can be measured "
                "alone."
            )


class StageDocument(Document):
    """``pgle.profile/1``, ``pgle.baseline/1`` or ``pgle.perf/1``."""

    ok: bool
    run_dir: Path
    simulated: bool
    failed: str
    verdict: ModuleVerdict | None
    steps: int
    median_step_s: float | None
    traces: tuple[Path, ...]
    facts: Mapping[str, str]
    warnings: tuple[str, ...]


def stage_document(result: StageResult) -> StageDocument:
    """The record of a stage. A profile stage also has traces."""
    request = result.request
    traces = request.folder.traces() if request.stage == "profile" else ()
    return StageDocument.of_value(
        result,
        ok=result.good,
        run_dir=request.run.path,
        steps=len(result.step_times_s),
        median_step_s=steady_median_s(result.step_times_s),
        traces=tuple(traces),
    )


def auto_page(result: AutoResult) -> Page:
    """Show what AutoPGLE did, and which modules it compiled again or took from the cache."""
    run = str(result.stage.request.run.path)
    traces = (f"trace {path}" for path in result.traces)
    notes = (*_auto_notes(result), *traces)
    lines = tuple(Prose(printable(line)) for line in _auto_modules(result))
    modules = Section("modules", "Modules", lines)
    return Page(
        title=f"pgle auto {run}",
        identity=("AutoPGLE", run),
        verdict=printable(f"{result.outcome}: {result.why}"),
        tone="good" if result.good else "bad",
        notes=tuple(map(printable, notes)),
        sections=(modules,),
        way=to_way(after_auto(result)),
        warnings=result.warnings,
    )


def _auto_notes(result: AutoResult) -> Iterator[str]:
    """Say what was compiled again, whether XLA used it, and how long the steps took."""
    if result.recompiled:
        names = list(result.recompiled)
        first = ", ".join(names[:MOST_NAMES])
        more = " …" if len(names) > MOST_NAMES else ""
        yield f"compiled again: {first}{more}"
    if result.verdict is not None:
        yield use_line(result.verdict)
    yield steps_line(result.stage)
    if result.handover is not None:
        modules = many(len(result.handed_over), "module")
        handed = f"under nsys: {modules} as AutoPGLE left them"
        yield "; ".join(filter(None, (handed, steps_line(result.handover))))


def _auto_modules(result: AutoResult) -> Iterator[str]:
    """A line for each module that AutoPGLE compiled again or took from the cache."""
    for name, size in result.recompiled.items():
        yield f"{name}: compiled again with {size:,} bytes of costs"
    for name in result.loaded:
        yield f"{name}: from the cache"


def after_auto(result: AutoResult) -> Commands:
    """Return the commands that analyze the traced step or compare it. If AutoPGLE did nothing,
    pgle's own stages follow.
    """
    request = result.stage.request
    run = request.run
    if result.traces:
        return (Next.of("analyze", run.stage("auto-nsys").path),)
    if result.outcome == "no-gpu":
        return (Next.of("rehearse", "--", *kept_argv(request.command)),)
    launch = ProgramLaunch(request.command).with_flags(request.flags)
    if not result.worked:
        folder = free(run.sibling("stages"))
        return (launch.line("run", folder),)
    baseline = run.stage("baseline").path
    comparing = Next.of("compare", baseline, run.stage("auto").path)
    if baseline.is_dir():
        return (comparing,)
    return launch.line("perf", run.path, "--baseline"), comparing


class AutoDocument(Document):
    """``pgle.auto/1``; `used` is None if XLA's log does not show it."""

    ok: bool
    outcome: Outcome
    why: str
    recompiled: Mapping[str, int]
    loaded: tuple[str, ...]
    used: bool | None
    proof: str
    run_dir: Path
    cache: Path
    steps: int
    handed_over: tuple[str, ...]
    traces: tuple[Path, ...]
    warnings: tuple[str, ...]


def auto_document(result: AutoResult) -> AutoDocument:
    """The record of AutoPGLE."""
    verdict = result.verdict
    used = None
    if verdict is not None and verdict.verdict is not ProfileUse.CANNOT_TELL:
        used = verdict.verdict.took_costs
    return AutoDocument.of_value(
        result,
        ok=result.good,
        used=used,
        proof="" if verdict is None else verdict.proof,
        run_dir=result.stage.request.run.path,
        steps=len(result.stage.step_times_s),
    )


class Stages:
    """Prints a line for each stage of an experiment, and a live line while a stage runs.

    Args:
        simulated: no program runs that would print its own lines.
    """

    def __init__(self, *, simulated: bool) -> None:
        self._simulated = simulated
        self._stage = ""
        self._again = ""
        self._since = 0.0
        self._running = ExitStack()
        self.warnings: dict[str, None] = {}  # of all stages so far, without repetition

    def __enter__(self) -> Stages:
        if self._simulated:
            if not text.quiet:
                text.console().print("Simulated: this run uses no GPU", soft_wrap=True)
            self._running.enter_context(live("checking the program and the compiler"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self._running.close()
        if error is not None:  # otherwise the page shows the warnings
            text.warn(self.warnings)

    def announce(self, line: str) -> None:
        """Print that a stage begins, why it runs again, or that it is skipped."""
        self._running.close()
        name, _, why = line.partition(": ")
        if name not in STAGES:
            text.say(line)
        elif why == "unchanged, skipped":
            self._stage = name
            self._again = ""
            self._print("unchanged")
        else:
            self._begin(name, why)

    def _begin(self, name: str, why: str) -> None:
        """Say that a stage begins; show a live line if no program prints its own."""
        self._stage = name
        self._again = why.removeprefix("again, ")
        self._since = time.monotonic()
        begun = f"{self._head()}{why}".rstrip()
        if self._simulated:
            self._running.enter_context(live(begun))
        else:
            text.say(begun)

    def show(self, part: StageResult | Conversion | Coverage | Pipeline) -> None:
        """Print the result of a stage at once, because the next may take minutes. The comparison
        comes last, before the page.
        """
        self._running.close()
        if isinstance(part, StageResult):
            self._print(_stage_words(part))
            self.warnings |= dict.fromkeys(part.warnings)
        elif isinstance(part, Conversion):
            self._print(costs_line(part))
            others = (line for line in part.warnings if not line.endswith(NO_GPU))
            self.warnings |= dict.fromkeys(others)
        elif isinstance(part, Coverage):
            share = figures.share(_covered(part))
            self._print(f"{share} of the step's time has a cost")
        else:
            self._compared(part.comparison)

    def _compared(self, comparison: Comparison | None) -> None:
        """Print the verdict of the comparison as the last stage."""
        self._stage = STAGES[-1]
        self._again = ""
        words = "too few steps"
        if comparison is not None:
            words = compare.headline(comparison)
        self._print(words)
        if not text.quiet:
            text.console().print()

    def _head(self) -> str:
        """``[2/6] convert   ``: names of stages are aligned."""
        number = STAGES.index(self._stage) + 1
        width = max(map(len, STAGES))
        return f"[{number}/{len(STAGES)}] {self._stage:<{width}}  "

    def _print(self, line: str) -> None:
        """Print what a stage did, how long it took, and why it ran again."""
        if text.quiet:
            return
        again = f" · again: {self._again}" if self._again else ""
        took = time.monotonic() - self._since if self._since else 0.0
        seconds = f" · {took:.0f} s" if took >= 1 else ""
        whole = f"{self._head()}{line}{seconds}{again}"
        text.console().print(printable(whole), soft_wrap=True)
        sys.stdout.flush()
        self._since = 0.0


def _stage_words(result: StageResult) -> str:
    """Return the steps of a stage, and whether XLA used the profile if the stage knows it."""
    steps = steps_line(result) or "done"
    if result.verdict is None:
        return steps
    _, _, use = use_line(result.verdict).partition(": ")
    return f"{steps} · {use}" if use else steps


def _covered(coverage: Coverage) -> float:
    """The least covered share of step time over all compilations."""
    return min((module.time.value or 0.0 for module in coverage.main), default=0.0)


def run_page(result: Pipeline, warnings: Iterable[str] = ()) -> Page:
    """Say whether the profile made the step faster. If XLA did not find or use it, say that
    first.
    """
    verdict, tone = _verdict(result)
    place = str(result.run.path)
    every = tuple(dict.fromkeys((*warnings, *result.warnings)))
    sections: tuple[Section, ...] = ()
    if result.comparison is not None:
        page = compare.comparison_page(result.comparison, result.checks)
        sections = page.sections
    return Page(
        title=f"pgle run {place}",
        identity=(*identity(result.facts), place),
        verdict=printable(verdict),
        tone=tone,
        notes=tuple(_run_notes(result)),
        sections=sections,
        way=to_way(_next(result)),
        warnings=every,
    )


def _run_notes(result: Pipeline) -> Iterator[str]:
    """Exposed communication without and with the profile, if the GPU is simulated."""
    if result.exposed_us is None:
        return
    times = map(figures.time, result.exposed_us)
    before, after = (shown.replace(figures.NONE, "none") for shown in times)
    means = "exposed: the GPU waits, nothing computes"
    yield f"exposed communication, simulated: {before} → {after} ({means})"
    yield SIMULATED


def _verdict(result: Pipeline) -> tuple[str, Tone]:
    """Say what failed first; else whether the step got faster."""
    if not result.covered:
        share = figures.share(_covered(result.coverage))
        return f"FAILED: the profile covers only {share} of the baseline's step", "bad"
    if not result.used:
        why = f" ({result.use})" if result.use else ""
        return f"FAILED: XLA did not use the profile{why}", "bad"
    if result.comparison is None:
        return "The profile is used; too few steps to compare", "warn"
    tone = compare.TONES.get(result.comparison.verdict, "")
    if any(check.failed for check in result.checks):
        tone = "bad"
    return compare.headline(result.comparison), tone


def _next(result: Pipeline) -> Commands:
    """Return the run directory's next move. A profile that covers too little is inspected
    instead.
    """
    if not result.covered:
        # a single stage does not need this
        from pgle.account.next_move import Known
        from pgle.report.next_in_run import way_of_run

        return way_of_run(result.run, Known(is_covered=False))
    return way_in_run(result.run, result.comparison, is_judged=result.used)


class RunDocument(Document):
    """``pgle.run/1``; `comparison` is that of ``pgle.compare/1``."""

    ok: bool
    covered: bool
    used: bool
    skipped: tuple[str, ...]
    comparison: compare.CompareDocument | None
    ran: tuple[str, ...]
    warnings: tuple[str, ...]


def run_document(result: Pipeline) -> RunDocument:
    """The record of all stages."""
    comparison = None
    if result.comparison is not None:
        comparison = compare.document(result.comparison, result.checks)
    ran = tuple(item.request.stage for item in result.stages)
    return RunDocument.of_value(result, ok=result.good, comparison=comparison, ran=ran)
