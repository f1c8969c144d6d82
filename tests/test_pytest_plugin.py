"""``pytest --pgle`` on a small project, whose compiler is a stand-in."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pgle
import pgle.account.snapshot  # pytester forgets what its runs import
from pgle.account.value import StepPart
from pgle.xla.hlo.text import module_from_text

pytest_plugins = "pytester"

HLO = """HloModule jit_step, is_scheduled=true, num_partitions=8

ENTRY main {
  p = f32[64]{0} parameter(0)
  ROOT gathered = f32[512]{0} all-gather(p), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
}
"""
PROJECT = """
def test_step(pgle_rehearse):
    rehearsal = pgle_rehearse(["python", "train.py"], devices=8, target="h100")
    assert rehearsal.exposed_share < 0.05
    assert rehearsal.collectives["all-gather over 8"].count == 1
    assert rehearsal.order == ("all-gather f32[512] over 8 devices",)

def test_other():
    pass
"""


@dataclass
class Compiler:
    """What `pgle.rehearse` answers."""

    step_us: float = 1000.0
    exposed_us: float = 40.0
    refusal: str = ""

    def __call__(self, *_: Any, **__: Any) -> Any:
        if self.refusal:
            raise pgle.UserError(self.refusal)
        side = SimpleNamespace(
            module=module_from_text(HLO.encode(), "step"),
            compiled=SimpleNamespace(
                num_devices=8, jaxlib="0.10.2", memory_bytes=1 << 30
            ),
        )
        request = SimpleNamespace(target=SimpleNamespace(name="h100-sxm"))
        parts = {StepPart.COMMUNICATION: self.exposed_us}
        account = SimpleNamespace(step_us=self.step_us, parts=parts)
        return SimpleNamespace(
            result=SimpleNamespace(now=side, request=request, account=account)
        )


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    found = Compiler()
    monkeypatch.setattr(pgle, "rehearse", found, raising=False)
    return found


def run_tests(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """The project's tests; the plugin is named, since it may not be installed."""
    pytester.makepyfile(PROJECT)
    return pytester.runpytest_inprocess(
        "-p", "no:pgle", "-p", "pgle.pytest_plugin", "-p", "no:cacheprovider", *words
    )


