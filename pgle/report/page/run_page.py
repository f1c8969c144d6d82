"""The page of a run: what `pgle report` makes of a run directory, of traces, or of two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from pgle.costs.profile.value import CostKind, Profile
from pgle.errors import many, printable, some
from pgle.next import Next
from pgle.report import analyze as analyze_report
from pgle.report.analyze import difference_notes, difference_sections, first_changes, verdict_of_change
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.measured import ROWS, step_sections
from pgle.report.page.value import Action, Bar, Cell, Column, Page, Part, Prose, Section, Table, Tile, Tone
from pgle.report.steps import compare as compare_report
from pgle.report.steps.compare_page import charts
from pgle.report.timeline.measured import measured_panels
from pgle.report.timeline.picture import timeline
from pgle.report.timeline.scene import Panel, panel_of
from pgle.run.directory.manifest import Manifest
from pgle.run.report import Gathered
from pgle.schedule.predict import Prediction
from pgle.schedule.timeline import Breakdown

FAR = 0.2  # of the step time; a prediction that is further off gets a warning


def run_page(found: Gathered) -> tuple[Page, tuple[Panel, ...]]:
    """The page, and what its timeline shows: identity, verdict, tiles, actions, timeline, and the rest folded."""
    analysis = found.analysis
    panels, notes = _panels(found)
    answer, tone = _verdict(found)
    sections = [Section("timeline", _heading(found), _timeline(found, panels))] if panels else []
    if found.comparison is not None:
        limits = (Prose(str(line.value), tone=line.tone) for line in compare_report.check_lines(found.checks))
        parts: tuple[Part, ...] = (compare_report.sides_table(found.comparison), *limits, *charts(found.comparison))
        sections.append(Section("comparison", "Before and after: step times", parts, open=True))
    if analysis is not None:
        if analysis.against is not None:
            sections += difference_sections(analysis.against)
        sections += step_sections(analysis, chart=True)
    if found.profile is not None:
        sections.append(_costs(found.profile))
    if found.coverage is not None:
        sections.append(_coverage(found))
    if found.manifest.stages:
        sections.append(_stages(found.manifest))
    analysed = () if analysis is None else analysis.shown_warnings
    changed = None if analysis is None else analysis.against
    table = None if analysis is None else analyze_report.breakdown_table(analysis.step, bars=False)
    lines = () if analysis is None else analyze_report.notes(analysis.step)
    own = f"{Next.of('report', *found.inputs)} "
    page = Page(
        title=f"pgle report: {_name(found)}",
        identity=_identity(found),
        verdict=answer,
        tone=tone,
        table=table if changed is None else first_changes(changed),
        notes=lines if changed is None else tuple(difference_notes(changed)),
        actions=_actions(found, panels),
        sections=tuple(sections),
        next=() if analysis is None else tuple(line for line in analysis.next if not f"{line} ".startswith(own)),
        about=tuple(_about(found)),
        warnings=tuple(dict.fromkeys((*found.missing, *notes, *_far_off(found), *analysed))),
        tiles=_tiles(found),
    )
    return page, panels


def _name(found: Gathered) -> str:
    if found.run is not None:
        return str(found.run.path)
    program = "" if found.analysis is None else f"{found.analysis.step.costs.program.key.name}, "
    return printable(f"{program}{some([path.name for path in found.inputs], 1)}")


def _identity(found: Gathered) -> tuple[str, ...]:
    """As of `pgle analyze`, with what the run's manifest knows of the GPUs, the host, the day and the versions."""
    known = () if found.analysis is None else analyze_report.identity(found.analysis.step)
    stages = found.manifest.stages
    if not stages:
        return known
    gpus = dict.fromkeys(gpu.name for record in stages for gpu in record.gpus)
    host = next((record.host for record in stages if record.host), "")
    versions = next((record.versions for record in reversed(stages) if record.versions), {})
    jax = f"jax {versions['jax']}" if "jax" in versions else ""
    return *known, *gpus, host, stages[0].started[:10], jax


def _verdict(found: Gathered) -> tuple[str, Tone]:
    """The comparison of step times, or of steps; else what could be saved."""
    if found.comparison is not None:
        return compare_report.headline(found.comparison), compare_report.TONES.get(found.comparison.verdict, "")
    if found.analysis is None:
        return "A profile, and nothing measured with it yet", ""
    if found.analysis.against is not None:
        return verdict_of_change(found.analysis.against)
    return analyze_report.verdict(found.analysis, analyze_report.actions(found.analysis))


def _actions(found: Gathered, panels: Sequence[Panel]) -> tuple[Action, ...]:
    """What to do, each with its place in the timeline of the first device."""
    if found.analysis is None or found.analysis.step.measures_alone or found.analysis.against is not None:
        return ()
    mine = panels[len(found.schedules)] if len(panels) > len(found.schedules) else None
    return analyze_report.actions(found.analysis, analyze_report.nowhere if mine is None else _place(mine))


