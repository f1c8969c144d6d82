"""Words of known trainers, and placeholders of the user's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from pgle.requests.predictions import Rehearse
from pgle.requests.shared import OnDevices
from pgle.run.advise import proof
from pgle.run.alternatives import Alternative, Kind, Written, alternatives
from pgle.run.attempts import Attempt
from pgle.run.capture.captured import CallSite
from pgle.run.rehearse_program import RehearseRequest, Understood
from pgle.run.step_arguments import work_of
from pgle.run.trainers import TrainerWords, decided_by, settings_of
from pgle.run.variants import ProgramVariants, with_values
from pgle.schedule.verdict import Verdict
from pgle.xla.targets import load_target
from pgle.xla.vendors import AMD, NVIDIA

MAXTEXT = ("python", "-m", "maxtext.trainers.pre_train.train", "base.yml")


def test_settings_of_maxtext_are_tried_but_those_that_it_has() -> None:
    found = [one.text for one in settings_of((*MAXTEXT, "scan_layers=false"), NVIDIA)]
    assert found == [
        "attention=cudnn_flash_jax",
        "remat_policy=minimal",
        "remat_policy=minimal_with_context",
        "remat_policy=save_qkv_proj",
    ]


def test_attention_of_nvidia_is_not_tried_on_gpus_of_amd() -> None:
    found = [one.text for one in settings_of(MAXTEXT, AMD)]
    assert found == [
        "remat_policy=minimal",
        "remat_policy=minimal_with_context",
        "remat_policy=save_qkv_proj",
        "scan_layers=false",
    ]


def test_a_setting_that_the_command_has_anywhere_is_not_tried() -> None:
    words = (*MAXTEXT, "remat_policy=minimal", "steps=3")
    found = [one.text for one in settings_of(words, NVIDIA)]
    assert "remat_policy=minimal" not in found
    assert "remat_policy=minimal_with_context" in found


def test_a_trainer_is_known_by_its_program_not_by_a_folder_of_its_output() -> None:
    words = ("python", "train.py", "--out", "gs://maxtext/run")
    assert not [*settings_of(words, NVIDIA), *decided_by(words)]


def test_what_words_decide_is_not_tried_where_the_trainer_calls_jax() -> None:
    sites = (
        CallSite("remat", "maxtext/nnx_decoders.py:9"),
        CallSite("unroll", "maxtext/nnx_scan.py:5", "1", length=4),
    )
    product = "stablehlo.dot_general %q, %k, batching_dims = [0] : tensor<2x2xbf16>\n"
    text = f"{product}stablehlo.exponential\n{product}"
    written = Written(sites, Path("jit_step.mlir"), text, words=MAXTEXT)
    assert {item.kind for item in alternatives(written)} == {Kind.WORDS}
    assert written.left_sites() == []
    other = Written(sites, Path("jit_step.mlir"), text, words=("python", "train.py"))
    kinds = {item.kind for item in alternatives(other)}
    assert kinds == {Kind.ATTENTION, Kind.REMAT, Kind.UNROLL}


def test_a_setting_takes_the_place_of_the_one_that_is_there() -> None:
    setting = TrainerWords("attention", "cudnn_flash_jax", rounds=True)
    words = (*MAXTEXT, "attention=dot_product", "steps=3")
    assert setting.within(words) == (*MAXTEXT, "steps=3", setting.text)


def test_levanter_takes_names_and_values_as_words() -> None:
    words = ("python", "-m", "levanter.main.train_lm")
    found = next(settings_of(words, NVIDIA))
    assert found.within((*words, "--model.attn_backend", "vanilla", "--x", "1")) == (
        *words,
        "--x",
        "1",
        "--model.attn_backend",
        "nvte",
    )


def test_other_programs_have_no_such_words() -> None:
    assert (
        list(settings_of(("python", "train.py", "attention=dot_product"), NVIDIA)) == []
    )


def test_placeholders_have_their_first_value_if_none_is_chosen() -> None:
    words = ("train.py", "--batch", "{batch}", "--mesh={mesh}", "{4*devices}")
    vary = {"batch": ("4", "8"), "mesh": ("2", "1")}
    asked = OnDevices(devices=8)
    found = with_values(words, vary, asked, {"mesh": "1"})
    assert found == ("train.py", "--batch", "4", "--mesh=1", "32")


def step(*, batch: int, frozen: str = "") -> str:
    """The entry of a step that returns its weights."""
    return (
        f'  func.func public @main(%arg0: tensor<8x4xf32> loc("w"), {frozen}'
        f'%arg2: tensor<{batch}x8xf32> loc("batch")) -> (tensor<8x4xf32>, tensor<f32>) {{\n'
    )


def test_work_is_the_data_that_does_not_come_back() -> None:
    assert work_of(step(batch=2), step(batch=6)) == 3
    assert work_of(step(batch=2), step(batch=2)) == 1


def test_frozen_weights_are_no_data() -> None:
    frozen = '%arg1: tensor<64x64xf32> loc("frozen"), '
    before, after = (step(batch=size, frozen=frozen) for size in (4, 8))
    assert work_of(before, after) == 2


def test_the_run_that_proves_the_best_words_has_them() -> None:
    words = (*MAXTEXT, "attention=dot_product")
    known = Understood(Rehearse(words, devices=8))
    request = cast(RehearseRequest, SimpleNamespace(target=load_target("h100")))
    variants = ProgramVariants(known, request, words, {})
    text = "attention=cudnn_flash_jax"
    change = Alternative(Kind.WORDS, "attention", text, text)
    best = Attempt((change,), Verdict.BETTER, "")
    shown = str(proof(known, variants, best))
    assert shown.endswith(" ".join((*MAXTEXT, text)))
