"""`pgle report`: a page from anything that describes a run, as HTML, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from pgle.analyze.analysis import MeasuredStep
from pgle.errors import UserError, many, printable, some
from pgle.files import AnyPath, Progress, check_absent, write_files
from pgle.next import Commands, Next, Sentence, to_way
from pgle.report import compare
from pgle.report.account import SpanOf, nowhere
from pgle.report.analyze import BETWEEN, analyze_page, way_on
from pgle.report.chrome_trace import chrome_trace, packed_chrome_trace
from pgle.report.measured_timeline import measured_panels
from pgle.report.next_steps import way_in_run
from pgle.report.page import figures, value
from pgle.report.page.html import render
from pgle.report.page.plain import markdown
from pgle.report.page.value import (
    Cell,
    Page,
    Part,
    Prose,
    Section,
    Tile,
    Value,
    table,
)
from pgle.report.pictures import sides_chart, with_pictures
from pgle.report.text import near
from pgle.report.timeline import Panel, panel_of, tiles, timeline
from pgle.run.analyze import Analysis, RunFacts, StepInput, gather
from pgle.run.directory.directory import is_run_dir
from pgle.run.directory.manifest import Gpu, Manifest, StageRecord
from pgle.run.inputs.schedule_now import PLACES
from pgle.trace.table import Trace

DEFAULT = "report.html"
FAR = 0.2  # share of the step time; a prediction that is wrong by more gets a warning
FORMS: Mapping[str, Callable[[Page], str | bytes]] = {
    ".html": render,
    ".md": markdown,
    ".trace.json": chrome_trace,
    ".json.gz": packed_chrome_trace,
    ".json": value.as_json,
}
"""The format to write, by the ending of the file's name; the first match counts."""


def page_of(
    side: StepInput, other: StepInput | None = None, *, progress: Progress | None = None
) -> Page:
    """The page of a run directory or of traces, or a stored one."""
    if len(side.inputs) == 1 and other is None:
        (path,) = side.inputs
        for place in _stored_places(path):
            if place.is_file():
                return value.read_page(place)
    found = gather(side, other, progress=progress)
    return run_page(found, _following(found))


def _stored_places(path: AnyPath) -> list[AnyPath]:
    """Paths where a page may be stored: in a folder, or the file itself if it is JSON."""
    if path.is_dir():
        return [path / name for name in PLACES]
    return [path] if path.suffix == ".json" else []


def default_output(inputs: Sequence[AnyPath]) -> Path:
    """``report.html`` in the run directory, else in the working directory. If it exists, the next
    free name.
    """
    first = inputs[0]
    folder = Path(first) if isinstance(first, Path) and is_run_dir(first) else Path()
    path = folder / DEFAULT
    number = 2
    while path.exists():
        path = folder / f"report-{number}.html"
        number += 1
    return path


def form_of(path: AnyPath) -> str:
    """The ending of a file's name that `FORMS` knows.

    Raises:
        UserError: the ending is unknown.
    """
    for ending in FORMS:
        if path.name.endswith(ending):
            return ending
    remedy = f"choose a name that ends in {', '.join(FORMS)}"
    raise UserError("its ending is unknown", where=path, remedy=remedy)


def check_outputs(
    paths: Iterable[AnyPath], *, force: bool, inputs: Iterable[AnyPath]
) -> None:
    """Refuse outputs that cannot be written, before anything is read."""
    given = tuple(inputs)
    for path in paths:
        form_of(path)
        check_absent(path, force=force, inputs=given)


def write(page: Page, paths: Sequence[AnyPath], *, force: bool) -> tuple[str, ...]:
    """Write each file in its format, all or none. Return a line about each."""
    files: dict[AnyPath, str | bytes] = {}
    for path in paths:
        make = FORMS[form_of(path)]
        files[path] = make(page)
    write_files(files, force=force)
    return tuple(_written_line(path, content) for path, content in files.items())


def _written_line(path: AnyPath, content: str | bytes) -> str:
    """``wrote report.html (0.2 MB)``, and which program opens a trace."""
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    name = near(path) if isinstance(path, Path) else path
    size_mb = len(content) / 1e6
    line = f"wrote {name} ({size_mb:.2g} MB)"
    if FORMS[form_of(path)] in (chrome_trace, packed_chrome_trace):
        line = f"{line}: open it in https://ui.perfetto.dev"
    return line


