"""`pgle compare` as users call it."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pgle
from pgle.cli.main import run
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import Gpu, StageRecord, extend_manifest, read_manifest


def write_run(
    folder: Path, level: float, seed: int, *, count: int = 120, noise: float = 0.01
) -> str:
    """A run directory: compile in step 0, a checkpoint stall in step 50, a falling loss."""
    random = np.random.default_rng(seed)
    times = level * np.exp(noise * random.standard_normal(count))
    times[0], times[50] = 20, 5
    folder.mkdir(parents=True)
    lines = [
        json.dumps(
            {
                "step": i,
                "step_time_s": round(t, 6),
                "loss": 3 - i / 100,
                "checkpoint": i == 50,
            }
        )
        for i, t in enumerate(times.tolist())
    ]
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture
def base(tmp_path: Path) -> str:
    return write_run(tmp_path / "baseline", 0.2, 1)


def test_a_job_two_percent_worse_fails_and_says_what_to_do(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "compare",
        base,
        write_run(tmp_path / "perf", 0.204, 2),
        "--launch-spread",
        "0.15%",
    ]
    assert run([*words, "--fail-slower", "1%"]) == 1
    out = capsys.readouterr().out
    assert "% slower (" in out.splitlines()[1]
    assert "FAIL step time: slower by more than 1 % (--fail-slower)" in out
    assert (
        out.splitlines()[-1] == f"Next: pgle analyze {tmp_path}/perf --against {base}"
    )


def test_a_console_log_is_not_offered_as_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, level in (("a.log", 0.2), ("b.log", 0.3)):
        (tmp_path / name).write_text(
            "".join(f"step {i}: {level + i % 3 / 1000} s\n" for i in range(40))
        )
    assert (
        run(
            [
                "compare",
                str(tmp_path / "a.log"),
                str(tmp_path / "b.log"),
                "--fail-slower",
                "1%",
            ]
        )
        == 1
    )
    assert "Now: give the trace of each side: pgle analyze … --against …" in " ".join(
        capsys.readouterr().out.split()
    )


def test_one_launch_of_each_side_cannot_tell_a_third_of_a_percent_from_one(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "compare",
                base,
                write_run(tmp_path / "perf", 0.2006, 2),
                "--fail-slower",
                "1%",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "~ +" in out
    assert (
        "cannot tell step time: a slowdown of 1 % is neither shown nor ruled out" in out
    )
    assert "ok " not in out
    assert (
        run(
            [
                "compare",
                base,
                str(tmp_path / "perf"),
                "--fail-slower",
                "1%",
                "--fail-undecided",
            ]
        )
        == 1
    )


def test_a_gate_has_a_bound(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", base, base, "--fail-undecided"]) == 2
    assert (
        "--fail-undecided: needs a bound; add --fail-slower 2%"
        in capsys.readouterr().err
    )


def test_everything_may_count_as_the_same(base: str) -> None:
    assert run(["compare", base, base, "--same-within", "100%"]) == 0


def test_a_table_of_too_many_steps_is_refused_before_it_is_parsed(
    tmp_path: Path,
    base: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from pgle.run.inputs import step_times
    from pgle.steps import series

    for module in (step_times, series):
        monkeypatch.setattr(module, "MOST_STEPS", 100)
    monkeypatch.setattr(step_times, "read_csv", lambda *_: pytest.fail("it was parsed"))
    table = tmp_path / "a.csv"
    table.write_text("step,step_time_s\n" + "".join(f"{i},0.2\n" for i in range(100)))
    assert run(["compare", base, str(table)]) == 2
    assert "more than 100 steps" in capsys.readouterr().err


def test_a_history_shows_how_launches_differ(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    history = str(tmp_path / "h.jsonl")
    new = write_run(tmp_path / "perf", 0.204, 2)
    words = [
        "--name",
        "llama",
        "--hardware",
        "h100",
        "--file",
        history,
        "--commit",
        "c",
    ]
    for day, level in enumerate((0.2, 0.2003, 0.1998, 0.2001, 0.1997, 0.2002), 1):
        log = write_run(tmp_path / f"{day}", level, 10 + day, noise=0.0)
        assert (
            run(
                ["history", "add", log, *words, "--time", f"2026-01-{day:02d}T00:00:00"]
            )
            == 0
        )
    assert run(["compare", base, new, "--require-faster"]) == 1
    assert "Undecided: " in capsys.readouterr().out
    assert run(["compare", base, new, "--history", history, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "slower"
    assert found["launch_spread"]["freedom"] == 5
    assert found["run_noise"] == pytest.approx(
        np.std(np.log([1, 1.0015, 0.999, 1.0005, 0.9985, 1.001]), ddof=1)
    )
    assert f"6 entries of llama on h100 in {history}" in found["footnotes"][0]


def test_a_history_of_another_program_is_refused(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    history = str(tmp_path / "h.jsonl")
    log = write_run(tmp_path / "other", 0.9, 3)
    assert (
        run(
            [
                "history",
                "add",
                log,
                "--name",
                "x",
                "--hardware",
                "h",
                "--commit",
                "c",
                "--file",
                history,
            ]
        )
        == 0
    )
    assert run(["compare", base, base, "--history", history]) == 2
    assert "no trend has step times near 0.2" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_that_ended_after_a_step_or_two_does_not_pass(
    tmp_path: Path, base: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "cut.jsonl"
    new.write_text(
        "".join(
            json.dumps({"step": step, "step_time_s": 0.2}) + "\n"
            for step in range(count)
        )
    )
    assert run(["compare", base, str(new)]) == 0
    assert run(["compare", base, str(new), "--fail-slower", "2%"]) == 1
    message = " ".join(capsys.readouterr().out.split())
    steps = "1 steady step" if count == 1 else "2 steady steps"
    assert (
        f"cannot be judged, {new} has {steps}: did the run end early? Record 10 or more"
        in message
    )


def test_the_json_contract(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "compare",
                base,
                write_run(tmp_path / "perf", 0.19, 2),
                "--json",
                "--launch-spread",
                "0.15%",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "pgle.compare/1"
    assert result["verdict"] == "faster"
    assert result["ci"][0] < result["ratio"] < result["ci"][1] < 1
    assert result["p"] is None
    assert result["n"] == {"base": 10, "new": 10}
    assert 0 < result["minimum_detectable"] < 0.02
    assert result["base"]["runs"][0]["left_out"][0] == {
        "rule": "checkpoint",
        "steps": [50],
        "seconds": 5.0,
    }


def test_the_text_fits_a_page_and_lists_what_was_left_out(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["compare", base, write_run(tmp_path / "perf", 0.2, 2), "--section", "runs"])
    out = capsys.readouterr().out
    assert "1 checkpoint (50), 1 warm-up (0)" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_real_log_against_itself(
    testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(testdata / "maxtext_pgle" / "llama2_7b_pgle_run.log")
    assert run(["compare", log, log, "--steps", "9:29"]) == 0
    assert "21" in capsys.readouterr().out


def test_one_experiment_folder_is_enough(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "perf", 0.19, 2)
    assert run(["compare", str(tmp_path), "--require-faster"]) == 0
    assert "baseline" in capsys.readouterr().out


def test_only_the_command_records_that_a_run_was_compared(
    tmp_path: Path, base: str
) -> None:
    write_run(tmp_path / "perf", 0.19, 2)
    record(tmp_path, "baseline", "10:00")
    record(tmp_path, "perf", "11:00")
    before = (tmp_path / "manifest.json").read_bytes()
    assert pgle.compare(tmp_path).ok
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert run(["compare", str(tmp_path / "perf"), base]) == 0
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert run(["compare", str(tmp_path)]) == 0
    assert [stage.stage for stage in read_manifest(tmp_path).stages] == [
        "baseline",
        "perf",
        "compare",
    ]
    assert run(["compare", str(tmp_path)]) == 0
    assert len(read_manifest(tmp_path).stages) == 3


def test_several_runs_per_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(4):
        write_run(tmp_path / "a" / f"{i}", 0.2, i)
        write_run(tmp_path / "b" / f"{i}", 0.21, i + 9)
    assert (
        run(["compare", str(tmp_path / "a"), str(tmp_path / "b" / "*"), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["n"] == {"base": 4, "new": 4}


def test_reports_are_written_and_not_overwritten(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write_run(tmp_path / "perf", 0.21, 2)
    words = ["compare", base, new, "--fail-slower", "1%"]
    words += ["--html", str(tmp_path / "r.html")]
    assert run(words) == 1
    page = (tmp_path / "r.html").read_text()
    assert "slower by more than 1 % (--fail-slower)" in page
    assert (
        "http:" not in page.replace("http://www.w3.org/2000/svg", "")
        and "https:" not in page
    )
    written = (tmp_path / "r.html").read_bytes()
    assert run(words) == 2
    assert "already exists" in capsys.readouterr().err
    assert run([*words, "--force"]) == 1
    assert (tmp_path / "r.html").read_bytes() == written


def test_github_summary_and_outputs(
    tmp_path: Path,
    base: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = write_run(tmp_path / "perf", 0.21, 2)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    assert run(["compare", base, new, "--fail-slower", "1%", "--github"]) == 1
    outputs = dict(
        line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines()
    )
    assert outputs["verdict"] == "slower"
    assert outputs["ok"] == "false"
    assert (
        float(outputs["ci-low"]) < float(outputs["ratio"]) < float(outputs["ci-high"])
    )
    summary = (tmp_path / "summary.md").read_text()
    assert re.match(r"# 🔴 pgle compare: [\d.]+ % slower", summary)
    assert "| step \\(ms\\) |" in summary or "| step (ms) |" in summary


def test_github_outside_of_actions(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.delenv("GITHUB_OUTPUT", raising=False)
    assert run(["compare", base, base, "--github"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "nowhere"], "nowhere: no such file or directory; check the path"),
        (["x"], "two sides are needed, 1 given; pgle compare BASE NEW"),
        (["*.nothing", "x"], "matches nothing"),
        (
            [".", ".", "--fail-slower", "2"],
            "--fail-slower: '2' is not a share; write 2% if per cent are meant",
        ),
        ([".", ".", "--steps", "5"], "write FIRST:LAST"),
        (["--abba", "2", "--", "true"], "--abba: needs two commands"),
        (["--abba", "2", "--", "-"], "--abba: needs two commands"),
        (
            ["--abba", "--", "-"],
            "Option '--abba' requires an argument, and -- begins the program",
        ),
        (["-", "x"], "-: is stdin or stdout, and a file is needed"),
        ([".", ".", "--pattern", "("], "not a regular expression"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["compare", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "name"),
    [("", "a.log"), ("\x00\xff", "a.log"), ("[]", "a.jsonl"), ("a,b", "a.csv")],
)
def test_bad_files_are_one_line(
    content: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert run(["compare", str(path), str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_protocol_buffer_of_another_name_is_refused_as_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host.pb"
    path.write_bytes(b"\n\x01a")
    assert run(["compare", str(path), str(path)]) == 2
    assert (
        "host.pb: not a trace that pgle knows; give .nsys-rep"
        in capsys.readouterr().err
    )


PROGRAM = """
import os, sys
level = float(sys.argv[1])
folder = os.environ["PGLE_RUN_DIR"]
number = int(os.path.basename(folder)[:2])
if len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    open(sys.argv[2], "w").close()
    sys.exit("out of luck" if number == 2 else 0)
