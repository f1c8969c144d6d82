"""`pgle show TRACE`, driven through the command line."""

import json
import re

import pytest
from nsys_export import write_nsys_sqlite

from pgle.cli.main import run

SYNTHETIC = "nsys_synthetic/synthetic_cases.sqlite"
CPU = "jax_xplane/cpu_4dev_jax_0_10_2.xplane.pb"


def shown(capsys, *arguments):
    assert run(["show", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_modules_come_with_steady_executions_and_why_others_are_left_out(
    testdata, capsys
):
    out = shown(capsys, testdata / SYNTHETIC)
    row = next(line for line in out.splitlines() if line.startswith("jit_f (3)"))
    assert row.split()[2:5] == ["3", "of", "4"]
    assert "1 execution left out" in out
    assert "execution 0 of jit_f: warm-up" in shown(
        capsys, testdata / SYNTHETIC, "--section", "left-out"
    )


def test_executions_are_those_that_convert_uses(testdata, tmp_path, capsys):
    trace = json.loads(shown(capsys, testdata / CPU, "--json"))["trace"]
    assert (
        run(["convert", str(testdata / CPU), "-o", str(tmp_path / "p.pbtxt"), "--json"])
        == 0
    )
    (module,) = json.loads(capsys.readouterr().out)["modules"]
    (mine,) = trace["modules"]
    dropped = {
        str(item["number"]): item["left_out"]
        for item in mine["executions"]
        if item["left_out"]
    }
    assert dropped == module["executions_dropped"]
    assert mine["step_us"] == pytest.approx(module["step_us"])


def test_activities_of_no_instruction_are_explained(testdata, capsys):
    lines = shown(
        capsys, testdata / "pax_fsdp4/proc0.sqlite", "--section", "left-out"
    ).splitlines()
    assert any(
        re.match(r"312 +959\.9 +run while compiling, to tune kernels", line.strip())
        for line in lines
    )


def test_times_of_instructions_add_up_to_the_trace(testdata, capsys):
    trace = json.loads(shown(capsys, testdata / SYNTHETIC, "--json"))["trace"]
    assert sum(item["gpu_time_us"] for item in trace["instructions"]) == pytest.approx(
        trace["gpu_time_us"]
    )
    assert sum(item["activities"] for item in trace["instructions"]) == sum(
        trace["kinds"].values()
    )


@pytest.mark.parametrize("file", [SYNTHETIC, CPU, "pax_fsdp4/proc0.sqlite"])
def test_tables_fit_80_columns(testdata, capsys, monkeypatch, file):
    monkeypatch.chdir(testdata)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, shown(capsys, file).splitlines())) <= 80


def test_a_log_directory_and_a_run_directory_are_traces(testdata, tmp_path, capsys):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a.xplane.pb").write_bytes((testdata / CPU).read_bytes())
    assert "jit_step (10)" in shown(capsys, tmp_path / "log")


def test_the_next_command_is_named(testdata, capsys, monkeypatch):
    monkeypatch.chdir(testdata)
    assert (
        f"Now: give the HLO dump: pgle convert {SYNTHETIC} -o profile.pbtxt --hlo …"
        in " ".join(shown(capsys, SYNTHETIC).split())
    )


def test_names_cannot_move_the_cursor(make_trace, tmp_path, capsys):
    write_nsys_sqlite(
        make_trace([(0, 0, "a\x1b[2J", 0, 1, 1), (0, 0, "b", 1, 3, 1)]),
        tmp_path / "x.sqlite",
    )
    out = shown(capsys, tmp_path / "x.sqlite", "--all")
    assert "\x1b" not in out
    assert "a\\x1b[2J" in out
