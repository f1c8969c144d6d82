"""The manifest: what is kept, what is masked, what two stages may not differ in."""

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from pgle.errors import UserError
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import (
    FileRecord,
    Gpu,
    Manifest,
    StageRecord,
    extend_manifest,
    read_manifest,
    record_file,
    same_program,
    settle,
)

PROFILE = StageRecord(
    stage="profile",
    mode="sync",
    argv=("python", "train.py"),
    xla_flags="--xla_gpu_disable_async_collectives=allcollectives --xla_gpu_autotune_level=4",
    environment={"NCCL_DEBUG": "INFO"},
    versions={"jax": "0.10.2", "jaxlib": "0.10.2"},
    gpus=(Gpu("NVIDIA H100 80GB HBM3", "580.65.06", 81559, "9.0"),),
    topology={"hosts": 1},
    host="node1",
    started="2026-01-02T03:04:05Z",
    inputs=(FileRecord("train.py", "ab", 2),),
    warnings=("slow",),
    facts={"steps": 10},
)
PERF = replace(
    PROFILE,
    stage="perf",
    xla_flags="--xla_gpu_autotune_level=4 --xla_gpu_pgle_profile_file_or_directory_path=p.pbtxt",
    started="2026-01-02T04:00:00Z",
)


def test_a_record_is_read_back(tmp_path):
    extend_manifest(tmp_path, PROFILE)
    assert read_manifest(tmp_path) == Manifest((PROFILE,))


def test_an_empty_directory_has_an_empty_manifest(tmp_path):
    assert read_manifest(tmp_path) == Manifest()


def test_a_stage_that_ended_replaces_itself(tmp_path):
    extend_manifest(tmp_path, PROFILE)
    extend_manifest(
        tmp_path, replace(PROFILE, exit_code=0, ended="2026-01-02T03:05:00Z")
    )
    assert [record.exit_code for record in read_manifest(tmp_path).stages] == [0]


def test_ranks_write_their_own_files_and_are_read_together(tmp_path):
    for rank in (2, 0, 1):
        extend_manifest(tmp_path, replace(PROFILE, rank=rank, ranks=3))
    assert {path.name for path in tmp_path.glob("*.json")} == {
        "manifest.json",
        "manifest.rank0001.json",
        "manifest.rank0002.json",
    }
    assert [record.rank for record in read_manifest(tmp_path).of("profile")] == [
        0,
        1,
        2,
    ]


def test_processes_of_one_rank_lose_nothing(tmp_path):
    records = [replace(PROFILE, started=f"{number:04d}") for number in range(12)]
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        list(pool.map(extend_manifest, [tmp_path] * 12, records))
    assert len(read_manifest(tmp_path).stages) == 12


def test_the_last_of_repeated_stages_counts(tmp_path):
    extend_manifest(tmp_path, PROFILE)
    extend_manifest(
        tmp_path, replace(PROFILE, started="2026-02-01T00:00:00Z", exit_code=3)
    )
    assert read_manifest(tmp_path).last("profile").exit_code == 3


def test_the_order_of_writing_counts_whatever_the_clock_says(tmp_path):
    for command, started in (("one", "2026-02-01"), ("two", "2026-01-01")):
        record = replace(PROFILE, argv=(command,), started=started)
        extend_manifest(tmp_path, record)
        extend_manifest(tmp_path, replace(record, exit_code=0))
    manifest = read_manifest(tmp_path)
    assert manifest.last("profile").argv == ("two",)
    assert [record.argv for record in manifest.stages] == [("one",), ("two",)]


