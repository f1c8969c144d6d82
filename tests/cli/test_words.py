"""`-q`, `--json` errors, completion, and `pgle` alone in a folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run

PROFILE = "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
TRACE = "nsys_synthetic/synthetic_cases.sqlite"


def pgle(
    *words: str | Path, data: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pgle", *map(str, words)]
    return subprocess.run(
        command,
        input=data,
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_quiet_leaves_the_verdict_alone(testdata: Path, tmp_path: Path) -> None:
    loud = pgle("convert", testdata / TRACE, "-o", tmp_path / "a.pbtxt")
    quiet = pgle("convert", testdata / TRACE, "-o", tmp_path / "b.pbtxt", "-q")
    assert b"\nwarning: " in loud.stdout
    assert quiet.stderr == b""
    assert quiet.stdout.splitlines() == [
        loud.stdout.splitlines()[1].replace(b"a.pbtxt", b"b.pbtxt")
    ]


def test_quiet_does_not_hide_what_ends_the_command() -> None:
    assert pgle("show", "nowhere.pbtxt", "-q").stderr.startswith(
        b"pgle: nowhere.pbtxt: no such file"
    )


@pytest.mark.parametrize("words", [["show", "-"], ["predict", "-"], ["report", "-"], ["convert", "a", "-o", "-"],
                                   ["rehearse", "-"], ["tune", "-", "-o", "t"], ["compare", "-", "b"]])  # fmt: skip
def test_a_file_is_no_pipe(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert (
        capsys.readouterr().err
        == "pgle: -: is stdin or stdout, and a file is needed; name one\n"
    )


@pytest.mark.parametrize("command", ["run", "auto"])
def test_a_program_is_no_file(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--run-dir", str(tmp_path / "run"), "--", "-"]) == 2
    assert (
        capsys.readouterr().err
        == "pgle: -: cannot be started (no such program); check the command\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["show", "nowhere.pbtxt"],
        ["show", "--nonsense"],
        ["shwo"],
        ["compare", "a", "b"],
    ],
)
def test_an_error_is_an_object_too(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--json"]) == 2
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert (found["schema"], found["exit_code"]) == ("pgle.error/1", 2)
    assert found["error"]["what"] in output.err.replace("pgle: ", "", 1)


def test_json_behind_the_dashes_is_the_programs_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["run", "--nonsense", "--", "prog", "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("pgle con", {"convert", "confirm"}),
        ("pgle rehearse --targ", {"--target"}),
        ("pgle flags pre", {"preset"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, words: str, found: set[str]) -> None:
    last = words.split()[-1]
    asked = {
        "COMP_WORDS": words,
        "COMP_CWORD": last if shell == "fish" else str(len(words.split()) - 1),
    }
    done = pgle(_PGLE_COMPLETE=f"{shell}_complete", **asked)
    assert found <= set(re.split(r"[\s,]+", done.stdout.decode()))


def test_completion_after_an_option_without_its_value_says_nothing() -> None:
    done = pgle(
        _PGLE_COMPLETE="bash_complete",
        COMP_WORDS="pgle rehearse --profile -- py",
        COMP_CWORD="4",
    )
    assert not done.stderr


def test_completion_imports_no_command(tmp_path: Path) -> None:
    code = "import sys; from pgle.cli.main import run; run([]) if 0 else None\n"
    code += "import os; os.environ.update(_PGLE_COMPLETE='bash_complete', COMP_WORDS='pgle c', COMP_CWORD='1')\n"
    code += "from pgle.cli.main import group\ntry: group.main(prog_name='pgle')\nexcept SystemExit: print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "plain,convert" in done.stdout
    assert "pgle.cli.profiles" not in done.stdout.split()


AS_THE_DOCS_SAY = {
    "bash": (
        'eval "$(pgle completion bash)"; COMP_WORDS=(pgle reh); COMP_CWORD=1\n'
        'f=$(complete -p pgle | sed "s/.*-F //; s/ .*//"); $f pgle reh pgle; printf "%s\\n" "${COMPREPLY[@]}"'
    ),
    # Its completion works in an interactive shell only: one behind a pseudo-terminal, into which
    # the key is pressed.
    "zsh": (
        "zmodload zsh/zpty; zpty shell zsh -f -i\n"
        "zpty -w shell 'PS1=; autoload -U compinit; compinit -D -u; "
        'eval "$(pgle completion zsh)"; print rea""dy\'\n'
        "zpty -r shell text '*ready*'; zpty -w -n shell $'pgle reh\\t'; zpty -r shell text '*rehearse*'\n"
        "zpty -d shell; print rehearse"
    ),
    "fish": "pgle completion fish | source; complete -C 'pgle reh' | string replace -r '\\t.*' ''",
}


@pytest.mark.parametrize("shell", AS_THE_DOCS_SAY)
def test_a_real_shell_completes_as_the_docs_say(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "pgle").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pgle "$@"\n')
    (tmp_path / "pgle").chmod(0o755)
    bare = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    words = [shell, *bare, "-c", AS_THE_DOCS_SAY[shell]]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.stdout == "rehearse\n", done.stderr


MODULE = "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt"


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ([], "pgle doctor"),
        (["train.py:import jax"], "pgle rehearse --devices 8 -- python train.py"),
        (["a.nsys-rep:x"], "pgle analyze a.nsys-rep"),
        (
            ["a.nsys-rep:of jit_step", f"dump/{MODULE}:"],
            "pgle analyze a.nsys-rep --hlo dump",
        ),
        (["log/plugins/profile/t/h.xplane.pb:"], "pgle analyze log"),
        (
            ["p.pbtxt:costs", 'p.pbtxt.json:"jit_step"', f"d/{MODULE}:"],
            "pgle show p.pbtxt",
        ),
        (
            [
                "runs/a/manifest.json:pgle.manifest/1",
                "runs/a/profile/trace/a.nsys-rep:",
            ],
            "pgle convert runs/a",
        ),
        (
            ["r/manifest.json:pgle.manifest/1", "r/profile.pbtxt:costs"],
            "give your program: pgle perf --run-dir r -- …",
        ),
        (["my job.log:step 1"], "pgle confirm 'my job.log'"),
        ([".venv/a.nsys-rep:x", "v/pyvenv.cfg:", "v/lib/a.nsys-rep:x"], "pgle doctor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pgle_alone_names_the_next_command(
    files: list[str],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for file in files:
        name, _, content = file.partition(":")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    assert run([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(("Next: pgle ", "Now: give "))
    assert any(
        line.split("  ")[0].removeprefix("Next: ").removeprefix("Now: ") == command
        for line in lines
    )
    assert ("pgle convert" in "".join(lines)) == (
        "analyze" in command or "convert" in command
    )


def test_the_version_names_jax(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("pgle ")
    assert "jaxlib " in line
    assert f"Python {sys.version.split()[0]}" in line
