"""Every command that is printed can be pasted into a shell."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

import pgle
from pgle.errors import UserError, one_line
from pgle.next import (
    BLANKS,
    COMPLETE,
    CONFIRM,
    CONVERT,
    CONVERT_ALL,
    PROFILE,
    REHEARSE_FLAG,
    VERIFY,
    Next,
    Sentence,
    WayEnd,
    to_type,
    to_way,
    typed,
)
from pgle.run.directory.directory import RunDirectory
from pgle.run.history import read_history
from pgle.run.inputs.step_times import read_runs
from pgle.run.inputs.traces import convert_command
from pgle.trace.nsys.tables import REPORT_MAGIC, _check_sqlite
from pgle.xla.hlo.proto import module_from_bytes
from pgle.xla.log.verdict import Remedy

NAMES = (
    "plain",
    "a b",
    "a  b",
    " a",
    "it's",
    'a"b',
    "$(id)",
    "`id`",
    "a;b",
    "a\nb\x1b[31m",
    "\u202e\\é",
    "*",
    "~",
    "",
    "\udcff\udc80x",
)
UNSAFE = "it's `a` b;"


def test_a_shell_gets_the_words_that_are_meant(tmp_path: Path) -> None:
    line = one_line(typed("printf", "%s\\0", *NAMES, PurePath("-x.pb")))
    assert line.isprintable()
    done = subprocess.run(
        ["bash", "-c", line],
        stdout=subprocess.PIPE,
        env={"LC_ALL": "C.UTF-8"},
        check=True,
    )
    assert [os.fsdecode(word) for word in done.stdout.split(b"\0")] == [
        *NAMES,
        "./-x.pb",
        "",
    ]


def test_a_path_is_no_option_and_an_option_no_path() -> None:
    assert (
        str(Next.of("show", PurePath("-x.pbtxt"), "--top", 0))
        == "pgle show ./-x.pbtxt --top 0"
    )
    assert str(Next.of("show", PurePath("/-x.pbtxt"))) == "pgle show /-x.pbtxt"


def stages(folder: Path) -> None:
    for stage in ("baseline", "perf"):
        (folder / stage).mkdir()
    read_runs(str(folder))


def report(folder: Path) -> None:
    (folder / UNSAFE).write_bytes(REPORT_MAGIC.ljust(200))
    _check_sqlite(folder / UNSAFE)


def wal(folder: Path) -> None:
    (folder / UNSAFE).write_bytes(b"SQLite format 3\0".ljust(200, b"\0"))
    (folder / f"{UNSAFE}-wal").write_bytes(b"x")
    _check_sqlite(folder / UNSAFE)


PLACES: dict[str, Callable[[Path], object]] = {
    "directory": lambda folder: RunDirectory(folder).profile_to_use(),
    "step_times": stages,
    "no history": lambda folder: read_history(folder / "none.jsonl"),
    "report": report,
    "wal": wal,
    "hlo": lambda folder: module_from_bytes(b"module @x {", str(folder / "x.mlir")),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_commands_of_errors_name_the_path(place: str, tmp_path: Path) -> None:
    folder = tmp_path / UNSAFE
    folder.mkdir()
    with pytest.raises(UserError) as caught:
        PLACES[place](folder)
    words = shlex.split((caught.value.remedy or "").rpartition(": ")[2])
    assert any(word.startswith(str(folder)) for word in words)


def test_the_command_after_a_look_names_the_path(tmp_path: Path) -> None:
    path = tmp_path / UNSAFE / "t.xplane.pb"
    assert convert_command(path).argv[2] == str(path)


def test_words_are_quoted_in_one_place() -> None:
    root = Path(pgle.__file__).parent
    names = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "shlex" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import)
        and any(alias.name == "shlex" for alias in node.names)
    }
    assert names == {"next.py"}


@pytest.mark.parametrize("blank", BLANKS)
def test_a_next_command_holds_no_placeholder(blank: str) -> None:
    commands = (
        Next.of("perf", "--", blank),
        Next.of("verify", "p", "--hlo", blank),
        Next.of("rehearse", f"--flag=--x={blank}", "m"),
    )
    for command in commands:
        way = to_way([command])
        assert way.next == ()
        assert way.done.startswith(f"give {BLANKS[blank]}: pgle ")
        assert blank not in way.done


def test_the_words_of_the_users_program_are_no_placeholders() -> None:
    command = Next.of("run", "--", "python", "train.py", "BASE", "--name", "COMMAND")
    assert to_type(command) == str(command)
    both = Next.of("compare", "--abba", 3, "--", "COMMAND_A", "--vs", "COMMAND_B")
    assert to_type(both) == (
        "give the commands of both sides: pgle compare --abba 3 -- … --vs …"
    )


def test_the_commands_of_a_sentence_stay_values_when_paths_fill_them() -> None:
    sentence = Sentence.todo("see what fits with ", VERIFY, ", then profile again")
    filled = sentence.filled({"PROFILE": PurePath(UNSAFE), "DUMP": PurePath("a 'b'")})
    (command,) = filled.commands
    assert command.argv == ("pgle", "verify", UNSAFE, "--hlo", "a 'b'")
    assert str(filled) == f"see what fits with `{command}`, then profile again"


def test_only_a_fact_ends_in_done() -> None:
    fact = Sentence.done("XLA did not use the profile")
    remedies = [item for item in vars(Remedy).values() if isinstance(item, Sentence)]
    assert len(remedies) > 15
    for remedy in (*remedies, fact.then(remedies[0])):
        assert to_way([remedy]).end is WayEnd.TODO
    assert to_way([fact]).end is WayEnd.DONE


def test_flags_of_a_command_are_added_to_those_of_the_shell() -> None:
    command = Next(("printenv", "XLA_FLAGS"), xla_flags="--xla_a='b c'")
    done = subprocess.run(
        ["bash", "-c", str(command)],
        env={"XLA_FLAGS": "--xla_b=1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "--xla_b=1 --xla_a='b c'\n"


def test_a_command_that_lacks_a_word_is_never_printed_to_be_pasted() -> None:
    lacking = (COMPLETE, CONFIRM, CONVERT, CONVERT_ALL, PROFILE, REHEARSE_FLAG, VERIFY)
    assert [to_way([command]).next for command in lacking] == [()] * len(lacking)
