"""`pgle run` on a back end that leaves a recorded trace: which stages run again, and what is never
taken for done.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pgle.errors import UserError, WorkloadError
from pgle.files import sha256
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import (
    extend_manifest,
    imported_files,
    now,
    read_manifest,
    waiting,
)
from pgle.run.inputs.next_command import ON_GPU, ProgramLaunch
from pgle.run.stages.pipeline import Experiment
from pgle.run.stages.stage import StageRequest, StageResult, end_record
from pgle.xla.log.verdict import ProfileUse

RECORDED = Path(__file__).parents[3] / "testdata" / "jax_xplane"
SAME_HLO = "jit_forward_3d_conv(15).hlo_proto.pb"
STAGES = ["profile", "convert", "baseline", "perf"]
OUTPUTS = [
    ("profile/output.log", "profile"), ("profile/steps.jsonl", "profile"), ("profile/hlo", "profile"),
    ("profile/trace/rank0000/host.xplane.pb", "profile"), ("profile.pbtxt", "convert"),
    ("profile.pbtxt.json", "convert"),
    ("baseline/output.log", "baseline"), ("baseline/steps.jsonl", "baseline"), ("perf/steps.jsonl", "perf"),
    ("perf", "perf"),
]  # fmt: skip


@dataclass
class Recorded:
    """Runs no program: every stage leaves the files of one that was recorded.

    Attributes:
        ran: the stages that were run.
        exit_code: of the program.
        killed_in: the stage in which pgle is killed: its record stays open.
        traces: whether the profile stage leaves a trace.
        baseline_hlo: what the baseline compiles.
        installed: the versions that the program runs with.
        imports: files that it imports.
    """

    ran: list[str] = field(default_factory=list)
    exit_code: int = 0
    killed_in: str = ""
    traces: bool = True
    baseline_hlo: str = SAME_HLO
    imports: tuple[Path, ...] = ()
    installed: dict[str, str] = field(
        default_factory=lambda: {"jax": "0.8.3", "jaxlib": "0.8.3", "numpy": "2.0"}
    )

    def check(self, request):
        pass

    def plan(self, request):
        return request.plan(self.installed)

    def run(self, request, *, again, force):
        older = waiting(
            request.run, request.stage, request.folder.make(again=again), force=force
        )
        self.ran.append(request.stage)
        record = replace(self.plan(request), started=now(), before=older)
        extend_manifest(request.run.path, record)
        if self.killed_in == request.stage:
            raise KeyboardInterrupt
        files = request.folder.rank()
        files.log.write_text("I am the program\n")
        lines = [
            f'{{"step": {step}, "step_time_s": 0.{1000 + step % 7}}}\n'
            for step in range(40)
        ]
        files.steps.write_text("".join(lines))
        if request.stage == "profile" and self.traces:
            files.trace.mkdir(parents=True)
            shutil.copyfile(
                RECORDED / "jax_conv_minimal_legacy.xplane.pb",
                files.trace / "host.xplane.pb",
            )
        if request.stage == "baseline" or (request.stage == "profile" and self.traces):
            files.hlo.mkdir()
            name = self.baseline_hlo if request.stage == "baseline" else SAME_HLO
            hlo = RECORDED / "hlo_proto" / name
            shutil.copyfile(hlo, files.hlo / "jit.hlo.pb")
        failed = (
            ""
            if request.stage != "profile" or self.traces
            else "no trace: too short; let it run longer"
        )
        digests = {str(path): sha256(path.read_bytes()) for path in self.imports}
        record = replace(record, imported=imported_files(digests))
        facts = {"verdict": ProfileUse.USED.value}
        end_record(
            request.run, record, self.exit_code, outputs=request.folder.outputs(), facts=facts, failed=failed,
            warnings=[f"of {request.stage}"],
        )  # fmt: skip
        if self.exit_code:
            raise WorkloadError(self.exit_code, "the program ended with 9")
        return StageResult(request, False, failed=failed)


@pytest.fixture
def experiment(tmp_path):
    """Run the pipeline in one directory; the stages that were run, skipped and announced."""

    def run(command: str = "train", force: bool = False, **back_end):
        recorded, said = Recorded(**back_end), []
        stage = StageRequest(
            "profile", tuple(command.split()), RunDirectory(tmp_path / "run"), "sync"
        )
        try:
            result = Experiment(stage, recorded, said.append, force=force).run()
        finally:
            run.ran, run.said = (
                [item for item in said if item.split(":")[0] in STAGES],
                said,
            )
            run.launched = recorded.ran
        return result

    run.folder = tmp_path / "run"
    return run


def test_what_is_done_is_skipped(experiment):
    experiment()
    assert experiment().skipped == tuple(STAGES)
    assert experiment.launched == []


def test_what_a_stage_came_to_is_told_before_the_next_begins(tmp_path):
    told = []
    stage = StageRequest("profile", ("train",), RunDirectory(tmp_path / "run"), "sync")
    Experiment(
        stage,
        Recorded(),
        told.append,
        lambda result: told.append(type(result).__name__),
    ).run()
    ran, converted = "StageResult", "Conversion"
    assert told == [
        "profile", ran, "convert", converted, "baseline", ran, "verify", "Coverage", "perf", ran, "compare",
    ]  # fmt: skip


@pytest.mark.parametrize(("output", "stage"), OUTPUTS)
def test_a_stage_whose_output_is_gone_runs_again(experiment, output, stage):
    experiment()
    path = experiment.folder / output
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = experiment()
    assert result.good
    assert (stage in result.skipped) is False
    assert any(
        line.startswith(f"{stage}: again, {output}") and line.endswith(" is gone")
        for line in experiment.said
    )
    assert path.exists()


def test_a_stage_whose_output_has_changed_runs_again(experiment):
    experiment()
    (experiment.folder / "baseline/steps.jsonl").write_text("")
    assert experiment().skipped == ("profile", "convert", "perf")


def test_warnings_of_stages_that_are_skipped_are_in_the_answer(experiment):
    experiment()
    assert experiment().warnings[:3] == ("of profile", "of baseline", "of perf")


def test_a_file_that_a_viewer_puts_beside_a_trace_changes_nothing(experiment):
    experiment()
    (experiment.folder / "profile/trace/rank0000/ALL_HOSTS.op_stats.pb").write_text(
        "cache"
    )
    assert experiment().skipped == tuple(STAGES)


def test_a_run_that_died_under_force_is_not_taken_for_done(experiment):
    experiment()
    with pytest.raises(WorkloadError):
        experiment(force=True, exit_code=9)
    result = experiment()
    assert "profile: again, its last run ended with exit code 9" in experiment.said
    assert result.good


FAILURES = [{"exit_code": 9}, {"traces": False}, {"killed_in": "profile"}]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_what_is_done_stays_where_another_command_fails(experiment, failure):
    experiment()
    with pytest.raises((WorkloadError, KeyboardInterrupt)):
        experiment("other", **failure)
    assert experiment().skipped == tuple(STAGES)


def test_what_is_done_stays_where_another_command_is_killed(experiment, monkeypatch):
    experiment()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            "pgle.run.stages.pipeline.settle", lambda run: None
        )  # nothing of pgle runs any more
        experiment("other", killed_in="profile")
    assert (experiment.folder / "profile.1").is_dir()
    assert experiment().skipped == tuple(STAGES)


def test_the_files_of_a_failed_run_lie_beside_those_that_stay(experiment):
    experiment()
    with pytest.raises(WorkloadError):
        experiment("other", exit_code=9)
    failed = read_manifest(experiment.folder).stages[-1]
    assert (
        failed.aside,
        (experiment.folder / failed.aside / "output.log").exists(),
    ) == (
        "profile.2",
        True,
    )
    assert {item.path.split("/")[0] for item in failed.outputs} == {"profile.2"}


def test_a_failed_run_of_another_command_is_not_taken_for_done(experiment):
    experiment()
    with pytest.raises(WorkloadError):
        experiment("other", exit_code=9)
    experiment("other")
    assert experiment.launched == ["profile", "baseline", "perf"]


def test_another_command_runs_every_stage(experiment):
    experiment("train --layers 2")
    experiment("train --layers 4")
    assert experiment.launched == ["profile", "baseline", "perf"]
    assert (
        "profile: again, its command has changed since its last run" in experiment.said
    )
    assert (experiment.folder / "profile.1").is_dir()


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (
            {"jax": "0.8.3", "jaxlib": "0.9.2"},
            "jaxlib is 0.9.2, and was 0.8.3 in its last run",
        ),
        (
            {"jax": "0.9.2", "jaxlib": "0.8.3"},
            "jax is 0.9.2, and was 0.8.3 in its last run",
        ),
        ({"jaxlib": "0.8.3"}, "jax is gone, and was 0.8.3 in its last run"),
    ],
)
def test_another_jax_runs_every_stage(experiment, now, why):
    experiment()
    experiment(installed=now)
    assert experiment.launched == ["profile", "baseline", "perf"]
    assert f"profile: again, {why}" in experiment.said


def test_another_numpy_runs_nothing(experiment):
    experiment()
    experiment(installed={"jax": "0.8.3", "jaxlib": "0.8.3", "numpy": "2.1"})
    assert experiment.launched == []
    assert not any("--force" in line for line in experiment.said)


def test_a_profile_that_fits_only_its_own_run_names_the_other_mode(experiment):
    result = experiment(baseline_hlo="jit__normal(9).hlo_proto.pb")
    assert not result.covered
    assert any(
        "fits the profile run, not the baseline" in line and "--mode async" in line
        for line in result.warnings
    )


@pytest.mark.parametrize(
    ("edit", "how"),
    [(lambda path: path.write_text("2"), "has changed"), (Path.unlink, "is gone")],
)
def test_an_edited_module_that_the_program_imports_runs_every_stage(
    experiment, tmp_path, monkeypatch, edit, how
):
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model.py"
    model.write_text("1")
    experiment(imports=(model,))
    experiment(imports=(model,))
    assert experiment.launched == []
    edit(model)
    experiment()
    assert experiment.launched == ["profile", "baseline", "perf"]
    assert (
        f"profile: again, model.py, which the program imports, {how}" in experiment.said
    )


def test_an_edited_program_runs_every_stage(experiment, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("1")
    experiment(f"python {script}")
    script.write_text("2")
    experiment(f"python {script}")
    assert experiment.launched == ["profile", "baseline", "perf"]


def test_a_program_that_is_gone_is_said_to_be(experiment, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("1")
    experiment(f"python {script}")
    script.unlink()
    experiment(f"python {script}")
    assert (
        f"profile: again, {script}, which its last run read, is gone" in experiment.said
    )


def test_other_flags_in_the_environment_run_every_stage(experiment, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    experiment()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=1")
    experiment()
    assert experiment.launched == ["profile", "baseline", "perf"]


def test_a_profile_stage_without_a_trace_has_failed_and_runs_again(experiment):
    with pytest.raises(
        WorkloadError, match="profile: no trace: too short; let it run longer"
    ) as caught:
        experiment(traces=False)
    assert caught.value.exit_code == 1
    assert experiment().good
    assert (
        "profile: again, its last run failed: no trace: too short; let it run longer"
        in experiment.said
    )


@pytest.mark.parametrize("stage", ["profile", "baseline", "perf"])
def test_killed_in_a_stage_it_goes_on_with_that(experiment, stage):
    with pytest.raises(KeyboardInterrupt):
        experiment(killed_in=stage)
    result = experiment()
    assert result.good
    assert experiment.launched == [
        name for name in ("profile", "baseline", "perf") if name not in result.skipped
    ]
    assert experiment.launched[0] == stage


def test_a_profile_of_someone_else_is_not_overwritten(experiment):
    experiment.folder.mkdir()
    (experiment.folder / "profile.pbtxt").write_text("mine")
    with pytest.raises(
        UserError, match=r"was not written by 'pgle run', or was changed since.*--force"
    ):
        experiment()
    assert experiment.launched == []
    assert (experiment.folder / "profile.pbtxt").read_text() == "mine"
    assert experiment(force=True).good


def test_a_folder_of_someone_else_is_not_moved(experiment):
    (experiment.folder / "baseline").mkdir(parents=True)
    (experiment.folder / "baseline" / "notes").write_text("mine")
    with pytest.raises(UserError, match="stage baseline was run into it already"):
        experiment()
    assert experiment.launched == []
    assert (experiment.folder / "baseline" / "notes").read_text() == "mine"


def test_killed_before_a_stage_was_on_record(experiment):
    (experiment.folder / "perf").mkdir(parents=True)
    (experiment.folder / "perf" / ".profile-0123456789abcdef").touch()
    assert experiment().good


def test_two_at_once_in_one_directory_are_refused(experiment):
    with (
        RunDirectory(experiment.folder).held(),
        pytest.raises(
            UserError,
            match=r"another pgle \(process \d+ on .*\) is at work in it; wait until it has ended",
        ),
    ):
        experiment()
    assert experiment().good


def test_killed_at_any_write_it_goes_on(tmp_path, monkeypatch):
    def pipeline(run: Path):
        stage = StageRequest("profile", ("train",), RunDirectory(run), "sync")
        return Experiment(stage, Recorded(), lambda line: None).run()

    replace_, written = Path.replace, []
    monkeypatch.setattr(
        Path,
        "replace",
        lambda path, target: written.append(target) or replace_(path, target),
    )
    profile = pipeline(tmp_path / "whole").run.profile.read_bytes()
    assert len(written) > 10
    for last in range(len(written)):
        run, count = tmp_path / str(last), iter(range(len(written)))

        def until(path, target, count=count, last=last):
            return os._exit(9) if next(count) == last else replace_(path, target)

        if (child := os.fork()) == 0:
            try:
                monkeypatch.setattr(Path, "replace", until)
                pipeline(run)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert pipeline(run).good, written[last]
        assert (run / "profile.pbtxt").read_bytes() == profile


def test_a_workload_that_was_only_compiled_runs_on_gpus() -> None:
    program = (
        "python",
        "-m",
        "pgle.workloads",
        "fsdp",
        "--compile-only",
        "--layers",
        "2",
    )
    assert ProgramLaunch(program, capture="simulated").on_gpus() == ProgramLaunch(
        (*program[:4], "--layers", "2"), capture=ON_GPU
    )
    assert ProgramLaunch(("mine.py", "--compile-only")).on_gpus().words == (
        "mine.py",
        "--compile-only",
    )
