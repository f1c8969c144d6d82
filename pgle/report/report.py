"""`pgle report`: a page from whatever describes a run, as HTML, Markdown or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pgle.analyze.analysis import MeasuredStep
from pgle.errors import UserError, many, printable, some
from pgle.files import AnyPath, Progress, check_absent, write_files
from pgle.next import Next, to_way
from pgle.report import compare
from pgle.report.account import SpanOf, nowhere
from pgle.report.analyze import BETWEEN, analyze_page
from pgle.report.chrome_trace import chrome_trace, packed_chrome_trace
from pgle.report.next_steps import after_stages
from pgle.report.page import figures, value
from pgle.report.page.html import render
from pgle.report.page.plain import markdown
from pgle.report.page.value import Cell, Page, Part, Prose, Section, Tile, table
from pgle.report.pictures import sides_chart, with_pictures
from pgle.report.text import near
from pgle.report.timeline import Panel, measured_panels, panel_of, tiles, timeline
from pgle.run.analyze import RunFacts, StepInput, gather
from pgle.run.directory.directory import STORED
from pgle.run.directory.manifest import Manifest
from pgle.run.inputs.traces import is_run_dir

PLACES = (
    STORED,
    f"rehearsal/{STORED}",
)  # where `rehearse` and `tune` leave the page of their folder
DEFAULT = "report.html"
FAR = 0.2  # of the step time; a prediction that is further off gets a warning
FORMS: Mapping[str, Callable[[Page], str | bytes]] = {
    ".html": render,
    ".md": markdown,
    ".trace.json": chrome_trace,
    ".json.gz": packed_chrome_trace,
    ".json": value.as_json,
}
"""The form to write, by the ending of the file's name; the first that fits."""


def page_of(
    side: StepInput, other: StepInput | None = None, *, progress: Progress | None = None
) -> Page:
    """The page of a run directory or of traces, or a stored one."""
    if len(side.inputs) == 1 and other is None:
        path = side.inputs[0]
        places = (
            [path / name for name in PLACES]
            if path.is_dir()
            else [path] * (path.suffix == ".json")
        )
        for place in places:
            if place.is_file():
                return value.read_page(place)
    return run_page(gather(side, other, progress=progress))


def default_output(inputs: Sequence[AnyPath]) -> Path:
    """``report.html`` in the run directory, else here; the first name that is free."""
    first = inputs[0]
    folder = Path(first) if isinstance(first, Path) and is_run_dir(first) else Path()
    path, number = folder / DEFAULT, 2
    while path.exists():
        path, number = folder / f"report-{number}.html", number + 1
    return path


def form_of(path: AnyPath) -> str:
    """The ending of a file's name that `FORMS` knows.

    Raises:
        UserError: it ends otherwise.
    """
    for ending in FORMS:
        if path.name.endswith(ending):
            return ending
    raise UserError(
        "is of no known form",
        where=path,
        remedy=f"choose a name that ends in {', '.join(FORMS)}",
    )


def check_outputs(
    paths: Iterable[AnyPath], *, force: bool, inputs: Iterable[AnyPath]
) -> None:
    """Refuse what cannot be written before anything is read."""
    given = tuple(inputs)
    for path in paths:
        form_of(path)
        check_absent(path, force=force, inputs=given)


def write(page: Page, paths: Sequence[AnyPath], *, force: bool) -> tuple[str, ...]:
    """Write each file in its form, all or none; a line on each that was written."""
    files: dict[AnyPath, str | bytes] = {
        path: FORMS[form_of(path)](page) for path in paths
    }
    write_files(files, force=force)
    return tuple(_written_line(path, content) for path, content in files.items())


def _written_line(path: AnyPath, content: str | bytes) -> str:
    """``wrote report.html (0.2 MB)``, and who opens a trace."""
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    name = near(path) if isinstance(path, Path) else path
    line = f"wrote {name} ({len(content) / 1e6:.2g} MB)"
    if FORMS[form_of(path)] in (chrome_trace, packed_chrome_trace):
        line += ": open it in https://ui.perfetto.dev"
    return line


def written(page: Page, lines: Sequence[str]) -> Page:
    """Identity and verdict of a page that was written, and where it is."""
    return replace(
        page, table=None, notes=tuple(lines), actions=(), sections=(), warnings=()
    )


