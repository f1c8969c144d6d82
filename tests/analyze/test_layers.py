"""What ran, by layer, source line and phase, and what the matrix products reach."""

import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.layers import (
    Layer,
    MeasuredInstruction,
    TrainingPhase,
    Work,
    find_layers,
    find_products,
    folded,
    phases_of,
    scope_of,
    work_of,
)
from pgle.costs.profile.value import Cost
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import TABLE

H100 = TABLE["h100-sxm"]


@pytest.fixture(scope="module")
def module() -> Module:
    """A forward product, its gradient, an update, and what XLA made without a name."""
    text = """HloModule jit_step, is_scheduled=true, num_partitions=2

ENTRY main {
  x = bf16[1024,512]{1,0} parameter(0)
  w = bf16[512,256]{1,0} parameter(1)
  input = bf16[1024,512]{1,0} copy(x), metadata={op_name="jit(step)/jit(main)/convert_element_type"}
  dot.1 = bf16[1024,256]{1,0} dot(input, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jit(main)/jvp(Model)/layers_0/mlp/dot_general[a=(1, 2)]" source_file="/src/model.py" source_line=12}
  dot.2 = bf16[1024,256]{1,0} dot(input, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jit(main)/transpose(jvp(Model))/layers_0/checkpoint/rematted_computation/mlp/dot_general" source_file="/src/model.py" source_line=12}
  dot.3 = bf16[512,256]{1,0} dot(input, dot.2), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jit(main)/transpose(jvp(Model))/layers_0/mlp/dot_general" source_file="/src/model.py" source_line=12}
  copy.1 = bf16[512,256]{0,1} copy(dot.3)
  add.1 = bf16[512,256]{1,0} add(w, copy.1), metadata={op_name="jit(step)/jit(main)/add" source_file="/src/sgd.py" source_line=3}
  dot.4.remat = bf16[1024,256]{1,0} dot(input, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jit(main)/jvp(Model)/layers_0/mlp/dot_general"}
  ROOT result = (bf16[512,256]{1,0}, bf16[1024,256]{1,0}, bf16[1024,256]{1,0}) tuple(add.1, dot.1, dot.4.remat)
}
"""  # noqa: E501
    return module_from_text(
        text.encode(), "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt"
    )


def ran(module: Module, **us: float) -> list[MeasuredInstruction]:
    items = [
        (module.instructions[name.replace("_", ".")], time) for name, time in us.items()
    ]
    return [
        MeasuredInstruction(Cost(item.name, us), item, us, 1.0, work_of(module, item))
        for item, us in items
    ]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("input", TrainingPhase.OTHER),
        ("dot.1", TrainingPhase.FORWARD),
        ("dot.2", TrainingPhase.REMATERIALISED),
        ("dot.3", TrainingPhase.BACKWARD),
        ("copy.1", TrainingPhase.BACKWARD),
        ("add.1", TrainingPhase.OPTIMIZER),
        ("dot.4.remat", TrainingPhase.REMATERIALISED),
    ],
)
def test_phases(module: Module, name: str, phase: TrainingPhase) -> None:
    assert phases_of(module)[name] == phase


@pytest.mark.parametrize(
    ("op_name", "scope"),
    [
        ("jit(step)/jit(main)/transpose(jvp(Model))/decoder/while/body/checkpoint/mlp/wo/dot_general[d=((1/2))]",
         "Model/decoder/mlp/wo"),
        ("jit(step)/jvp()/while/body/closed_call/dot_general", ""),
        ("jit(step)/jit(_where)/select_n", ""),
        ("pjit(f)/vmap(heads)/jit(softmax)/exp", "heads/softmax"),
        ("params['layers'][0]", ""),
    ],
)  # fmt: skip
def test_a_scope_is_what_the_program_named(op_name: str, scope: str) -> None:
    assert scope_of(op_name) == scope


def test_layers_hold_all_that_ran_once(module: Module) -> None:
    found = find_layers(
        module, ran(module, dot_1=10, dot_2=20, dot_3=30, add_1=5), (), 100.0, H100
    )
    assert {(layer.name, layer.phase): layer.us for layer in found.scopes} == {
        ("Model/layers_0/mlp", "forward"): 10,
        ("Model/layers_0/mlp", "rematerialised"): 20,
        ("Model/layers_0/mlp", "backward"): 30,
        ("", "optimizer"): 5,
    }
    assert [(layer.name, layer.us) for layer in found.lines] == [
        ("/src/model.py:12", 60),
        ("/src/sgd.py:3", 5),
    ]