for step in range(30):
    print(f"step {step}: {level * (1 + 0.01 * number) * (1 + 0.001 * (step * 7 % 5)):.6f} s")
"""


def test_abba_runs_in_order_and_takes_the_drift_of_the_session_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = tmp_path / "abba"
    command = [sys.executable, str(program)]
    words = [
        "compare",
        "--abba",
        "2",
        "--run-dir",
        str(folder),
        "--json",
        "--",
        *command,
        "1.0",
        "--vs",
        *command,
        "1.02",
    ]
    assert run(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "01-A", "02-B", "03-B", "04-A", "05-B", "06-A", "07-A", "08-B",
    ]  # fmt: skip
    assert result["design"] == "pairs of runs"
    assert result["n"] == {"base": 4, "new": 4}
    assert result["ratio"] == pytest.approx(1.02, abs=0.001)
    assert run(["compare", str(folder), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["ratio"] == result["ratio"]
    assert [again[name]["label"] for name in ("base", "new")] == ["A", "B"]


def test_abba_passes_a_failure_on_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    words = ["compare", "--abba", "1", "--run-dir", str(tmp_path / "abba"), "--"]
    words += [*command, "1.0", "--vs", *command, "1.02", str(tmp_path / "seen")]
    assert run(words) == 1
    assert "run 2 (B) ended with code 1: out of luck" in capsys.readouterr().err
    assert run(words) == 0
    names = sorted(path.name for path in (tmp_path / "abba").iterdir() if path.is_dir())
    assert names == ["01-A", "02-B", "02-B.2", "03-B", "04-A"]


def test_abba_does_not_mix_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    words = ["compare", "--abba", "1", "--run-dir", str(tmp_path / "abba"), "--"]
    assert run([*words, *command, "1.0", "--vs", *command, "1.02"]) == 0
    assert run([*words, *command, "1.0", "--vs", *command, "1.05"]) == 2
    assert "holds runs of other commands" in capsys.readouterr().err


def test_two_abba_at_once_in_one_folder_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunDirectory(tmp_path).held():
        assert (
            run(
                [
                    "compare",
                    "--abba",
                    "1",
                    "--run-dir",
                    str(tmp_path),
                    "--",
                    "true",
                    "--vs",
                    "false",
                ]
            )
            == 2
        )
    assert "is at work in it; wait until it has ended" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "finished",
    ["[3, 4]", '"ab"', "null", '["../../x-A", "02-B"]', '["01-A", "02-A"]', '{"a": 1}'],
)
def test_a_damaged_plan_is_one_line(
    finished: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "abba.json").write_text(
        f'{{"schema": "pgle.abba/1", "finished": {finished}, "inside": ["", ""]}}'
    )
    assert run(["compare", str(tmp_path)]) == 2
    assert "abba.json: is not a plan of pgle compare --abba" in capsys.readouterr().err


def test_abba_does_not_mix_states_of_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), "1.0"]
    words = ["--run-dir", str(tmp_path / "abba"), "--", *command, "--vs", *command]
    assert run(["compare", "--abba", "1", *words]) == 0
    program.write_text(PROGRAM + "\n# edited\n")
    capsys.readouterr()
    assert run(["compare", "--abba", "2", *words]) == 2
    assert (
        f"holds runs of another state of the program: {program} has changed since"
        in capsys.readouterr().err
    )


def test_abba_ends_after_the_first_run_that_tells_no_step_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--run-dir",
        str(tmp_path / "abba"),
        "--",
        "echo",
        "a",
        "--vs",
        "echo",
        "b",
    ]
    assert run(["compare", "--abba", "3", *words]) == 2
    assert "01-A/output.log: no line of it holds a step time" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "abba").iterdir() if path.is_dir()] == [
        "01-A"
    ]


def test_a_pipe_is_refused_and_not_waited_for(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "run.log")
    assert run(["compare", str(tmp_path / "run.log"), base]) == 2
    assert "run.log: is a pipe" in capsys.readouterr().err


def test_the_page_says_where_the_runs_come_from(tmp_path: Path, base: str) -> None:
    new = write_run(tmp_path / "perf", 0.21, 2)
    gpus = tuple(Gpu("NVIDIA H100") for _ in range(8))
    for stage in ("baseline", "perf"):
        record = StageRecord(
            stage, started="2026-01-02T03:04:05Z", gpus=gpus, versions={"jax": "0.10.2"}
        )
        extend_manifest(tmp_path, record)
    assert run(["compare", base, new, "--html", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    for text in (
        "8 × NVIDIA H100",
        "2026-01-02T03:04",
        "0.10.2",
        'name="viewport"',
        "prefers-color-scheme:dark",
    ):
        assert text in page


def record(folder: Path, stage: str, started: str, **place: object) -> None:
    """A manifest's record of a stage of four GPUs on one host."""
    gpus = tuple(
        Gpu("NVIDIA H100", "580.65", uuid=f"GPU-{number}") for number in range(4)
    )
    known: dict[str, Any] = {
        "host": "node1",
        "gpus": gpus,
        "versions": {"jax": "0.10.2", "python": "3.11"},
        **place,
    }
    extend_manifest(
        folder,
        StageRecord(
            stage, started=f"2026-01-02T{started}:00.000000+00:00", exit_code=0, **known
        ),
    )


