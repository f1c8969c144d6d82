"""Edits as they are printed, applied to a program as text, against what the hook makes instead."""

from __future__ import annotations

import math
import re
import runpy
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pgle.run.alternatives import (
    Alternative,
    Kind,
    Written,
    alternatives,
    halved,
)
from pgle.run.capture.capture import lowered_step
from pgle.run.capture.captured import CallSite
from pgle.run.edits import IN_CHUNKS, LOOKUPS, lookup_edit
from pgle.run.libraries import ROUNDED
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
DIVIDED = """        def layer(x, w, _=None):
            return jnp.tanh(x @ w), None
        return jax.lax.scan(layer, x, w)[0].sum()
"""
MESH = """        P, NamedSharding = jax.P, jax.sharding.NamedSharding
        mesh = jax.sharding.AbstractMesh((4,), ("data",))
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
    return lowered_program(HEAD + body + TAIL, args, folder)


def lowered_program(source: str, args: Sequence[Any], folder: Path) -> str:
    """The same of a whole program."""
    program = folder / "train.py"
    program.write_text(source)
    step = runpy.run_path(str(program))["step"]
    text = lowered_step(step, args, folder, load_target("h100")).read_text()
    return re.sub(r"^#loc.*\n| loc\(.*\)$", "", text, flags=re.MULTILINE)


def changed_by_hook(
    change: Alternative, body: str, args: Sequence[Any], folder: Path
) -> str:
    """The module of a step that the hook changes while jax traces it."""
    with _alternatives(_Record(), [change.switch]) as hook:
        hook.use(True)
        hook.divided(args, {})
        return lowered(body, args, folder)


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
        tried = changed_by_hook(change, body, args, tmp_path)
        assert lowered(with_calls(change.edit, body), args, tmp_path) == tried != before


BY_HAND = """import jax
import jax.numpy as jnp

def attend(x, lengths):
    q, k, v = (x[..., part : part + 32].reshape(2, 32, 4, 8) for part in (0, 32, 64))
"""
STEP = """

def step(x, lengths):
    return x - jax.grad(lambda x: (attend(x, lengths) ** 2).sum())(x)
"""
HEADS_FIRST = """    q, k, v = (each.swapaxes(1, 2) for each in (q, k, v))
"""
SEGMENTS = """    rows = (jnp.arange(32) + lengths[:, None]) // 7
    mask = rows[:, None, :, None] == rows[:, None, None, :]
"""
GROUPED = """    q = q.reshape(2, 32, 2, 2, 8)
    k, v = k[:, :, :2], v[:, :, :2]
