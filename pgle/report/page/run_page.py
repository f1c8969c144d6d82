"""The page of a run: what `pgle report` says of a run directory or of traces, verdict first."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.costs.profile.value import CostKind, Profile
from pgle.errors import many, some
from pgle.next import Next
from pgle.report import analyze as analyze_report
from pgle.report.page.measured import step_sections
from pgle.report.page.parts import Cell, Moving, Page, Part, Prose, Section, Table, Tone, next_steps
from pgle.report.steps import compare as compare_report
from pgle.report.steps.compare import TONES
from pgle.report.steps.compare_page import comparison_parts
from pgle.report.text import duration
from pgle.report.timeline.measured import measured_panels
from pgle.report.timeline.scene import Panel, panel_of, parts_of
from pgle.run.analyze import Analysis
from pgle.run.experiment.manifest import Manifest, StageRecord
from pgle.run.report import Gathered
from pgle.schedule.predict import Prediction

COSTS = 60  # rows of costs that a page holds; `pgle show` has all
FAR = 0.2  # from here on a prediction is said to be off
PREDICTED = (
    "The schedules of both runs are predicted with the profile's costs; the step times below are what was timed."
)


def run_page(found: Gathered) -> Page:
    """Verdict, timeline, before and after, findings, where the time goes, costs, coverage, where it comes from."""
    panels, notes = _panels(found)
    sections = [Section("", _timeline(found, panels))] if panels else []
    if found.comparison is not None:
        sections.append(Section("Before and after: step times", comparison_parts(found.comparison, found.checks)))
    if found.analysis is not None:
        sections += step_sections(found.analysis)
    if found.profile is not None:
        sections.append(_costs(found.profile))
    if found.coverage is not None:
        sections.append(_coverage(found))
    if found.manifest.stages:
        sections.append(_stages(found.manifest))
    verdict, tone, lead = _verdict(found)
    analysed = () if found.analysis is None else found.analysis.warnings
    return Page(
        title=f"pgle report: {_name(found)}",
        verdict=verdict,
        tone=tone,
        lead=lead,
        sections=tuple(sections),
        next=() if found.analysis is None else next_steps(found.analysis.next),
        about=tuple(_about(found)),
        warnings=tuple(dict.fromkeys((*found.missing, *notes, *_far_off(found), *analysed))),
    )


def _far_off(found: Gathered) -> list[str]:
    """Where the predicted performance run is not the timed one."""
    if found.comparison is None or not found.schedules:
        return []
    predicted, timed = found.schedules[-1].prediction.step_us, found.comparison.new.median_s * 1e6
    if abs(predicted / timed - 1) <= FAR:
        return []
    return [
        f"the performance run is predicted to take {duration(predicted)} a step and was timed at {duration(timed)}: "
        "believe the step times, and of the predicted schedules the order alone"
    ]


def _name(found: Gathered) -> str:
    if found.run is not None:
        return str(found.run.path)
    return some(map(str, found.inputs), 1)


def _verdict(found: Gathered) -> tuple[str, Tone, tuple[str, ...]]:
    """The answer: the comparison where there is one, else where the time goes; and the other below it."""
    said = [] if found.analysis is None else [_where(found.analysis), analyze_report.verdict(found.analysis)]
    if found.comparison is None:
        return (said[0], "", tuple(said[1:])) if said else ("A profile, and nothing measured with it yet.", "", ())
    use = _use(found.performance)
    headline = compare_report.headline(found.comparison)
    tone: Tone = (
        "good" if TONES.get(found.comparison.verdict) == "good" else "bad" if found.comparison.verdict in TONES else ""
    )
    return headline[:1].upper() + headline[1:], tone, (*([use] if use else []), *said)


def _use(record: StageRecord | None) -> str:
    if record is None or "verdict" not in record.facts:
        return ""
    return f"Profile {record.facts['verdict']} in the performance run: {record.facts.get('why', '')}"


def _where(found: Analysis) -> str:
    """``A step takes 125.1 ms on 4 devices: 77.0% compute, 13.2% exposed communication, 9.8% idle.``"""
    step, parts = found.step, found.step.breakdown
    whole = "A step" + f" of the {_run_of(step.mode)}" * bool(step.mode)
    simulated = " (simulated)" if step.trace.simulated else ""
    shares = ", ".join(
        f"{us / parts.step_us:.1%} {name}" for name, us in parts_of(parts) if us > 0.0005 * parts.step_us
    )
    on = many(len(step.windows), "device")
    return f"{whole} takes {duration(parts.step_us)} on {on}{simulated}: {shares}."


def _run_of(mode: str) -> str:
    return "profile run" if mode else "performance run"


def _panels(found: Gathered) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The schedules of both runs, then every device that was traced."""
    panels, notes = measured_panels(found.analysis.step) if found.analysis is not None else ((), ())
    before = tuple(
        panel_of(item.label, item.prediction.timeline, _costs_are(found, item.prediction), item.module)
        for item in found.schedules
    )
    return (*before, *panels), notes


