"""`pgle confirm` as a user calls it."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from pathlib import Path

import pytest

from pgle.cli.logs import confirm_command as command
from pgle.cli.main import run
from pgle.costs.profile.value import Cost, Profile
from pgle.run.compiler.compile import CompileResult
from pgle.run.confirm import ConfirmRequest, confirm, confirm_compiled
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import StageRecord, extend_manifest
from pgle.xla.log.verdict import BOUNDS, ProfileUse

LOGS = "testdata/logs/jax_0.12.0.1"


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch, testdata: Path) -> None:
    monkeypatch.chdir(testdata.parent)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize(
    ("log", "code"),
    [
        (f"{LOGS}/used.log", 0),
        (f"{LOGS}/half.log", 1),
        (f"{LOGS}/empty.log", 1),
        (f"{LOGS}/wrong_path.log", 1),
        (f"{LOGS}/text_in_pb.log", 1),
        ("testdata/maxtext_pgle/llama2_7b_pgle_run.log", 1),
        ("testdata/logs/README.md", 1),
    ],
)
def test_exit_code(log: str, code: int) -> None:
    assert run(["confirm", log]) == code


@pytest.mark.parametrize("piped", [False, True])
def test_a_log_as_windows_writes_it(
    piped: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "used.log"
    path.write_bytes(
        Path(f"{LOGS}/used.log").read_text().replace("\n", "\r\n").encode("utf-8-sig")
    )
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        assert run(["confirm", "-" if piped else str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["main"]["verdict"] == "used"


def test_real_run_of_2024(capsys: pytest.CaptureFixture[str]) -> None:
    run(
        [
            "confirm",
            "testdata/maxtext_pgle/llama2_7b_pgle_run.log",
            "--section",
            "modules",
        ]
    )
    text = capsys.readouterr().out
    assert "profile.pbtxt was read for 17 modules" in text
    assert "! jit_train_step: cannot tell whether the profile was used\n" in text
    assert "line 47: Found profile, using profile guided latency estimator" in text


def test_what_a_log_lacks_is_to_be_set_and_not_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text("step 1, 0.2 s\nstep 2, 0.2 s\n")
    assert run(["confirm", str(log)]) == 1
    assert "\nNow: set TF_CPP_MIN_LOG_LEVEL=0" in capsys.readouterr().out


def test_tables_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run(["confirm", "testdata/maxtext_pgle/llama2_7b_pgle_run.log"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_missing_instructions_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    run(["confirm", f"{LOGS}/half.log"])
    text = capsys.readouterr().out
    assert "profile partly used (18 of 36 instructions)" in text
    assert (
        "the profile has costs for 18 of the 36 instructions, 50.0 % (asked for: 95.0 %; a log has no"
        in text
    )
    assert "XLA missed: all-gather-start.1, " in text
    assert "and 14 more" in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    run(["confirm", f"{LOGS}/half.log", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["used"]) == ("pgle.confirm/1", False)
    assert (
        found["main"]["module"],
        found["main"]["found"],
        found["main"]["missing"],
    ) == (
        "jit_train_step",
        18,
        18,
    )
    assert (len(found["modules"]), found["sub_modules"]) == (1, 16)


def test_the_bound_is_that_of_verify() -> None:
    assert run(["confirm", f"{LOGS}/half.log", "--min-time-coverage", "0.5"]) == 0
    defaults = {param.name: param.default for param in command.params}
    assert (defaults["min_time_coverage"], defaults["min_collectives"]) == (
        BOUNDS.time,
        BOUNDS.collectives,
    )


def test_release_given_by_the_user() -> None:
    log = "testdata/logs/jax_0.5.3/used.log"
    assert (run(["confirm", log]), run(["confirm", log, "--jax", "0.5.3"])) == (1, 0)


def test_log_from_a_pipe(monkeypatch: pytest.MonkeyPatch, testdata: Path) -> None:
    data = (testdata / "logs/jax_0.10.2/used.log").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert run(["confirm", "-"]) == 0


def test_compressed_log(tmp_path: Path, testdata: Path) -> None:
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(
        gzip.compress((testdata / "logs/jax_0.10.2/used.log").read_bytes())
    )
    assert run(["confirm", str(packed)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.log"], "nowhere.log: no such file"),
        (["testdata"], "testdata: a directory without the log of a perf stage"),
        (
            [f"{LOGS}/used.log", "--module", "("],
            "'--module': '(' is not a regular expression",
        ),
        (
            [f"{LOGS}/used.log", "--schedule", "nowhere"],
            "nowhere: no such file or directory",
        ),
        (
            [f"{LOGS}/used.log", "--jax", "new"],
            "--jax 'new' is not a version of jax; write it like 0.6.2",
        ),
        ([f"{LOGS}/used.log", "--profile", "nowhere.pbtxt"], "nowhere.pbtxt"),
    ],
)
def test_bad_input(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["confirm", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_which_stage_of_a_run_directory_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "baseline" / "hlo").mkdir(parents=True)
    (tmp_path / "perf" / "hlo").mkdir(parents=True)
    profile = tmp_path / "x.pbtxt"
    profile.write_text('costs { name: "a" cost_us: 1 }')
    assert (
        run(
            [
                "confirm",
                f"{LOGS}/used.log",
                "--profile",
                str(profile),
                "--schedule",
                str(tmp_path),
            ]
        )
        == 2
    )
    assert (
        f"holds the stages baseline, perf; name the log's own: {tmp_path}/perf"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.log", b"", "an empty file"),
        ("x.log", bytes(100), "not a log, but binary"),
        ("x.log", Path("docs/report.png").read_bytes(), "not a log, but binary"),
        ("x.sqlite", b"SQLite format 3\0" + b"x" * 5000, "not a log, but binary"),
        (
            "x.pbtxt",
            b'costs { name: "a" cost_us: 1 }',
            "a profile or a dump by its name, not a log",
        ),
        ("x.hlo.pb.xz", b"", "a profile or a dump by its name, not a log"),
    ],
)
def test_what_is_no_log(
    name: str,
    content: bytes,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run(["confirm", str(tmp_path / name)]) == 2
    assert (
        capsys.readouterr().err
        == f"pgle: {tmp_path / name}: {said}; give the log of the run, stdout and stderr together\n"
    )


DUMPS = "testdata/hlo/jax-0.12.0.1/sync"


@pytest.mark.parametrize(
    "profile",
    ["", "not a profile", "costs { nothing: 1 }"],
    ids=["empty", "text", "other fields"],
)
def test_a_profile_that_cannot_be_read_is_refused(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.pbtxt"
    path.write_text(profile)
    assert (
        run(
            ["confirm", f"{LOGS}/used.log", "--schedule", DUMPS, "--profile", str(path)]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert error.startswith(f"pgle: {path}: ")
    assert error.count("\n") == 1


def test_a_profile_that_is_gone_leaves_the_verdict_of_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["confirm", f"{LOGS}/used.log", "--schedule", DUMPS]) == 0
    assert (
        "the schedule dump was not looked at: it proves nothing without the profile"
        in (" ".join(capsys.readouterr().out.split()))
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("broken.txt", "broken", "not a schedule dump"),
        ("m.schedule.txt", "hlo_module {", "not a schedule dump, or cut short"),
        ("m.schedule.pb", "broken", "not a binary schedule dump, or cut short"),
        ("folder/x.txt", "x", "no schedule dump in it"),
    ],
)
def test_a_broken_schedule_dump_is_refused_with_a_log_that_says_nothing(
    name: str,
    content: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "run.log"
    log.touch()
    dump = tmp_path / name
    dump.parent.mkdir(exist_ok=True)
    dump.write_text(content)
    named = tmp_path / Path(name).parts[0]
    assert run(["confirm", str(log), "--schedule", str(named)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pgle: {named}: {said}")
    assert error.count("\n") == 1


def test_a_named_pipe_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert run(["confirm", str(tmp_path / "pipe")]) == 2
    assert "is a pipe, a file is needed" in capsys.readouterr().err


def test_hidden_info_lines_beside_a_schedule_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("step 1\nstep 2\n")
    assert run(["confirm", str(log), "--schedule", DUMPS]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "cannot tell whether the profile was used" in out
    assert "the log holds no INFO line of XLA" in out
    assert "pass --profile PROFILE" in out


def test_a_run_directory_is_its_perf_stage(
    tmp_path: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf/output.log").write_bytes(
        (testdata / "logs/jax_0.12.0.1/used.log").read_bytes()
    )
    assert run(["confirm", str(tmp_path)]) == 0
    (tmp_path / "perf/output.rank0003.log").write_bytes(
        (testdata / "logs/jax_0.12.0.1/no_profile.log").read_bytes()
    )
    assert run(["confirm", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "jit_train_step: profile not used" in text
    assert "on 1 of 2 ranks (3): the scheduler ran, but no profile was found" in text
    assert "used on 0; not-used on 3" in text


def test_silence_of_a_rank_that_ended_early_proves_nothing_though_another_ended_by_itself(
    tmp_path: Path,
) -> None:
    files = RunDirectory(tmp_path).stage("perf")
    files.path.mkdir()
    lines = Path(f"{LOGS}/used.log").read_text().splitlines(keepends=True)
    scheduled = next(
        at
        for at, line in enumerate(lines)
        if "Found profile for module jit_train_step" in line
    )
    files.rank(0).log.write_text("".join(lines))
    files.rank(3).log.write_text("".join(lines[: scheduled + 1]))
    files.rank(0).facts.write_text('{"finished": true}')
    assert confirm(ConfirmRequest(tmp_path)).main.verdict is ProfileUse.CANNOT_TELL
    files.rank(3).facts.write_text('{"finished": true}')
    assert confirm(ConfirmRequest(tmp_path)).main.verdict is ProfileUse.USED


def test_ranks_in_json(
    tmp_path: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (testdata / "logs/jax_0.12.0.1/used.log").read_text().splitlines()
    log = tmp_path / "run.log"
    log.write_text("".join(f"{rank}: {line}\n" for line in lines for rank in (0, 1)))
    assert run(["confirm", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == {"0": "used", "1": "used"}


def test_control_characters_in_the_name_of_a_dump_never_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "x.pbtxt"
    profile.write_text('costs { name: "a" cost_us: 1 }')
    (tmp_path / "m.schedule.txt").write_text('hlo_module {\n  name: "a\x1b[31mb"\n}\n')
    assert (
        run(
            [
                "confirm",
                f"{LOGS}/used.log",
                "--profile",
                str(profile),
                "--schedule",
                str(tmp_path),
            ]
        )
        == 0
    )
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "it has a\\x1b[31mb" in said.out


def test_the_log_of_a_stage_is_judged_with_the_dump_beside_it(
    tmp_path: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = RunDirectory(tmp_path)
    extend_manifest(tmp_path, StageRecord("perf"))
    files = run_dir.stage("perf").rank()
    files.folder.mkdir()
    files.log.write_bytes((testdata / "logs/jax_0.12.0.1/used.log").read_bytes())
    files.hlo.symlink_to(testdata / "hlo/jax-0.12.0.1/async")
    (tmp_path / "p.pbtxt").write_text('costs { name: "a" cost_us: 1 }')
    for path in (tmp_path, files.folder, files.log):
        run(["confirm", str(path), "--profile", str(tmp_path / "p.pbtxt")])
        assert "no schedule dump of jit_train_step (it has jit_step)" in " ".join(
            capsys.readouterr().out.split()
        )


OLD_HLO = """HloModule jit_train_step, is_scheduled=true

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %sine.1 = f32[8]{0} sine(%a)
  ROOT %negate.7 = f32[8]{0} negate(%sine.1)
}
"""


@pytest.mark.parametrize(
    ("names", "verdict"),
    [(("sine.1", "negate.7"), "used"), (("sine.9",), "partly used")],
)
def test_the_final_module_tells_what_a_log_of_old_xla_leaves_open(
    names: tuple[str, ...],
    verdict: str,
    tmp_path: Path,
    testdata: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "perf/hlo").mkdir(parents=True)
    (tmp_path / "perf/output.log").write_bytes(
        (testdata / "logs/jax_0.4.38/empty.log").read_bytes()
    )
    (
        tmp_path
        / "perf/hlo/module_0001.jit_train_step.sm_9.0_gpu_after_optimizations.txt"
    ).write_text(OLD_HLO)
    profile = tmp_path / "p.pbtxt"
    profile.write_text(
        "".join(f'costs {{ name: "{name}" cost_us: 5 }}\n' for name in names)
    )
    code = run(["confirm", str(tmp_path), "--profile", str(profile)])
    assert (
        code,
        f"jit_train_step: profile {verdict} (" in capsys.readouterr().out,
    ) == (
        int(verdict != "used"),
        True,
    )


def test_a_compilation_of_old_xla_is_judged_by_its_jaxlib_and_its_final_module(
    tmp_path: Path, testdata: Path
) -> None:
    module = "module_0001.jit_train_step.sm_9.0_gpu_after_optimizations.txt"
    (tmp_path / module).write_text(OLD_HLO)
    compiled = CompileResult(
        module_name="jit_train_step",
        num_devices=1,
        after_optimizations=tmp_path / module,
        schedule=None,
        log=testdata / "logs/jax_0.4.38/empty.log",
        fingerprint="",
        compile_s=1.0,
        memory={},
        jaxlib="0.4.38",
    )
    costs = (Cost("sine.1", 5.0), Cost("negate.7", 5.0))
    assert confirm_compiled(compiled, Profile(costs)).verdict is ProfileUse.USED


def test_a_baseline_has_no_profile_to_confirm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text(
        '{"schema": "pgle.manifest/1", "stages": []}'
    )
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "output.log").write_text("step 1\n")
    assert run(["confirm", str(tmp_path / "baseline")]) == 2
    said = f"the baseline runs without a profile: nothing to confirm; say `pgle confirm {tmp_path}/perf`"
    assert said in capsys.readouterr().err


FATAL = "F1121 02:50:12.000001   17733 gpu_hlo_schedule.cc:475] Check failed: a <= b\n"


def two_ranks(folder: Path, testdata: Path, second: str = "") -> list[str]:
    used = (testdata / "logs/jax_0.12.0.1/used.log").read_text()
    names = [folder / "rank0.log", folder / "rank1.log"]
    for name, text in zip(names, (used, used + second), strict=True):
        name.write_text(text)
    return list(map(str, names))


def ranks_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    run(["confirm", *arguments, "--json"])
    return dict(json.loads(capsys.readouterr().out)["ranks"])


def test_several_logs_are_ranks(
    tmp_path: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = two_ranks(tmp_path, testdata, FATAL)
    assert ranks_of(capsys, *logs) == {"0": "used", "1": "ended"}
    assert ranks_of(capsys, str(tmp_path)) == {"0": "used", "1": "ended"}


def test_a_rank_whose_log_is_empty_is_a_rank(
    tmp_path: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = two_ranks(tmp_path, testdata)
    Path(logs[1]).write_text("")
    assert ranks_of(capsys, *logs) == {"0": "used", "1": "cannot-tell"}


def test_out_and_err_of_slurm_are_one_rank(
    tmp_path: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = (testdata / "logs/jax_0.12.0.1/used.log").read_text()
    for rank in range(2):
        (tmp_path / f"job7-{rank}.err").write_text(used)
        (tmp_path / f"job7-{rank}.out").write_text("step 1: loss 2.0\n")
    assert ranks_of(capsys, str(tmp_path)) == {"0": "used", "1": "used"}


def test_logs_whose_names_have_no_numbers_keep_their_names(
    tmp_path: Path, testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for log in two_ranks(tmp_path, testdata):
        Path(log).rename(
            tmp_path / ("alpha.log" if log.endswith("0.log") else "beta.log")
        )
    assert ranks_of(capsys, str(tmp_path)) == {"alpha": "used", "beta": "used"}


@pytest.mark.parametrize(("other", "code"), [("same", 0), ("changed", 1)])
def test_profiles_of_two_ranks_are_the_same_if_their_bytes_are(
    other: str, code: int, tmp_path: Path, testdata: Path
) -> None:
    used = (testdata / "logs/jax_0.12.0.1/used.log").read_text()
    line = next(line for line in used.splitlines() if "Using PGLE profile" in line)
    path = line.split("from ")[1]
    for rank, content in enumerate(("same", other)):
        profile = tmp_path / f"p{rank}.pbtxt"
        profile.write_text(content)
        (tmp_path / f"rank{rank}.log").write_text(used.replace(path, str(profile)))
    assert run(["confirm", str(tmp_path)]) == code