"""
OF_HEAD = "(lambda q, k, v: jax.nn.softmax(q @ k.T / 3, -1) @ v)"
OF_ROW = (
    'jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.where(jnp.arange(32) < lengths, '
    'jnp.einsum("qhd,khd->hqk", q, k), -1e9), -1), v)'
)
SCORES = 'jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.5'
CAUSAL = f"jnp.where(jnp.tril(jnp.ones((32, 32), bool)), {SCORES}, -1e9)"
VALUES = 'jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax({}, -1), v)'
OVER_ROWS = "jax.vmap(lambda q, k, v, lengths: {})(q, k, v, lengths)"

WRITTEN_OUT = {
    "causal": ("", VALUES.format(CAUSAL), "{}"),
    "heads first": (HEADS_FIRST, "jax.nn.softmax(q @ k.mT, -1) @ v", "{}"),
    "grouped": (
        GROUPED,
        'jnp.einsum("bgrqk,bkgd->bqgrd", jax.nn.softmax('
        'jnp.einsum("bqgrd,bkgd->bgrqk", q, k), -1), v)',
        "{}",
    ),
    "mask": (SEGMENTS, VALUES.format(f"jnp.where(mask, {SCORES}, -1e9)"), "{}"),
    "mask of numbers": (
        f"{SEGMENTS}    mask = mask.astype(jnp.float32)\n",
        VALUES.format(f"jnp.where(mask, {SCORES}, -1e9)"),
        "{}",
    ),
    "two lengths": (
        "    lengths1, lengths2 = lengths, lengths[::-1]\n",
        VALUES.format(
            "jnp.where((jnp.arange(32) < lengths1[:, None, None, None])"
            f" & (jnp.arange(32) <= lengths2[:, None, None, None]), {SCORES}, -1e9)"
        ),
        "{}",
    ),
    "last places": (
        "    lengths = lengths[:, None, None, None] - 1\n",
        VALUES.format(f"jnp.where(jnp.arange(32) <= lengths, {SCORES}, -1e9)"),
        "{}",
    ),
    "formula with dots": (
        "",
        f'jnp.einsum("...htT,...Thd->...thd", jax.nn.softmax({SCORES}, -1), v)',
        "{}",
    ),
    "formula with blanks": (
        "",
        f'jnp.einsum("b h q k, b k h d -> b q h d", jax.nn.softmax({SCORES}, -1), v)',
        "{}",
    ),
    "keys transposed": (
        f"{HEADS_FIRST}    k = k.mT\n",
        "jax.nn.softmax(q @ k, -1) @ v",
        "{}",
    ),
    "another order": (
        "    v = v.transpose(0, 2, 3, 1)\n",
        f'jnp.einsum("bhqk,bhdk->hqdb", jax.nn.softmax({SCORES}, -1), v)',
        "{}",
    ),
    "mapped heads": ("", f"jax.vmap(jax.vmap({OF_HEAD}, 1, 1))(q, k, v)", "{}"),
    "mapped rows": ("", OVER_ROWS.format(OF_ROW), OVER_ROWS),
}
"""Lines before the attention, the attention, and what the edit is written in."""


@pytest.mark.parametrize("case", WRITTEN_OUT)
def test_an_edit_of_attention_by_hand_computes_the_same_as_pasted(
    case: str, tmp_path: Path
) -> None:
    before, by_hand, around = WRITTEN_OUT[case]
    head = f"{BY_HAND}{before}    return "
    x = jax.random.normal(jax.random.key(0), (2, 32, 96), jnp.bfloat16)
    args = (x, jnp.array([20, 9]))
    edit = only_edit(f"{head}{by_hand}{STEP}", args, tmp_path)
    pasted = around.format(edit.replace('"cudnn"', '"xla"'))
    want, got = (attended(f"{head}{each}", args) for each in (by_hand, pasted))
    assert jnp.abs(want.astype(float) - got.astype(float)).max() < 0.03


PROJECTED = {
    "weights first": '"bhqk,bkhd,hde->bqe", {weights}, v, rest',
    "weights last": '"hde,bkhd,bhqk->bqe", rest, v, {weights}',
    "transposed": '"bhqk,bkhd,hde->eqb", {weights}, v, rest',
}


@pytest.mark.parametrize("case", PROJECTED)
def test_an_edit_within_an_einsum_of_three_computes_the_same_as_pasted(
    case: str, tmp_path: Path
) -> None:
    rest = "jnp.cos(jnp.arange(3072.0)).reshape(4, 8, 96).astype(x.dtype) / 8"
    head = f"{BY_HAND}    rest = {rest}\n"
    weights = f"jax.nn.softmax({SCORES}, -1)"
    by_hand = f"jnp.einsum({PROJECTED[case].format(weights=weights)})"
    x = jax.random.normal(jax.random.key(0), (2, 32, 96), jnp.bfloat16)
    args = (x, jnp.array([20, 9]))
    edit = only_edit(f"{head}    return {by_hand}{STEP}", args, tmp_path)
    pasted = edit.replace('"cudnn"', '"xla"')
    want, got = (
        attended(f"{head}    return {each}", args) for each in (by_hand, pasted)
    )
    assert want.shape == got.shape
    assert jnp.abs(want.astype(float) - got.astype(float)).max() < 0.05


def test_an_edit_of_attention_says_which_keys_its_lengths_show(tmp_path: Path) -> None:
    before, by_hand, _ = WRITTEN_OUT["last places"]
    source = f"{BY_HAND}{before}    return {by_hand}{STEP}"
    args = (jnp.ones((2, 32, 96), jnp.bfloat16), jnp.array([20, 9]))
    change = only_change(source, args, tmp_path)
    assert "lengths (2, 1, 1, 1): keys k < lengths + 1 are seen" in change.limit


def explicit(*axes: str | None) -> jax.sharding.NamedSharding:
    """A sharding on a mesh whose axes are parts of types."""
    kinds = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((1,), ("data",), axis_types=kinds)
    return jax.sharding.NamedSharding(mesh, jax.P(*axes))


@pytest.mark.parametrize("case", ["causal", "heads first", "another order", "grouped"])
def test_an_edit_of_attention_by_hand_keeps_the_sharding_in_its_type(
    case: str, tmp_path: Path
) -> None:
    before, by_hand, _ = WRITTEN_OUT[case]
    head = f"{BY_HAND}{before}    return "
    sharding = explicit("data", None, None)
    args = (
        jax.ShapeDtypeStruct((2, 32, 96), jnp.bfloat16, sharding=sharding),
        jax.ShapeDtypeStruct((2,), jnp.int32, sharding=explicit("data")),
    )
    edit = only_edit(f"{head}{by_hand}{STEP}", args, tmp_path)
    pasted = edit.replace('"cudnn"', '"xla"')
    want, got = (
        jax.eval_shape(namespace(f"{head}{each}")["attend"], *args)
        for each in (by_hand, pasted)
    )
    assert edit.startswith("jax.reshard(")
    assert got.sharding == want.sharding


def test_an_edited_call_keeps_the_sharding_in_the_type_of_its_queries(
    tmp_path: Path,
) -> None:
    sharding = explicit("data", None, None)
    args = (
        jax.ShapeDtypeStruct((128, 128), jnp.bfloat16, sharding=explicit()),
        jax.ShapeDtypeStruct((2, 64, 128), jnp.bfloat16, sharding=sharding),
    )
    record = _Record()
    with _alternatives(record, []):
        before = lowered(ATTENTION, args, tmp_path)
    found = alternatives(Written(record.sites, Path("jit_step.mlir"), before))
    (change,) = [one for one in found if one.kind is Kind.ATTENTION]
    tried = changed_by_hook(change, ATTENTION, args, tmp_path)
    call = "jax.nn.dot_product_attention(q, q, q, is_causal=True)"
    edit = change.edit.replace("…", "q, q, q, is_causal=True")
    pasted = lowered(ATTENTION.replace(call, edit), args, tmp_path)
    assert pasted == tried != before
    assert "jax.reshard(" in edit


def attended(source: str, args: Sequence[Any]) -> Any:
    """What the function `attend` of a program computes."""
    return jax.jit(namespace(source)["attend"])(*args)


def namespace(source: str) -> dict[str, Any]:
    """What a program defines."""
    found: dict[str, Any] = {}
    exec(source, found)
    return found


def test_attention_in_f32_is_rounded_around_the_call(tmp_path: Path) -> None:
    head = f"{BY_HAND}    return "
    by_hand = VALUES.format(CAUSAL)
    args = (jax.random.normal(jax.random.key(0), (2, 32, 96)), jnp.array([20, 9]))
    edit = only_edit(f"{head}{by_hand}{STEP}", args, tmp_path, ROUNDED)
    assert edit.count('.astype("bfloat16")') == 3
    pasted = edit.replace('"cudnn"', '"xla"')
    want, got = (attended(f"{head}{each}", args) for each in (by_hand, pasted))
    assert want.dtype == got.dtype == jnp.float32
    assert jnp.abs(want - got).max() < 0.03


def only_edit(
    source: str, args: Sequence[Any], folder: Path, value: str = "cudnn"
) -> str:
    """The edit of the attention that a program writes by hand."""
    return only_change(source, args, folder, value).edit


def only_change(
    source: str, args: Sequence[Any], folder: Path, value: str = "cudnn"
) -> Alternative:
    """The alternative to the attention that a program writes by hand."""
    change = Alternative(Kind.ATTENTION, "by hand", value, "")
    record = _Record()
    with _alternatives(record, [change.switch]) as hook:
        hook.use(True)
        lowered_program(source, args, folder)
    return change.at(record.sites)


PRECISE = """        jax.config.update("jax_default_matmul_precision", "highest")
        return (x @ w).sum()
