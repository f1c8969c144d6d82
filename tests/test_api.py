"""The library: what it exports, and that each answer is the command's."""

import contextlib
import html
import io
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from schemas import violations

import pgle
from pgle.cli.main import run
from pgle.report.page.html import render
from pgle.report.page.value import Page
from tests.conftest import MISSING

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "docs" / "library.md"
EXPORTED = {
    "Answer", "UserError", "__version__", "advise", "analyze", "compare", "confirm", "convert", "predict", "profiled_steps",
    "ranks", "rehearse", "releases", "scale", "step", "tune", "verify",
}  # fmt: skip
"""A name that goes, or a new one, is a change that users see."""
DUMP = "hlo/jax-0.10.2/async"
LOG = "maxtext_pgle/llama2_7b_pgle_run.log"
PROFILE = "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
TRACE = "pax_fsdp4/proc0.sqlite"


def printed(*words: object) -> str:
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()),
    ):
        run([str(word) for word in words])
    return out.getvalue()


def test_the_exported_names_are_these_and_documented() -> None:
    assert set(pgle.__all__) == EXPORTED
    assert all(getattr(pgle, name) is not None for name in pgle.__all__)
    assert set(
        re.findall(r"^\| `pgle\.(\w+)", LIBRARY.read_text(), re.M)
    ) == EXPORTED - {"__version__"}


def test_import_brings_neither_jax_nor_numpy() -> None:
    code = "import sys, pgle; print(*sys.modules)"
    names = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {
        "jax",
        "numpy",
        "rich",
        "click",
        "google.protobuf",
        "dataclasses",
    } & set(names)