def _place(panel: Panel) -> Callable[[str], tuple[float, float] | None]:
    """Where an instruction's longest bar lies in the first step, or the pause after that step."""
    codes = {name: code for code, item in enumerate(panel.names) for name in (item.lhs_name, item.name) if name}
    until = panel.spans[0].end_us if panel.spans else panel.length_us

    def place(name: str) -> tuple[float, float] | None:
        if name == analyze_report.BETWEEN:
            return (until, panel.spans[1].start_us) if len(panel.spans) > 1 else None
        best: tuple[float, float] | None = None
        for lane in panel.lanes:
            rows = np.flatnonzero((lane.named == codes.get(name, -1)) & (lane.start_us < until))
            if len(rows):
                row = rows[np.argmax(lane.duration_us[rows])]
                span = float(lane.start_us[row]), float(lane.end_us[row])
                best = span if best is None or span[1] - span[0] > best[1] - best[0] else best
        return best

    return place


def _tiles(found: Gathered) -> tuple[Tile, ...]:
    """Step, exposed and idle time; of two runs or steps before and after."""
    analysis = found.analysis
    sides: list[tuple[str, Breakdown]] = []
    note = ""
    if found.comparison is not None and len(found.schedules) > 1:
        sides = [(name, item.prediction.timeline.breakdown)
                 for name, item in zip(("before", "after"), found.schedules, strict=False)]  # fmt: skip
        note = "predicted from both schedules"
    elif analysis is not None and analysis.against is not None:
        sides = [("before", analysis.against.before), ("after", analysis.against.after)]
    elif analysis is not None:
        sides = [("", analysis.step.breakdown)]
        note = (
            "simulated"
            if analysis.step.trace.simulated
            else f"of the {analysis.step.mode} profile run" * bool(analysis.step.mode)
        )
    tiles = [_tile(*tile, [parts for _, parts in sides], note) for tile in _TILES if sides]
    if sides:
        tiles[0] = replace(tiles[0], bars=tuple(_bar(*side) for side in sides))
    if found.comparison is not None:
        timed = tuple(figures.time(side.median_s * 1e6) for side in (found.comparison.base, found.comparison.new))
        change = figures.change(found.comparison.change)
        bars = tiles[0].bars if tiles else ()
        tiles[:1] = [Tile("step", " → ".join(timed), bars, f"{change}, medians of timed steps")]
    return tuple(tiles)


_TILES: Sequence[tuple[str, Callable[[Breakdown], float]]] = (
    ("step", lambda parts: parts.step_us),
    ("exposed: the GPU waits for communication", lambda parts: parts.exposed_communication_us + parts.exposed_copy_us),
    ("idle: nothing runs on the GPU", lambda parts: parts.idle_us),
)


def _tile(label: str, pick: Callable[[Breakdown], float], sides: Sequence[Breakdown], note: str) -> Tile:
    """One figure, of two sides with its change, else with its share of the step."""
    times = [pick(parts) for parts in sides]
    whole = sides[-1].step_us
    about = figures.change(times[1] / times[0] - 1) if len(times) > 1 and times[0] > 0 else ""
    if len(times) < 2 and times[0] < whole:
        about = f"{figures.share(times[0] / whole)} of the step"
    return Tile(label, " → ".join(map(figures.time, times)), note=", ".join(filter(None, (about, note))))


def _bar(label: str, parts: Breakdown) -> Bar:
    whole = max(parts.step_us, 1e-9)
    shares: tuple[tuple[Literal["compute", "exposed", "copy", "idle"], float], ...] = (
        ("compute", parts.compute_us / whole), ("exposed", parts.exposed_communication_us / whole),
        ("copy", parts.exposed_copy_us / whole), ("idle", parts.idle_us / whole),
    )  # fmt: skip
    text = ", ".join(f"{figures.share(share)} {name}" for name, share in shares if share > 0.0005)
    return Bar(label, text, shares)


def _far_off(found: Gathered) -> list[str]:
    """If the performance run was timed at another step time than predicted."""
    if found.comparison is None or not found.schedules:
        return []
    predicted, timed = found.schedules[-1].prediction.step_us, found.comparison.new.median_s * 1e6
    if abs(predicted / timed - 1) <= FAR:
        return []
    return [
        f"the performance run was timed at {figures.time(timed)} a step, predicted were {figures.time(predicted)}: "
        "trust the timed steps, and only the order of the predicted schedules"
    ]