def run_page(found: RunFacts) -> Page:
    """The page of the analysis, with the comparison of step times first, and what the run directory
    knows.
    """
    analysis, compared = found.analysis, found.comparison
    panels, lost = _panels(found)
    page = Page("", (), "A profile, and nothing measured with it yet")
    if analysis is not None:
        mine = len(found.schedules)
        page = analyze_page(
            analysis,
            _span_finder(panels[mine]) if len(panels) > mine else nowhere,
            True,
        )
        page = with_pictures(page, analysis)
    if compared is not None:
        page = replace(
            page,
            verdict=compare.headline(compared),
            tone=compare.TONES.get(compared.verdict, ""),
        )
    if compared is not None and found.run is not None:
        page = replace(page, way=to_way(after_stages(found.run, compared)))
    return replace(
        page,
        title=f"pgle report: {_name(found)}",
        identity=(*page.identity, *_recorded(found.manifest)),
        actions=()
        if analysis is not None and analysis.step.measures_alone
        else page.actions,
        sections=(
            *_timeline_and_times(found, panels),
            *page.sections,
            _stages(found.manifest),
        ),
        about=tuple(_about(found)),
        warnings=tuple(
            dict.fromkeys(
                (*found.missing, *lost, *_prediction_warning(found), *page.warnings)
            )
        ),
        tiles=_tiles(found),
    )


def _timeline_and_times(
    found: RunFacts, panels: tuple[Panel, ...]
) -> Iterator[Section]:
    """The timeline, and the comparison of step times."""
    if panels:
        both = found.analysis is not None and found.analysis.before
        drawn = timeline(
            panels,
            max(panel.parts.step_us for panel in panels) if found.schedules else 0.0,
        )
        note = (
            "The schedules of both runs are predicted with the costs of the profile."
            if found.schedules
            else ""
        )
        if note and found.analysis is not None:
            note += f" The ranks are those of the {'profile' if found.analysis.step.mode else 'performance'} run."
        heading = "Timeline of both steps" if both else "Timeline"
        yield Section("timeline", heading, (drawn, Prose(note, tone="soft")))
    if found.comparison is not None:
        limits = (
            Prose(str(line.value), tone=line.tone)
            for line in compare.check_lines(found.checks)
        )
        picture = sides_chart(found.comparison)
        parts: tuple[Part, ...] = (compare.sides_table(found.comparison), *limits)
        if picture is not None:
            parts = (picture, *parts)
        yield Section("comparison", "Before and after: step times", parts, open=True)


def _name(found: RunFacts) -> str:
    if found.run is not None:
        return str(found.run.path)
    program = (
        ""
        if found.analysis is None
        else f"{found.analysis.step.costs.program.key.name}, "
    )
    return printable(f"{program}{some([path.name for path in found.inputs], 1)}")


def _recorded(manifest: Manifest) -> tuple[str, ...]:
    """What the run's manifest knows of the GPUs, the host, the day and the versions."""
    if not (stages := manifest.stages):
        return ()
    gpus = dict.fromkeys(gpu.name for record in stages for gpu in record.gpus)
    host = next((record.host for record in stages if record.host), "")
    versions = next(
        (record.versions for record in reversed(stages) if record.versions), {}
    )
    jax = f"jax {versions['jax']}" if "jax" in versions else ""
    return *gpus, host, stages[0].started[:10], jax


def _span_finder(panel: Panel) -> SpanOf:
    """Where an instruction's longest bar is in the first step, or the pause after that step."""
    codes = {
        name: code
        for code, item in enumerate(panel.names)
        for name in (item.lhs_name, item.name)
        if name
    }
    until = panel.spans[0].end_us if panel.spans else panel.length_us

    def place(name: str) -> tuple[float, float] | None:
        if name == BETWEEN:
            return (until, panel.spans[1].start_us) if len(panel.spans) > 1 else None
        bars: list[tuple[float, float]] = []
        for lane in panel.lanes:
            rows = np.flatnonzero(
                (lane.named == codes.get(name, -1)) & (lane.start_us < until)
            )
            if len(rows):
                row = rows[np.argmax(lane.duration_us[rows])]
                bars.append((float(lane.start_us[row]), float(lane.end_us[row])))
        return max(bars, key=lambda bar: bar[1] - bar[0], default=None)

    return place


def _tiles(found: RunFacts) -> tuple[Tile, ...]:
    """Step, exposed and idle time; of two runs or steps before and after."""
    analysis, compared = found.analysis, found.comparison
    shown: tuple[Tile, ...] = ()
    if compared is not None and len(found.schedules) > 1:
        sides = zip(
            ("before", "after"),
            (item.prediction.timeline.breakdown for item in found.schedules),
            strict=False,
        )
        shown = tiles(tuple(sides), "predicted from both schedules")
    elif analysis is not None and analysis.against is not None:
        shown = tiles(
            (("before", analysis.against.before), ("after", analysis.against.after))
        )
    elif analysis is not None:
        step = analysis.step
        note = (
            "simulated"
            if step.trace.simulated
            else f"of the {step.mode} profile run"
            if step.mode
            else ""
        )
        shown = tiles((("", step.breakdown),), note)
    if compared is not None:
        timed = (
            figures.time(side.median_s * 1e6) for side in (compared.base, compared.new)
        )
        note = f"{figures.change(compared.change)}, medians of timed steps"
        shown = (
            Tile("step", " → ".join(timed), shown[0].bars if shown else (), note),
            *shown[1:],
        )
    return shown


