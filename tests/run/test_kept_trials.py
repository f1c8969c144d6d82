"""What `advise` has shown is known to `rehearse` of the same program, flags and GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import attrs
import pytest

from pgle.account.value import Combination, OpportunityKind, Refused, Trial
from pgle.run.compiler.cache import LIMIT_VARIABLE
from pgle.run.kept_trials import keep_trials, kept_trials
from pgle.run.rehearse_program import RehearseRequest
from pgle.xla.targets import load_target

WORDS = "−70.1 %, attention cudnn, better"
WITH_FLAGS = Combination(
    (frozenset((OpportunityKind.ATTENTION,)), frozenset((OpportunityKind.FLAGS,))), 0.75
)
TRIAL = Trial(0.701, 0.69, 0.72, WORDS, helps=True, combinations=(WITH_FLAGS,))
SHOWN = {OpportunityKind.ATTENTION: TRIAL}


@pytest.fixture
def request_of_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RehearseRequest:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    module = tmp_path / "step.mlir"
    module.write_text("module @jit_step {}")
    return RehearseRequest(module, load_target("a100"), tmp_path / "out", "python")


def test_the_same_program_elsewhere_has_what_was_shown(
    request_of_step: RehearseRequest, tmp_path: Path
) -> None:
    keep_trials(request_of_step, SHOWN)
    copy = tmp_path / "copy.mlir"
    copy.write_bytes(request_of_step.module.read_bytes())
    assert kept_trials(replace(request_of_step, module=copy)) == SHOWN


def test_another_program_gpu_or_flag_has_nothing(
    request_of_step: RehearseRequest, tmp_path: Path
) -> None:
    keep_trials(request_of_step, SHOWN)
    edited = tmp_path / "edited.mlir"
    edited.write_text("module @jit_step { }")
    others = (
        replace(request_of_step, module=edited),
        replace(request_of_step, target=load_target("h100")),
        replace(request_of_step, flags=("--xla_a=true",)),
    )
    assert [kept_trials(other) for other in others] == [{}, {}, {}]


def test_other_costs_have_nothing(
    request_of_step: RehearseRequest, tmp_path: Path
) -> None:
    keep_trials(request_of_step, SHOWN)  # by estimates
    measured = tmp_path / "profile.pbtxt"
    measured.write_text('costs { name: "dot.1" cost_us: 5 }\n')
    by_profile = replace(request_of_step, profile=measured)
    assert kept_trials(by_profile) == {}
    keep_trials(by_profile, SHOWN)
    assert kept_trials(by_profile) == SHOWN
    measured.write_text('costs { name: "dot.1" cost_us: 6 }\n')
    assert kept_trials(by_profile) == {}


def test_nothing_is_kept_without_the_cache(request_of_step: RehearseRequest) -> None:
    asked = attrs.evolve(request_of_step.asked, cached=False)
    keep_trials(replace(request_of_step, asked=asked), SHOWN)
    assert kept_trials(request_of_step) == {}


def test_why_an_edit_could_not_be_tried_is_kept(
    request_of_step: RehearseRequest,
) -> None:
    refused = {OpportunityKind.ATTENTION: Refused("its weights are dropped")}
    keep_trials(request_of_step, refused)
    assert kept_trials(request_of_step) == refused


def test_a_trial_is_kept_when_a_later_answer_cannot_try_its_edit(
    request_of_step: RehearseRequest,
) -> None:
    keep_trials(request_of_step, SHOWN)
    keep_trials(request_of_step, dict.fromkeys(SHOWN, Refused("it is a module")))
    assert kept_trials(request_of_step) == SHOWN


def test_a_smaller_budget_replaces_no_better_trial(
    request_of_step: RehearseRequest,
) -> None:
    keep_trials(request_of_step, SHOWN)
    less = Trial(0.2, 0.1, 0.3, "−20.0 %, attention xla, better", helps=True)
    keep_trials(request_of_step, {OpportunityKind.ATTENTION: less})
    assert kept_trials(request_of_step) == SHOWN