def _costs_are(found: Gathered, prediction: Prediction) -> str:
    simulated = found.analysis is not None and found.analysis.step.trace.simulated
    return "simulated" if simulated else prediction.costs_are


def _timeline(found: Gathered, panels: tuple[Panel, ...]) -> tuple[Part, ...]:
    of_run = None if found.run is None or found.analysis is None else found.analysis.step.mode
    traced = "" if of_run is None else f" The devices are those of the {_run_of(of_run)}."
    note = f"{PREDICTED}{traced}" if found.schedules else ""
    one_step_us = max(panel.parts.step_us for panel in panels) if found.schedules else 0.0
    return (Moving.of(panels, one_step_us), *([Prose(note, tone="soft")] if note else []))


def _costs(profile: Profile) -> Section:
    """What instructions cost, the costliest first."""
    costs = sorted(profile.costs, key=lambda cost: -cost.cost_us)
    rows = tuple(
        (cost.name, cost.kind.value, duration(cost.cost_us), f"{cost.samples or ''}", cost.origin.value, cost.shape)
        for cost in costs[:COSTS]
    )
    collectives = [cost for cost in costs if cost.kind is CostKind.COLLECTIVE]
    said = f"{len(costs):,} instructions have a cost, {len(collectives):,} of them collectives."
    heads = ("instruction", "kind", "one execution", "samples", "cost is", "shape")
    return Section(
        "Costs", (Prose(said), Table(heads, rows, frozenset({2, 3}), tuple(cost.name for cost in costs[:COSTS])))
    )


def _coverage(found: Gathered) -> Section:
    """What of each compilation of the main module the profile covers."""
    assert found.coverage is not None
    rows: list[tuple[str, ...]] = []
    hints: list[str] = []
    for module in found.coverage.main:
        shares = (module.count, module.time, module.collectives)
        cells = ["–" if share.value is None else f"{share.value:.1%}" for share in shares]
        rows.append((module.module, module.fingerprint[:12], *cells, f"{len(module.gaps):,}"))
        hints += module.hints
    heads = ("module", "fingerprint", "instructions", "time", "collectives", "without a cost")
    parts: list[Part] = [Table(heads, tuple(rows), frozenset({2, 3, 4, 5}))]
    return Section("Coverage of the profile", (*parts, *(Prose(hint) for hint in dict.fromkeys(hints))))


def _stages(manifest: Manifest) -> Section:
    """Each stage: when, how it ended."""
    rows: list[tuple[str | Cell, ...]] = []
    for record in manifest.stages:
        ended = {None: "runs", 0: "ended well"}.get(record.exit_code, f"exit code {record.exit_code}")
        result = Cell(record.failed or ended, "bad" if record.failed or record.exit_code else "")
        rows.append((record.stage, str(record.rank), record.started[:19].replace("T", " "), result, record.mode))
    return Section("Stages", (Table(("stage", "rank", "started (UTC)", "", "mode"), tuple(rows)),))


def _about(found: Gathered) -> Iterator[tuple[str, str]]:
    """Program, hardware, versions, date, what is simulated, and where a trace for other viewers comes from."""
    record = next((item for item in reversed(found.manifest.stages) if item.argv), None)
    if record is not None:
        yield "program", str(Next(record.argv))
        versions = next((item.versions for item in reversed(found.manifest.stages) if item.versions), {})
        if commit := next((item.commit for item in reversed(found.manifest.stages) if item.commit), ""):
            yield "commit", commit.replace("+", " with changes that are not committed")
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or "not recorded"
        gpus = [gpu for item in found.manifest.stages for gpu in item.gpus]
        named = dict.fromkeys(f"{gpu.name}, driver {gpu.driver}" for gpu in gpus)
        topology = ", ".join(f"{name} {value}" for name, value in record.topology.items())
        yield (
            "hardware",
            "; ".join(filter(None, (*named, topology, record.host and f"host {record.host}"))) or "not recorded",
        )
        yield "date", f"{found.manifest.stages[0].started[:19].replace('T', ' ')} UTC"
    if found.analysis is not None:
        step = found.analysis.step
        yield (
            "trace",
            "; ".join(f"{item.path} ({item.format} {item.version})".replace(" )", ")") for item in step.trace.sources),
        )
        devices = len(step.windows)
        each = step.steps / max(devices, 1)
        on = f"{each:g} steady step{'s' * (each != 1)} on {many(devices, 'device')}"
        yield "main module", f"{step.costs.program.key.name}, {on}"
        yield "GPU for expected times", "unknown" if step.hardware is None else step.hardware.name
        kind = "simulated: no GPU ran this" if step.trace.simulated else "measured; expected times are estimates"
        yield "figures", kind
    command = Next.of("report", *found.inputs, "-o", "report.trace.json")
    yield "for Perfetto", f"open in ui.perfetto.dev what this writes: {command}"