@pytest.mark.parametrize(
    "first", ["pgle.analyze.window", "pgle.tune.search", "pgle.api"]
)
def test_a_function_stays_one_when_a_folder_of_its_name_is_imported(first: str) -> None:
    code = f"import importlib, pgle; importlib.import_module({first!r}); print(callable(pgle.analyze))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pgle.nothing


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            lambda: pgle.predict(DUMP, target="a100"),
            ["predict", DUMP, "--target", "a100"],
        ),
        (lambda: pgle.confirm(LOG), ["confirm", LOG]),
        (lambda: pgle.verify(PROFILE, DUMP), ["verify", PROFILE, "--hlo", DUMP]),
        (lambda: pgle.analyze(TRACE), ["analyze", TRACE]),
        (
            lambda: pgle.compare(TRACE, "pax_fsdp4/proc3.sqlite"),
            ["compare", TRACE, "pax_fsdp4/proc3.sqlite"],
        ),
        (None, None),
    ],
    ids=["predict", "confirm", "verify", "analyze", "compare", "convert"],
)
def test_an_answer_is_that_of_the_command(
    answer, words, testdata: Path, tmp_path: Path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(testdata)
    if words is None:  # it writes
        found = pgle.convert(TRACE, tmp_path / "x.pbtxt")
        words = ["convert", TRACE, "-o", tmp_path / "x.pbtxt", "--force"]
    else:
        found = answer()
    assert list(json.loads(found.to_json()).items()) == list(
        json.loads(printed(*words, "--json")).items()
    )
    assert violations(dict(found.document)) == []
    assert isinstance(found.page, Page)
    assert found.page.verdict in str(found)
    assert found["schema"] == f"pgle.{words[0]}/1"


def test_ok_is_the_exit_code(testdata: Path) -> None:
    assert pgle.confirm(testdata / "logs/jax_0.10.2/option.log").ok
    assert not pgle.verify(testdata / PROFILE, testdata / DUMP).ok


def test_a_notebook_shows_the_page_in_a_frame_that_loads_nothing(
    testdata: Path,
) -> None:
    answer = pgle.predict(testdata / DUMP)
    frame = re.fullmatch(
        r'<iframe sandbox="allow-scripts" style="[^"]+" srcdoc="([^"]+)"></iframe>',
        answer._repr_html_(),
    )
    assert frame is not None
    assert html.unescape(frame[1]) == render(answer.page)
    assert 'id="timeline-data"' in html.unescape(frame[1])


def test_save_writes_by_suffix_and_never_over_a_file(
    testdata: Path, tmp_path: Path
) -> None:
    answer = pgle.confirm(testdata / LOG)
    for name, begin in (("x.html", "<!doctype"), ("x.md", "# "), ("x.json", "{")):
        answer.save(tmp_path / name)
        assert (tmp_path / name).read_text().startswith(begin)
    assert json.loads((tmp_path / "x.json").read_text()) == answer.document
    with pytest.raises(pgle.UserError, match="already exists"):
        answer.save(tmp_path / "x.md")
    answer.save(tmp_path / "x.md", force=True)
    with pytest.raises(pgle.UserError, match="ending is unknown"):
        answer.save(tmp_path / "x.pdf")


def test_arrays_of_step_times_are_compared_as_files_are(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sides = {
        "base": 0.2 + 0.002 * random.standard_normal(60),
        "new": 0.19 + 0.002 * random.standard_normal(60),
    }
    for name, seconds in sides.items():
        lines = [
            json.dumps({"step": at, "step_time_s": value})
            for at, value in enumerate(seconds)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    of_arrays = pgle.compare(sides["base"], list(sides["new"]))
    of_files = pgle.compare(tmp_path / "base.jsonl", tmp_path / "new.jsonl")
    assert of_arrays["verdict"] == "faster"
    assert (of_arrays["ratio"], of_arrays["ci"]) == (of_files["ratio"], of_files["ci"])
    assert violations(dict(of_arrays.document)) == []


def test_several_arrays_are_several_runs() -> None:
    random = np.random.default_rng(0)
    base, new = (
        [middle + 0.002 * random.standard_normal(60) for _ in range(4)]
        for middle in (0.2, 0.21)
    )
    answer = pgle.compare(base, np.array(new), fail_slower=0.01)
    assert len(answer.result.base.runs) == len(answer.result.new.runs) == 4
    assert answer["verdict"] == "slower"
    assert not answer.ok


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pgle.predict("nowhere"), "nowhere: no such file"),
        (lambda: pgle.predict(3), "a path is needed, not int"),  # type: ignore[arg-type]
        (
            lambda: pgle.predict(f"{ROOT}/testdata/{DUMP}", module="("),
            "'(' is not a regular expression",
        ),
        (lambda: pgle.predict("a" * 300), "File name too long"),
        (lambda: pgle.verify(["a", "b"]), "2 paths are given"),  # type: ignore[arg-type]
        (lambda: pgle.analyze([]), "no input is given"),
        (lambda: pgle.convert("x", "x.pb", stat="middle"), "unknown statistic"),
        (
            lambda: pgle.compare([0.1, float("nan")], [0.1]),
            "base[0]: step 1: nan s is not a positive number",
        ),
        (lambda: pgle.compare([], [0.1]), "base: no run given"),
    ],
)
def test_what_the_user_can_mend_is_a_user_error(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(pgle.UserError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("read_once")
def test_the_examples_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiles = MISSING["rehearse"] is None
    (tmp_path / "testdata").symlink_to(ROOT / "testdata")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps of the example compute nothing
        for block in re.findall(
            r"^```python\n(.*?)^```", LIBRARY.read_text(), re.M | re.S
        ):
            if compiles or "pgle.rehearse(" not in block:
                exec(block, names)
    assert isinstance(names["answer"], pgle.Answer)


def test_a_comparison_takes_what_launches_differ_by() -> None:
    runs = [[0.2, 0.2001, 0.1999] * 10, [0.204, 0.2041, 0.2039] * 10]
    undecided, decided = (
        pgle.compare(*runs, launch_spread=share).result.verdict
        for share in (None, 0.0015)
    )
    assert (undecided, decided) == ("undecided", "slower")


def test_a_spread_of_launches_that_is_no_share_is_refused() -> None:
    with pytest.raises(pgle.UserError, match="launch_spread"):
        pgle.compare([0.2] * 12, [0.2] * 12, launch_spread=-1.0)
