"""`pgle advise`: which alternatives a program has, what they change, and how they are judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import advised_program
import pytest

from pgle.cli.main import run
from pgle.run.alternatives import Alternative, Kind, Written, alternatives, state_of
from pgle.run.capture.capture import Devices, capture_modules
from pgle.run.capture.captured import CallSite, choose_module, read_captured
from pgle.xla.targets import load_target

STEP = Path("jax_ir0001_jit_train_step_compile.mlir")
MAIN = (
    '  func.func public @main(%arg0: tensor<8x4xf32> loc("params[0]"), '
    '%arg1: tensor<4xf32> loc("params[1]"), %arg2: tensor<2x8xf32> loc("batch")) '
    "-> (tensor<8x4xf32>, tensor<4xf32>, tensor<f32>) {\n"
)
CALLS = """
import jax, jax.numpy as jnp
def attend(q):
    return jax.nn.dot_product_attention(q, q, q)
def body(x, w):
    return jax.checkpoint(lambda x: jnp.sin(x @ w))(x), None
def loss(ws, x):
    x, _ = jax.lax.scan(body, x, ws)
    return (attend(x.reshape(1, 16, 1, 16)) ** 2).astype(jnp.float32).mean()
@jax.jit
def train_step(ws, x):
    return ws - jax.grad(loss)(ws, x)
ws = jnp.ones((4, 16, 16), jnp.bfloat16)
for _ in range(3):
    ws = train_step(ws, jnp.ones((16, 16), jnp.bfloat16))
"""


def test_state_is_what_comes_back_and_is_not_donated() -> None:
    assert state_of(MAIN) == ["params"]
    donated = MAIN.replace(
        'tensor<4xf32> loc("params[1]")',
        'tensor<4xf32> {tf.aliasing_output = 1 : i32} loc("params[1]")',
    )
    assert state_of(donated) == []


def test_the_setting_that_a_call_has_is_not_tried() -> None:
    sites = [
        CallSite("attention", "a.py:1", "cudnn"),
        CallSite("remat", "a.py:2", "dots_saveable"),
        CallSite("unroll", "a.py:3", "1", length=3),
    ]
    found = alternatives(Written(sites, STEP, ""))
    assert [item.name for item in found] == [
        "remat dots_with_no_batch_dims_saveable",
        "remat nothing_saveable",
        "remat everything_saveable",
        "unroll 2",
    ]


def captured(folder: Path, program: Path, *changes: Alternative) -> str:
    """The step's module with some changes, as text."""
    found = capture_modules(
        [sys.executable, str(program)],
        folder,
        target=load_target("a100"),
        devices=Devices(1),
        quiet_s=20,
        alternatives=[change.switch for change in changes],
    )
    return choose_module(found, "jit_train_step").read_text()


def test_alternatives_change_the_step_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "calls.py"
    program.write_text(CALLS)
    monkeypatch.chdir(tmp_path)
    before = captured(tmp_path / "before", program)
    sites = read_captured(tmp_path / "before").sites
    assert {(site.kind, site.where, site.now) for site in sites} == {
        ("attention", "calls.py:4", "xla"),
        ("remat", "calls.py:6", ""),
        ("unroll", "calls.py:8", "1"),
    }
    changes = (
        Alternative(Kind.ATTENTION, "calls.py:4", "cudnn", ""),
        Alternative(Kind.REMAT, "calls.py:6", "everything_saveable", ""),
        Alternative(Kind.UNROLL, "calls.py:8", "2", ""),
        Alternative(Kind.DONATION, "train_step", "ws", ""),
    )
    changed = captured(tmp_path / "after", program, *changes)
    marks = ("cudnn", "rematted_computation", "tf.aliasing_output")
    assert [mark in before for mark in marks] == [False, True, False]
    assert [mark in changed for mark in marks] == [True, False, True]
    pairs_of_layers = "tensor<2x2x16x16xbf16>"
    assert [pairs_of_layers in text for text in (before, changed)] == [False, True]
    assert program.read_text() == CALLS


@pytest.mark.rehearse
def test_saving_products_is_better_by_both_compilations(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [sys.executable, advised_program.__file__]
    options = ["--target", "a100", "--devices", "1", "--budget", "1"]
    assert run(["advise", *options, "--json", "-o", "out", "--", *words]) == 0
    found = json.loads(capfd.readouterr().out)
    best = found["best"]
    assert best["kind"] == "remat"
    assert best["edit"].endswith("checkpoint_policies.dots_saveable)")
    assert best["step_us"] < 0.95 * found["step_us"]
    assert best["control_us"] < 0.95 * found["control_us"]
    assert found["left"] == 4


def test_a_module_is_no_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / STEP.name
    module.write_text(f"module @jit_train_step {{\n{MAIN}  }}\n}}\n")
    assert run(["advise", str(module)]) == 2
    assert "advise runs a program" in capsys.readouterr().err
