"""What `--help` says: every command in a group with examples, every option explained, the same one
everywhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pgle.cli import help as own
from pgle.cli import main

OTHERWISE = {
    "output": "each command writes something else",
    "profile": "the role of the profile in the command",
    "module": "what it selects, and what without it",
    "hlo": "of which run",
    "run-dir": "compare and doctor have other defaults",
    "jax": "what wrote a log, or what compiles",
    "force": "stages keep the old folder, files are overwritten",
    "budget": "settings of flags, or alternatives",
    "vary": "all combinations, or each against the first",
    "cache": "that of pgle, or of JAX in auto",
    "devices": "simulated, or compiled for",
    "devices-per-host": "the module may say it",
    "target": "analyze takes what the HLO says",
    "file": "of flags, of history",
    "name": "given, or searched for",
    "hardware": "given, or searched for",
    "pattern": "refers to compare",
    "collective-stat": "of executions, of ranks",
    "schedule": "of which run",
    "fail-slower": "a limit of compare, or of all stages",
    "top": "of what",
}
"""Options whose help differs between commands, and why."""


def leaves() -> Iterator[tuple[str, click.Command]]:
    for name in main.COMMANDS:
        command = main.group.get_command(click.Context(main.group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from (
                (f"{name} {inner}", found) for inner, found in command.commands.items()
            )
        else:
            yield name, command


LEAVES = dict(leaves())


def options(command: click.Command) -> dict[str, click.Option]:
    params = (
        param
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
    )
    return {max(param.opts, key=len).removeprefix("--"): param for param in params}


def test_every_file_of_a_command_is_listed() -> None:
    files = Path(main.__file__).parent.glob("*.py")
    named = {(name.rstrip("_") or path.stem).replace("_", "-") for path in files
             for name in re.findall(r"\ndef (\w*?)command\(", path.read_text())}  # fmt: skip
    assert named == set(main.COMMANDS)


@pytest.mark.parametrize("name", LEAVES)
def test_a_command_has_examples_that_it_takes(name: str) -> None:
    command = LEAVES[name]
    assert isinstance(command, own.Command), "say @click.command(cls=Command)"
    assert command.examples, (
        "the docstring ends with \\b and lines that begin with pgle"
    )
    for example in command.examples:
        line = re.findall(r"pgle ([^|)]*)", example)[-1]
        words = shlex.split(line, comments=True)
        assert " ".join(words).startswith(f"{name} ") or words == name.split()
        command.make_parser(click.Context(command, info_name=name)).parse_args(
            words[len(name.split()) :]
        )


@pytest.mark.parametrize("name", LEAVES)
def test_nobody_must_say_where_results_go(name: str) -> None:
    output = options(LEAVES[name]).get("output")
    assert output is None or not output.required


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_is_explained(name: str) -> None:
    assert not [
        option for option, param in options(LEAVES[name]).items() if not param.help
    ]


@pytest.mark.parametrize("name", LEAVES)
def test_a_default_is_said_once(name: str) -> None:
    shown = {
        option
        for option, param in options(LEAVES[name]).items()
        if param.show_default and "[default:" in str(param.help)
    }
    assert not shown


def test_an_option_says_the_same_everywhere() -> None:
    helps: dict[str, set[str]] = {}
    for command in LEAVES.values():
        for name, param in options(command).items():
            helps.setdefault(name, set()).add(str(param.help))
    assert {name for name, texts in helps.items() if len(texts) > 1} <= set(OTHERWISE)


def test_groups_name_options_that_exist() -> None:
    known = {name for command in LEAVES.values() for name in options(command)} | {
        "help"
    }
    assert {name for names in own.SECTIONS.values() for name in names.split()} <= known


@pytest.mark.parametrize("name", LEAVES)
def test_few_options_stand_without_a_group(name: str) -> None:
    loose = [
        option
        for option in options(LEAVES[name])
        if not any(option in s.split() for s in own.SECTIONS.values())
    ]
    assert len(loose) <= 6, "put the rarer ones into a group of pgle/cli/help.py"


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize(
    "words", [[], *([*name.split()] for name in LEAVES)], ids=" ".join
)
def test_help_fits(words: list[str], width: int) -> None:
    done = CliRunner().invoke(
        main.group, [*words, "--help"], terminal_width=width, max_content_width=200
    )
    assert done.exit_code == 0
    for line in done.output.splitlines():
        alone = len(line.split()) <= 2  # a word longer than the line stays whole
        assert len(line) <= width or alone or line.startswith("Usage"), line


@pytest.mark.parametrize(
    "words", [[], *([*name.split()] for name in LEAVES)], ids=" ".join
)
def test_brief_help_is_one_screen(words: list[str]) -> None:
    done = CliRunner().invoke(main.group, [*words, "-h"], terminal_width=80)
    assert done.exit_code == 0
    lines = done.output.rstrip().splitlines()
    assert len(lines) <= (24 if words else 60)
    assert not words or lines[-1].startswith("All options: ")
