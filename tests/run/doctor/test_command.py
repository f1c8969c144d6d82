"""`pgle doctor` from the command line, on machines that are made up."""

import json

import pytest
from machines import SMI_4_H100, VERSIONS, machine

from pgle.cli.main import run
from pgle.run.ask import machine as machine_module
from pgle.run.ask.machine import Machine

NO_DEVICES = "No devices were found\n"


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Run `pgle doctor` on a machine: its exit code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def look(machine: Machine, *options: str) -> int:
        monkeypatch.setattr(machine_module, "this_machine", lambda python: machine)
        return run(["doctor", "--run-dir", str(tmp_path), *options])

    return look


def test_a_machine_with_gpus_can_do_all(on, capsys):
    assert on(machine(smi=SMI_4_H100)) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1] == "✓ Ready to measure, rehearse and simulate"
    assert out.endswith("Now: give your program: pgle run -- …\n")


def test_without_a_gpu_it_says_what_works(on, capsys):
    assert on(machine(smi=None)) == 0
    out = capsys.readouterr().out
    assert (
        out.splitlines()[1] == "! Can rehearse and simulate; cannot measure (see GPUs)"
    )
    assert out.endswith("Now: give your program: pgle run --capture simulated -- …\n")
    assert len(out.splitlines()) <= 14


def test_nvidia_smi_without_a_gpu_fails_and_rehearsals_work(on, capsys):
    programs = {"nvidia-smi": "/usr/bin/nvidia-smi"}
    assert on(machine(smi=None, programs=programs, says=NO_DEVICES)) == 1
    out = capsys.readouterr().out
    assert "nvidia-smi fails: No devices were found" in out.replace("\n", " ")
    assert "Can rehearse and simulate" in out


def test_without_the_plugin_there_are_no_rehearsals(on, capsys):
    versions = {
        name: version for name, version in VERSIONS.items() if "cuda" not in name
    }
    assert on(machine(smi=None, versions=versions)) == 0
    assert (
        "Cannot measure, rehearse or simulate (see GPUs, CUDA plugin)"
        in capsys.readouterr().out
    )


def test_bad_flags_exit_1(on, capsys):
    assert on(machine(environ={"XLA_FLAGS": "word"})) == 1
    assert "XLA_FLAGS)" in capsys.readouterr().out.splitlines()[1]


def test_all_checks_are_listed_on_request(on, capsys):
    on(machine(smi=SMI_4_H100), "--all")
    assert "compilation cache" in capsys.readouterr().out


def test_json_names_every_check(on, capsys):
    assert on(machine(smi=None), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["schema"], result["ok"], result["profiles"], result["rehearses"]) == (
        "pgle.doctor/1", True, False, True,
    )  # fmt: skip
    assert {check["verdict"] for check in result["checks"]} <= {"ok", "warn", "fail"}


def test_a_python_that_is_not_there_is_one_line(capsys):
    assert run(["doctor", "--python", "/no/python"]) == 2
    err = capsys.readouterr().err
    assert (
        err
        == "pgle: /no/python: cannot be run (No such file or directory); pass --python PATH\n"
    )


def test_lines_fit_100_columns(on, capsys):
    on(machine(smi=None))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
