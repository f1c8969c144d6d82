"""What a lever expects against the edited program, both compiled and priced alike."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import pgle
from pgle.account.value import OpportunityKind

pytestmark = [
    pytest.mark.rehearse,
    pytest.mark.usefixtures("plugin_loaded_once"),
]

HEADER = """
import sys
import jax
import jax.numpy as jnp

edited = sys.argv[1] == "edited"
bf16, f32 = jnp.bfloat16, jnp.float32

def shape(*size, dtype=bf16):
    return jax.ShapeDtypeStruct(size, dtype)
"""

ATTENTION = """
def attend(q, k, v):
    if edited:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k).astype(f32) / 128**0.5
    seen = jnp.tril(jnp.ones((2048, 2048), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(bf16)
    return jnp.einsum("bnqk,bknh->bqnh", weights, v)

def loss(w, x):
    q, k, v = jnp.split((x @ w).reshape(4, 2048, 48, 128), 3, 2)
    return (attend(q, k, v).astype(f32) ** 2).mean()

args = shape(2048, 6144), shape(4, 2048, 2048)
"""

LOGITS = """
def plain(logits, labels):
    picked = jax.nn.log_softmax(logits.astype(f32))
    return -jnp.take_along_axis(picked, labels[:, None], -1).mean()

def forward(logits, labels):
    total = jax.nn.logsumexp(logits.astype(f32), -1)
    picked = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
    return (total - picked.astype(f32)).mean(), (logits, labels, total)

def backward(kept, slope):
    logits, labels, total = kept
    hot = jnp.arange(logits.shape[1]) == labels[:, None]
    share = jnp.exp(logits.astype(f32) - total[:, None]) - hot
    return (share * slope / labels.size).astype(logits.dtype), None

written = jax.custom_vjp(lambda logits, labels: forward(logits, labels)[0])
written.defvjp(forward, backward)

def loss(w, x):
    labels = jnp.arange(8192) * 3
    return (written if edited else plain)(x @ w, labels)

args = shape(1024, 32000), shape(8192, 1024)
"""

PRODUCTS = """
def loss(w, x):
    precision = None if edited else "highest"
    return (jnp.matmul(x, w, precision=precision) ** 2).mean()

args = shape(4096, 4096, dtype=f32), shape(8192, 4096, dtype=f32)
"""

FOOTER = """
jax.jit(jax.grad(loss)).lower(*args).compile()
"""


def account(program: str, side: str, gpu: str, folder: Path) -> dict[str, Any]:
    """The account of one side of a program, as JSON."""
    path = folder / "program.py"
    path.write_text(HEADER + program + FOOTER)
    command = (sys.executable, str(path), side)
    answer = pgle.rehearse(command, devices=1, target=gpu, output=folder / side)
    found: dict[str, Any] = answer.document["account"]
    return found


@pytest.mark.parametrize(
    ("kind", "program", "gpu"),
    [
        (OpportunityKind.ATTENTION, ATTENTION, "a100"),
        (OpportunityKind.LOGITS, LOGITS, "h100"),
        (OpportunityKind.PRECISION, PRODUCTS, "h100"),
    ],
    ids=["attention", "logits", "precision"],
)
def test_an_edited_program_takes_what_its_lever_expects(
    kind: OpportunityKind, program: str, gpu: str, tmp_path: Path
) -> None:
    before = account(program, "plain", gpu, tmp_path)
    after = account(program, "edited", gpu, tmp_path)
    levers = {item["kind"]: item for item in before["opportunities"]}
    expected = before["step_us"] * (1 - levers[str(kind)]["expected"])
    assert expected == pytest.approx(after["step_us"], rel=0.25)
    if kind is OpportunityKind.ATTENTION:
        most = levers[str(kind)]["most"]
        assert before["step_us"] * (1 - most) <= after["step_us"]
