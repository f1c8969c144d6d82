"""`%load_ext pgle`: magics, in IPython's own shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from present import needs

import pgle

pytestmark = needs("IPython")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / ".ipython"))
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "pgle")
    yield shell
    shell.history_manager.end_session()


def test_without_the_extension_ipython_is_not_imported() -> None:
    code = "import sys, pgle.cli.main, pgle.api; sys.exit('IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_line_is_a_command_and_its_value_the_answer(shell: Any) -> None:
    Path("steps.csv").write_text("step,step_time_s\n" + "1,0.2\n" * 3)
    done = shell.run_cell("%pgle compare steps.csv steps.csv")
    assert isinstance(done.result, pgle.Answer)
    assert done.result["schema"] == "pgle.compare/1"
    assert "srcdoc=" in done.result._repr_html_()


def test_a_brace_in_a_line_is_of_the_command(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("devices = 3")
    shell.run_cell("%pgle compare {devices}.csv b.csv")
    assert "{devices}.csv: no such file" in capsys.readouterr().err


def test_without_words_it_says_what_the_folder_holds(shell: Any) -> None:
    assert shell.run_cell("%pgle").result.ok


def test_what_is_printed_in_place_of_a_page_is_printed(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run_cell(
        "%pgle flags explain xla_gpu_enable_latency_hiding_scheduler --json"
    ).success
    assert '"schema": "pgle.flags/1"' in capsys.readouterr().out
    assert shell.run_cell("%pgle compare -h").success
    assert "Usage: pgle compare" in capsys.readouterr().out


def test_an_error_is_one_line_and_ends_the_cell(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    done = shell.run_cell("%pgle predict nothing.hlo.pb\nafter = 1")
    assert not done.success
    assert "after" not in shell.user_ns
    said = capsys.readouterr().err
    assert said == "UsageError: nothing.hlo.pb: no such file; check the path\n"


def test_an_open_quote_is_one_line(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not shell.run_cell("%pgle show 'a b").success
    assert (
        "show 'a b: has a quote that does not end; close it" in capsys.readouterr().err
    )


@pytest.mark.rehearse
def test_a_cell_is_a_program_whose_lines_have_the_cells_numbers(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("beside.py").write_text("NAME = 'lost'")
    program = (
        "import sys, beside\nassert sys.argv[2] == '2'\nraise SystemExit(beside.NAME)"
    )
    cell = f"%%pgle rehearse -- --rate 2\n{program}"
    assert not shell.run_cell(cell).success
    assert "exit code 1" in (said := capsys.readouterr().err)
    assert "lost" in said
    lines = Path("pgle_cell.py").read_text().splitlines()
    assert lines[3] == "raise SystemExit(beside.NAME)"
    assert not shell.run_cell("%%pgle rehearse -- train.py\nraise SystemExit").success
    assert Path("train.py").read_text().endswith("\nraise SystemExit\n")


@pytest.mark.rehearse
def test_python_is_the_kernels(
    shell: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    Path("x.py").write_text("import sys; raise SystemExit(sys.executable)")
    assert not shell.run_cell("%pgle rehearse -- python x.py").success
    assert sys.executable in capsys.readouterr().err
    assert os.environ["PATH"] == "/nowhere"


@pytest.mark.parametrize("python", ["python", "python3"])
def test_python_before_the_name_of_a_cells_program_is_left_out(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgle.notebook import PYTHON, with_program

    monkeypatch.chdir(tmp_path)
    words = ["rehearse", "--", python, "train.py", "--layers", "4"]
    made = with_program(words, "pass")
    assert made == ["rehearse", "--", PYTHON.name, "train.py", "--layers", "4"]


def test_options_of_python_are_refused(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not shell.run_cell("%%pgle rehearse -- python -u x.py\npass").success
    assert "write %%pgle rehearse … -- NAME.py" in capsys.readouterr().err


def test_without_a_path_a_command_runs(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PATH")
    assert shell.run_cell(
        "%pgle flags explain xla_gpu_enable_while_loop_double_buffering"
    ).success
    assert "PATH" not in os.environ


def test_a_failed_check_ends_the_cell_that_asserts_it(shell: Any) -> None:
    for name, seconds in (("a", 0.2), ("b", 0.4)):
        rows = "".join(f"{step},{seconds}\n" for step in range(40))
        Path(f"{name}.csv").write_text(f"step,step_time_s\n{rows}")
    line = "answer = %pgle compare a.csv b.csv --fail-slower 1%"
    assert shell.run_cell(line).success
    done = shell.run_cell(f"{line}\nassert answer.ok, answer")
    assert isinstance(done.error_in_exec, AssertionError)


def test_a_file_that_no_cell_wrote_stays(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("mine")
    assert not shell.run_cell("%%pgle rehearse -- train.py\npass").success
    assert "train.py: exists, and no cell wrote it" in capsys.readouterr().err
    assert Path("train.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["doctor", "predict", "nothing", ""])
def test_a_command_without_a_program_takes_no_cell(
    name: str, shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not shell.run_cell(f"%%pgle {name}\npass").success
    assert f"%%pgle {name}: takes no program" in capsys.readouterr().err
    assert not Path("pgle_cell.py").exists()