def test_utilisation_leaves_out_what_is_computed_again(module: Module) -> None:
    found = find_layers(
        module, ran(module, dot_1=10, dot_2=20, dot_3=30), (), 100.0, H100
    )
    each = 2 * 1024 * 512 * 256
    assert found.mfu == pytest.approx(2 * each / 989e12 / 100e-6)
    assert found.hfu == pytest.approx(3 * each / 989e12 / 100e-6)
    (products,) = find_products(ran(module, dot_1=10, dot_2=20, dot_3=30), H100)
    assert products.tflops == pytest.approx(3 * each / 60e-6 / 1e12)


def test_an_operation_on_an_element_takes_the_place_of_a_multiplication_and_an_addition() -> (
    None
):
    assert Work(0.0, 1e9, 0).roofline_us(H100) == pytest.approx(
        Work(2e9, 0.0, 0, "f32", False).roofline_us(H100)
    )


def test_a_roofline_is_the_larger_of_arithmetic_and_memory(module: Module) -> None:
    work = work_of(module, module.instructions["dot.1"])
    moved = 2 * (1024 * 512 + 512 * 256 + 1024 * 256)
    assert work.bytes == moved
    assert work.roofline_us(H100) == pytest.approx(
        max(work.flops / 989e6, moved / 3352e3)
    )


@pytest.mark.parametrize(
    ("dtype", "precision", "fits"),
    [
        ("bf16", "DEFAULT", True),
        ("f32", "DEFAULT", True),
        ("f32", "HIGHEST", False),
        ("f64", "DEFAULT", True),
    ],
)
def test_which_products_fit_tensor_cores(
    dtype: str, precision: str, fits: bool
) -> None:
    text = f"""HloModule m

ENTRY main {{
  x = {dtype}[64,64]{{1,0}} parameter(0)
  ROOT gemm = {dtype}[64,64]{{1,0}} custom-call(x, x), custom_call_target="__cublas$gemm", backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{{"lhs_contracting_dimensions":["1"]}},"precision_config":{{"operand_precision":["{precision}","{precision}"]}}}}}}
}}
"""  # noqa: E501
    module = module_from_text(text.encode(), "m.txt")
    assert work_of(module, module.instructions["gemm"]).tensor_cores is fits


def layer(name: str, us: float) -> Layer:
    return Layer(name, "forward", us, 0.0, 1, 0.0, 0.0, None)


def test_many_layers_fold_to_the_rows_there_are_and_lose_nothing() -> None:
    layers = [
        layer(f"model/block_{number}/{part}", 10.0)
        for number in range(12)
        for part in ("mlp", "attention")
    ]
    layers += [
        layer("model/block_3", 5.0),
        layer("model/embed/a", 1.0),
        layer("model/embed/b", 1.0),
        layer("", 3.0),
    ]
    groups = {name: sum(item.us for item in items) for name, items in folded(layers, 5)}
    assert groups == {
        "model/block_*/mlp": 120,
        "model/block_*/attention": 120,
        "model/block_*": 5,
        "model/embed": 2,
        "": 3,
    }


def test_layers_of_the_real_a100_step_hold_all_its_kernels(pax: MeasuredStep) -> None:
    assert pax.layers is not None
    assert sum(layer.us for layer in pax.layers.scopes) == pytest.approx(
        sum(item.us for item in pax.compute)
    )
    assert sum(layer.us for layer in pax.layers.lines) == pytest.approx(
        sum(item.us for item in pax.compute)
    )
    assert (
        pax.layers.phase_us(TrainingPhase.BACKWARD)
        > pax.layers.phase_us(TrainingPhase.FORWARD)
        > 0
    )


def test_the_real_a100_step_computes_what_its_model_size_says(
    pax: MeasuredStep,
) -> None:
    # 12 layers of width 768 on 4 x 2048 tokens: 6 operations per weight and token, 12 * width *
    # length per layer and token for attention. Lookups are products with one-hot rows, which need
    # no gradient themselves: 4 per weight.
    tokens, layers, width, length, vocabulary = 4 * 2048, 12, 768, 2048, 50304
    per_token = (
        layers * (6 * 12 * width**2 + 12 * width * length)
        + (6 + 4) * vocabulary * width
    )
    assert pax.layers is not None
    assert sum(item.flops for item in pax.products) == pytest.approx(
        tokens * per_token, rel=0.01
    )