@pytest.mark.parametrize("name", ["../precious", "/etc", "..", ".", "a/b"])
@pytest.mark.parametrize("field", ["before", "aside", "stage"])
def test_a_folder_elsewhere_is_no_folder_of_a_stage(tmp_path, field, name):
    stages = [{"stage": "profile", field: name}]
    (tmp_path / "manifest.json").write_text(
        json.dumps({"schema": "pgle.manifest/1", "stages": stages})
    )
    with pytest.raises(UserError, match="is not a manifest of pgle"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("stage", "field", "name"),
    [
        ("perf", "before", "profiles"),
        ("perf", "before", "perf"),
        ("perf", "aside", "my_results"),
        ("perf", "before", "baseline.1"),
        ("profiles", "before", "profiles.1"),
        ("capture", "before", "capture.1"),
    ],
)
def test_a_manifest_moves_only_folders_of_its_stages(tmp_path, stage, field, name):
    record = {"stage": stage, "exit_code": 1, field: name}
    (tmp_path / "manifest.json").write_text(
        json.dumps({"schema": "pgle.manifest/1", "stages": [record]})
    )
    for folder in (stage, name, "profiles"):
        (tmp_path / folder).mkdir(exist_ok=True)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UserError, match="is not a manifest of pgle"):
        settle(RunDirectory(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_command_that_is_not_utf_8_is_read_back(tmp_path):
    record = replace(PROFILE, argv=("python", "\udcff.py"))
    extend_manifest(tmp_path, record)
    assert read_manifest(tmp_path).stages == (record,)


def test_a_pipe_in_the_place_of_an_output_is_not_read(tmp_path):
    output = tmp_path / "a.txt"
    output.write_text("a")
    record = replace(PROFILE, exit_code=0, outputs=(record_file(output, tmp_path),))
    output.unlink()
    os.mkfifo(output)
    assert Manifest((record,)).why_due(record, tmp_path) == "a.txt has changed"


def test_the_file_names_its_schema(tmp_path):
    extend_manifest(tmp_path, PROFILE)
    assert (
        json.loads((tmp_path / "manifest.json").read_text())["schema"]
        == "pgle.manifest/1"
    )


def test_another_schema_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text(
        '{"schema": "pgle.manifest/2", "stages": []}'
    )
    with pytest.raises(
        UserError, match=r"is of schema pgle.manifest/2, not pgle.manifest/1"
    ):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "pgle.manifest/1", "stages": [{"rank": 1}]}']
)
def test_a_damaged_file_is_one_line(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="is not a manifest of pgle"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("asked", "command", 7),
        ("asked", "command", [7]),
        ("asked", "XLA_FLAGS", 5),
        ("facts", "change", "x"),
    ],
)
def test_what_later_commands_reckon_with_is_of_its_type(tmp_path, part, name, value):
    stages = [{"stage": "profile", part: {name: value}}]
    (tmp_path / "manifest.json").write_text(
        json.dumps({"schema": "pgle.manifest/1", "stages": stages})
    )
    with pytest.raises(UserError, match="is not a manifest of pgle"):
        read_manifest(tmp_path)


def test_fields_of_a_later_pgle_are_ignored(tmp_path):
    extend_manifest(tmp_path, PROFILE)
    document = json.loads((tmp_path / "manifest.json").read_text())
    document["stages"][0]["colour"] = "blue"
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    assert read_manifest(tmp_path).stages == (PROFILE,)


def test_files_inside_the_run_directory_are_named_relative_to_it(tmp_path):
    path = tmp_path / "out" / "a.txt"
    path.parent.mkdir()
    path.write_text("abc")
    record = record_file(path, tmp_path)
    assert (record.path, record.size_bytes, record.sha256[:8]) == (
        "out/a.txt",
        3,
        "ba7816bf",
    )


def test_a_profile_run_and_a_performance_run_are_the_same_program():
    assert same_program(PROFILE, PERF) == ()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"versions": {"jax": "0.10.2", "jaxlib": "0.11.0"}}, "jaxlib"),
        ({"argv": ("python", "train.py", "--big")}, "command"),
        ({"xla_flags": "--xla_gpu_autotune_level=0"}, "--xla_gpu_autotune_level"),
        ({"xla_flags": ""}, "--xla_gpu_autotune_level"),
        ({"gpus": (Gpu("NVIDIA B200", "580.65.06"),)}, "GPU"),
        ({"gpus": (Gpu("NVIDIA H100 80GB HBM3", "570.1"),)}, "driver"),
        ({"ranks": 4}, "number of ranks"),
    ],
)
def test_what_differs_is_said(change, what):
    assert [
        line.partition(" differs: ")[0]
        for line in same_program(PROFILE, replace(PERF, **change))
    ] == [what]


def test_a_mismatch_is_one_line():
    (found,) = same_program(PROFILE, replace(PERF, ranks=4))
    assert found == "number of ranks differs: 1 and 4; the modules are not the same"


def test_a_run_that_imports_other_code_than_the_profile_run_is_named():
    first, second = (
        replace(PROFILE, imported=(FileRecord("model.py", digest, 1),))
        for digest in ("ab", "cd")
    )
    assert same_program(first, first) == ()
    (said,) = same_program(first, second)
    assert said == "other code is imported (model.py); the program may not be the same"
