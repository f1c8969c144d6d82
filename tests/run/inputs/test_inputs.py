"""What a path to convert stands for."""

import lzma
import shutil

import pytest

from pgle import files
from pgle.errors import UserError
from pgle.next import Next
from pgle.run.inputs.folder import contents_of, dump_near
from pgle.run.inputs.traces import read_traces

RUNS = ("2026_01_01_00_00_00", "2026_01_02_00_00_00")


@pytest.fixture
def xplane(testdata):
    return testdata / "jax_xplane" / "cpu_4dev_jax_0_12_0.xplane.pb"


def test_of_several_runs_the_newest_is_taken_and_named(tmp_path, xplane):
    for name in RUNS:
        run = tmp_path / "plugins" / "profile" / name
        run.mkdir(parents=True)
        shutil.copy(xplane, run / "vm.xplane.pb")
    trace = read_traces([tmp_path])
    assert [RUNS[1] in source.path for source in trace.sources] == [True]
    assert f"only the newest of 2 runs is read, {RUNS[1]}" in trace.warnings[0]


def test_an_input_given_twice_keeps_its_first_place(testdata):
    first, second = (testdata / "pax_fsdp4" / f"proc{rank}.sqlite" for rank in (0, 3))
    trace = read_traces([first, second, first])
    assert [source.path for source in trace.sources] == [str(first), str(second)]


def test_a_run_named_itself_needs_no_word(tmp_path, xplane):
    shutil.copy(xplane, tmp_path / "vm.xplane.pb")
    assert read_traces([tmp_path]).warnings == ()


def test_a_directory_of_reports_is_the_ranks_of_a_job(tmp_path, testdata):
    for rank in ("proc0", "proc3"):
        shutil.copy(testdata / f"pax_fsdp4/{rank}.sqlite", tmp_path)
    (tmp_path / "proc0.nsys-rep").touch()  # its export is there
    assert [source.path for source in read_traces([tmp_path]).sources] == [
        str(tmp_path / f"{rank}.sqlite") for rank in ("proc0", "proc3")
    ]


def test_links_in_a_circle_are_no_file(tmp_path):
    (tmp_path / "x.sqlite").symlink_to("x.sqlite")
    with pytest.raises(UserError, match="no such file"):
        read_traces([tmp_path / "x.sqlite"])


def test_what_lies_behind_a_link_is_found_once(tmp_path, testdata):
    (tmp_path / "job").symlink_to(testdata / "pax_fsdp4")
    (tmp_path / "again").symlink_to(testdata / "pax_fsdp4")
    found = {sight.kind: sight for sight in contents_of(tmp_path).sights}
    assert {path.name for path in found["nsys report"].paths} == {
        "proc0.sqlite",
        "proc3.sqlite",
    }
    (command,) = found["HLO dump"].commands
    assert str(command).startswith(f"pgle predict {tmp_path}/again/proc")


def test_links_to_a_folder_above_end(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/x.mlir").touch()
    (tmp_path / "inner/up").symlink_to(tmp_path)
    found = contents_of(tmp_path)
    assert [sight.paths for sight in found.sights] == [(tmp_path / "inner/x.mlir",)]
    assert found.complete


def test_the_dump_of_a_module_is_found_by_the_names_of_its_files(tmp_path, testdata):
    (tmp_path / "job").symlink_to(testdata / "pax_fsdp4")
    assert (
        dump_near(tmp_path, {"pjit__wrapped_step_fn": ()})
        == tmp_path / "job/proc0/dump"
    )
    assert dump_near(tmp_path, {"jit_train_step": ()}) is None


def test_of_two_modules_of_one_name_each_gets_its_own_dump(tmp_path):
    for folder, digit in (("first", "a"), ("second", "b")):
        (tmp_path / folder).mkdir()
        text = f'HloModule jit_step, frontend_attributes={{fingerprint_before_lhs="{digit * 32}"}}'
        (
            tmp_path
            / folder
            / "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt"
        ).write_text(text)
    found = [dump_near(tmp_path, {"jit_step": (digit * 32,)}) for digit in "bac"]
    assert found == [tmp_path / "second", tmp_path / "first", None]


def test_a_dump_of_the_cpu_compiler_is_to_be_rehearsed(tmp_path):
    (tmp_path / "module_0001.jit_step.cpu_after_optimizations.txt").touch()
    (tmp_path / "module_0001.jit_step.before_optimizations.txt").touch()
    (sight,) = contents_of(tmp_path).sights
    assert sight.commands == (Next.of("rehearse", tmp_path),)
    (tmp_path / "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt").touch()
    (sight,) = contents_of(tmp_path).sights
    assert sight.commands == (Next.of("predict", tmp_path),)


def test_a_search_or_a_rehearsal_is_one_thing_whatever_it_left(tmp_path):
    for name in ("tuned", "rehearsal/rehearsal"):
        (tmp_path / name / "profiled").mkdir(parents=True)
        (tmp_path / name / "report.json").write_text('{"schema": "pgle.report/1"}')
        (
            tmp_path
            / name
            / "profiled/module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt"
        ).touch()
    (sight,) = contents_of(tmp_path).sights
    assert set(sight.paths) == {tmp_path / "tuned", tmp_path / "rehearsal/rehearsal"}
    assert sight.commands == (Next.of("report", sight.paths[0]),)


def test_lines_that_are_next_to_empty_are_refused_before_all_are_read(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "MANY_LINES", 1000)
    bomb = tmp_path / "steps.log.xz"
    bomb.write_bytes(lzma.compress(b"\n" * (1 << 20)))
    read = []
    with pytest.raises(UserError, match="nearly empty"):
        read.extend(files.TextLines(bomb))
    assert 0 < len(read) < 2000


def test_of_programs_the_one_that_is_started_is_named(tmp_path):
    (tmp_path / "train.py").write_text(
        "import jax\nif __name__ == '__main__':\n    train()\n"
    )
    (tmp_path / "model.py").write_text("import jax\n")
    (sight,) = contents_of(tmp_path).sights
    assert sight.paths[0].name == "train.py"


def test_a_trace_is_read_with_the_only_dump(tmp_path, testdata):
    (tmp_path / "dump").symlink_to(testdata / "pax_fsdp4/proc0/dump")
    shutil.copy(testdata / "pax_fsdp4/proc0.sqlite", tmp_path / "trace.sqlite")
    found = {
        sight.kind: str(sight.commands[0]) for sight in contents_of(tmp_path).sights
    }
    assert f"--hlo {tmp_path}/dump" in found["nsys report"]
    (tmp_path / "other").symlink_to(testdata / "pax_fsdp4/proc3/dump")
    found = {
        sight.kind: str(sight.commands[0]) for sight in contents_of(tmp_path).sights
    }
    assert "--hlo" not in found["nsys report"]
