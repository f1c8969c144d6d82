"""The whole workflow on the simulated GPU: profile → convert → verify → baseline → perf, resumed
and refused.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Origin
from pgle.report.analyze import actions, headline
from pgle.run.analyze import StepInput, analyze
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import read_manifest
from pgle.run.stages.simulated import SimulatedBackEnd
from pgle.run.stages.stage import StageRequest

pytestmark = [pytest.mark.rehearse, pytest.mark.usefixtures("plugin_loaded_once")]

WORDS = [sys.executable, "-m", "pgle.workloads", "overlap", "--compile-only"]
SIMULATED = ["--capture", "simulated", "--target", "a100"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run directory after `pgle run`, with a blank in its name as home directories may have."""
    folder = tmp_path_factory.mktemp("runs") / "my overlap"
    assert run(["run", "--run-dir", str(folder), *SIMULATED, "--", *WORDS]) == 0
    return folder


def test_every_stage_leaves_its_files(finished):
    for stage in ("profile", "baseline", "perf"):
        assert (finished / stage / "steps.jsonl").is_file()
        assert (finished / stage / "output.log").is_file()
    assert (finished / "profile.pbtxt").is_file()
    assert len(list((finished / "profiles").glob("profile-*.pbtxt"))) == 1


def test_step_times_and_costs_are_labelled_simulated(finished):
    steps = [
        json.loads(line)
        for line in (finished / "perf/steps.jsonl").read_text().splitlines()
    ]
    assert all(step["simulated"] for step in steps)
    assert {cost.origin for cost in read_profile(finished / "profile.pbtxt").costs} == {
        Origin.SIMULATED
    }


def test_the_manifest_records_flags_profile_and_verdict(finished):
    perf = read_manifest(finished).last("perf")
    assert perf is not None
    assert "--xla_gpu_pgle_profile_file_or_directory_path=" in perf.xla_flags
    assert perf.facts["verdict"] == "used"
    assert any(item.path.startswith("profiles/profile-") for item in perf.inputs)
    assert perf.topology["simulated"] is True


def test_profile_and_performance_run_compile_the_same_program(finished):
    stages = read_manifest(finished)
    baseline, perf = stages.last("baseline"), stages.last("perf")
    assert baseline is not None
    assert perf is not None
    assert baseline.facts["fingerprint"] == perf.facts["fingerprint"] != ""


def test_the_profiled_schedule_exposes_less(finished):
    stages = read_manifest(finished)
    exposed = {
        name: float(stages.last(name).facts["predicted_exposed_us"])
        for name in ("baseline", "perf")
    }
    assert exposed["perf"] < 0.1 * exposed["baseline"]


