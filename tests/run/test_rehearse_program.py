"""What a rehearsal that fails leaves behind: nothing, or what its message points to."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from attrs import evolve

from pgle.errors import UserError, WorkloadError
from pgle.requests.predictions import Rehearse
from pgle.run.directory.directory import RunDirectory, claim, emptied, opened
from pgle.run.directory.manifest import StageRecord, extend_manifest
from pgle.run.rehearse import rehearse
from pgle.run.rehearse_program import Understood, prepared, tune_line
from pgle.run.tune import NAME
from pgle.xla.flags.presets import flags_for


def rehearsal_of(*words: str, out: Path | None = None) -> Rehearse:
    return Rehearse(words, target="a100", output=out)


COMPILES_NOTHING = (sys.executable, "-c", "print(1)")


def test_a_temporary_folder_goes_with_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError, match="compiled no jax module"):
        rehearse(rehearsal_of(*COMPILES_NOTHING))
    assert not any(tmp_path.iterdir())


def test_a_script_is_run_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text("#!/bin/sh\nexit 3\n")
    Path("job.sh").chmod(0o755)
    with pytest.raises(WorkloadError, match="before it had compiled anything"):
        rehearse(rehearsal_of("./job.sh"))
    line = str(tune_line(Understood(rehearsal_of("./job.sh"))))
    assert line.endswith("-- ./job.sh")


def test_a_folder_named_by_the_user_can_be_used_again(tmp_path: Path) -> None:
    out = tmp_path / "rehearsal"
    for _ in range(2):
        with pytest.raises(WorkloadError, match="before it imported jax"):
            rehearse(rehearsal_of(sys.executable, "-c", "raise SystemExit(3)", out=out))
        assert not out.exists()


def killed(folder: Path) -> None:
    """Work in this folder that was killed."""
    code = f"""import os, pathlib