def _panels(found: Gathered) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The schedules of both runs, then every rank that was traced; of two steps the first rank of each."""
    analysis = found.analysis
    if analysis is None:
        return (), ()
    simulated = analysis.step.trace.simulated
    if analysis.before is not None:
        sides = [
            measured_panels(side, label) for side, label in ((analysis.before, "before"), (analysis.step, "after"))
        ]
        return tuple(panels[0] for panels, _ in sides if panels), (*sides[0][1], *sides[1][1])
    panels, notes = measured_panels(analysis.step)
    before = tuple(
        panel_of(item.label, item.prediction.timeline, _costs_are(item.prediction, simulated), item.module)
        for item in found.schedules
    )
    return (*before, *panels), notes


def _costs_are(prediction: Prediction, simulated: bool) -> str:
    return "simulated" if simulated else prediction.costs_are


def _heading(found: Gathered) -> str:
    return "Timeline of both steps" if found.analysis is not None and found.analysis.before else "Timeline"


def _timeline(found: Gathered, panels: tuple[Panel, ...]) -> tuple[Part, ...]:
    drawn = timeline(panels, max(panel.parts.step_us for panel in panels) if found.schedules else 0.0)
    if not found.schedules:
        return (drawn,)
    note = "The schedules of both runs are predicted with the costs of the profile."
    if found.analysis is not None:
        note += f" The ranks are those of the {'profile' if found.analysis.step.mode else 'performance'} run."
    return drawn, Prose(note, tone="soft")


def _costs(profile: Profile) -> Section:
    """What instructions cost, the costliest first."""
    costs = sorted(profile.costs, key=lambda cost: -cost.cost_us)
    rows = tuple(
        (printable(cost.name), cost.kind.value, cost.cost_us, cost.samples or None, cost.origin.value, cost.shape)
        for cost in costs[:ROWS]
    )
    collectives = [cost for cost in costs if cost.kind is CostKind.COLLECTIVE]
    said = f"{many(len(costs), 'instruction')} have a cost, {len(collectives):,} of them are collectives."
    columns = (Column("instruction"), Column("kind"), Column("one execution", Unit.TIME),
               Column("samples", Unit.COUNT), Column("cost is"), Column("shape"))  # fmt: skip
    table = Table(columns, rows, tuple(cost.name for cost in costs[:ROWS]), more=max(len(costs) - ROWS, 0))
    return Section("costs", "Costs in the profile", (Prose(said), table))


def _coverage(found: Gathered) -> Section:
    """What of each compilation of the main module the profile covers."""
    assert found.coverage is not None
    rows = tuple(
        (module.module, module.fingerprint[:12], module.count.value, module.time.value, module.collectives.value,
         len(module.gaps))
        for module in found.coverage.main
    )  # fmt: skip
    columns = (
        Column("module"), Column("fingerprint"), Column("instructions", Unit.SHARE), Column("time", Unit.SHARE),
        Column("collectives", Unit.SHARE), Column("without a cost", Unit.COUNT),
    )  # fmt: skip
    hints = dict.fromkeys(hint for module in found.coverage.main for hint in module.hints)
    return Section("coverage", "Coverage of the profile", (Table(columns, rows), *(Prose(hint) for hint in hints)))


def _stages(manifest: Manifest) -> Section:
    """Each stage: when, how it ended."""
    rows = []
    for record in manifest.stages:
        ended = {None: "runs", 0: "ended well"}.get(record.exit_code, f"exit code {record.exit_code}")
        result = Cell(record.failed or ended, "bad" if record.failed or record.exit_code else "")
        rows.append((record.stage, str(record.rank), record.started[:19].replace("T", " "), result, record.mode))
    columns = tuple(map(Column, ("stage", "rank", "started (UTC)", "", "mode")))
    return Section("stages", "Stages", (Table(columns, tuple(rows)),))


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
        host = record.host and f"host {record.host}"
        yield "hardware", "; ".join(filter(None, (*named, topology, host))) or "not recorded"
        yield "date", f"{found.manifest.stages[0].started[:19].replace('T', ' ')} UTC"
        if (performance := found.performance) is not None and "verdict" in performance.facts:
            yield (
                "profile",
                f"{performance.facts['verdict']} in the performance run: {performance.facts.get('why', '')}",
            )
    if found.analysis is not None:
        for name, step in (("trace", found.analysis.step), ("trace before", found.analysis.before)):
            if step is not None:
                sources = (f"{item.path} ({item.format} {item.version})" for item in step.trace.sources)
                yield name, "; ".join(sources).replace(" )", ")")
        step = found.analysis.step
        each = step.steps / max(len(step.windows), 1)
        on = f"{each:g} steady step{'s' * (each != 1)} on {many(len(step.windows), 'device')}"
        yield "main module", f"{step.costs.program.key.name}, {on}"
        yield "GPU for expected times", "unknown" if step.hardware is None else step.hardware.name
        yield (
            "figures",
            "simulated: no GPU ran this" if step.trace.simulated else "measured; expected times are estimates",
        )
    command = Next.of("report", *found.inputs, "-o", "report.trace.json")
    yield "for Perfetto", f"this command writes a file for ui.perfetto.dev: {command}"