def written(page: Page, lines: Sequence[str]) -> Page:
    """The identity and verdict of a written page, and its path."""
    return replace(
        page, table=None, notes=tuple(lines), actions=(), sections=(), warnings=()
    )


PROOF = Sentence.todo(
    "compare step times of several launches: only they prove a difference"
)
"""The next step after the page of two recorded steps."""


def run_page(found: RunFacts, following: Commands) -> Page:
    """Return the page of the analysis. The comparison of step times comes first; facts from the run
    directory follow.

    Args:
        found: facts about the run.
        following: the next commands; for two recorded steps they are `PROOF`.
    """
    analysis = found.analysis
    if analysis is not None and analysis.against is not None:
        following = (PROOF,)
    compared = found.comparison
    panels, lost = _panels(found)
    page = _analysis_page(found, panels, following)
    if compared is not None:
        tone = compare.TONES.get(compared.verdict, "")
        page = replace(page, verdict=compare.headline(compared), tone=tone)
    if analysis is not None and analysis.step.measures_alone:
        page = replace(page, actions=())
    drawn = tuple(_timeline_and_times(found, panels))
    stages = _stages(found.manifest)
    warnings = (*found.missing, *lost, *_prediction_warning(found), *page.warnings)
    return replace(
        page,
        title=f"pgle report: {_name(found)}",
        identity=(*page.identity, *_recorded(found.manifest)),
        sections=(*drawn, *page.sections, stages),
        about=tuple(_about(found)),
        warnings=tuple(dict.fromkeys(warnings)),
        tiles=_tiles(found),
    )


def _following(found: RunFacts) -> Commands:
    """Return what follows. In a run directory that is its next move."""
    if found.run is not None:
        return way_in_run(found.run)
    if found.analysis is not None:
        return way_on(found.analysis)
    return (Sentence.todo("give a run directory or a trace of the step"),)


def _analysis_page(
    found: RunFacts, panels: Sequence[Panel], following: Commands
) -> Page:
    """Return the page of the measured step with its pictures; an empty page if no step was
    measured.
    """
    if found.analysis is None:
        verdict = "A profile, and nothing measured with it yet"
        return Page("", (), verdict, way=to_way(following))
    first_rank = len(found.schedules)
    find = _span_finder(panels[first_rank]) if len(panels) > first_rank else nowhere
    page = analyze_page(found.analysis, following, find, is_page=True)
    return with_pictures(page, found.analysis)


def _timeline_and_times(
    found: RunFacts, panels: tuple[Panel, ...]
) -> Iterator[Section]:
    """The timeline, and the comparison of step times."""
    if panels:
        yield _timeline_section(found, panels)
    if found.comparison is not None:
        parts: list[Part] = []
        picture = sides_chart(found.comparison)
        if picture is not None:
            parts.append(picture)
        parts.append(compare.sides_table(found.comparison))
        limits = compare.check_lines(found.checks)
        parts += [Prose(str(line.value), tone=line.tone) for line in limits]
        heading = "Before and after: step times"
        yield Section("comparison", heading, tuple(parts), open=True)


def _timeline_section(found: RunFacts, panels: tuple[Panel, ...]) -> Section:
    """Draw one step of each schedule, or all steps of the ranks."""
    first_us = 0.0
    if found.schedules:
        first_us = max(panel.parts.step_us for panel in panels)
    drawn = timeline(panels, first_us)
    both = found.analysis is not None and found.analysis.before is not None
    heading = "Timeline of both steps" if both else "Timeline"
    return Section("timeline", heading, (drawn, Prose(_origin(found), tone="soft")))


def _origin(found: RunFacts) -> str:
    """Say where the timeline's schedules and ranks come from; empty without schedules."""
    if not found.schedules:
        return ""
    costs = "The schedules of both runs are predicted with the costs of the profile."
    if found.analysis is None:
        return costs
    run = "profile" if found.analysis.step.mode else "performance"
    return f"{costs} The ranks are those of the {run} run."


def _name(found: RunFacts) -> str:
    """Name the run directory, or the program and the first file."""
    if found.run is not None:
        return str(found.run.path)
    files = some([path.name for path in found.inputs], 1)
    if found.analysis is None:
        return printable(files)
    program = found.analysis.step.costs.program.key.name
    return printable(f"{program}, {files}")


