"""How large the pages of big runs are, how soon they are drawn, and how fast the timeline zooms, in
headless Chromium.

    python benchmarks/report.py [TRACE... --hlo DUMP]

Two generated inputs: a module of 40,000 instructions, predicted before and after; ten seconds of a
trace, 8 devices of three streams, 400,000 activities. Traces that are given are measured too.
Columns in CPU are processor time of the page's main thread, which other work on a machine changes
little; those on the wall are medians of five loads. There is no GPU to draw with. A frame is all
that the page computes and draws for one step of a zoom through the whole range.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from chromium import Page as Browser
from chromium import browser

from pgle.report.page.html import render
from pgle.report.page.value import Page, Section
from pgle.report.report import page_of
from pgle.report.schedules import Schedule, sections
from pgle.report.timeline import MOST_OPEN, BarLabel, Lane, Panel, Span, Style
from pgle.report.timeline import timeline as part
from pgle.run.analyze import StepInput
from pgle.schedule.predict import predict
from pgle.schedule.simulate import Breakdown
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import find_hardware, load_target

LAYERS = 4_000
SECONDS, DEVICES, ACTIVITIES = 10, 8, 400_000
LOADS, FRAMES = 5, 120

ZOOM = (
    f"const FRAMES = {FRAMES};"
    + """
