"""What a profile, baseline or perf stage did, and what `pgle auto` came to, as pages and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from pgle.errors import many, printable
from pgle.masking import kept_argv
from pgle.next import typed
from pgle.report import text
from pgle.report.experiment.confirm import TONES, main_lines, use_line
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Tone
from pgle.run.directory.directory import RunDirectory, free
from pgle.run.inputs.next_command import Launch, by_every_rank, following
from pgle.run.stages.auto import AutoResult, used
from pgle.run.stages.stage import StageResult
from pgle.xla.flags.presets import MEASURES_ALONE

SIMULATED = "Simulated: no GPU was measured."


def troubles(result: StageResult) -> tuple[str, ...]:
    """What a rank says whose page nobody prints."""
    failed = (f"{result.request.stage} failed: {result.failed}",) if result.failed else ()
    return (*result.warnings, *failed)


def stage_page(result: StageResult) -> Page:
    """Step times, and of a perf stage whether XLA used the profile; compiler and flags in a section."""
    request, run = result.request, result.request.run
    lines: list[str] = []
    tone: Tone = "good"
    verdict = f"{request.stage}: {steps_line(result) or result.facts.get('window') or 'done'}"
    if result.failed:
        verdict, tone = f"{request.stage} failed: {result.failed}", "bad"
    elif result.verdict is not None:
        verdict, tone = use_line(result.verdict), TONES[result.verdict.verdict]
        lines = [steps_line(result), *main_lines(result.verdict)]
    goes_on = (result.good or result.verdict is None) and not result.failed
    command = following(run) if goes_on else ""
    if by_every_rank(run) and command.startswith(("pgle perf ", "pgle profile ")):
        lines.append("Start the next command on every rank.")
    return Page(
        title=f"pgle {request.stage} {run.path}",
        identity=(*identity(result.facts), str(request.folder.path)),
        verdict=printable(verdict),
        tone=tone,
        notes=tuple(printable(line) for line in (*lines, SIMULATED if result.simulated else "") if line),
        sections=(Section("stage", "What was run", tuple(_about(result))),),
        next=(command,) if command else (),
        warnings=result.warnings,
    )


def identity(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Module, devices and compiler, as far as a stage recorded them."""
    jaxlib = f"jaxlib {facts['jaxlib']}" if facts.get("jaxlib") else ""
    return tuple(printable(word) for word in (facts.get("module"), facts.get("devices"), jaxlib) if word)


def steps_line(result: StageResult) -> str:
    """``40 steps, 5.92 ms each``; empty if no step was seen."""
    if not result.step_times_s:
        return ""
    middle = figures.time(statistics.median(result.step_times_s) * 1e6)
    return f"{many(len(result.step_times_s), 'step')}, {middle} each"


def _about(result: StageResult) -> Iterator[Prose]:
    facts = result.facts
    if facts.get("program"):
        yield Prose(printable(f"program: {facts['program']}"))
    if facts.get("flags"):
        yield Prose(printable(f"XLA_FLAGS {facts['flags']}"))
    if result.request.stage == "profile":
        window = f" ({facts['window']})" if "window" in facts else ""
        yield from (Prose(printable(f"trace {path}{window}")) for path in result.request.folder.traces())
    if result.simulated:
        alone = figures.time(float(facts["predicted_step_us"]))
        yield Prose(f"The schedule alone takes {alone}. Kernels vary, and every rank waits for the slowest.")
        if result.request.stage == "profile" and result.request.mode == MEASURES_ALONE:
            yield Prose("Collectives are synchronous in this run only, so that each can be measured alone.")


def document(result: StageResult) -> dict[str, object]:
    """``pgle.profile/1``, ``pgle.baseline/1`` or ``pgle.perf/1`` without its name."""
    request = result.request
    return {
        "ok": result.good,
        "run_dir": request.run.path,
        **text.picked(result, "simulated exit_code failed verdict"),
        "steps": len(result.step_times_s),
        "median_step_s": statistics.median(result.step_times_s) if result.step_times_s else None,
        "traces": request.folder.traces() if request.stage == "profile" else (),
        **text.picked(result, "facts warnings"),
    }


def auto_page(result: AutoResult) -> Page:
    """What AutoPGLE did, and which modules it compiled again or took from the cache."""
    notes = []
    if result.recompiled:
        names = list(result.recompiled)[:3]
        notes.append(f"compiled again: {', '.join(names)}{' …' * (len(result.recompiled) > len(names))}")
    if result.verdict is not None:
        notes.append(use_line(result.verdict))
    if line := steps_line(result.stage):
        notes.append(line)
    if result.handover is not None:
        under = steps_line(result.handover)
        handed = f"under nsys: {many(len(result.handed_over), 'module')} as AutoPGLE left them"
        notes.append(f"{handed}; {under}" if under else handed)
    modules = [f"{name}: compiled again with {size:,} bytes of costs" for name, size in result.recompiled.items()]
    modules += [f"{name}: from the cache" for name in result.loaded]
    tone: Tone = "good" if result.good else "bad"
    return Page(
        title=f"pgle auto {result.request.run_dir}",
        identity=("AutoPGLE", str(result.request.run_dir)),
        verdict=printable(f"{result.outcome}: {result.why}"),
        tone=tone,
        notes=tuple(map(printable, (*notes, *(f"trace {path}" for path in result.traces)))),
        sections=(Section("modules", "Modules", tuple(Prose(printable(line)) for line in modules)),) if modules else (),
        next=after_auto(result),
        warnings=result.warnings,
    )


def after_auto(result: AutoResult) -> tuple[str, ...]:
    """Where the traced step goes, or what AutoPGLE brought; if it did nothing, another way."""
    request, run = result.request, RunDirectory(result.request.run_dir)
    launch = Launch(request.command).with_flags(request.flags)
    baseline, auto = run.stage("baseline").path, run.stage("auto").path
    if result.traces:
        return (typed("pgle", "analyze", run.stage("auto-nsys").path),)
    if result.outcome == "no-gpu":
        return (typed("pgle", "rehearse", "--", *kept_argv(request.command)),)
    if result.outcome not in ("recompiled", "loaded"):
        return (launch.line("run", free(run.path.with_name(f"{run.path.name}-stages"))),)
    without = () if baseline.is_dir() else (launch.line("perf", run.path, "--baseline"),)
    return (*without, typed("pgle", "compare", baseline, auto))


def auto_document(result: AutoResult) -> dict[str, object]:
    """``pgle.auto/1`` without its name."""
    return {
        "ok": result.good,
        **text.picked(result, "outcome why recompiled loaded"),
        "used": used(result),
        "proof": "" if result.verdict is None else result.verdict.proof,
        "run_dir": result.request.run_dir,
        "cache": result.request.cache_dir,
        "steps": len(result.stage.step_times_s),
        **text.picked(result, "handed_over traces warnings"),
    }