def test_a_rehearsal_of_the_run_takes_its_module_its_profile_and_its_gpu(
    finished, tmp_path, capsys
):
    assert run(["rehearse", str(finished), "-o", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["profile"], found["target"]) == (
        str(finished / "profile.pbtxt"),
        "a100-40gb",
    )
    assert found["devices"] == 4
    assert Path(found["module"]).parent == finished / "captured"


def test_a_second_run_skips_what_is_done(finished, capsys):
    assert (
        run(["run", "--run-dir", str(finished), *SIMULATED, "--json", "--", *WORDS])
        == 0
    )
    captured = capsys.readouterr()
    assert json.loads(captured.out)["skipped"] == [
        "profile",
        "convert",
        "baseline",
        "perf",
    ]


def test_after_a_lost_stage_only_that_is_run_again(finished, capsys):
    shutil.rmtree(finished / "perf")
    assert (
        run(["run", "--run-dir", str(finished), *SIMULATED, "--json", "--", *WORDS])
        == 0
    )
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ran"] == ["perf"]
    assert "pgle: perf: again, perf/" in captured.err


def test_another_command_does_not_mix_into_a_run_directory(finished, capsys):
    assert (
        run(
            [
                "profile",
                "--run-dir",
                str(finished),
                *SIMULATED,
                "--",
                sys.executable,
                "-c",
                "1",
            ]
        )
        == 2
    )
    assert "belongs to another command" in capsys.readouterr().err


def test_another_command_that_fails_at_once_leaves_the_captured_modules_of_the_first(
    finished, capsys
):
    captured = sorted((finished / "captured").iterdir())
    assert (
        run(
            [
                "run",
                "--run-dir",
                str(finished),
                *SIMULATED,
                "--",
                sys.executable,
                "-c",
                "exit(9)",
            ]
        )
        == 9
    )
    assert sorted((finished / "captured").iterdir()) == captured != []
    capsys.readouterr()
    assert (
        run(["run", "--run-dir", str(finished), *SIMULATED, "--json", "--", *WORDS])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["ran"] == []


def test_a_stage_is_not_overwritten_without_force(finished, capsys):
    assert run(["profile", "--run-dir", str(finished), *SIMULATED, "--", *WORDS]) == 2
    assert "--force" in capsys.readouterr().err


def test_perf_fails_when_no_name_matches(finished, capsys, tmp_path):
    stranger = tmp_path / "stranger.pbtxt"
    stranger.write_text('costs { name: "no-such-instruction" cost_us: 5 }\n')
    code = run(
        [
            "perf",
            "--run-dir",
            str(finished),
            "--force",
            *SIMULATED,
            "--profile",
            str(stranger),
            "--json",
            "--",
            *WORDS,
        ]
    )
    assert code == 1
    assert (
        json.loads(capsys.readouterr().out)["verdict"]["verdict"]
        == "used-without-matches"
    )


def test_a_performance_run_of_the_same_program_has_no_mismatch_to_report(
    finished, capsys
):
    assert (
        run(["perf", "--run-dir", str(finished), "--force", *SIMULATED, "--", *WORDS])
        == 0
    )
    assert "against the profile run" not in capsys.readouterr().err


def test_flags_that_the_profile_run_did_not_have_are_said(finished, capsys):
    flag = "--flag=--xla_gpu_all_gather_combine_threshold_bytes=1024"
    run(["perf", "--run-dir", str(finished), "--force", *SIMULATED, flag, "--", *WORDS])
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "against the profile run, --xla_gpu_all_gather_combine_threshold_bytes differs: unset and 1024"
        in out
    )


def test_flags_of_the_environment_are_applied_recorded_and_shown(
    finished, capsys, monkeypatch
):
    monkeypatch.setenv(
        "XLA_FLAGS",
        "--xla_gpu_all_gather_combine_threshold_bytes=1024 --xla_dump_to=/no/such/place",
    )
    words = [
        "perf",
        "--baseline",
        "--run-dir",
        str(finished),
        "--force",
        *SIMULATED,
        "--section",
        "stage",
    ]
    assert run([*words, "--", *WORDS]) == 0
    out = " ".join(capsys.readouterr().out.split())
    record = read_manifest(finished).last("baseline")
    assert record is not None
    assert record.xla_flags.endswith(
        "--xla_gpu_all_gather_combine_threshold_bytes=1024"
    )
    assert "--xla_gpu_all_gather_combine_threshold_bytes=1024" in out
    assert "--xla_dump_to: left out: pgle has XLA dump into a folder of its own" in out


def test_a_flag_that_xla_refuses_is_refused_before_anything_runs(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_no_such_flag=1")
    assert (
        run(["profile", "--run-dir", str(tmp_path / "run"), *SIMULATED, "--", *WORDS])
        == 2
    )
    assert "--xla_gpu_no_such_flag: yours, and jaxlib" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_first_lines_say_module_compiler_devices_and_step_times(finished, capsys):
    assert (
        run(
            [
                "perf",
                "--baseline",
                "--run-dir",
                str(finished),
                "--force",
                *SIMULATED,
                "--",
                *WORDS,
            ]
        )
        == 0
    )
    first, second, *_ = capsys.readouterr().out.splitlines()
    facts = read_manifest(finished).last("baseline").facts
    assert first.startswith(
        f"jit_overlap_step · 4 simulated a100-40gb · jaxlib {facts['jaxlib']}"
    )
    assert second.startswith("✓ baseline: 40 steps, ")


def test_the_module_can_be_chosen(finished, capsys):
    words = [
        "perf",
        "--baseline",
        "--run-dir",
        str(finished),
        "--force",
        *SIMULATED,
        "--module",
        "nosuch",
    ]
    assert run([*words, "--", *WORDS]) == 2
    assert "--module nosuch" in capsys.readouterr().err


def test_every_way_to_a_step_gives_the_same_for_one_schedule(
    finished, capsys, tmp_path
):
    facts = read_manifest(finished).last("baseline").facts
    module = str(finished / "captured" / facts["program"])
    rehearse = [
        "rehearse",
        module,
        "--target",
        "a100",
        "--topology",
        "1x1x4",
        "--json",
        "-o",
        str(tmp_path / "out"),
    ]
    assert run(rehearse) == 0
    rehearsed = json.loads(capsys.readouterr().out)["baseline"]["step_us"]
    assert float(facts["predicted_step_us"]) == pytest.approx(
        rehearsed, abs=0.001
    )  # what it is rounded to
    steps = [
        json.loads(line)["step_time_s"] * 1e6
        for line in (finished / "baseline/steps.jsonl").open()
    ]
    assert (
        max(steps[3:]) < 1.05 * rehearsed
    )  # the wait for the slowest of four ranks, no pause of the host
    assert min(steps[3:]) > 0.99 * rehearsed


def test_a_program_that_dies_under_force_leaves_nothing_that_counts_as_done(
    finished, capsys, tmp_path
):
    script = tmp_path / "train.py"
    run_dir = str(tmp_path / "run")
    good = "import jax; jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64)))"
    words = [
        "profile",
        "--run-dir",
        run_dir,
        *SIMULATED,
        "--",
        sys.executable,
        str(script),
    ]
    script.write_text(good)
    assert run(words) == 0
    script.write_text("import sys; sys.exit(9)")
    assert run([*words[:1], "--force", *words[1:]]) == 9
    manifest = read_manifest(Path(run_dir))
    assert manifest.last("capture").exit_code == 9
    script.write_text(good)
    back_end = SimulatedBackEnd("a100")
    request = StageRequest(
        "profile", tuple(words[-2:]), RunDirectory(Path(run_dir)), "sync"
    )
    assert manifest.why_due(back_end.plan(request), Path(run_dir))


def test_a_program_that_fails_by_itself_after_its_step_fails_the_stage_again_and_again(
    capsys, tmp_path
):
    script = tmp_path / "train.py"
    step = "import jax; f = jax.jit(lambda x: x @ x); x = jax.numpy.ones((64, 64))\nfor _ in range(3): x = f(x)\n"
    script.write_text(f"{step}raise SystemExit(3)")
    words = [
        "profile",
        "--run-dir",
        str(tmp_path / "run"),
        *SIMULATED,
        "--",
        sys.executable,
        str(script),
    ]
    for _ in range(2):
        assert run(words) == 3
        assert (
            "ended with exit code 3 after its step was executed"
            in capsys.readouterr().err
        )


def test_a_step_without_a_kernel_has_no_step_times(tmp_path):
    code = "import jax; jax.jit(lambda x: x.reshape(2, 2), donate_argnums=0).lower(jax.numpy.ones(4)).compile()"
    words = [
        "perf",
        "--baseline",
        "--run-dir",
        str(tmp_path),
        *SIMULATED,
        "--devices",
        "1",
    ]
    assert run([*words, "--", sys.executable, "-c", code]) == 0
    assert read_manifest(tmp_path).last("baseline").is_done


def test_perf_without_a_profile_names_the_command_that_makes_one(tmp_path, capsys):
    assert run(["perf", "--run-dir", str(tmp_path), *SIMULATED, "--", *WORDS]) == 2
    assert "pgle convert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("x://y/p.pbtxt", "x://y/p.pbtxt: no way to read such an address"),
        ("bad.pbtxt", "bad"),
    ],
)
def test_a_profile_that_cannot_be_read_leaves_no_run_directory(
    tmp_path, capsys, monkeypatch, profile, said
):
    monkeypatch.chdir(tmp_path)
    Path("bad.pbtxt").write_text("bad")
    assert (
        run(
            ["perf", "--run-dir", "new", "--profile", profile, *SIMULATED, "--", *WORDS]
        )
        == 2
    )
    assert said in capsys.readouterr().err
    assert not Path("new").exists()


def test_modules_that_no_manifest_speaks_of_are_left_alone(tmp_path, capsys):
    (tmp_path / "captured").mkdir()
    (tmp_path / "captured/jax_ir0000_jit_mine_compile.mlir").write_text(
        "module @jit_mine"
    )
    assert run(["profile", "--run-dir", str(tmp_path), *SIMULATED, "--", *WORDS]) == 2
    assert (
        "holds modules of a run that its manifest does not speak of"
        in capsys.readouterr().err
    )
    assert (tmp_path / "captured/jax_ir0000_jit_mine_compile.mlir").exists()


@pytest.mark.parametrize("inside", ["profile", "profile/trace", "profile/hlo"])
def test_a_profile_run_is_named_as_one_by_each_of_its_folders(finished, inside):
    found = analyze(StepInput((finished / inside,)))
    answer, _ = headline(found)
    assert answer.startswith("This is a profile run")
    assert not [one for one in actions(found) if "asynchronous" in one.title]
    assert found.step.hardware is not None
    assert found.step.hardware.name.startswith("a100")
