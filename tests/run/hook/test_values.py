"""Values of a step at a small size, with an alternative and without."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgle.run.capture.captured import ComparedValues

pytestmark = pytest.mark.usefixtures("hook_here", "own_gradients")

LAYERS, BATCH, WIDTH = 3, 32, 24


def arguments(shapes: Any, dtype: Any) -> list[Any]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


class Program:
    """A training step whose alternative multiplies activations by a number."""

    shapes: Any = ((LAYERS, WIDTH, WIDTH), (BATCH, WIDTH))

    def __init__(self, factor: float = 1.0, precision: Any = None) -> None:
        self.factor = factor
        self.precision = precision
        self.is_on = True

    def step(self, ws: Any, x: Any) -> Any:
        factor = self.factor if self.is_on else 1.0

        def loss(ws: Any) -> Any:
            y = x
            for w in ws:
                y = factor * jnp.tanh(jnp.dot(y, w, precision=self.precision))
            return jnp.square(y).astype(jnp.float32).mean()

        value, gradients = jax.value_and_grad(loss)(ws)
        return ws - gradients.astype(ws.dtype), value

    def compared(self, precision: str = "", dtype: Any = jnp.float32) -> ComparedValues:
        values = importlib.import_module("pgle_hook.values")
        found: list[dict[str, Any]] = []
        made = values.Values(jax, self.use, found.append, precision)
        made.see_gradients()
        made.compare(self.step, arguments(self.shapes, dtype), {})
        return ComparedValues(**found[0])

    def use(self, is_on: bool) -> None:
        self.is_on = is_on


def test_the_same_program_has_no_difference_at_a_small_size() -> None:
    found = Program().compared()
    assert (found.difference, found.why) == (0.0, "")
    assert found.sizes == "32 → 8, 24 → 16"
    assert (found.seen, found.results) == (2, 2)


def test_results_that_are_zero_prove_nothing() -> None:
    program = Program()
    program.step = lambda ws, x: (ws, 0 * ws[0], 0 * x.sum())  # type: ignore[method-assign]
    assert "zero" in program.compared().why


def test_a_vocabulary_keeps_eight_words() -> None:
    def step(table: Any, x: Any) -> Any:
        def loss(table: Any) -> Any:
            chances = jax.nn.log_softmax(jnp.dot(x, table.T))
            return -chances[:, 0].mean()

        return table, jax.value_and_grad(loss)(table)

    program = Program()
    program.step = step  # type: ignore[method-assign]
    program.shapes = ((512, WIDTH), (BATCH, WIDTH))
    assert program.compared().sizes == "512 → 8, 32 → 8, 24 → 16"


def test_no_type_of_the_program_hides_another_scale() -> None:
    assert not Program(1.0).compared(dtype=jnp.bfloat16).differs
    assert Program(1.01).compared(dtype=jnp.bfloat16).differs


def test_the_array_that_differs_most_has_a_name() -> None:
    program = Program(1.1)

    def step(ws: Any, x: Any) -> Any:
        factor = program.factor if program.is_on else 1.0
        loss = lambda ws: jnp.square(x @ ws["a"] + factor * x @ ws["b"]).mean()
        return jax.value_and_grad(loss)({"a": ws[0], "b": ws[1]})

    program.step = step  # type: ignore[method-assign]
    assert program.compared().worst == "gradient['b']"


def test_products_on_tensor_cores_differ_by_rounding() -> None:
    found = Program(precision="high").compared("tensorfloat32")
    assert 0 < found.difference <= found.tolerance
    assert found.unit == 2**-11


def test_products_of_f32_that_are_halved_differ_by_rounding() -> None:
    found = Program(precision="BF16_BF16_F32").compared("BF16_BF16_F32")
    assert 2**-12 < found.difference <= found.tolerance
    assert found.unit == 2**-8
    assert Program(precision="highest").compared("BF16_BF16_F32").difference == 0


def test_products_that_stay_exact_do_not_differ() -> None:
    found = Program(precision="highest").compared("tensorfloat32")
    assert found.difference == 0


def test_a_step_that_fails_is_not_compared() -> None:
    program = Program(precision="no such precision")
    assert "Precision" in program.compared().why


def attention(x: Any, scale: float) -> Any:
    scores = scale * (x @ x.swapaxes(-1, -2))
    length = x.shape[-2]
    shown = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    return jax.nn.softmax(shown) @ x


@pytest.mark.parametrize("tokens", [(2048,), (BATCH, 2048)])
def test_another_scale_of_attention_to_words_differs(tokens: Any) -> None:
    program = Program(3.0)

    def step(table: Any, x: Any) -> Any:
        scale = program.factor if program.is_on else 1.0
        words = x.astype(jnp.int32) % table.shape[0]
        loss = lambda table: jnp.square(attention(table[words], scale)).mean()
        return table, jax.value_and_grad(loss)(table)

    program.step = step  # type: ignore[method-assign]
    program.shapes = ((512, WIDTH), tokens)
    assert program.compared().differs


def test_a_change_that_needs_a_larger_size_is_compared_there() -> None:
    program = Program(3.0)
    values = importlib.import_module("pgle_hook.values")
    widths: list[int] = []

    def step(w: Any, x: Any) -> Any:
        widths.append(x.shape[-1])
        factor = program.factor if program.is_on else 1.0
        return w, jax.value_and_grad(lambda w: factor * (x @ w).var())(w)

    is_made = lambda: widths[-1] > 16
    found: list[dict[str, Any]] = []
    made = values.Values(jax, program.use, found.append, is_made=is_made)
    made.see_gradients()
    made.compare(step, arguments(((2048, 2048), (24, 2048)), jnp.float32), {})
    result = ComparedValues(**found[0])
    assert result.why == ""
    assert result.differs
    assert "2048 → 64" in result.sizes


def test_layers_and_a_batch_of_activations_become_two() -> None:
    program = Program()
    program.step = lambda ws, x: (x @ ws[0]).sum()  # type: ignore[method-assign]
    program.shapes = ((12, WIDTH, WIDTH), (BATCH, 2048, WIDTH))
    assert program.compared().sizes == "2048 → 16, 32 → 2, 24 → 16, 12 → 2"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_rounding_to_eight_bits_is_part_of_a_program(dtype: str) -> None:
    program = Program()

    def step(ws: Any, x: Any) -> Any:
        few = x.astype(dtype).astype(jnp.float32) if program.is_on else x
        return (few @ ws[0]).sum()

    program.step = step  # type: ignore[method-assign]
    assert program.compared().differs


def test_rounding_to_bfloat16_is_none() -> None:
    program = Program()

    def step(ws: Any, x: Any) -> Any:
        half = x.astype(jnp.bfloat16).astype(jnp.float32) if program.is_on else x
        return (half @ ws[0]).sum()

    program.step = step  # type: ignore[method-assign]
    assert program.compared().difference == 0


def test_a_length_without_a_batch_keeps_several_words() -> None:
    program = Program(3.0)

    def step(w: Any, x: Any) -> Any:
        scale = program.factor if program.is_on else 1.0

        def loss(w: Any) -> Any:
            scores = scale * jnp.einsum("qnd,knd->nqk", x @ w, x)
            return jnp.square(
                jnp.einsum("nqk,knd->qnd", jax.nn.softmax(scores), x)
            ).mean()

        return w, jax.value_and_grad(loss)(w)

    program.step = step  # type: ignore[method-assign]
    program.shapes = ((WIDTH, WIDTH), (2048, 4, WIDTH))
    found = program.compared()
    assert found.sizes == "2048 → 8, 24 → 16"
    assert found.differs


def test_large_constants_are_not_made_to_look_at_a_step() -> None:
    program = Program()

    def step(ws: Any, x: Any) -> Any:
        length = x.shape[0]
        shown = jnp.broadcast_to((jnp.arange(length) > 2)[:, None], (length, length))
        return ws + jnp.where(shown, x[:, 0], 0).sum(), x.sum()

    program.step = step  # type: ignore[method-assign]
    program.shapes = ((LAYERS, WIDTH, WIDTH), (1 << 20, WIDTH))
    assert program.compared().why == ""


def test_gradients_in_a_loop_are_compared_by_what_they_change() -> None:
    program = Program(3.0)

    def step(ws: Any, xs: Any) -> Any:
        factor = program.factor if program.is_on else 1.0
        loss = lambda ws, x: factor * jnp.square(x @ ws[0]).mean()
        add = lambda total, x: (total + jax.grad(loss)(ws, x), None)
        total, _ = jax.lax.scan(add, jnp.zeros_like(ws), xs)
        return ws - 1e-4 * total

    program.step = step  # type: ignore[method-assign]
    program.shapes = ((LAYERS, WIDTH, WIDTH), (4, BATCH, WIDTH))
    assert program.compared().differs


def test_each_of_both_programs_may_round_four_constants() -> None:
    found = Program().compared(dtype=jnp.bfloat16)
    assert found.unit == 2**-20
    assert 2 * 4 * found.unit <= found.tolerance < 1e-4


def test_a_comparison_ends_by_its_cpu_time() -> None:
    values = importlib.import_module("pgle_hook.values")
    found: list[dict[str, Any]] = []
    made = values.Values(jax, lambda is_on: None, found.append)
    made._until_s = 0.0
    made.compare(Program().step, arguments(Program.shapes, jnp.float32), {})
    assert found == [{"why": "comparing takes more than 40 CPU seconds"}]


def test_no_values_are_drawn_for_a_step_with_too_many_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = importlib.import_module("pgle_hook.values")
    monkeypatch.setattr(values._Values, "_value", None)

    class Large(Program):
        def step(self, ws: Any, x: Any) -> Any:
            wide = jnp.broadcast_to(x.sum(), (5_000, 5_000))
            return ws, (wide @ wide).sum()

    assert Large().compared().why == "even at a small size it takes 2e+11 operations"


def test_a_step_that_takes_too_much_memory_is_not_run() -> None:
    class Large(Program):
        def step(self, ws: Any, x: Any) -> Any:
            numbers = jnp.cos(x.sum() * jnp.arange(30_000.0))
            wide = jnp.sort(jnp.outer(numbers, numbers), axis=0)
            return ws, wide.sum(0).max()

    assert Large().compared().why == "even at a small size it takes 13 GiB"


class Split(Program):
    """A step whose first product makes three parts as wide as its second one takes."""

    shapes: Any = ((512, 3 * 512), (512, 512), (BATCH, 512))

    def step(self, first: Any, second: Any, x: Any) -> Any:
        self.traces.append(x.shape)
        factor = self.factor if self.is_on else 1.0

        def loss(first: Any) -> Any:
            q, k, v = jnp.split(x @ first, 3, -1)
            return jnp.square((q * k + factor * v) @ second).mean()

        return jax.grad(loss)(first)

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__(factor)
        self.traces: list[Any] = []


def test_sizes_of_which_one_is_a_multiple_become_small_together() -> None:
    assert Split().compared().sizes == "32 → 8, 1536 → 48, 512 → 16"


def test_a_length_that_equals_a_fixed_width_becomes_small_alone() -> None:
    width = 64

    def step(w: Any, x: Any) -> Any:
        rows, length, _ = x.shape
        heads = (x @ w).reshape(rows, length, 4, width // 4)
        mixed = jnp.einsum("bqhd,bkhd->bqkh", heads, heads)
        return w, jnp.tanh(mixed).mean()

    program = Program()
    program.step = step  # type: ignore[method-assign]
    program.shapes = ((width, width), (2, width, width))
    assert program.compared().sizes == f"{width} → 16"


def test_a_batch_that_equals_a_number_of_heads_becomes_two() -> None:
    heads = 16

    def step(w: Any, x: Any) -> Any:
        rows, length, width = x.shape
        split = (x @ w).reshape(rows, length, heads, width // heads)
        return w, jnp.tanh(split).mean()

    program = Program()
    program.step = step  # type: ignore[method-assign]
    program.shapes = ((32, 32), (heads, 8, 32))
    assert program.compared().sizes == "32 → 16, 16 → 8, 16 → 2"


def test_a_program_is_computed_once_for_all_its_alternatives() -> None:
    values = importlib.import_module("pgle_hook.values")
    found: list[dict[str, Any]] = []
    program = Split()
    made = values.Values(jax, program.use, found.append)
    given = arguments(program.shapes, jnp.float32)
    step = program.step
    for factor in (1.0, 1.5):
        program.factor = factor
        program.traces.clear()
        made.compare(step, given, {})
    assert len(program.traces) == 1
    first, second = (ComparedValues(**one) for one in found)
    assert not first.differs
    assert second.differs


def test_a_constant_that_a_program_computes_keeps_its_rounding() -> None:
    program = Program()

    def step(ws: Any, x: Any) -> Any:
        root = jnp.sqrt(jnp.float32(WIDTH)).astype(jnp.bfloat16)
        known = np.asarray(np.sqrt(WIDTH), jnp.bfloat16)
        return ws * (known if program.is_on else root)

    program.step = step  # type: ignore[method-assign]
    assert program.compared(dtype=jnp.bfloat16).difference == 0


def test_a_jaxlib_that_takes_no_list_of_passes_compiles_without_it() -> None:
    class Old:
        def compile(self, options: Any = None) -> str:
            if options:
                raise RuntimeError("Field is repeated")
            return "compiled"

    stepwise = importlib.import_module("pgle_hook.stepwise")
    assert stepwise._quickly(Old()) == "compiled"


def test_what_follows_from_equal_gradients_is_not_computed_again() -> None:
    program = Program()
    step = program.step

    def large(ws: Any, x: Any) -> Any:
        new, value = step(ws, x)
        wide = jnp.outer(jnp.arange(1e6), new[0, 0, 0] * jnp.ones(10_000))
        return new, value, jnp.sort(wide, axis=0).sum()

    program.step = large  # type: ignore[method-assign]
    found = program.compared()
    assert (found.why, found.seen, found.results) == ("", 2, 3)


def test_results_that_are_made_otherwise_of_equal_gradients_are_compared() -> None:
    program = Program()
    step = program.step

    def scaled(ws: Any, x: Any) -> Any:
        new, value = step(ws, x)
        return (1.001 if program.is_on else 1.0) * new, value

    program.step = scaled  # type: ignore[method-assign]
    assert program.compared().differs


def test_an_operation_of_other_types_is_another_one() -> None:
    program = Program()

    def step(ws: Any, x: Any) -> Any:
        root = jnp.sqrt(jnp.float32(WIDTH))
        half = jnp.sqrt(jnp.bfloat16(WIDTH)).astype(jnp.float32)
        return ws * (half if program.is_on else root)

    program.step = step  # type: ignore[method-assign]
    assert program.compared().differs


@pytest.mark.parametrize("also", ["mean", 0.5, None, object()])
def test_gradients_are_compared_whatever_else_a_loss_returns(also: Any) -> None:
    program = Program()

    def step(ws: Any, x: Any) -> Any:
        def loss(ws: Any) -> Any:
            return jnp.tanh(x @ ws[0]).mean(), {"also": also}

        (value, _), gradients = jax.value_and_grad(loss, has_aux=True)(ws)
        return ws - gradients, value

    program.step = step  # type: ignore[method-assign]
    found = program.compared()
    assert (found.why, found.seen, found.results) == ("", 2, 2)


def test_a_type_among_the_arguments_is_no_array() -> None:
    values = importlib.import_module("pgle_hook.values")
    found: list[dict[str, Any]] = []
    made = values.Values(jax, lambda is_on: None, found.append)
    made.see_gradients()

    def step(w: Any, kind: Any) -> Any:
        return w - jax.grad(lambda w: jnp.tanh(w.astype(kind)).sum())(w)

    (w,) = arguments(((BATCH, WIDTH),), jnp.float32)
    made.compare(step, (w, jnp.float32), {})
    assert ComparedValues(**found[0]).why == ""


LENGTH = 64


def test_a_length_that_is_a_constant_of_the_code_becomes_small() -> None:
    def step(w: Any, x: Any) -> Any:
        shown = jnp.tril(jnp.ones((LENGTH, LENGTH)))
        return w, jnp.tanh(shown @ (x @ w)).mean()

    program = Program()
    program.step = step  # type: ignore[method-assign]
    program.shapes = ((32, 32), (4, LENGTH, 32))
    assert program.compared().sizes == "64 → 16, 32 → 16"
    assert LENGTH == 64


@dataclass(frozen=True)
class Sizes:
    """Settings of a program."""

    length: int = 64


@pytest.mark.parametrize("sizes", [Sizes(), SimpleNamespace(length=64), {"length": 64}])
def test_a_length_in_enclosed_settings_becomes_small(sizes: Any) -> None:
    def length() -> int:
        found: int = sizes["length"] if isinstance(sizes, dict) else sizes.length
        return found

    def step(w: Any, x: Any) -> Any:
        shown = jnp.tril(jnp.ones((length(), length())))
        return w, jnp.tanh(shown @ (x @ w)).mean()

    program = Program()
    program.step = step  # type: ignore[method-assign]
    program.shapes = ((32, 32), (4, 64, 32))
    assert program.compared().sizes == "64 → 16, 32 → 16"
    assert length() == 64