from pgle.run.directory.directory import claim, opened
with opened({str(folder)!r}) as out:
    for name in ("trials/x/baseline/xla.log", "estimated.pbtxt"):
        claim(out / name if name.endswith("txt") else (out / name).parent)
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).touch()
    claim(out / "all-passes9")
    os.kill(os.getpid(), 9)"""
    subprocess.run([sys.executable, "-c", code], check=False)


def test_what_a_killed_search_left_does_not_stop_the_next(tmp_path: Path) -> None:
    killed(tmp_path)
    with opened(str(tmp_path)) as out:
        assert [path.name for path in out.iterdir()] == [".unfinished"]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["trials", "proof"])
def test_a_search_that_continues_deletes_what_it_made_and_nothing_of_the_users(
    tmp_path: Path, name: str
) -> None:
    record, made = tmp_path / "search.json", tmp_path / name / "xla.log"
    for _ in range(2):
        with opened(str(tmp_path), record.name):
            record.write_text('{"schema": "pgle.search/1"}')
            emptied(made.parent)
            claim(made.parent)
            made.parent.mkdir()
            made.touch()
    assert made.exists()
    (
        tmp_path / ".unfinished"
    ).unlink()  # as if somebody had put the folder next to a record
    wrong = pytest.raises(UserError, match=f"{name}: was not made by pgle")
    with opened(str(tmp_path), record.name), wrong:
        emptied(made.parent)
    assert made.exists()


@pytest.mark.parametrize("name", ["proof", "baseline", "manifest.json"])
def test_nothing_is_deleted_beside_what_somebody_else_put_there(
    tmp_path: Path, name: str
) -> None:
    killed(tmp_path)
    (tmp_path / name).mkdir()
    before = sorted(tmp_path.rglob("*"))
    with (
        pytest.raises(UserError, match="is not an empty directory"),
        opened(str(tmp_path)),
    ):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_a_list_that_was_tampered_with_deletes_nothing_elsewhere(
    tmp_path: Path,
) -> None:
    precious, out = tmp_path / "precious", tmp_path / "out"
    for folder in (precious, out):
        folder.mkdir()
    (precious / "data").touch()
    (out / "trials").symlink_to(precious)
    (out / ".unfinished").write_text(f"../precious\n{precious}\n.\n..\ntrials\n")
    with opened(str(out)):
        pass
    assert (precious / "data").exists()
    assert not any(out.iterdir())


def test_after_a_failure_that_names_a_log_the_same_command_goes(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match="crashed"), opened(str(tmp_path)) as out:
            for folder in (out / "all-passes9", out / "default"):
                claim(folder)
                folder.mkdir()
            raise UserError("crashed", remedy=f"see {out}/all-passes9/xla.log")
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            ".unfinished",
            "all-passes9",
        ]


def test_what_the_program_wrote_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (sys.executable, "-c", "open('checkpoint', 'w')")
    with pytest.raises(UserError):
        rehearse(rehearsal_of(*words, out=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    "record",
    ['{"trial": 1}', '{"schema": "pgle.tune/1"}', '{"schema": "pgle.search/1"'],
)
def test_a_folder_with_another_record_is_left_as_it_is(
    record: str, tmp_path: Path
) -> None:
    for name in ("search.json", "trials/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(record)
    with (
        pytest.raises(UserError, match="is not an empty directory"),
        prepared(rehearsal_of(*COMPILES_NOTHING, out=tmp_path), question=NAME),
    ):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "1.txt",
        "search.json",
        "trials",
    ]


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another pgle is at work in it"):
        rehearse(rehearsal_of(*COMPILES_NOTHING, out=tmp_path))
    os.close(held)


def test_a_program_instead_of_a_module_gets_the_command_to_type(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(
        UserError,
        match=r"train.py: cannot be started .* have it run: -- python .*train.py",
    ):
        rehearse(rehearsal_of(str(script)))


@pytest.mark.parametrize("word", ["runs/a", "step", "dump/step.mlir", "gone.py"])
def test_a_path_to_nothing_is_no_program(word: str) -> None:
    with pytest.raises(UserError, match=rf"^{word}: no such file or folder; "):
        rehearse(rehearsal_of(word))


def test_a_topology_that_is_too_large_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    words = (sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match=r"more than a rehearsal takes"):
        rehearse(evolve(rehearsal_of(*words), topology="99999x99999x99999"))
    assert not (tmp_path / "ran").exists()


GIVEN = "--xla_gpu_enable_triton_gemm=false"
OWN = "--xla_gpu_memory_limit_slop_factor=95"


def profiled(folder: Path, hook: dict[str, str], own: str) -> None:
    """A run directory whose profile stage ran with the flags that its program had."""
    run_dir = RunDirectory(folder)
    plan = flags_for("sync", "0.10.2", GIVEN, dump_to="/dump")
    module = run_dir.stage("profile").rank().ir / "jax_ir0001_jit_step_compile.mlir"
    module.parent.mkdir(parents=True)
    module.write_text("module @jit_step {}")
    record = StageRecord(
        "profile",
        mode="sync",
        asked={"XLA_FLAGS": GIVEN},
        versions={"jaxlib": "0.10.2"},
        facts={"hook": hook},
        xla_flags=plan.xla_flags.replace(GIVEN, own),
        ended="2026-01-01",
        exit_code=0,
    )
    extend_manifest(folder, record)


def test_a_search_of_a_run_is_kept_in_its_run_directory(tmp_path: Path) -> None:
    run = tmp_path / "a"
    profiled(run, {"xla_flags": ""}, OWN)
    with prepared(rehearsal_of(str(run)), question=NAME) as (command, asked):
        assert asked.out == run / "tuned"
        line = str(tune_line(command))
    assert f"-o {run / 'tuned'}" in line


@pytest.mark.parametrize(
    ("hook", "own"),
    [({"xla_flags": ""}, OWN), ({}, GIVEN)],
)
def test_of_a_real_run_count_the_flags_that_its_program_had(
    hook: dict[str, str], own: str, tmp_path: Path
) -> None:
    profiled(tmp_path, hook, own)
    with prepared(rehearsal_of(str(tmp_path), out=tmp_path / "out")) as (_, asked):
        assert asked.flags == (own,)
        assert any("is not known" in line for line in asked.warnings) == (not hook)


@pytest.mark.parametrize(
    "wrong", [{"profile": "bad.pbtxt"}, {"flags": ("--xla_gpu_foo_bar=1",)}]
)
def test_a_bad_profile_or_flag_is_refused_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.pbtxt").write_text("bad")
    command = evolve(rehearsal_of(sys.executable, "-c", "open('ran', 'w')"), **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError), prepared(command):
        pass
    assert not Path("ran").exists()


def test_a_wrong_limit_of_the_cache_is_found_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGLE_CACHE_MIB", "2G")
    program = ("touch", str(tmp_path / "ran"))
    with (
        pytest.raises(UserError, match="PGLE_CACHE_MIB=2G"),
        prepared(Rehearse(program)),
    ):
        pass
    assert not (tmp_path / "ran").exists()