"""
WITHIN = """        with jax.default_matmul_precision("highest"):
            return (x @ w).sum()
"""


@pytest.mark.parametrize("body", [PRECISE, WITHIN], ids=["for all", "within"])
def test_an_edited_precision_is_the_program_that_was_tried(
    body: str, tmp_path: Path
) -> None:
    args = (shape(16, 16), shape(8, 16))
    usual = jax.config.jax_default_matmul_precision
    try:
        record = _Record()
        with _alternatives(record, []):
            before = lowered(body, args, tmp_path)
        found = alternatives(Written(record.sites, Path("jit_step.mlir"), before))
        (change,) = [each for each in found if each.kind == Kind.PRECISION]
        tried = changed_by_hook(change, body, args, tmp_path)
        name, _, _ = change.edit.partition("(")
        edited = re.sub(re.escape(name) + r"\(.*?\)", change.edit, body)
        jax.config.update("jax_default_matmul_precision", usual)
        assert lowered(edited, args, tmp_path) == tried != before
    finally:
        jax.config.update("jax_default_matmul_precision", usual)


IN_F32 = """import jax
{}
@jax.jit
def step(w, x):
    return (x @ w).sum()
"""


def test_products_of_f32_are_halved_as_jax_does_it(tmp_path: Path) -> None:
    usual = jax.config.jax_default_matmul_precision
    args = [jax.ShapeDtypeStruct(size, jnp.float32) for size in ((16, 16), (8, 16))]
    try:
        before = lowered_program(IN_F32.format(""), args, tmp_path)
        found = alternatives(Written([], Path("jit_step.mlir"), before))
        (change,) = [each for each in found if each.kind == Kind.PRECISION]
        after = lowered_program(IN_F32.format(change.edit), args, tmp_path)
        assert halved(before) == after != before
    finally:
        jax.config.update("jax_default_matmul_precision", usual)


def test_products_of_f32_in_a_program_of_bfloat16_stay(tmp_path: Path) -> None:
    body = IN_F32.format("").replace("(x @ w).sum()", "(x @ w) + (h @ h) @ (h @ h)")
    body = body.replace("(w, x)", "(w, x, h)")
    half = jax.ShapeDtypeStruct((16, 16), jnp.bfloat16)
    square = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    text = lowered_program(body, (square, square, half), tmp_path)
    found = alternatives(Written([], Path("jit_step.mlir"), text))
    assert [each for each in found if each.kind == Kind.PRECISION] == []


CASTING = """import jax
import jax.numpy as jnp
{cast}
@jax.jit
def step(w, x):
    def loss({taken}):
        {begin}
        return jnp.tanh(x @ w).sum(){end}
    return w - jax.grad(loss)({taken})
