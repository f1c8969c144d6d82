"""Options of a project, from pgle.toml or [tool.pgle] of pyproject.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from pgle.cli import main
from pgle.cli.main import run
from pgle.errors import UserError
from pgle.requests.commands import COMMANDS
from pgle.requests.option import declared

OF_ALL = {
    "everything",
    "sections",
    "as_json",
    "quiet",
    "h",
    "flags_file",
    "show_output",
}
"""Options of every command, and one that only a command line has."""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed(*words: str) -> click.Context:
    name, *rest = words
    command = main.group.get_command(click.Context(main.group), name)
    assert command is not None
    return command.make_context(name, rest)


def options(*words: str) -> dict[str, Any]:
    return parsed(*words).params


def test_the_command_line_wins_over_the_file_and_the_file_over_the_default() -> None:
    Path("pgle.toml").write_text('target = "a100"\nnetwork = "400Gbit/s"\n')
    found = options("predict", "dump", "--target", "h200")
    assert (found["target"], found["network_gb_s"]) == ("h200", 50.0)
    assert found["devices_per_host"] is None


def test_keys_of_a_command_come_before_those_of_all() -> None:
    Path("pgle.toml").write_text(
        'target = "a100"\n[tune]\ntarget = "h200"\nbudget = 3\n'
    )
    found = options("tune", "step.mlir", "-o", "out")
    assert (found["target"], found["budget"]) == ("h200", 3)
    assert options("rehearse", "step.mlir")["target"] == "a100"


def test_a_part_of_pyproject_is_read_where_a_folder_has_no_file_of_its_own() -> None:
    Path("pyproject.toml").write_text('[tool.pgle]\ntarget = "a100"\n')
    assert options("predict", "dump")["target"] == "a100"
    Path("pgle.toml").write_text('target = "h200"\n')
    assert options("predict", "dump")["target"] == "h200"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/dev/zero", "is a device"),
        ("pgle.toml", "cannot be read"),
        (".", "is a directory"),
    ],
)
def test_a_file_of_a_project_that_cannot_be_read_is_not_passed_over(
    target: str, said: str
) -> None:
    Path("pgle.toml").symlink_to(target)
    with pytest.raises(UserError, match=f"pgle.toml: {said}"):
        options("predict", "dump")


def test_a_pyproject_of_other_tools_is_none_and_a_parent_is_found(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pgle.toml").write_text('target = "a100"\n')
    inner = project / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text('[project]\nname = "x"\n')
    monkeypatch.chdir(inner)
    assert options("predict", "dump")["target"] == "a100"


def test_a_path_is_relative_to_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pgle.toml").write_text('run-dir = "runs/a"\n')
    inner = project / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert str(options("run", "--", "train")["run_dir"]) == "../runs/a"


def test_the_program_of_a_project_runs_where_none_is_given() -> None:
    Path("pgle.toml").write_text('command = "python train.py --size 8"\n')
    words = ("python", "train.py", "--size", "8")
    assert options("rehearse", "--devices", "8")["words"] == words
    assert options("run")["words"] == words
    assert options("rehearse", "step.mlir")["words"] == ("step.mlir",)
    assert options("compare", "a", "b")["words"] == ("a", "b")
    assert options("compare")["words"] == ()


def test_an_option_that_a_command_needs_may_be_in_the_file() -> None:
    Path("pgle.toml").write_text('command = "train"\n[tune]\noutput = "tuned"\n')
    assert str(options("tune")["output"]) == "tuned"


def test_devices_of_the_command_line_win_over_a_topology_of_the_file() -> None:
    Path("pgle.toml").write_text('topology = "1x4x8"\n')
    assert options("rehearse", "step.mlir")["topology"] == "1x4x8"
    found = options("rehearse", "step.mlir", "--devices", "4")
    assert (found["devices"], found["topology"]) == (4, None)


def test_a_key_of_all_commands_counts_only_where_it_means_the_same() -> None:
    text = 'devices = 8\nrun-dir = "runs/mine"\nprofile = "p.pbtxt"\n'
    Path("pgle.toml").write_text(text)
    assert options("rehearse", "step.mlir")["devices"] == 8
    assert options("scale", "step.mlir")["devices"] == ()
    compared = options("compare", "a", "b")
    assert (str(compared["run_dir"]), compared["profile"]) == ("runs/abba", None)


def test_several_values_are_a_list() -> None:
    text = 'flag = ["--xla_a=1", "--xla_b=2"]\n[scale]\ndevices = [8, 64]\n'
    Path("pgle.toml").write_text(text)
    found = options("scale", "--", "python", "train.py")
    assert found["devices"] == (8, 64)
    assert found["flags"] == ("--xla_a=1", "--xla_b=2")


def test_a_switch_is_true_or_false() -> None:
    Path("pgle.toml").write_text("cache = false\n")
    assert options("rehearse", "step.mlir")["cached"] is False
    assert options("auto", "--", "train")["cache"] is None  # a folder there


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('targt = "h100"', "pgle.toml: no command has 'targt'; did you mean 'target'?"),
        ("[tune]\nbudgt = 3", "[tune]: no command has 'budgt'; did you mean 'budget'?"),
        ("[tuna]\nbudget = 3", "no command has 'tuna'; did you mean 'tune'?"),
        ('network = "fast"', "pgle.toml: network: 'fast' is no bandwidth"),
        ("[tune]\ncache = 3", "cache: 3 is not what this option takes; write true"),
        ("target =", "pgle.toml: is not TOML"),
        ('output = "x"', "'output' is something else in every command; write it into"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(
    text: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pgle.toml").write_text(text)
    assert run(["tune", "step.mlir", "-o", "out"]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_help_is_there_whatever_the_file_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("pgle.toml").write_text("target =")
    assert run(["tune", "--help"]) == 0
    assert "--budget" in capsys.readouterr().out


def test_an_answer_says_what_came_from_the_file(
    testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pgle.toml").write_text('target = "h100"\nnetwork = 25\n')
    dump = str(testdata / "hlo/jax-0.10.2/async")
    assert run(["predict", dump, "--network", "50"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("target h100 (pgle.toml)")


def test_every_command_with_a_request_can_be_configured() -> None:
    for name in COMMANDS:
        command = main.group.get_command(click.Context(main.group), name)
        assert command is not None
        params = command.params
        names = {param.name for param in params if isinstance(param, click.Option)}
        fields = declared(COMMANDS[name])
        known = {item.name for item in fields if not item.option.is_argument}
        assert known == names - OF_ALL, name


def test_a_key_that_is_given_is_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pgle.toml").write_text("devices = 0\n")
    assert run(["rehearse", "step.mlir"]) == 2
    assert "pgle.toml: devices: 0 is not in the range" in capsys.readouterr().err


def test_a_wrong_file_is_a_user_error() -> None:
    Path("pgle.toml").write_text("nothing = 1\n")
    with pytest.raises(UserError, match="no command has 'nothing'; keys are"):
        parsed("predict", "dump")


def test_the_example_of_the_docs_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    example = text.partition("```toml\n")[2].partition("```")[0]
    Path("pgle.toml").write_text(example)
    found = options("tune", "--budget", "3")
    assert found["words"] == ("python", "train.py", "--config", "base.yml")
    assert (found["budget"], found["topology"]) == (3, "1x4x8")
    assert options("scale")["devices"] == (8, 64, 512)