def test_records_of_one_place_within_hours_prove_a_small_spread(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write_run(tmp_path / "perf", 0.204, 2, noise=0.001)
    record(tmp_path, "baseline", "03:04")
    record(tmp_path, "perf", "08:00")
    assert run(["compare", base, new, "--fail-slower", "0.5%", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["outcome"], found["launch_spread"]["share"]) == (
        "slower",
        "fail",
        0.0021,
    )
    assert found["launch_spread"]["freedom"] == 5


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"host": "node2"}, "the two runs had different hosts"),
        (
            {"environment": {"CUDA_VISIBLE_DEVICES": "0,1"}},
            "the two runs had different GPUs",
        ),
        ({"gpus": (Gpu("NVIDIA H100", "580.65"),) * 4}, "records no GPUs"),
        ({"ranks": 2}, "records no hosts"),
    ],
)
def test_another_place_or_an_unknown_one_is_named(
    place: dict[str, Any],
    why: str,
    tmp_path: Path,
    base: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = write_run(tmp_path / "perf", 0.204, 2, noise=0.001)
    record(tmp_path, "baseline", "03:04")
    record(tmp_path, "perf", "08:00", **place)
    assert run(["compare", base, new, "--fail-slower", "0.5%", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["outcome"], found["ok"]) == (
        "undecided",
        "cannot-tell",
        None,
    )
    assert why in found["footnotes"][0]


def test_a_page_names_no_host(tmp_path: Path, base: str) -> None:
    new = write_run(tmp_path / "perf", 0.204, 2)
    for stage in ("baseline", "perf"):
        record(tmp_path, stage, "03:04")
    assert run(["compare", base, new, "--html", str(tmp_path / "r.html")]) == 0
    assert "node1" not in (tmp_path / "r.html").read_text()