"""


def cast_by_hook(taken: str, folder: Path) -> tuple[Alternative, str]:
    """The cast of a program whose loss takes or holds its arrays, and what the hook makes."""
    plain = CASTING.format(cast="", taken=taken, begin="", end="")
    before = lowered_program(plain, SQUARES, folder)
    found = alternatives(Written([], Path("jit_step.mlir"), before))
    (change,) = [each for each in found if each.kind == Kind.CAST]
    record = _Record()
    with _alternatives(record, [change.switch]) as hook:
        hook.use(True)
        return change.at(record.sites), lowered_program(plain, SQUARES, folder)


SQUARES = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 2


def test_an_edit_that_casts_is_the_program_that_was_tried(tmp_path: Path) -> None:
    change, tried = cast_by_hook("w, x", tmp_path)
    assert "First in the loss" in change.how
    edited = CASTING.format(
        cast=change.edit,
        taken="w, x",
        begin="w, x = cast((w, x))",
        end=".astype(jnp.float32)",
    )
    assert lowered_program(edited, SQUARES, tmp_path) == tried


def test_arrays_that_a_loss_holds_are_cast_too(tmp_path: Path) -> None:
    _, tried = cast_by_hook("w", tmp_path)
    products = [line for line in tried.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) == 2
    assert all("f32" not in line for line in products)


DONATING = """import functools
import jax