(async () => {
  const view = document.getElementById('timeline').view, cpu = [], frames = [];
  const next = () => new Promise(requestAnimationFrame);
  let last = await next();
  for (let i = 0; i < FRAMES; i++) {
    const before = performance.now();
    view.zoom(i < FRAMES / 2 ? 0.85 : 1 / 0.85, view.length * 0.37);
    view.draw();
    cpu.push(performance.now() - before);
    const now = await next();
    frames.push(now - last);
    last = now;
  }
  const at = (list, part) => list.sort((a, b) => a - b)[Math.floor((list.length - 1) * part)];
  return [at(cpu, 0.5), at(cpu, 0.95), at(frames, 0.5), at(frames, 0.95)];
})()
"""
)
PAINTED = "new Promise(done => { const see = () => performance.getEntriesByName('first-contentful-paint').length ? done(1) : requestAnimationFrame(see); see(); })"  # fmt: skip # noqa: E501
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
READY = "performance.getEntriesByName('timeline')[0].startTime"


def unrolled() -> Page:
    """A module of ten instructions a layer, with names and shapes as long as real ones."""
    lines = ["HloModule jit_train_step, is_scheduled=true, num_partitions=8", "", "ENTRY main {", "  p.0 = f32[1024,1024]{1,0} parameter(0)"]  # fmt: skip # noqa: E501
    last = "p.0"
    for n in range(LAYERS):
        where = f'metadata={{op_name="jit(train_step)/transformer/layer_{n}/mlp/dot_general" source_file="/src/model.py" source_line={n % 900}}}'  # fmt: skip # noqa: E501
        lines.append(f"  gather-start.{n} = (f32[1024,1024]{{1,0}}, f32[1024,1024]{{1,0}}) all-gather-start({last}), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, {where}")  # fmt: skip # noqa: E501
        for k in range(8):
            name = f"multiply_add_fusion.{n}.{k}" if k % 4 else f"dot.{n}.{k}"
            call = f"multiply({last}, {last})" if k % 4 else f"dot({last}, {last}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"  # fmt: skip # noqa: E501
            lines.append(f"  {name} = f32[1024,1024]{{1,0}} {call}, {where}")
            last = name
        lines.append(
            f"  gather-done.{n} = f32[1024,1024]{{1,0}} all-gather-done(gather-start.{n})"
        )
        last = f"gather-done.{n}"
    lines += [f"  ROOT out = f32[1024,1024]{{1,0}} negate({last})", "}"]
    module = module_from_text("\n".join(lines).encode(), "generated.txt")
    timeline = predict(module, None, find_hardware(load_target("h100"))).timeline
    schedules = [
        Schedule(label, timeline, "estimated", module) for label in ("before", "after")
    ]
    return Page(
        "40 k instructions", (), "Generated", sections=sections(schedules, (), ("", ""))
    )


def long_trace() -> Page:
    """Ten seconds on eight devices of three streams, in steps of 100 ms."""
    random = np.random.default_rng(0)
    per_lane = ACTIVITIES // DEVICES // 4
    names = tuple(
        BarLabel(
            Style(i % 4),
            False,
            f"fusion.{i}",
            "fusion",
            "",
            f"jit(step)/layer_{i}/dot_general",
            "",
            "",
            "",
            "",
        )
        for i in range(2_500)
    )
    panels = []
    for device in range(DEVICES):
        lanes = []
        for stream, share in ((7, 2), (13, 1), (14, 1)):
            starts = np.sort(random.uniform(0, SECONDS * 1e6, per_lane * share))
            lengths = np.minimum(
                random.exponential(60, len(starts)),
                np.diff(starts, append=SECONDS * 1e6),
            )
            named = np.tile(np.arange(2_500, dtype=np.int32), len(starts) // 2_500 + 1)[
                : len(starts)
            ]
            lanes.append(
                Lane(
                    f"stream {stream}",
                    starts,
                    lengths,
                    named,
                    np.ones(len(starts), np.int64),
                )
            )
        spans = tuple(
            Span(f"step {i}", i * 1e5, (i + 1) * 1e5) for i in range(SECONDS * 10)
        )
        panels.append(Panel(f"device {device}", "generated", Breakdown(1, 1, 0, 1, 3, 1, 0), SECONDS * 1e6, names, tuple(lanes), spans, device < MOST_OPEN))  # fmt: skip # noqa: E501
    return Page(
        "10 s",
        (),
        "Generated",
        sections=(Section("timeline", "Timeline", (part(panels),)),),
    )


def busy(tab: Browser) -> float:
    """Processor seconds of the main thread so far."""
    return next(
        item["value"]
        for item in tab.send("Performance.getMetrics")["metrics"]
        if item["name"] == "TaskDuration"
    )


def measure(tab: Browser, name: str, page: Page, seconds: float, folder: Path) -> None:
    """One row."""
    path = folder / "page.html"
    begin = time.process_time()
    path.write_text(render(page))
    seconds += time.process_time() - begin
    paints, drawn = [], []
    for _ in range(LOADS):
        tab.open(path)
        tab.run(PAINTED)
        paints.append(tab.run(PAINT))
        drawn.append(tab.run(READY))
    tab.send("Performance.enable", timeDomain="threadTicks")
    tab.open(path)
    load = busy(tab)
    script, late, frame, slow = tab.run(ZOOM)
    zoom = (busy(tab) - load) / FRAMES
    tab.send("Performance.disable")
    bars = tab.run("document.getElementById('timeline').view.state.panels.flatMap(p => p.lanes).reduce((n, l) => n + l.name.length, 0)")  # fmt: skip # noqa: E501
    print(
        f"| {name} | {bars:,} | {seconds:.1f} s | {path.stat().st_size / 1e6:.2f} MB | {median(paints):.0f} ms | "
        f"{median(drawn):.0f} ms | {load * 1e3:.0f} ms | {zoom * 1e3:.1f} ms | {script:.1f} / {late:.1f} ms | "
        f"{frame:.1f} / {slow:.1f} ms |"
    )


def main() -> None:
    """Print the table."""
    words = sys.argv[1:]
    split = words.index("--hlo") if "--hlo" in words else len(words)
    given = (
        tuple(Path(word) for word in words[:split]),
        tuple(Path(word) for word in words[split + 1 :]),
    )
    makers = {"40,000 instructions, twice": unrolled, "10 s, 8 devices": long_trace}
    if given[0]:
        makers["given traces"] = lambda: page_of(StepInput(*given))
    heads: tuple[str, ...] = (
        "page",
        "bars",
        "written in (CPU)",
        "file",
        "first paint",
        "timeline drawn",
        "the same, CPU",
    )
    heads += ("zoom frame, CPU", "its script, median / p95", "frames, median / p95")
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    with TemporaryDirectory() as folder, browser() as tab:
        for name, make in makers.items():
            begin = time.process_time()
            page = make()
            measure(tab, name, page, time.process_time() - begin, Path(folder))


main()
