"""Each part of benchmarks/gpu on a few small cases without a GPU, and the runner around them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import chain, meters, records, rehearsals, report, run
from benchmarks.gpu.bench import ROOT, Bench
from benchmarks.gpu.cases import Array, Case, shapes
from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.results import Header, Results, Row, read_archive, scrub
from benchmarks.gpu.steps import steps


def header(part: str) -> Header:
    return Header(part, True, "h100", "", "jax")


def results(folder: Path, part: str) -> Results:
    return Results(folder / f"{part}.zip", header(part))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    out.mkdir()
    return Bench(True, "h100", work, out)


@pytest.mark.parametrize("small", [True, False])
def test_every_case_has_a_name_and_shapes_that_fit_its_function(small: bool) -> None:
    import jax

    cases = (*kernels(small=small), *steps(small=small))
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert {case.base for case in cases} - {""} <= set(names)
    for case in cases:
        if not case.needs_cudnn:
            jax.eval_shape(case.jitted, *shapes(case))


def test_about_sixty_kernels_of_every_kind_are_measured() -> None:
    cases = kernels(small=False)
    assert 55 <= len(cases) <= 65
    kinds = {case.kind for case in cases}
    assert kinds >= {"product", "fft", "transpose", "scatter", "gather", "sort", "rng"}
    assert kinds >= {"reduction", "scan", "algebra", "host copy"}


@pytest.mark.rehearse
@pytest.mark.usefixtures("plugin_loaded_once")
def test_kernels_and_rehearsals_make_rows_that_the_report_compares(
    bench: Bench,
) -> None:
    wanted = ("bf16_square", "sum_rows")
    cases = [case for case in kernels(small=True) if case.name in wanted]
    found = results(bench.out, "kernels")
    meters.measure_all(cases, bench.meter(), found, 2)
    found.write(complete=True)
    again = results(bench.out, "rehearsals")
    rehearsals.run(bench, again)
    again.write(complete=True)
    archives = report.read_run(bench.out)
    compared = report.compared(archives)
    assert [item.row.name for item in compared] == ["bf16_square", "sum_rows"]
    for item in compared:
        assert item.compiled and item.rehearsed
        assert item.row.us == pytest.approx(item.compiled.us)
        assert item.row.us == pytest.approx(item.rehearsed.us)
    page = report.page(archives)
    assert page.startswith("Simulated: no GPU was measured.")
    assert "__triton" in page


@pytest.mark.rehearse
@pytest.mark.usefixtures("plugin_loaded_once")
def test_an_edit_of_a_step_is_compared_with_what_it_changes(bench: Bench) -> None:
    wanted = ("vocabulary_scatter", "vocabulary_one_hot")
    cases = [case for case in steps(small=True) if case.name in wanted]
    found = results(bench.out, "steps")
    meters.measure_all(cases, bench.meter(), found, 2)
    [edit] = report.edits(report.compared(report.read_run(bench.out)))
    assert (edit.name, edit.base) == ("vocabulary_one_hot", "vocabulary_scatter")
    assert edit.measured == pytest.approx(edit.compiled)


def test_a_case_is_timed_and_recorded_as_on_a_gpu(tmp_path: Path) -> None:
    """The meter of a GPU, on the CPU's device: only figures of its memory are missing."""
    square = Array((64, 64), "float32")
    case = Case("small_product", "product", lambda x, y: x @ y, (square, square))
    found = results(tmp_path, "kernels")
    meters.measure_all([case], meters.GpuMeter(), found, 1)
    archive = read_archive(found.path)
    [row] = archive.rows
    assert row.error == ""
    assert row.us is not None and row.us > 0
    assert row.range_us[0] <= row.us <= row.range_us[1]
    assert "launches each" in row.how
    assert set(archive.recordings) == {
        *("small_product.hlo.pb", "small_product.mlir", "group01.xplane.pb"),
    }