{}
def step(n, ws, opt):
    return [w - o for w, o in zip(ws, opt)], [o * n for o in opt]
{}
"""
IN_PARTIAL = "@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)"
IN_CALL = "step = jax.jit(step, static_argnums=0)"


@pytest.mark.parametrize("compiled", [(IN_PARTIAL, ""), ("", IN_CALL)])
def test_an_edit_of_jit_donates_all_state_of_the_step(
    compiled: tuple[str, str], tmp_path: Path
) -> None:
    source = DONATING.format(*compiled)
    args = (2, [jnp.ones(4)], [jnp.ones(4)])
    program = tmp_path / "train.py"
    program.write_text(source)
    record = _Record()
    with _alternatives(record, []):
        step = runpy.run_path(str(program))["step"]
        text = step.lower(*args).as_text(debug_info=True)
    (change,) = alternatives(
        Written(record.sites, Path("jax_ir0_jit_step_compile.mlir"), text)
    )
    call, _, options = change.edit.rstrip(")").partition("…")
    assert call.partition("(")[0] in source
    kept = source.replace(", donate_argnums=1", "")
    edited = kept.replace("static_argnums=0", f"static_argnums=0{options}")
    donating = namespace(edited)["step"].lower(*args).as_text()
    assert donating.count("tf.aliasing_output") == 2


@pytest.mark.parametrize("how", LOOKUPS)
def test_an_edited_lookup_adds_no_rows_in_any_order(how: str, tmp_path: Path) -> None:
    # Not equal to what was tried: the edit wraps negative ids for the gradient once more.
    written = textwrap.indent(lookup_edit(how), " " * 8)
    edited = f"{written}\n{LOOKUP.replace('w[x]', 'lookup(w, x)')}"
    text = lowered(edited, (shape(2048, 16), IDS), tmp_path)
    scatters = re.findall(r"stablehlo\.scatter.*", text)
    assert len(scatters) == (how == "sorted")
    assert all("indices_are_sorted = true" in line for line in scatters)


def test_an_edited_loss_makes_logits_of_a_chunk_alone(tmp_path: Path) -> None:
    # Not equal to what was tried, which pads labels and weights of tokens on their own.
    call = "losses = losses_in_chunks(losses_of, x, labels)"
    written = textwrap.indent(IN_CHUNKS, " " * 8)
    lines = written + "\n" + LOSS.replace("losses = losses_of(x, labels)", call)
    args = (shape(16, WORDS), shape(2, 60, 16))
    text = lowered(lines, args, tmp_path)
    found = re.findall(rf"tensor<((?:\d+x)+){WORDS}xf32>", text)
    rows = [math.prod(map(int, one.split("x")[:-1])) for one in found]
    assert max(rows) == 2 * 8


def divided_args(batch: str | None = "data") -> Sequence[Any]:
    """Weights of layers that are divided over four devices, and a batch that may be."""
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    on = lambda *axes: jax.sharding.NamedSharding(mesh, jax.P(*axes))
    shapes = shape(4, 16, 16), shape(8, 16)
    placed = on(None, "data"), on(batch)
    return [
        jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)
        for one, sharding in zip(shapes, placed, strict=True)
    ]


def noted(body: str, args: Sequence[Any], folder: Path) -> list[CallSite]:
    """The scans of a program whose carry can be divided."""
    record = _Record()
    with _alternatives(record, []) as hook:
        hook.divided(args, {})
        lowered(body, args, folder)
    return [site for site in record.sites if site.kind == Kind.SHARDING]


@pytest.mark.parametrize("batch", ["data", None], ids=["batch", "state"])
def test_an_edited_carry_is_the_program_that_was_tried(
    batch: str | None, tmp_path: Path
) -> None:
    args = divided_args(batch)
    sites = noted(DIVIDED, args, tmp_path)
    before = lowered(DIVIDED, args, tmp_path)
    program = Written(sites, Path("jit_step.mlir"), before, is_undivided=True)
    kinds = {item.kind: item for item in alternatives(program)}
    change = kinds[Kind.SHARDING]
    tried = changed_by_hook(change, DIVIDED, args, tmp_path)
    assert "first in the body" in change.how
    body = DIVIDED.replace("None):\n", f"None):\n            {change.edit}\n")
    assert lowered(MESH + body, args, tmp_path) == tried != before


def test_a_carry_that_the_program_divides_itself_is_left_alone(tmp_path: Path) -> None:
    line = "x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))"
    body = DIVIDED.replace("None):\n", f"None):\n            {line}\n")
    assert noted(MESH + body, divided_args(), tmp_path) == []


def test_a_carry_that_no_axis_divides_is_left_alone(tmp_path: Path) -> None:
    weights, _ = divided_args()
    assert noted(DIVIDED, [weights, shape(7, 16)], tmp_path) == []


def test_a_gradient_that_a_scan_adds_up_is_no_activation(tmp_path: Path) -> None:
    body = """        add = lambda total, part: (total + w * part.sum(), None)
        return jax.lax.scan(add, w, x)[0].sum()
