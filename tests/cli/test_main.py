"""The command list, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pgle.cli import main
from pgle.errors import UserError, WorkloadError

WITHOUT_JSON = {"help", "completion", "mcp"}
"""They only write a picture, or start another program."""


@pytest.fixture
def failing(monkeypatch):
    """Make `pgle show` raise an exception."""

    def make(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(
            main.LazyGroup, "get_command", lambda self, ctx, name: command
        )

    return make


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_listed_command_has_help(name):
    done = CliRunner().invoke(main.group, [name, "--help"])
    assert done.exit_code == 0
    assert "Usage: " in done.output


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_that_reports_has_json(name):
    command = main.group.get_command(click.Context(main.group), name)
    assert command is not None
    leaves = (
        list(command.commands.values())
        if isinstance(command, click.Group)
        else [command]
    )
    for leaf in (leaf for leaf in leaves if not {name, leaf.name} & WITHOUT_JSON):
        assert any("--json" in parameter.opts for parameter in leaf.params), leaf.name


def test_help_lists_every_command():
    done = CliRunner().invoke(main.group, ["--help"])
    assert all(f"\n  {name} " in done.output for name in main.COMMANDS)


def test_help_imports_neither_numpy_nor_jax():
    code = "import sys; from pgle.cli.main import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {
        "numpy",
        "jax",
        "rich",
        "google.protobuf",
        "matplotlib",
        "scipy",
    }


def test_importing_pgle_is_light():
    code = "import sys, pgle; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {"numpy", "jax", "click", "rich"}


def test_a_user_error_is_one_line_and_exit_code_2(failing, capsys):
    failing(
        UserError(
            "not a SQLite database", where="report.sqlite", remedy="export it again"
        )
    )
    assert main.run(["show"]) == 2
    assert (
        capsys.readouterr().err
        == "pgle: report.sqlite: not a SQLite database; export it again\n"
    )


def test_a_password_in_an_address_is_not_repeated(failing, capsys):
    failing(
        UserError(
            "no such object", where="https://me:hunter2hunter2@example.com/p.pbtxt"
        )
    )
    main.run(["show"])
    assert (
        capsys.readouterr().err == "pgle: https***example.com/p.pbtxt: no such object\n"
    )


def test_a_multi_line_reason_stays_on_one_line(failing, capsys):
    failing(UserError("first\nsecond\tthird"))
    main.run(["show"])
    assert capsys.readouterr().err == "pgle: first second third\n"


def test_the_programs_own_exit_code_is_passed_on(failing, capsys):
    failing(WorkloadError(77, "train.py ended with 77"))
    assert main.run(["show"]) == 77


def test_an_interrupt_is_130(failing, capsys):
    failing(KeyboardInterrupt())
    assert main.run(["show"]) == 130


def test_a_defect_of_ours_is_one_line_that_says_how_to_see_more(
    failing, capsys, monkeypatch
):
    monkeypatch.delenv("PGLE_DEBUG", raising=False)
    failing(ZeroDivisionError("division by zero"))
    assert main.run(["show"]) == 2
    line = capsys.readouterr().err
    assert "ZeroDivisionError" in line
    assert "PGLE_DEBUG=1" in line
    assert "Traceback" not in line


def test_with_debug_a_defect_shows_its_traceback(failing, monkeypatch):
    monkeypatch.setenv("PGLE_DEBUG", "1")
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main.run(["show"])


@pytest.mark.parametrize(
    "words",
    [["no-such-command"], ["show"], ["show", "--no-such-option", "x"], ["--nonsense"]],
)
def test_bad_usage_is_one_line_and_exit_code_2(words, capsys):
    assert main.run(words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_bad_line_of_a_flags_file_is_named(tmp_path, capsys):
    file = tmp_path / "flags.txt"
    file.write_text("# of a search\n--xla_gpu_autotune_level=1\nxla_gpu_no_dashes=2\n")
    assert main.run(["profile", "--flags-file", str(file), "--", "true"]) == 2
    assert (
        f"pgle: {file}, line 3: 'xla_gpu_no_dashes=2' does not begin with --"
        in capsys.readouterr().err
    )


def test_a_program_that_is_captured_ends_with_us(tmp_path):
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    program = "import sys, time; out = open(sys.argv[1], 'w'); print('ready', file=out, flush=True); time.sleep(600)"
    command = [
        sys.executable,
        "-m",
        "pgle",
        "rehearse",
        "-o",
        str(tmp_path / "out"),
        "--",
    ]
    pgle = subprocess.Popen([*command, sys.executable, "-c", program, str(fifo)])
    with fifo.open() as alive:
        assert alive.readline() == "ready\n"
        pgle.send_signal(signal.SIGTERM)
        assert alive.read() == ""  # comes when the last writer is gone
    assert pgle.wait() == 128 + signal.SIGTERM
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "nothere.sqlite"],
        ["carry", "nothere.pbtxt"],
        ["complete", "nothere.pbtxt", "--hlo", "nothere"],
        ["carry", "nothere.pbtxt", "--from", "nothere", "--to", "nothere"],
    ],
)
def test_an_input_that_is_not_there_is_named_before_an_option_that_is_missing(
    words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main.run(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("pgle: nothere")
    assert "no such file" in said


def test_an_error_on_a_terminal_wraps_between_words(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main.run(["show", "a-file-whose-name-is-long-enough.pbtxt"]) == 2
    words = [
        "pgle:",
        "a-file-whose-name-is-long-enough.pbtxt:",
        "no",
        "such",
        "file;",
        "check",
        "the",
        "path",
    ]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert " ".join(lines).split() == words