def test_without_the_option_its_tests_are_skipped(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    compiler.refusal = "is not asked"
    run_tests(pytester).assert_outcomes(passed=1, skipped=1)


def test_a_step_without_a_baseline_passes_and_is_named(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    found = run_tests(pytester, "--pgle")
    found.assert_outcomes(passed=2)
    found.stdout.fnmatch_lines(
        ["pgle: without a baseline: 1 of 1 step; *--pgle-update*"]
    )


def test_a_changed_step_fails_and_says_what_changed(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    run_tests(pytester, "--pgle", "--pgle-update").assert_outcomes(passed=2)
    run_tests(pytester, "--pgle").assert_outcomes(passed=2)
    compiler.step_us = 1100.0
    found = run_tests(pytester, "--pgle")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(
        [
            "pgle: the step is not as in pgle_baselines/*test_step.json",
            "  step: 1.00 ms → 1.10 ms  (+10.0 %)",
            "If that is meant: pytest --pgle --pgle-update",
        ]
    )


def test_a_changed_step_is_a_table_for_the_reviewer(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    run_tests(pytester, "--pgle", "--pgle-update")
    compiler.step_us = 1100.0
    found = run_tests(pytester, "--pgle", "--pgle-markdown", "change.md")
    found.assert_outcomes(passed=2)
    text = Path("change.md").read_text("utf-8")
    assert text.startswith("### pgle: 1 of 1 step changed\n")
    assert "| step | 1.00 ms | 1.10 ms | +10.0 % |" in text


ON_WORKERS = """
import pgle
from tests.test_pytest_plugin import Compiler
pgle.rehearse = Compiler(step_us=1100.0)
"""


def test_workers_of_xdist_report_what_changed(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    pytester.makeconftest(ON_WORKERS)
    written = run_tests(pytester, "--pgle", "--pgle-update", "-n", "1")
    written.stdout.fnmatch_lines(["pgle: 1 baseline written"])
    kept = Path(
        "pgle_baselines/test_workers_of_xdist_report_what_changed-test_step.json"
    )
    kept.write_text(kept.read_text("utf-8").replace("1100.0", "1000.0"), "utf-8")
    found = run_tests(pytester, "--pgle", "--pgle-markdown", "change.md", "-n", "1")
    found.assert_outcomes(passed=2)
    text = Path("change.md").read_text("utf-8")
    assert text.startswith("### pgle: 1 of 1 step changed\n")
    assert "| step | 1.00 ms | 1.10 ms | +10.0 % |" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--pgle-markdown", "a.md"],
            "*--pgle-markdown compiles no step without --pgle*",
        ),
        (["--pgle-update"], "*--pgle-update compiles no step without --pgle*"),
        (["--pgle", "--pgle-markdown", "none/a.md"], "*no folder none: mkdir -p none"),
        (["--pgle", "--pgle-markdown", "."], "*is a folder: name a file"),
    ],
)
def test_options_that_cannot_work_are_refused(
    pytester: pytest.Pytester, words: list[str], message: str
) -> None:
    found = run_tests(pytester, *words)
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines([message])


METHODS = """
class TestA:
    def test_step(self, pgle_rehearse):
        pgle_rehearse(["a"])

class TestB:
    def test_step(self, pgle_rehearse):
        pgle_rehearse(["b"])
"""


def test_steps_of_two_classes_or_folders_have_their_own_baselines(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "test_s.py").write_text(METHODS, "utf-8")
    words = ("--pgle", "--pgle-update", "--pgle-baselines", "kept", "a", "b")
    found = run_tests(pytester, *words, "--import-mode=importlib")
    found.assert_outcomes(passed=4)
    assert sorted(path.name for path in Path("kept").iterdir()) == [
        "a-test_s-TestA-test_step.json",
        "a-test_s-TestB-test_step.json",
        "b-test_s-TestA-test_step.json",
        "b-test_s-TestB-test_step.json",
    ]


def test_a_second_step_of_a_test_needs_a_name(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    pytester.makepyfile(
        test_twice="""
        import pytest

        @pytest.mark.parametrize("name", ["", "second"])
        def test_step(pgle_rehearse, name):
            pgle_rehearse(["a"])
            pgle_rehearse(["b"], name=name)
        """
    )
    found = run_tests(pytester, "--pgle", "test_twice.py")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(
        ["pgle: two steps have one baseline; give name=…: pgle_baselines/test_twice-*"]
    )


def test_tests_of_two_workers_do_not_share_a_baseline(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    pytester.makeconftest(ON_WORKERS)
    pytester.makepyfile(
        test_ids="""
        import pytest

        @pytest.mark.parametrize("name", ["a b", "a-b"])
        def test_step(pgle_rehearse, name):
            pgle_rehearse([name])
        """
    )
    found = run_tests(pytester, "--pgle", "-n", "2", "test_ids.py")
    assert found.ret == pytest.ExitCode.TESTS_FAILED
    found.stdout.fnmatch_lines(["*pgle: two steps have one baseline; give name=…: *"])


def test_an_assertion_of_the_test_decides_too(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    compiler.exposed_us = 60.0
    found = run_tests(pytester, "--pgle")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(["E  *assert 0.06 < 0.05"])


def test_what_pgle_refuses_is_one_line(
    pytester: pytest.Pytester, compiler: Compiler
) -> None:
    compiler.refusal = "no plugin"
    found = run_tests(pytester, "--pgle")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(["pgle: no plugin"])
    found.stdout.no_fnmatch_line("*Traceback*")


def test_a_project_that_does_not_use_it_pays_nothing() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import pgle.pytest_plugin; "
        "print(*sorted(name for name in set(sys.modules) - before if '.' not in name))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["pgle"]
