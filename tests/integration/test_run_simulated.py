"""The whole workflow on the simulated GPU: profile → convert → verify → baseline → perf, resumed and refused."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from pgle.cli.main import run
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Origin
from pgle.run.experiment.manifest import read_manifest

pytestmark = pytest.mark.rehearse

WORDS = [sys.executable, "-m", "pgle.workloads.overlap", "--compile-only"]
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
    steps = [json.loads(line) for line in (finished / "perf/steps.jsonl").read_text().splitlines()]
    assert all(step["simulated"] for step in steps)
    assert {cost.origin for cost in read_profile(finished / "profile.pbtxt").costs} == {Origin.SIMULATED}


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
    exposed = {name: float(stages.last(name).facts["predicted_exposed_us"]) for name in ("baseline", "perf")}
    assert exposed["perf"] < 0.1 * exposed["baseline"]


def test_a_second_run_skips_what_is_done(finished, capsys):
    assert run(["run", "--run-dir", str(finished), *SIMULATED, "--json", "--", *WORDS]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["skipped"] == ["profile", "convert", "baseline", "perf"]


def test_after_a_lost_stage_only_that_is_run_again(finished, capsys):
    shutil.rmtree(finished / "perf")
    assert run(["run", "--run-dir", str(finished), *SIMULATED, "--json", "--", *WORDS]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ran"] == ["perf"]
    assert "pgle: perf: again, perf/" in captured.err


def test_another_command_does_not_mix_into_a_run_directory(finished, capsys):
    assert run(["profile", "--run-dir", str(finished), *SIMULATED, "--", sys.executable, "-c", "1"]) == 2
    assert "belongs to another command" in capsys.readouterr().err


def test_a_stage_is_not_overwritten_without_force(finished, capsys):
    assert run(["profile", "--run-dir", str(finished), *SIMULATED, "--", *WORDS]) == 2
    assert "--force" in capsys.readouterr().err


def test_perf_fails_when_no_name_matches(finished, capsys, tmp_path):
    stranger = tmp_path / "stranger.pbtxt"
    stranger.write_text('costs { name: "no-such-instruction" cost_us: 5 }\n')
    code = run(
        ["perf", "--run-dir", str(finished), "--force", *SIMULATED, "--profile", str(stranger), "--json", "--", *WORDS]
    )
    assert code == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["verdict"] == "used-without-matches"


def test_a_performance_run_of_the_same_program_has_no_mismatch_to_report(finished, capsys):
    assert run(["perf", "--run-dir", str(finished), "--force", *SIMULATED, "--", *WORDS]) == 0
    assert "against the profile run" not in capsys.readouterr().err


def test_flags_that_the_profile_run_did_not_have_are_said(finished, capsys):
    flag = "--flag=--xla_gpu_all_gather_combine_threshold_bytes=1024"
    run(["perf", "--run-dir", str(finished), "--force", *SIMULATED, flag, "--", *WORDS])
    err = capsys.readouterr().err
    assert "against the profile run, --xla_gpu_all_gather_combine_threshold_bytes differs: unset and 1024" in err


def test_perf_without_a_profile_names_the_command_that_makes_one(tmp_path, capsys):
    assert run(["perf", "--run-dir", str(tmp_path), *SIMULATED, "--", *WORDS]) == 2
    assert "pgle convert" in capsys.readouterr().err