def _recorded(manifest: Manifest) -> tuple[str, ...]:
    """The GPUs, host, day and versions that the run's manifest records."""
    stages = manifest.stages
    if not stages:
        return ()
    gpus = dict.fromkeys(gpu.name for gpu in _gpus(manifest))
    host = next((record.host for record in stages if record.host), "")
    versions = _versions(manifest)
    jax = f"jax {versions['jax']}" if "jax" in versions else ""
    return *gpus, host, stages[0].started[:10], jax


def _gpus(manifest: Manifest) -> Iterator[Gpu]:
    """The GPUs of every stage."""
    return chain.from_iterable(record.gpus for record in manifest.stages)


def _versions(manifest: Manifest) -> Mapping[str, str]:
    """The versions recorded by the last stage that has any."""
    recorded = (record.versions for record in reversed(manifest.stages))
    return next((versions for versions in recorded if versions), {})


def _span_finder(panel: Panel) -> SpanOf:
    """Return a function that finds an instruction's longest bar in the first step or the pause
    after it.
    """
    codes: dict[str, int] = {}
    for code, item in enumerate(panel.names):
        codes[item.lhs_name] = codes[item.name] = code
    codes.pop("", None)
    spans = panel.spans
    until_us = spans[0].end_us if spans else panel.length_us

    def span_of(name: str) -> tuple[float, float] | None:
        if name == BETWEEN:
            return (until_us, spans[1].start_us) if len(spans) > 1 else None
        bars: list[tuple[float, float]] = []
        for lane in panel.lanes:
            is_named = lane.named == codes.get(name, -1)
            rows = np.flatnonzero(is_named & (lane.start_us < until_us))
            if len(rows):
                longest = rows[np.argmax(lane.duration_us[rows])]
                start_us = float(lane.start_us[longest])
                bars.append((start_us, float(lane.end_us[longest])))
        return max(bars, key=lambda bar: bar[1] - bar[0], default=None)

    return span_of


def _tiles(found: RunFacts) -> tuple[Tile, ...]:
    """Step, exposed and idle time; for two runs or steps, before and after."""
    shown = _step_tiles(found)
    compared = found.comparison
    if compared is None:
        return shown
    before = figures.time(compared.base.median_s * 1e6)
    after = figures.time(compared.new.median_s * 1e6)
    timed = f"{before} → {after}"
    bars = shown[0].bars if shown else ()
    note = f"{figures.change(compared.change)}, medians of timed steps"
    return (Tile("step", timed, bars, note), *shown[1:])


def _step_tiles(found: RunFacts) -> tuple[Tile, ...]:
    """The parts of the predicted or the measured steps."""
    analysis = found.analysis
    if found.comparison is not None and len(found.schedules) > 1:
        parts = [item.prediction.timeline.breakdown for item in found.schedules]
        sides = (("before", parts[0]), ("after", parts[1]))
        return tiles(sides, "predicted from both schedules")
    if analysis is None:
        return ()
    if analysis.against is not None:
        against = analysis.against
        both = (("before", against.before), ("after", against.after))
        return tiles(both)
    step = analysis.step
    note = f"of the {step.mode} profile run" if step.mode else ""
    if step.trace.simulated:
        note = "simulated"
    return tiles((("", step.breakdown),), note)


def _prediction_warning(found: RunFacts) -> list[str]:
    """Warn if the measured step time of the perf run is far from the prediction."""
    if found.comparison is None or not found.schedules:
        return []
    predicted_us = found.schedules[-1].prediction.step_us
    timed_us = found.comparison.new.median_s * 1e6
    if abs(predicted_us / timed_us - 1) <= FAR:
        return []
    timed = f"the performance run was timed at {figures.time(timed_us)} a step"
    return [
        f"{timed}, predicted were {figures.time(predicted_us)}: "
        "trust the timed steps, and only the order of the predicted schedules"
    ]