def _prediction_warning(found: RunFacts) -> list[str]:
    """If the performance run was timed at another step time than predicted."""
    if found.comparison is None or not found.schedules:
        return []
    predicted, timed = (
        found.schedules[-1].prediction.step_us,
        found.comparison.new.median_s * 1e6,
    )
    words = (
        f"the performance run was timed at {figures.time(timed)} a step, predicted were {figures.time(predicted)}: "
        "trust the timed steps, and only the order of the predicted schedules"
    )
    return [words] if abs(predicted / timed - 1) > FAR else []


def _panels(found: RunFacts) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The schedules of both runs, then every rank that was traced; of two steps the first rank of
    each.
    """
    if (analysis := found.analysis) is None:
        return (), ()
    if analysis.before is not None:
        sides = [
            measured_panels(analysis.before, "before"),
            measured_panels(analysis.step, "after"),
        ]
        return tuple(panels[0] for panels, _ in sides if panels), (
            *sides[0][1],
            *sides[1][1],
        )
    panels, notes = measured_panels(analysis.step)
    simulated = "simulated" if analysis.step.trace.simulated else ""
    before = (
        panel_of(
            item.label,
            item.prediction.timeline,
            simulated or item.prediction.costs_are,
            item.module,
        )
        for item in found.schedules
    )
    return (*before, *panels), notes


def _stages(manifest: Manifest) -> Section:
    """Each stage: when, how it ended."""
    rows = []
    for record in manifest.stages:
        ended = {None: "runs", 0: "ended well"}.get(
            record.exit_code, f"exit code {record.exit_code}"
        )
        result = Cell(
            record.failed or ended, "bad" if record.failed or record.exit_code else ""
        )
        rows.append(
            (
                record.stage,
                str(record.rank),
                record.started[:19].replace("T", " "),
                result,
                record.mode,
            )
        )
    return Section(
        "stages", "Stages", (table("stage | rank | started (UTC) |  | mode", rows),)
    )


def _gpu_words(step: MeasuredStep) -> str:
    """The GPU that expected times are for, and what names it: ``a100-40gb (by the trace)``."""
    if step.hardware is None:
        return "unknown"
    return step.hardware.name + (
        f" ({step.hardware_from})" if step.hardware_from else ""
    )


def _about(found: RunFacts) -> Iterator[tuple[str, str]]:
    """Program, hardware, versions, date, profile and simulated parts."""
    stages = found.manifest.stages
    record = next((item for item in reversed(stages) if item.argv), None)
    if record is not None:
        yield "program", str(Next(record.argv))
        if commit := next(
            (item.commit for item in reversed(stages) if item.commit), ""
        ):
            yield "commit", commit.replace("+", " with changes that are not committed")
        versions = next(
            (item.versions for item in reversed(stages) if item.versions), {}
        )
        yield (
            "versions",
            ", ".join(f"{name} {version}" for name, version in versions.items())
            or "not recorded",
        )
        named = dict.fromkeys(
            f"{gpu.name}, driver {gpu.driver}" for item in stages for gpu in item.gpus
        )
        topology = ", ".join(
            f"{name} {value}" for name, value in record.topology.items()
        )
        host = record.host and f"host {record.host}"
        yield (
            "hardware",
            "; ".join(filter(None, (*named, topology, host))) or "not recorded",
        )
        yield "date", f"{stages[0].started[:19].replace('T', ' ')} UTC"
    if found.profile is not None:
        yield "profile", many(len(found.profile.costs), "cost")
    if (
        performance := found.manifest.last("perf")
    ) is not None and "verdict" in performance.facts:
        yield (
            "use",
            f"{performance.facts['verdict']} in the performance run: {performance.facts.get('why', '')}",
        )
    if found.analysis is not None:
        for name, step in (
            ("trace", found.analysis.step),
            ("trace before", found.analysis.before),
        ):
            if step is not None:
                sources = (
                    f"{item.path} ({item.format} {item.version})"
                    for item in step.trace.sources
                )
                yield name, "; ".join(sources).replace(" )", ")")
        step = found.analysis.step
        each = step.steps / max(len(step.windows), 1)
        on = f"{each:g} steady step{'s' * (each != 1)} on {many(len(step.windows), 'device')}"
        yield "main module", f"{step.costs.program.key.name}, {on}"
        yield (
            "GPU for expected times",
            _gpu_words(step),
        )
        simulated = step.trace.simulated
        yield (
            "figures",
            "simulated: no GPU ran this"
            if simulated
            else "measured; expected times are estimates",
        )
