"""What `pgle tune` prints of the flags that it found."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import pytest
from accounts import account

from pgle.report.tune import exported, headline
from pgle.run.rehearse_program import LHS_ON
from pgle.run.tune import gain_of
from pgle.tune.search import Trial, judge
from pgle.xla.flags.catalogue import effects_of, is_slower

BEFORE = (100.0,) * 20


def tuning(
    flags: dict[str, str],
    after: tuple[float, ...],
    *,
    used: bool = True,
    own: tuple[str, ...] = (),
) -> Any:
    trial = Trial(flags, "a", after[0], worlds_us=after)
    judged = judge(after, BEFORE)
    prediction = SimpleNamespace(step_us=100.0, shortest_us=90.0)
    return SimpleNamespace(
        verdict="better", proof=SimpleNamespace(judged=judged, saved=gain_of(judged), used=used),
        pgle=SimpleNamespace(prediction=prediction),
        baseline=SimpleNamespace(trial=Trial({}, "", 110.0, worlds_us=BEFORE)), tuned=SimpleNamespace(trial=trial),
        request=SimpleNamespace(flags=own),
    )  # fmt: skip


@pytest.mark.parametrize("value", ["268435456", "$(id) `id` \"x\" 'y'", "a b"])
def test_the_line_to_paste_sets_the_flags_and_runs_nothing(value: str) -> None:
    found = tuning({"xla_a": value}, (95.0,) * 20, own=("--xla_own=1",))
    command, assignment = shlex.split(exported(found))
    assert (command, assignment) == (
        "export",
        f"XLA_FLAGS={LHS_ON} --xla_own=1 --xla_a={value}",
    )
    quoted = exported(found).partition("=")[2]
    assert quoted.startswith("'") or not set("$`\\!") & set(quoted)


def test_the_gain_has_its_range_over_the_worlds() -> None:
    found = tuning({"xla_a": "1"}, (90.0,) * 10 + (98.0,) * 10)
    assert headline(found) == (
        "Try these flags: predicted 6.0 % shorter on average (2.0 … 10.0 %)", "good",
    )  # fmt: skip


def test_a_flag_that_made_steps_longer_elsewhere_is_no_good_news() -> None:
    name = "xla_gpu_enable_pipelined_all_gather"
    assert is_slower(effects_of(name, "true")), "the public record"
    words, tone = headline(tuning({name: "true"}, (95.0,) * 20))
    assert (words.rpartition("; ")[2], tone) == (
        "others measured longer steps",
        "warn",
    )


def test_what_xla_did_not_use_is_not_proven() -> None:
    assert headline(tuning({"xla_a": "1"}, (95.0,) * 20, used=False))[1] == "warn"


def test_without_a_better_setting_there_is_nothing_to_paste() -> None:
    found = tuning({}, BEFORE)
    found.proof, found.verdict = None, "not-better"
    assert exported(found) == ""
    found.account = account()
    words = "Nothing to gain above 0.5 % of the step: 70.0 % of it is compute"
    assert headline(found) == (f"No better flags. {words}", "good")