def _panels(found: RunFacts) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The schedules of both runs, then every traced rank. For two steps, the first rank of each."""
    analysis = found.analysis
    if analysis is None:
        return (), ()
    if analysis.before is not None:
        before, lost_before = measured_panels(analysis.before, "before")
        after, lost_after = measured_panels(analysis.step, "after")
        return (*before[:1], *after[:1]), (*lost_before, *lost_after)
    panels, notes = measured_panels(analysis.step)
    schedules: list[Panel] = []
    for item in found.schedules:
        prediction = item.prediction
        note = prediction.costs_are
        if analysis.step.trace.simulated:
            note = "simulated"
        panel = panel_of(item.label, prediction.timeline, note, item.module)
        schedules.append(panel)
    return (*schedules, *panels), notes


def _stages(manifest: Manifest) -> Section:
    """A row for each stage: start, result."""
    rows: list[tuple[Value, ...]] = []
    for record in manifest.stages:
        row = (record.stage, str(record.rank), _started(record))
        rows.append((*row, _ended(record), record.mode))
    heads = ("stage", "rank", "started (UTC)", "", "mode")
    return Section("stages", "Stages", (table(heads, rows),))


def _started(record: StageRecord) -> str:
    """``2026-11-29 08:30:00``, in UTC."""
    return record.started[:19].replace("T", " ")


def _ended(record: StageRecord) -> Cell:
    """How a stage ended, or that it is still running."""
    if record.failed:
        return Cell(record.failed, "bad")
    if record.exit_code:
        return Cell(f"exit code {record.exit_code}", "bad")
    return Cell("runs" if record.exit_code is None else "ended well")


def _gpu_words(step: MeasuredStep) -> str:
    """The GPU that the expected times assume, and what names it: ``a100-40gb (by the trace)``."""
    if step.hardware is None:
        return "unknown"
    name = step.hardware.name
    return f"{name} ({step.hardware_from})" if step.hardware_from else name


def _about(found: RunFacts) -> Iterator[tuple[str, str]]:
    """Program, hardware, versions, date, profile and simulated parts."""
    yield from _about_run(found.manifest)
    if found.profile is not None:
        yield "profile", many(len(found.profile.costs), "cost")
    performance = found.manifest.last("perf")
    if performance is not None and "verdict" in performance.facts:
        facts = performance.facts
        used = f"{facts['verdict']} in the performance run"
        yield "use", f"{used}: {facts.get('why', '')}"
    if found.analysis is not None:
        yield from _about_step(found.analysis)


def _about_run(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """The program, versions and machine that the last stage with a command recorded."""
    stages = manifest.stages
    record = next((item for item in reversed(stages) if item.argv), None)
    if record is None:
        return
    yield "program", str(Next(record.argv))
    commits = (item.commit for item in reversed(stages) if item.commit)
    if commit := next(commits, ""):
        yield "commit", commit.replace("+", " with changes that are not committed")
    versions = _in_words(_versions(manifest))
    yield "versions", versions or "not recorded"
    gpus = dict.fromkeys(f"{gpu.name}, driver {gpu.driver}" for gpu in _gpus(manifest))
    topology = _in_words(record.topology)
    host = record.host and f"host {record.host}"
    hardware = "; ".join(filter(None, (*gpus, topology, host)))
    yield "hardware", hardware or "not recorded"
    yield "date", f"{_started(stages[0])} UTC"


def _in_words(named: Mapping[str, object]) -> str:
    """``jax 0.10.2, jaxlib 0.10.2``."""
    return ", ".join(f"{name} {value}" for name, value in named.items())


def _about_step(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """The traces, the main module, and the GPU that the expected times assume."""
    step = analysis.step
    yield "trace", _sources(step.trace)
    if analysis.before is not None:
        yield "trace before", _sources(analysis.before.trace)
    devices = len(step.windows)
    each = step.steps / max(devices, 1)
    steps = "1 steady step" if each == 1 else f"{each:g} steady steps"
    module = step.costs.program.key.name
    yield "main module", f"{module}, {steps} on {many(devices, 'device')}"
    yield "GPU for expected times", _gpu_words(step)
    figures_are = "measured; expected times are estimates"
    if step.trace.simulated:
        figures_are = "simulated: no GPU ran this"
    yield "figures", figures_are


def _sources(trace: Trace) -> str:
    """The files of a trace, with format and version."""
    words = (
        f"{item.path} ({item.format} {item.version})".replace(" )", ")")
        for item in trace.sources
    )
    return "; ".join(words)