"""
    assert noted(body, divided_args(), tmp_path) == []


def test_a_carry_whose_type_says_how_it_is_divided_is_left_alone(
    tmp_path: Path,
) -> None:
    kinds = (jax.sharding.AxisType.Explicit,)
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=kinds)
    on = lambda *axes: jax.sharding.NamedSharding(mesh, jax.P(*axes))
    args = [
        jax.ShapeDtypeStruct((4, 16, 16), jnp.float32, sharding=on()),
        jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=on("data")),
    ]
    with jax.sharding.use_abstract_mesh(mesh):
        sites = noted(DIVIDED, args, tmp_path)
    assert [site.now for site in sites if site.where] == ["explicit"]


def test_a_step_on_a_mesh_with_explicit_axes_is_not_divided(tmp_path: Path) -> None:
    kinds = (jax.sharding.AxisType.Explicit,)
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=kinds)
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    weight = jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=whole)
    args = [weight, jax.ShapeDtypeStruct((8, 16), jnp.float32)]
    body = "        return jnp.tanh(x @ w).sum()\n"
    sites = noted(body, args, tmp_path)
    text = lowered(body, args, tmp_path)
    program = Written(sites, Path("jit_step.mlir"), text, is_undivided=True)
    assert [one for one in alternatives(program) if one.kind is Kind.SHARDING] == []
    assert "explicit axes" in program.left_out


def test_a_carry_within_a_shard_map_is_left_alone(tmp_path: Path) -> None:
    body = """        layer = lambda x, w: (jnp.tanh(x @ w), None)
        inner = lambda w, x: jax.lax.scan(layer, x, w)[0]
        specs = {"in_specs": (P(), P("data")), "out_specs": P("data")}
        return jax.shard_map(inner, mesh=mesh, **specs)(w, x).sum()
"""
    _, x = divided_args()
    x = jax.ShapeDtypeStruct((32, 16), x.dtype, sharding=x.sharding)
    assert noted(MESH + body, [shape(4, 16, 16), x], tmp_path) == []
