"""`pgle advise`: which alternatives a program has, what they change, and how they are judged."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import advised_program
import jax
import jax.numpy as jnp
import pytest

import pgle
from pgle.cli.main import run
from pgle.run.alternatives import (
    BY_HAND,
    Alternative,
    Kind,
    Written,
    alternatives,
)
from pgle.run.capture.capture import Devices, capture_modules, compare_values
from pgle.run.capture.captured import (
    CallSite,
    ComparedValues,
    choose_module,
    read_captured,
)
from pgle.run.step_arguments import marked_as_donated, state_of
from pgle.xla.targets import load_target
from pgle.xla.vendors import AMD, NVIDIA

pytestmark = pytest.mark.usefixtures("plugin_loaded_once")

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

SHARES = """
import jax, jax.numpy as jnp
@jax.jit
def train_step(params, ema, x):
    return params["w"] * x, ema["w"] + x
params = {"w": jnp.ones(4)}
train_step(params, params, jnp.ones(4))
"""

SCATTER = """
    %1 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<64x8xbf16>, \
tensor<8xWORDSxbf16>) -> tensor<64xWORDSxbf16> loc(#loc1)
    %2 = stablehlo.exponential %1 : tensor<64xWORDSxbf16> loc(#loc2)
    %3 = "stablehlo.scatter"(%z, %i, %u) <{indices_are_sorted = false}> ({
    ^bb0(%x: tensor<bf16> loc("a"), %y: tensor<bf16> loc("b")):
      %4 = stablehlo.add %x, %y : tensor<bf16> loc(#loc3)
      stablehlo.return %4 : tensor<bf16> loc(#loc4)
    }) : (tensor<ROWSx8xbf16>, tensor<64x1xi32>, tensor<64x8xbf16>) -> tensor<ROWSx8xbf16> loc(#l)
"""


def test_state_is_what_comes_back_and_is_not_donated() -> None:
    assert state_of(MAIN) == ["params"]
    donated = MAIN.replace(
        'tensor<4xf32> loc("params[1]")',
        'tensor<4xf32> {tf.aliasing_output = 1 : i32} loc("params[1]")',
    )
    assert state_of(donated) == []


def test_a_module_is_changed_to_donate_its_state() -> None:
    donating = marked_as_donated(MAIN, ["params"])
    assert state_of(donating) == []
    assert donating.count("jax.buffer_donor") == 2
    sharded = MAIN.replace("4xf32> loc", "4xf32> {sdy.sharding = 1} loc")
    assert "{jax.buffer_donor = true, sdy.sharding = 1} loc" in marked_as_donated(
        sharded, ["params"]
    )


def test_a_step_is_donated_only_if_the_program_itself_gives_it_to_jit() -> None:
    own = CallSite("jit", "train.py:9", "train_step")
    library = replace(own, library="flax/nnx/transforms/compilation.py")
    unknown = replace(own, where="")  # a module alone
    edits = lambda *sites: [
        item.edit for item in alternatives(Written(sites, STEP, MAIN))
    ]
    assert edits(own) == ['jax.jit(…, donate_argnames=["params"])']
    assert edits(unknown) == ['donate_argnames=["params"]']
    (change,) = alternatives(Written([unknown], STEP, MAIN))
    assert change.how == "Pass this to the call that compiles train_step"
    assert edits(library) == edits(own, library) == edits() == []


def test_an_edit_of_jit_keeps_what_its_place_has() -> None:
    def edit(**about: str) -> str:
        own = CallSite("jit", "train.py:9", "train_step", **about)
        (change,) = alternatives(Written([own], STEP, MAIN))
        return change.edit

    names = 'donate_argnames=["params"]'
    assert edit(form="decorator") == f"@functools.partial(jax.jit, {names})"
    assert edit(form="partial") == f"@functools.partial(jax.jit, …, {names})"
    assert edit(options="opt") == 'jax.jit(…, donate_argnames=["opt", "params"])'


def test_state_that_another_function_may_use_is_not_donated() -> None:
    own = CallSite("jit", "train.py:9", "train_step")
    apart = Written([own], STEP, MAIN, alongside=["jit_apply_step"])
    assert alternatives(apart) == []
    assert "jit_apply_step may use the same state" in apart.left_out


def test_an_array_that_is_passed_several_times_is_not_donated() -> None:
    compiled = CallSite("jit", "train.py:9", "train_step")
    shared = CallSite("shared", "", "train_step", options="params,ema")
    other = replace(shared, now="evaluate")
    assert alternatives(Written([compiled, shared], STEP, MAIN)) == []
    left = Written([compiled, shared], STEP, MAIN).left_out
    assert "not tried: one array is passed several times (params)" in left
    (found,) = alternatives(Written([compiled, other], STEP, MAIN))
    assert found.limit == "only if nothing reads the old state after the call"


def test_a_capture_notes_an_array_that_a_call_passes_several_times(
    tmp_path: Path,
) -> None:
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    words = [sys.executable, str(script)]
    capture_modules(
        words,
        tmp_path / "out",
        target=load_target("a100"),
        devices=Devices(1),
        quiet_s=20,
    )
    sites = read_captured(tmp_path / "out").sites
    shared = [(site.now, site.options) for site in sites if site.kind == "shared"]
    assert shared == [("train_step", "params,ema")]


def test_an_alternative_has_a_place_in_the_program_and_names_the_library() -> None:
    product = "stablehlo.dot_general %a, %b, precision = [HIGHEST, HIGHEST] : xf32>"
    sites = [
        CallSite("jit", "train.py:9", "train_step"),
        CallSite("precision", "train.py:2", "highest"),
        CallSite("remat", "train.py:5", "", library="flax/linen/transforms.py"),
    ]
    found = alternatives(Written(sites, STEP, MAIN + product))
    places = {change.kind: (change.where, change.library) for change in found}
    assert places == {
        Kind.DONATION: ("train.py:9", ""),
        Kind.PRECISION: ("train.py:2", ""),
        Kind.REMAT: ("train.py:5", "flax/linen/transforms.py"),
    }
    (donation,) = [change for change in found if change.kind is Kind.DONATION]
    assert donation.switch["where"] == "train_step"


def test_products_in_f32_are_tried_in_bf16_if_most_of_the_work_is_theirs() -> None:
    product = (
        "stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], "
        "precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x8xf32>)\n"
    )
    single = (
        "stablehlo.convolution(%a, %b) : (tensor<1x8x8x8xf32>, tensor<3x3x8x8xf32>)\n"
    )
    half = single.replace("f32", "bf16")
    kinds = lambda text: {item.kind for item in alternatives(Written((), STEP, text))}
    assert kinds(product) == {Kind.PRECISION, Kind.CAST}
    assert kinds(product + 2 * half) == set()
    # the precision of products changes no convolution
    assert kinds(product + 2 * single) == {Kind.CAST}


def test_rounding_says_which_products_of_several_gpus_lose_it() -> None:
    product = (
        "stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], "
        "precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x8xf32>)\n"
    )
    with_axes = product.replace("[1] x", "[2] x").replace("8x8xf32>,", "4x8x8xf32>,")
    head = "module @jit_step attributes {mhlo.num_partitions = 4 : i32} {\n"

    def limit(text: str) -> str:
        found = alternatives(Written((), STEP, text))
        return next(item.limit for item in found if item.kind is Kind.PRECISION)

    assert "of 2 products, 1 multiply two matrices" in limit(head + product + with_axes)
    assert "matrices" not in limit(product + with_axes)
    assert "matrices" not in limit(head + with_axes)


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


def test_a_carry_is_divided_if_devices_repeat_each_other() -> None:
    scan = CallSite("sharding", "a.py:3", 'P("data")', options='P("data")')
    explicit = replace(scan, now="explicit")
    (found,) = alternatives(Written([scan], STEP, "", is_undivided=True))
    assert found.name == 'sharding P("data")'
    assert not found.changes_values
    assert alternatives(Written([scan], STEP, "")) == []
    left = Written([explicit], STEP, "", is_undivided=True)
    assert alternatives(left) == []
    assert "the mesh has explicit axes" in left.left_out


def test_unrolling_all_iterations_is_said_as_what_it_is() -> None:
    scan = CallSite("unroll", "a.py:3", "1", length=4)
    found = alternatives(Written([scan], STEP, ""))
    assert ["are written out" in item.limit for item in found] == [False, True]


def test_a_loop_of_one_iteration_and_a_rest_is_written_out_too() -> None:
    scan = CallSite("unroll", "a.py:3", "1", length=6)
    found = alternatives(Written([scan], STEP, ""))
    assert ["are written out" in item.limit for item in found] == [False, True]


def test_jax_has_no_fused_attention_for_amd() -> None:
    sites = [CallSite("attention", "a.py:1", "xla")]
    on_amd = Written(sites, STEP, "", vendor=AMD)
    assert alternatives(on_amd) == []
    assert "attention is not tried: jax has no fused kernel" in on_amd.left_out
    assert not Written([], STEP, "", vendor=AMD).left_out
    (found,) = alternatives(Written(sites, STEP, "", vendor=NVIDIA))
    assert found.name == "attention cudnn"


def test_a_checkpoint_is_tried_if_the_step_does_not_fit_and_has_none() -> None:
    scan = CallSite("unroll", "a.py:3", "1", length=8)
    checkpoint = CallSite("remat", "a.py:2", "")
    kinds = lambda *sites, large: {
        item.kind for item in alternatives(Written(sites, STEP, "", is_too_large=large))
    }
    assert Kind.CHECKPOINT in kinds(scan, large=True)
    assert Kind.CHECKPOINT not in kinds(scan, large=False)
    assert Kind.CHECKPOINT not in kinds(scan, checkpoint, large=True)


def test_a_product_for_a_lookup_says_where_a_nan_goes() -> None:
    text = SCATTER.replace("ROWS", "1024").replace("WORDS", "1")
    limits = {item.name: item.limit for item in alternatives(Written((), STEP, text))}
    spread = "a NaN in the gradient of one row reaches every row"
    assert limits == {"lookup one_hot": spread, "lookup sorted": ""}


def test_lookups_and_losses_are_tried_from_some_rows_and_words_on() -> None:
    def kinds(rows: int, words: int) -> list[Kind]:
        text = SCATTER.replace("ROWS", str(rows)).replace("WORDS", str(words))
        return [item.kind for item in alternatives(Written((), STEP, text))]

    assert kinds(1024, 4096) == [Kind.LOSS, Kind.LOOKUP, Kind.LOOKUP]
    assert kinds(1023, 4095) == []
    assert kinds((1 << 18) + 1, 4095) == [Kind.LOOKUP]  # too many for one-hot rows


def test_a_wide_layer_without_a_softmax_over_it_is_no_loss() -> None:
    text = SCATTER.replace("ROWS", "8").replace("WORDS", "4096")
    narrow = text.replace("%1 : tensor<64x4096x", "%1 : tensor<64x64x")
    kinds = lambda text: [item.kind for item in alternatives(Written((), STEP, text))]
    assert kinds(text) == [Kind.LOSS]
    assert kinds(narrow) == []


PRODUCT = "stablehlo.dot_general %1, %2, {} : (tensor<8x8xbf16>) -> tensor<8x8xbf16>\n"
PLAIN = PRODUCT.format("contracting_dims = [1] x [0]")
OF_HEADS = PRODUCT.format("batching_dims = [0] x [0], contracting_dims = [2] x [2]")
EXPONENTIAL = "stablehlo.exponential %3 : tensor<8x8xf32>\n"


@pytest.mark.parametrize(
    ("kernel", "product", "is_tried"),
    [
        ("", PLAIN, False),  # the softmax of a loss
        ("", OF_HEADS, True),
        ("cudnn", PLAIN, False),
        ("cudnn", OF_HEADS, True),
        ("xla", OF_HEADS, False),  # the products of the call itself
    ],
)
def test_attention_by_hand_is_tried_where_calls_do_not_explain_the_products(
    kernel: str, product: str, is_tried: bool
) -> None:
    text = product + EXPONENTIAL + product
    sites = [CallSite("attention", "a.py:1", kernel)] if kernel else []
    found = alternatives(Written(sites, STEP, text))
    assert (BY_HAND in [item.where for item in found]) == is_tried


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


def values_of(folder: Path, program: Path, *changes: Alternative) -> ComparedValues:
    """What some changes do to the values of the step."""
    return compare_values(
        [sys.executable, str(program)],
        folder,
        target=load_target("a100"),
        devices=Devices(1),
        quiet_s=20,
        step="train_step",
        alternatives=[change.switch for change in changes],
    )


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
        ("jit", "calls.py:10", "train_step"),
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


BY_HAND_PROGRAM = """
import jax, jax.numpy as jnp
def attend(q, k, v, valid):
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k).astype(jnp.float32) / 4
    scores = jnp.where(valid[:, None, None, :], scores, -1e9)
    weights = jax.nn.softmax(scores).astype(v.dtype)
    return jnp.einsum("bnqk,bknh->bqnh", weights, v)
def loss(w, x):
    heads = jnp.split((x @ w).reshape(4, 32, 6, 16), 3, 2)
    return (attend(*heads, x[..., 0] > -1) ** 2).astype(jnp.float32).mean()
@jax.jit
def train_step(w, x):
    return w - jax.grad(loss)(w, x)
w = jnp.ones((32, 96), jnp.bfloat16)
for _ in range(3):
    w = train_step(w, jnp.ones((4, 32, 32), jnp.bfloat16))
"""


def test_attention_written_by_hand_is_fused_and_its_values_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "by_hand.py"
    program.write_text(BY_HAND_PROGRAM)
    monkeypatch.chdir(tmp_path)
    change = Alternative(Kind.ATTENTION, BY_HAND, "cudnn", "attend(q, k, v, …)")
    changed = captured(tmp_path / "after", program, change)
    assert "cudnn" in changed
    assert "stablehlo.exponential" not in changed
    sites = read_captured(tmp_path / "after").sites
    (site,) = [site for site in sites if site.kind != "jit"]
    assert (site.where, site.now) == ("by_hand.py:7", "by hand")
    assert change.at([site]).edit == (
        "jax.nn.dot_product_attention(q, k, v, "
        "mask=mask[:, None, None] & jnp.ones((32, 32), bool), scale=0.25, "
        'implementation="cudnn")'
    )
    values = values_of(tmp_path / "values", program, change)
    assert (values.why, values.seen, values.results) == ("", 1, 1)
    assert not values.differs


@pytest.mark.rehearse
def test_a_step_of_this_process_leaves_jax_as_it_was() -> None:
    usual = (jax.checkpoint, jax.lax.scan, jax.grad, jax.jit, jax.config.update)

    def loss(ws: Any, x: Any) -> Any:
        layer = jax.checkpoint(advised_program.layer)
        return jnp.square(jax.lax.scan(layer, x, ws)[0].astype(jnp.float32)).mean()

    @jax.jit
    def train_step(ws: Any, x: Any) -> Any:
        return ws - jax.grad(loss)(ws, x)

    args = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((4, 512, 512), (512, 512))]
    found = pgle.advise(train_step, *args, target="a100", devices=1, budget=1)
    assert [item["kind"] for item in found["tried"]] == ["remat"]
    assert (
        jax.checkpoint,
        jax.lax.scan,
        jax.grad,
        jax.jit,
        jax.config.update,
    ) == usual


@pytest.mark.rehearse
def test_a_module_alone_is_tried_as_far_as_its_text_allows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    @jax.jit
    def train_step(w: Any, x: Any) -> Any:
        return w + x @ x.T

    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    lowered = train_step.lower(square, square)
    module = tmp_path / STEP.name
    module.write_text(lowered.as_text(debug_info=True))
    options = ["--target", "a100", "--devices", "1", "-o", str(tmp_path / "out")]
    assert run(["advise", *options, "--json", str(module)]) == 0
    found = json.loads(capfd.readouterr().out)
    assert {item["kind"] for item in found["tried"]} == {"donation", "precision"}
    assert "remat" in found["left_out"]


LANGUAGE_MODEL = """
import jax, jax.numpy as jnp
def loss(table, head, tokens):
    rows = table[tokens]
    chances = jax.nn.log_softmax((rows @ head).astype(jnp.float32))
    return -jnp.take_along_axis(chances, tokens[..., None], -1).mean()
@jax.jit
def train_step(table, head, tokens):
    return jax.value_and_grad(loss, (0, 1))(table, head, tokens)
table = jnp.ones((4096, 16), jnp.bfloat16)
for _ in range(3):
    train_step(table, table.T, jnp.ones((2, 64), jnp.int32))
"""


def test_a_lookup_and_a_loss_are_changed_and_their_values_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "model.py"
    program.write_text(LANGUAGE_MODEL)
    monkeypatch.chdir(tmp_path)
    changes = (
        Alternative(Kind.LOSS, BY_HAND, "8", "in parts"),
        Alternative(Kind.LOOKUP, BY_HAND, "one_hot", "by a product"),
    )
    changed = captured(tmp_path / "after", program, *changes)
    assert "2x8x4096xf32" in changed
    assert "2x64x4096xf32" not in changed
    sites = read_captured(tmp_path / "after").sites
    assert [change.at(sites).where for change in changes] == [
        "model.py:5",
        "model.py:4",
    ]
    values = values_of(tmp_path / "values", program, *changes)
    assert (values.why, values.seen) == ("", 3)
    assert not values.differs
