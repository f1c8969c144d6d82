"""The program in odd surroundings: no arguments, typing errors, ASCII terminals, names that are no
text, Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run

PROFILE = "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"


@pytest.mark.parametrize("command", ["rehearse", "tune", "run", "profile", "perf"])
def test_an_option_of_the_users_program_gets_the_hint_to_put_dashes_before_it(
    command, capsys
) -> None:
    assert run([command, "--devices", "8", "sh", "train.sh", "--layers", "4"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No such option: --layers; put -- before your program: pgle" in line
    assert f"{command} --devices 8 -- sh train.sh --layers 4" in line


@pytest.mark.parametrize("words", [["flags"], ["history"]])
def test_a_command_of_several_prints_its_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Usage: pgle")
    assert len(output.out.splitlines()) > 10
    assert output.err == ""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["convret"], "convert"),
        (["verify", "--modul", "name", "x"], "--module"),
        (["flags", "presett"], "preset"),
        (["flags", "preset", "fsdpp"], "fsdp"),
        (
            [
                "verify",
                PROFILE,
                "--hlo",
                "hlo/jax-0.12.0.1/async",
                "--module",
                "jit_stepp",
            ],
            "jit_step",
        ),
        (
            [
                "convert",
                "pax_fsdp4/proc0.sqlite",
                "-o",
                "x.pbtxt",
                "--module",
                "wraped_step_fn",
            ],
            "pjit__wrapped_step_fn",
        ),
        (
            ["complete", PROFILE, "--hlo", "hlo", "--target", "h10", "-o", "x.pbtxt"],
            "h100",
        ),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(
    words: list[str],
    meant: str,
    testdata: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(testdata)
    assert run(words) == 2
    line = capsys.readouterr().err.lower()
    assert "did you mean" in line
    assert f"'{meant}'" in line


@pytest.mark.parametrize("value", ["x{99999999999}", "(", "(?P<a>x)(?P<a>y)"])
def test_a_regular_expression_that_cannot_be_is_refused(
    value: str, testdata: Path
) -> None:
    assert (
        run(
            [
                "verify",
                str(testdata / PROFILE),
                "--hlo",
                str(testdata / "hlo"),
                "--module",
                value,
            ]
        )
        == 2
    )


def test_devices_per_host_of_none_is_bad_usage(
    testdata: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "complete",
        str(testdata / PROFILE),
        "--hlo",
        "x",
        "-o",
        "x.pbtxt",
        "--devices-per-host",
        "0",
    ]
    assert run(words) == 2
    assert "'--devices-per-host': 0 is not in the range x>=1" in capsys.readouterr().err


def pgle(
    words: list[str | bytes], **environment: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pgle", *words]
    return subprocess.run(
        command, capture_output=True, env={**os.environ, **environment}, check=False
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_ascii_terminal_gets_ascii(testdata: Path, more: list[str | bytes]) -> None:
    done = pgle(["show", str(testdata / PROFILE), *more], PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    if more:
        assert json.loads(done.stdout)["schema"] == "pgle.show/1"


@pytest.mark.parametrize("more", [[], [b"--json"]])
def test_a_file_name_that_is_no_text_is_read_and_written(
    testdata: Path, tmp_path: Path, more: list[str | bytes]
) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102 - no text
    shutil.copy(testdata / PROFILE, folder + b"/a.pbtxt")
    shutil.copy(
        testdata / "nsys_synthetic/synthetic_cases.sqlite", folder + b"/a.sqlite"
    )
    done = pgle([b"convert", folder + b"/a.sqlite", b"-o", folder + b"/b.pbtxt", *more])
    assert done.returncode == 0, done.stderr
    done = pgle(
        [
            b"convert",
            folder + b"/a.sqlite",
            b"--stat",
            b"max",
            b"-o",
            folder + b"/c.pbtxt",
            *more,
        ]
    )
    assert done.returncode == 0, done.stderr
    done.stdout.decode()
    assert sorted(os.listdir(folder)) == [  # noqa: PTH208
        *(
            b"a.pbtxt",
            b"a.sqlite",
            b"b.pbtxt",
            b"b.pbtxt.json",
            b"c.pbtxt",
            b"c.pbtxt.json",
        ),
    ]
    json.loads(Path(os.fsdecode(folder + b"/c.pbtxt.json")).read_text())


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    code = (
        "import os, signal, sys, types\n"
        # a shell's background jobs ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Slow(types.ModuleType):\n"
        "    def __getattr__(self, name):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.modules['pgle.cli.main'] = Slow('pgle.cli.main')\n"
        "from pgle.__main__ import main\n"
        "main()\n"
    )
    before = signal.getsignal(signal.SIGINT)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"pgle: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "t.sqlite", "-o", "out.pbtxt"],
        ["convert", "t.xplane.pb", "-o", "out.pbtxt"],
        ["convert", "t.nsys-rep", "-o", "out.pbtxt"],
        ["compare", "t.jsonl", "t.jsonl"],
        ["show", "t.pbtxt"],
        ["verify", "PROFILE", "--hlo", "t.hlo.pb"],
        ["verify", "PROFILE", "--hlo", "t.txt.xz"],
        ["complete", "PROFILE", "--hlo", "t.hlo.pb", "-o", "out.pbtxt"],
        ["flags", "lint", "--file", "t.flags"],
        ["predict", "t.hlo.pb"],
    ],
    ids=" ".join,
)
def test_a_pipe_that_nothing_writes_to_is_refused(
    words: list[str],
    testdata: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in words:
        if word.startswith("t."):
            Path(word).unlink(missing_ok=True)
            os.mkfifo(word)
    assert (
        run([str(testdata / PROFILE) if word == "PROFILE" else word for word in words])
        == 2
    )
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "is a pipe" in line or "is not a file" in line
    assert not Path("out.pbtxt").exists()


def test_an_input_is_never_the_output(
    testdata: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, profile = tmp_path / "t.pb", tmp_path / "p.pbtxt"
    shutil.copy(testdata / "nsys_synthetic/synthetic_cases.sqlite", trace)
    shutil.copy(testdata / PROFILE, profile)
    before = trace.read_bytes(), profile.read_bytes()
    carried = ["carry", profile, "--from", trace, "--to", trace, "-o", profile]
    for words in (["convert", trace, "-o", trace], carried):
        for force in ((), ("--force",)):
            assert run([*map(str, words), *force]) == 2
            assert "is an input too" in capsys.readouterr().err
    assert (trace.read_bytes(), profile.read_bytes()) == before


@pytest.mark.parametrize(
    "words", [["show"], ["show", "--json"], ["flags", "list"]], ids=" ".join
)
def test_a_reader_that_went_away_is_no_failure(
    words: list[str], testdata: Path
) -> None:
    profile = [str(testdata / PROFILE)] * (words[0] == "show")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pgle", *words, *profile]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_working_directory_that_is_gone_is_one_line(
    tmp_path: Path,
    testdata: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert (
        run(
            [
                "convert",
                str(testdata / "nsys_synthetic/synthetic_cases.sqlite"),
                "-o",
                "x.pbtxt",
            ]
        )
        == 2
    )
    assert (
        capsys.readouterr().err
        == "pgle: the working directory does not exist any more; cd to one that does\n"
    )


def test_no_share_is_not_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "a.jsonl", "b.jsonl", "--confidence=nan"]) == 2
    assert "nan is not in the range 0.5<=x<=0.9999" in capsys.readouterr().err
