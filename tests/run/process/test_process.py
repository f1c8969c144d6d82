"""The command runs as if it ran alone."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.masking import kept_output
from pgle.run.process.process import (
    DIGESTED_BYTES,
    check_program,
    last_line,
    launch,
    program_of,
)


@pytest.fixture
def start(tmp_path, capfd):
    """Run a shell script; its exit code, stdout, stderr, log and lines. ``logged TEXT`` waits until
    the log has it.
    """
    wait = 'logged() { for _ in $(seq 3000); do grep -q "$1" "$0" >/dev/null && return; sleep 0.01; done; }\n'

    def run(script: str, **options):
        lines: list[str] = []
        log = str(tmp_path / "log")
        code = launch(
            ["sh", "-c", wait + script, log],
            os.environ,
            Path(log),
            lines.append,
            **options,
        )
        out, err = capfd.readouterr()
        return code, out, err, (tmp_path / "log").read_text(), lines

    return run


def test_both_streams_go_where_they_went_and_into_the_log(start):
    code, out, err, log, lines = start(
        "printf 'a\\nb'; exec >&-; logged b; printf 'c\\n' >&2"
    )
    assert (code, out, err) == (0, "a\nb", "c\n")
    assert log == "a\nbc\n"
    assert lines == ["a", "c"]


SECRETS = [
    "HF_TOKEN=hunter2secret",
    "https://me:hunter2secret@host/x",
    "Authorization: Bearer hunter2secret",
]
PEM = "-----BEGIN PRIVATE KEY-----\nhunter2secret\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize("secret", [*SECRETS, PEM])
def test_the_terminal_shows_all_and_the_log_keeps_no_credential(
    tmp_path, capfd, secret
):
    log = tmp_path / "output.log"
    script = (
        f"print('step 1: 0.2 s'); print({secret!r}); print('step 2: 0.2 s', end='')"
    )
    assert launch([sys.executable, "-c", script], os.environ, log) == 0
    assert secret in capfd.readouterr().out
    assert "hunter2secret" not in log.read_text()
    assert [log.read_text().split("\n")[i] for i in (0, -1)] == [
        "step 1: 0.2 s",
        "step 2: 0.2 s",
    ]


def test_an_endless_line_is_looked_through_in_no_more_than_its_length():
    assert kept_output(b"a" * 60_000 + b"key") == b"a" * 60_000 + b"key"
    assert kept_output(b"token" * 12_000) == b"token" * 12_000


def test_pieces_of_a_line_stay_together_in_the_log(start):
    *_, log, _ = start("printf a; sleep 0.05; echo x >&2; logged x; echo b")
    assert log == "x\nab\n"


def test_stdout_can_be_sent_to_stderr(start):
    _, out, err, _, _ = start("echo a", stdout=2)
    assert (out, err) == ("", "a\n")


def test_carriage_returns_end_lines(start):
    *_, lines = start("printf '1/9\\r2/9\\r\\n'")
    assert lines == ["1/9", "2/9", ""]


def test_bytes_that_are_no_text_pass(tmp_path, capfdbinary):
    assert (
        launch(["printf", "\\377\\000x\\n"], os.environ, tmp_path / "log", print) == 0
    )
    assert b"\xff\x00x\n" in capfdbinary.readouterr().out
    assert (tmp_path / "log").read_bytes() == b"\xff\x00x\n"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_exit_code_is_the_commands(start, script, code):
    assert start(script)[0] == code


@pytest.fixture
def launcher(tmp_path):
    """Run a shell script under a launcher of its own, which the script may signal as ``$PPID``:
    (exit code, stdout).
    """

    def run(script: str, before: str = "") -> tuple[int, str]:
        code = (
            f"import os, signal, sys\nfrom pathlib import Path\nfrom pgle.run.process.process import launch\n{before}\n"
            f"sys.exit(launch(['sh', '-c', sys.argv[1]], os.environ, Path(sys.argv[2])))"
        )
        words = [sys.executable, "-c", code, script, str(tmp_path / "log")]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout

    return run


def test_a_signal_to_us_goes_to_the_command_once(launcher):
    script = (
        "trap 'echo got; exit 5' USR1; kill -USR1 $PPID; while :; do sleep 0.01; done"
    )
    assert launcher(script) == (5, "got\n")


def test_our_own_handlers_are_back_afterwards(start):
    before = signal.getsignal(signal.SIGTERM)
    start("true")
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_signal_stays_ignored(launcher):
    ignore = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert launcher("kill -HUP $PPID; exit 4", before=ignore) == (4, "")


def test_a_failing_listener_does_not_stop_the_output(tmp_path, capfd):
    def fail(line: str) -> None:
        raise OSError("disk full")

    assert (
        launch(["sh", "-c", "echo a; echo b"], os.environ, tmp_path / "log", fail) == 0
    )
    captured = capfd.readouterr()
    assert captured.out == "a\nb\n"
    assert captured.err.count("disk full") == 1


def test_a_program_whose_reader_has_gone_ends_as_it_would_alone(tmp_path):
    code = "import os, sys\nfrom pathlib import Path\nfrom pgle.run.process.process import launch\n"
    code += "sys.exit(launch(['yes'], os.environ, Path(sys.argv[1])))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log")],
        stdout=write,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE


def test_a_listener_is_spared_output_that_mentions_nothing(start):
    *_, lines = start(
        "echo a; logged a; echo STEP 1; logged STEP; echo b", words=(b"step",)
    )
    assert lines == ["STEP 1"]


def test_a_long_output_is_whole(tmp_path, capfd):
    text = "x" * 99 + "\n"
    command = [sys.executable, "-c", f"import sys; sys.stdout.write({text!r} * 20000)"]
    assert launch(command, os.environ, tmp_path / "log") == 0
    assert capfd.readouterr().out == text * 20000
    assert (tmp_path / "log").stat().st_size == 2_000_000


def test_a_command_that_cannot_be_started_is_named(tmp_path):
    with pytest.raises(UserError, match="no-such-program: cannot be started"):
        launch(["no-such-program"], os.environ, tmp_path / "log")


@pytest.mark.parametrize(
    "mode", [0o644, 0o755]
)  # some file systems have every file executable
def test_a_module_in_place_of_a_program_is_for_rehearse(
    tmp_path, monkeypatch, mode: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("step.mlir").write_text("module @jit_step {}\n")
    Path("step.mlir").chmod(mode)
    with pytest.raises(
        UserError, match=r"it is a module\); predict its step: pgle rehearse step.mlir"
    ):
        check_program(["step.mlir"])
    with pytest.raises(
        UserError, match=r"other.mlir: cannot be started \(no such program\)"
    ):
        check_program(["other.mlir"])


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("train.py", "it is not executable.*-- python train.py"),
        ("job.sh", "it is not executable.*-- bash job.sh"),
        ("start.sh", "it is not on the PATH.*: ./start.sh"),
        ("A=1", "no such program.*variables before pgle"),
        ("sh job.sh", "no such program.*without quotes"),
    ],
)
def test_what_was_meant_by_a_word_that_starts_nothing_is_said(
    tmp_path, monkeypatch, word, what
):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "job.sh", "start.sh"):
        Path(name).write_text("#!/bin/sh\n")
    Path("start.sh").chmod(0o755)
    with pytest.raises(UserError) as refused:
        check_program([word])
    assert re.search(what, str(refused.value))


KILLED = """
import os, sys
from pathlib import Path
from pgle.run.process.process import launch
launch(["sh", "-c", "echo $$; exec sleep 1000"], os.environ, Path(sys.argv[1]))
"""


def test_the_command_ends_with_a_pgle_that_is_killed(tmp_path):
    words = [sys.executable, "-c", KILLED, str(tmp_path / "log")]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    command = int(parent.stdout.readline())
    with os.fdopen(os.pidfd_open(command)) as file:
        parent.kill()
        ended, _, _ = select.select([file], [], [], 60)
    assert ended
    parent.wait()
    parent.stdout.close()


def test_of_a_long_log_the_end_is_enough_for_its_last_line(tmp_path):
    (tmp_path / "log").write_text("x" * 100_000 + "\nthe end\n\n")
    assert last_line(tmp_path / "log") == "the end"


def test_of_an_answer_that_failed_the_verdict_is_the_reason_not_its_warnings(tmp_path):
    (tmp_path / "log").write_text(
        "step 1\n✗ profile partly used\nwarning: 4 devices (assumed)\n",
        encoding="utf-8",
    )
    assert last_line(tmp_path / "log") == "✗ profile partly used"


def test_files_of_a_command_that_differ_behind_their_first_mebibyte_are_two_programs(
    tmp_path: Path,
) -> None:
    data, command = tmp_path / "data.npy", ["train", str(tmp_path / "data.npy")]
    data.write_bytes(bytes(3 << 20) + b"a")
    before = program_of(command)
    assert program_of(command) == before
    data.write_bytes(bytes(3 << 20) + b"b")
    assert program_of(command) != before


def test_a_huge_file_is_told_by_its_size_and_time_and_no_pipe_is_read(
    tmp_path: Path,
) -> None:
    huge, pipe = tmp_path / "huge", tmp_path / "pipe"
    with huge.open("wb") as file:
        file.truncate(1000 * DIGESTED_BYTES)
    os.mkfifo(pipe)
    before = program_of([str(huge), str(pipe), "/dev/zero"])
    assert list(before["files"]) == [str(huge)]
    os.utime(huge, ns=(0, 1))
    assert program_of([str(huge)])["files"] != before["files"]
