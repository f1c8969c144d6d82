"""Edits as they are printed, applied to a program as text, against what the hook makes instead."""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pgle.run.alternatives import IN_CHUNKS, LOOKUPS, Kind, Written, alternatives
from pgle.run.capture.capture import lowered_step
from pgle.run.variants import _alternatives, _Record
from pgle.xla.targets import load_target

HEAD = """import jax
import jax.numpy as jnp

def step(w, x):
    def loss(w):
"""
TAIL = """
    return w - jax.grad(loss)(w).astype(w.dtype)
"""
SCAN = """        layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
        return jax.lax.scan(layer, x, w)[0].sum()
"""
ATTENTION = """        q = (x @ w).reshape(2, 64, 2, 64)
        made = jax.nn.dot_product_attention(q, q, q, is_causal=True)
        return made.astype(jnp.float32).var()
"""
LOOKUP = """        return jnp.tanh(w[x]).sum()
"""
LOSS = """        losses_of = lambda x, labels: jax.nn.logsumexp(x @ w, -1) - labels
        labels = x[..., 0]
        losses = losses_of(x, labels)
        return losses.mean()
"""
WORDS = 4096


def shape(*sizes: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)


IDS = shape(2, 24, dtype=jnp.int32)
HALF = shape(128, 128, dtype=jnp.bfloat16)
OF_CALLS = {
    SCAN: (shape(4, 16, 16), shape(8, 16)),
    ATTENTION: (HALF, shape(2, 64, 128, dtype=jnp.bfloat16)),
}
CALLS = (Kind.ATTENTION, Kind.REMAT, Kind.UNROLL)


def lowered(body: str, args: Sequence[Any], folder: Path) -> str:
    """A step's module, without the places that it comes from."""
    program = folder / "train.py"
    program.write_text(HEAD + body + TAIL)
    step = runpy.run_path(str(program))["step"]
    text = lowered_step(step, args, folder, load_target("h100")).read_text()
    return re.sub(r"^#loc.*\n| loc\(.*\)$", "", text, flags=re.MULTILINE)


def with_calls(edit: str, body: str) -> str:
    """A program with an edit of a call, whose arguments the edit abbreviates."""
    name, _, more = edit.partition("(…")
    before, _, rest = body.partition(f"{name}(")
    depth = 1
    end = 0
    while depth:
        depth += {"(": 1, ")": -1}.get(rest[end], 0)
        end += 1
    return f"{before}{name}({rest[: end - 1]}{more}{rest[end:]}"


@pytest.mark.parametrize("body", OF_CALLS, ids=["scan", "attention"])
def test_an_edited_call_is_the_program_that_was_tried(
    body: str, tmp_path: Path
) -> None:
    args = OF_CALLS[body]
    record = _Record()
    with _alternatives(record, []):
        before = lowered(body, args, tmp_path)
    found = alternatives(Written(record.sites, Path("jit_step.mlir"), before))
    changes = [change for change in found if change.kind in CALLS]
    assert changes
    for change in changes:
        with _alternatives(_Record(), [change.switch]) as hook:
            hook.use(True)
            tried = lowered(body, args, tmp_path)
        assert lowered(with_calls(change.edit, body), args, tmp_path) == tried != before


@pytest.mark.parametrize("how", LOOKUPS)
def test_an_edited_lookup_adds_no_rows_in_any_order(how: str, tmp_path: Path) -> None:
    # Not equal to what was tried: the edit wraps negative ids for the gradient once more.
    edited = f"    {LOOKUPS[how]}\n{LOOKUP.replace('w[x]', 'lookup(w, x)')}"
    text = lowered(f"    {edited}", (shape(2048, 16), IDS), tmp_path)
    scatters = re.findall(r"stablehlo\.scatter.*", text)
    assert len(scatters) == (how == "sorted")
    assert all("indices_are_sorted = true" in line for line in scatters)


def test_an_edited_loss_makes_logits_of_a_chunk_alone(tmp_path: Path) -> None:
    # Not equal to what was tried, which pads labels and weights of tokens on their own.
    lines = LOSS.replace("losses = losses_of(x, labels)", IN_CHUNKS)
    args = (shape(16, WORDS), shape(2, 60, 16))
    text = lowered(lines, args, tmp_path)
    found = re.findall(rf"tensor<((?:\d+x)+){WORDS}xf32>", text)
    rows = [math.prod(map(int, one.split("x")[:-1])) for one in found]
    assert max(rows) == 2 * 8
