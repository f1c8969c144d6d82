"""`pgle doctor` from the command line."""

import json

import pytest

from pgle.cli.main import run


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def test_a_healthy_machine_exits_0(tmp_path, capsys):
    assert run(["doctor", "--run-dir", str(tmp_path)]) == 0
    assert "ready: " in capsys.readouterr().out


def test_bad_flags_exit_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_no_such_flag")
    assert run(["doctor", "--run-dir", str(tmp_path)]) == 1
    assert "not ready" in capsys.readouterr().out


def test_json_names_every_check(tmp_path, capsys):
    assert run(["doctor", "--run-dir", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["schema"], result["ok"]) == ("pgle.doctor/1", True)
    assert {check["verdict"] for check in result["checks"]} <= {"ok", "warn", "fail"}


def test_a_python_that_is_not_there_is_one_line(capsys):
    assert run(["doctor", "--python", "/no/python"]) == 2
    assert (
        capsys.readouterr().err == "pgle: /no/python: cannot be run (No such file or directory); pass --python PATH\n"
    )


def test_lines_fit_100_columns(tmp_path, capsys):
    run(["doctor", "--run-dir", str(tmp_path)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