def test_a_case_that_fails_is_a_row_that_says_why(tmp_path: Path) -> None:
    def wrong(x: object) -> object:
        raise ValueError("no such\nthing")

    case = Case("wrong", "product", wrong, (Array((2, 2)),))
    found = results(tmp_path, "kernels")
    meters.measure_all([case], meters.GpuMeter(), found, 1)
    [row] = read_archive(found.path).rows
    assert (row.us, row.error) == (None, "ValueError: no such thing")


@pytest.mark.rehearse
@pytest.mark.minutes
def test_the_chain_and_the_offloading_step_are_proven(bench: Bench) -> None:
    links = results(bench.out, "chain")
    chain.prove(bench, links)
    assert [row.error for row in links.rows] == [""] * 6
    launches = results(bench.out, "offload")
    chain.offload(bench, launches)
    assert [row.name for row in launches.rows] == [
        "profile",
        "convert",
        "baseline_1",
        "perf_1",
    ]
    assert not any(row.error for row in launches.rows)


def test_step_times_of_a_stage_are_read_in_all_its_folders(tmp_path: Path) -> None:
    stage = tmp_path / "perf"
    stage.mkdir()
    (stage / "steps.jsonl").write_text('{"step": 1, "step_time_s": 0.5}\n{"step": 2}\n')
    assert chain.step_times(tmp_path) == [0.5]


def test_a_launch_is_recorded_with_its_names(bench: Bench) -> None:
    row, recordings = records.probed(bench, "command_buffers_on", ())
    assert row.error == ""
    assert row.us is None
    assert row.facts["module"] == "jit_offload_none"
    assert set(recordings) == {
        *("command_buffers_on.step.hlo.pb", "command_buffers_on.step.xplane.pb"),
    }


@pytest.mark.minutes
def test_the_cache_is_asked_for_path_and_content_of_a_profile(bench: Bench) -> None:
    found = results(bench.out, "records")
    records.cache_rows(bench, found)
    new = {row.name: row.facts["new_entries"] for row in found.rows}
    assert new["cache_first"] > 0
    assert new["cache_same"] == 0


def test_names_of_the_machine_leave_text_and_protocol_buffers() -> None:
    private = (b"/home/somebody/checkout", b"vm7")
    text = b"llvm7 on vm7: /home/somebody/checkout/train.py"
    assert scrub(text, private) == b"llvm7 on xxx: xxxxxxxxxxxxxxxxxxxxxxx/train.py"
    assert b"somebody" not in scrub(b"\0A/home/somebody/checkout/train.py", private)
    xplane = b"\x22\x03vm7"
    assert scrub(xplane, private, is_xplane=True) == b""


def test_an_archive_names_no_host_and_no_folder(tmp_path: Path) -> None:
    found = results(tmp_path, "kernels")
    found.add(Row("a", error=f"at {Path.cwd()} of {socket.gethostname()}"))
    text = (tmp_path / "kernels.zip").read_bytes()
    assert str(Path.cwd()).encode() not in text
    assert f"of {socket.gethostname()}".encode() not in text


def test_a_recording_that_has_no_room_is_left_out(tmp_path: Path) -> None:
    found = results(tmp_path, "kernels")
    found.keep("large", os.urandom(2 << 20), most_bytes=2 << 20)
    assert found.left_out == {"large"}
    assert found.recordings == {}


@pytest.mark.parametrize(
    ("text", "found"), [("8m", 480.0), ("90s", 90.0), ("1.5m", 90.0), ("30", 30.0)]
)
def test_a_budget_is_a_duration(text: str, found: float) -> None:
    assert run.seconds(text) == found


@pytest.mark.parametrize("text", ["", "m", "-3m", "0s", "8 h"])
def test_another_budget_is_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--out", "x", f"--budget={text}"])
    assert ended.value.code == 2
    assert "write 8m or 90s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("chip", "target"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("unknown", "h100"),
    ],
)
def test_a_gpu_is_known_by_the_name_of_its_driver(chip: str, target: str) -> None:
    assert run.target_of(chip) == target


