"""`pgle flags` from the command line."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.xla.flags.text import parse_flags

TESTDATA = Path(__file__).parents[2] / "testdata"
STEP = "pax_fsdp4/proc3/dump/module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def test_good_flags_pass(capsys):
    assert run(["flags", "lint", "--xla_gpu_autotune_level=0"]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


def test_a_fatal_flag_fails_the_lint(capsys):
    assert run(["flags", "lint", "--xla_gpu_enable_async_collectives=true"]) == 1
    assert "leave it out: XLA does so by" in capsys.readouterr().out


def test_the_environment_is_linted_by_default(monkeypatch, capsys):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0 true")
    assert run(["flags", "lint"]) == 1
    assert "the bare word 'true' ends parsing" in capsys.readouterr().out


def test_a_file_of_flags_is_linted(tmp_path, capsys):
    path = tmp_path / "flags"
    path.write_text("--xla_gpu_autotune_level=0\n--xla_nope")
    assert run(["flags", "lint", "--file", str(path)]) == 1
    assert "2 flags · jaxlib " in capsys.readouterr().out


def test_another_release_is_held_against_the_catalogue(capsys):
    assert (
        run(
            [
                "flags",
                "lint",
                "--jaxlib",
                "0.5.3",
                "--xla_gpu_enable_pipelined_collectives=false",
            ]
        )
        == 0
    )
    assert "jaxlib 0.5.3 (catalogue)" in capsys.readouterr().out


def test_a_lint_is_one_json_object(capsys):
    assert run(["flags", "lint", "--json", "--xla_nope=1"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["schema"], result["ok"], result["findings"][0]["code"]) == (
        "pgle.flags/1",
        False,
        "unknown",
    )


def test_a_wrong_version_is_one_line(capsys):
    assert run(["flags", "lint", "--jaxlib", "newest", "--xla_nope=1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_list_can_be_searched(capsys):
    assert run(["flags", "list", "combine_threshold", "--json"]) == 0
    names = [item["name"] for item in json.loads(capsys.readouterr().out)["settings"]]
    assert len(names) == 4
    assert all("combine_threshold" in name for name in names)


def test_explain_tells_what_replaced_a_flag(capsys):
    assert run(["flags", "explain", "--xla_gpu_enable_async_collectives"]) == 0
    assert "<0.4.27" in capsys.readouterr().out


def test_explain_suggests_the_nearest_name(capsys):
    assert run(["flags", "explain", "xla_gpu_autotune_levl"]) == 2
    assert "did you mean xla_gpu_autotune_level?" in capsys.readouterr().err


def test_every_line_of_the_list_fits_100_columns(capsys):
    assert run(["flags", "list", "--all"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_a_preset_can_be_evaluated_by_a_shell_and_the_users_flags_win(capsys):
    assert (
        run(["flags", "preset", "pgle-profile-sync", "--jaxlib", "0.12.0.1", "--shell"])
        == 0
    )
    script = capsys.readouterr().out + 'printf %s "$XLA_FLAGS"'
    environ = {**os.environ, "XLA_FLAGS": "--xla_gpu_enable_command_buffer=FUSION"}
    shell = subprocess.run(
        ["sh", "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    values = parse_flags(shell.stdout).effective()
    assert values["xla_gpu_disable_async_collectives"] == "allcollectives"
    assert values["xla_gpu_enable_command_buffer"] == "FUSION"


def test_presets_are_listed(capsys):
    assert run(["flags", "preset", "--json"]) == 0
    assert "recommended" in json.loads(capsys.readouterr().out)["presets"]


def test_presets_are_accepted_by_the_installed_jaxlib(capsys):
    for name in ("pgle-profile-sync", "pgle-profile-async", "fsdp", "recommended"):
        assert run(["flags", "preset", name, "--json"]) == 0
        text = json.loads(capsys.readouterr().out)["preset"]["xla_flags"]
        run(["flags", "lint", "--json", *text.split()])
        assert json.loads(capsys.readouterr().out)["ok"], name


ESCAPE = "\x1b[31mX"


@pytest.mark.parametrize(
    "arguments",
    [
        ["lint", "--jaxlib", "0.12.0.1", f"--xla_gpu_{ESCAPE}=1"],
        [
            "lint",
            "--jaxlib",
            "0.12.0.1",
            f"--xla_gpu_enable_latency_hiding_scheduler={ESCAPE}",
        ],
        ["explain", ESCAPE],
        ["preset", ESCAPE],
    ],
)
def test_control_characters_in_flags_never_reach_the_terminal(arguments, capsys):
    assert run(["flags", *arguments]) != 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\\x1b[31mX" in said.out + said.err
