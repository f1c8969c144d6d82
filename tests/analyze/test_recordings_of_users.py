"""What a user hands over by mistake or in another form: an eager program, hosts in folders of their
own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pgle.report.analyze import analyze_page
from pgle.run.analyze import StepInput, analyze
from pgle.run.inputs.traces import read_traces
from pgle.trace.table import Device, ModuleKey, Trace
from pgle.trace.xplane.writer import write_xplane
from tests.analyze.conftest import Run, repeated

EAGER = ("jit_dot", "jit_exp", "jit_sum", "jit_tanh")


def eager() -> Trace:
    """Four operations, each a module of its own, take turns; the first takes a third."""
    times = (130.0, 90.0, 90.0, 80.0)
    runs = []
    clock = 0.0
    for number, time in enumerate(times):
        runs.append(Run(f"fusion.{number}", clock, time))
        clock += time + 5
    trace = repeated(*runs, every=clock + 5, steps=6)
    modules = tuple(ModuleKey(name, at) for at, name in enumerate(EAGER))
    return replace(trace, module=trace.instruction.copy(), modules=modules)


def written(trace: Trace, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(write_xplane(trace))
    return path


def test_the_largest_module_of_an_eager_program_is_not_called_the_step(
    tmp_path: Path,
) -> None:
    found = analyze(StepInput((written(eager(), tmp_path / "host.xplane.pb"),)))
    page = analyze_page(found)
    assert page.verdict.startswith("No module is the step: the largest of 4 modules")
    assert page.identity[0] == "4 modules, most time in jit_dot"
    assert not [part for part in page.identity if "a step" in part]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("2026_11_28_07_06_56", "is 1 s older and of another host (one)"),
        ("2026_11_28_09_00_00", "to read another one, give its directory"),
    ],
)
def test_hosts_that_started_a_second_apart_are_told_from_an_older_run(
    second: str, said: str, tmp_path: Path
) -> None:
    trace = repeated(Run("fusion.1", 0, 300), every=310, steps=4)
    folder = tmp_path / "plugins" / "profile"
    written(trace, folder / "2026_11_28_07_06_55" / "one.xplane.pb")
    written(trace, folder / second / "two.xplane.pb")
    (line,) = (line for line in read_traces([tmp_path]).warnings if "newest" in line)
    assert said in line
    if "older" in said:
        assert f"give both: {folder / '2026_11_28_07_06_55'} {folder / second}" in line


def test_both_hosts_are_ranks_of_one_step(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        trace = repeated(Run("fusion.1", 0, 300), every=310, steps=4)
        names = tuple(Device(f"host{number}:1", at, None) for at in range(2))
        path = tmp_path / f"2026_11_28_07_06_5{number}" / f"host{number}.xplane.pb"
        paths.append(written(replace(trace, devices=names), path).parent)
    trace = read_traces(paths)
    assert len(trace.devices) == 4
    assert np.unique(trace.device).tolist() == [0, 1, 2, 3]
