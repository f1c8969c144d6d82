"""Which process of a job this is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.facts import read_facts
from pgle.run.process.launchers import UNKNOWN, Rank, find_rank
from pgle.run.stages.real import _make_folder
from pgle.run.stages.stage import StageRequest


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, Rank()),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, Rank(3, 8, "slurm")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Rank()),  # a batch script, before srun
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, Rank()),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Rank(1, 2, "openmpi")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, Rank(1, 2, "mpich")),
        ({"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "5"}, Rank(5, 16, "torchrun")),
        ({"NODE_RANK": "1", "NNODES": "2", "JOB_COMPLETION_INDEX": "1"}, Rank(1, 2, "jobset")),
        ({"JOB_COMPLETION_INDEX": "2"}, Rank(2, UNKNOWN, "kubernetes")),
        ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
         Rank(1, 4, "jax")),
        ({"RANK": "9", "WORLD_SIZE": "4"}, Rank()),  # nonsense
        ({"RANK": "x", "WORLD_SIZE": "4"}, Rank()),
    ],
)  # fmt: skip
def test_found(environ, rank):
    assert find_rank(environ) == rank


def test_files_of_a_rank_carry_its_number_and_those_of_rank_0_none():
    stage = RunDirectory(Path("r")).stage("profile")
    zero, three = stage.rank(), stage.rank(3)
    assert [str(path) for path in (zero.log, zero.steps, zero.facts, zero.hlo, zero.trace)] == [
        "r/profile/output.log", "r/profile/steps.jsonl", "r/profile/facts.json", "r/profile/hlo",
        "r/profile/trace/rank0000",
    ]  # fmt: skip
    assert [path.name for path in (three.log, three.steps, three.facts, three.hlo, three.trace)] == [
        "output.rank0003.log", "steps.rank0003.jsonl", "facts.rank0003.json", "hlo.rank0003", "rank0003",
    ]  # fmt: skip


def perf(tmp_path, content: str) -> StageRequest:
    profile = tmp_path / f"{len(content)}.pbtxt"
    profile.write_text(content)
    return StageRequest(
        "perf", ("true",), RunDirectory(tmp_path / "run"), "perf", profile
    )


@pytest.fixture
def as_rank(monkeypatch):
    """Be one rank of several."""

    def become(rank: int) -> None:
        monkeypatch.setenv("PGLE_RANK", str(rank))
        monkeypatch.setenv("PGLE_RANKS", "3")

    return become


def test_ranks_with_one_profile_share_a_folder(tmp_path, as_rank):
    request = perf(tmp_path, "a")
    for rank in range(3):
        as_rank(rank)
        _make_folder(request, again=False)


def test_a_rank_with_another_profile_is_refused(tmp_path, as_rank):
    first, second = perf(tmp_path, "a"), perf(tmp_path, "bb")
    as_rank(0)
    _make_folder(first, again=False)
    as_rank(1)
    with pytest.raises(UserError, match="another rank was given another profile"):
        _make_folder(second, again=False)


def test_a_rank_that_has_run_into_a_directory_does_not_run_into_it_again(
    tmp_path, as_rank
):
    request = perf(tmp_path, "a")
    as_rank(1)
    _make_folder(request, again=False)
    request.folder.rank(1).log.write_text("")
    with pytest.raises(UserError, match="rank 1 has run perf into it already"):
        _make_folder(request, again=True)


def test_facts_are_those_of_the_process_with_most_steps(tmp_path):
    files = RunDirectory(tmp_path).stage("profile").rank()
    files.folder.mkdir()
    for name, pid, steps in (
        ("facts.json", 1, 0),
        ("facts.pid7.json", 7, 12),
        ("facts.rank0001.json", 9, 50),
    ):
        (files.folder / name).write_text(
            json.dumps({"pid": pid, "steps": steps, "compile_s": 1.0})
        )
    assert read_facts(files)["pid"] == 7