PART = """
import threading
from benchmarks.gpu.results import Row

def quick(bench, results):
    results.add(Row("one"))

def slow(bench, results):
    results.add(Row("one"))
    threading.Event().wait()

def broken(bench, results):
    results.add(Row("one"))
    raise RuntimeError("no such GPU")
"""


def request(
    tmp_path: Path, *functions: str, limit_s: float, budget_s: float
) -> run.Request:
    parts = tuple(run.Part(name, limit_s, "some_parts", name) for name in functions)
    return run.Request(tmp_path / "out", budget_s, parts, run.Machine("h100"))


@pytest.fixture
def with_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of the runner that find the parts of `PART`."""
    code = "from benchmarks.gpu import run\n"
    code += "run.PARTS = tuple(run.Part(n, 9, 'some_parts', n) for n in ('quick', 'slow', 'broken'))\n"
    (tmp_path / "some_parts.py").write_text(PART)
    (tmp_path / "start.py").write_text(f"{code}raise SystemExit(run.main())\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setattr(run, "PROGRAM", (str(tmp_path / "start.py"),))


@pytest.mark.usefixtures("with_parts")
def test_a_part_that_fails_or_takes_too_long_leaves_its_rows_and_the_next_one_runs(
    tmp_path: Path,
) -> None:
    asked = request(tmp_path, "broken", "slow", "quick", limit_s=12, budget_s=120)
    outcomes = run.run(asked, lambda line: None)
    assert [outcome.ended for outcome in outcomes] == [
        "failed",
        "out of time",
        "complete",
    ]
    assert outcomes[0].last_words[-1] == "RuntimeError: no such GPU"
    for outcome in outcomes:
        archive = read_archive(asked.out / f"{outcome.name}.zip")
        assert [row.name for row in archive.rows] == ["one"]
        assert archive.complete == (outcome.ended == "complete")
    summary = json.loads((asked.out / run.SUMMARY).read_text())
    assert [part["ended"] for part in summary["parts"]] == [
        "failed",
        "out of time",
        "complete",
    ]


@pytest.mark.usefixtures("with_parts")
def test_no_part_begins_without_the_time_for_it(tmp_path: Path) -> None:
    asked = request(tmp_path, "quick", "slow", limit_s=60, budget_s=run.RESERVE_S + 1)
    outcomes = run.run(asked, lambda line: None)
    assert [outcome.ended for outcome in outcomes] == ["not begun", "not begun"]


@pytest.mark.usefixtures("with_parts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_kill_leaves_what_was_measured(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    words = ("--out", str(out), "--parts", "quick,slow", "--capture", "simulated")
    (tmp_path / "runner.py").write_text(
        "from benchmarks.gpu import run\n"
        "run.PARTS = tuple(run.Part(n, 60, 'some_parts', n) for n in ('quick', 'slow'))\n"
        f"run.PROGRAM = ({str(tmp_path / 'start.py')!r},)\n"
        "raise SystemExit(run.main())\n"
    )
    command = [sys.executable, str(tmp_path / "runner.py"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "GPU: h100, simulated\n"
        assert child.stdout.readline().startswith("quick       complete")
        child.send_signal(number)
    archive = read_archive(out / "quick.zip")
    assert archive.complete
    assert [row.name for row in archive.rows] == ["one"]


@pytest.mark.usefixtures("with_parts")
def test_a_part_whose_runner_is_gone_before_it_begins_ends(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    words = ("--part", "slow", "--runner", "1", "--target", "h100", "--chip", "")
    folders = ("--out", str(tmp_path / "out"), "--work", str(tmp_path))
    command = (sys.executable, str(tmp_path / "start.py"), *words, *folders)
    done = subprocess.run(command, start_new_session=True, check=False)
    assert done.returncode == -signal.SIGKILL
