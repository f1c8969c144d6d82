"""What is captured of a program on CPUs, and what is said where that is not what a GPU run would
compile.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from pgle.errors import UserError, WorkloadError
from pgle.requests.shared import ForCompiler
from pgle.run.capture.capture import (
    Devices,
    capture_environment,
    capture_modules,
    devices_for,
)
from pgle.run.capture.captured import (
    PROGRAM,
    STOPPED,
    CapturedProgram,
    candidates,
    capture_warnings,
    choose_module,
    doubt_of,
    executed_alongside,
    module_name,
    modules_in,
    no_step,
    own_failure,
    read_captured,
    topology_of_step,
)
from pgle.run.capture.running import OUTPUT, progress
from pgle.run.hook import HOOK_SITE
from pgle.run.rehearse import Rehearsal
from pgle.run.rehearse_program import settle
from pgle.xla.hlo.dumps import read_module
from pgle.xla.targets import load_target

H100 = load_target("h100")

OFFLOAD = """
import jax, jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host")
def layer(x):
    return jnp.sin({inside}(checkpoint_name(x, "x")))
@jax.jit
def train_step(x):
    return jax.grad(lambda x: jax.checkpoint(layer, policy=policy)(x).sum())(x)
print(train_step(jnp.ones((8, 8))).shape)
"""

# A primitive that jax can lower for CPUs alone.
CPU_ONLY = """
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
only = Primitive("only")
only.def_abstract_eval(lambda x: x)
mlir.register_lowering(only, lambda _, x: [x], platform="cpu")
ad.deflinear2(only, lambda t, _: [t])
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """The module that a program executes again and again; a program of which several tests know a
    fact runs once.
    """

    @cache
    def capture(text: str) -> Path:
        folder = tmp_path_factory.mktemp("program")
        script = folder / "träin ing.py"
        script.write_text(text)
        words = [sys.executable, str(script)]
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv("XLA_FLAGS", raising=False)
            found = capture_modules(
                words, folder / "captured", target=H100, devices=Devices(2), quiet_s=60
            )
        return choose_module(found, None)

    return capture


def test_moves_to_host_memory_are_kept(captured):
    module = captured(OFFLOAD.format(inside="jnp.cos"))
    assert "train_step" in module.name
    assert "annotate_device_placement" in module.read_text()
    assert "pinned_host" in module.read_text()
    assert capture_warnings(module) == ()


def test_moves_that_cannot_be_lowered_for_gpus_are_a_warning_with_a_remedy(
    captured, capfd
):
    module = captured(CPU_ONLY + OFFLOAD.format(inside="only.bind"))
    assert "annotate_device_placement" not in module.read_text()
    (said,) = capture_warnings(module)
    assert "cannot lower jit_train_step for GPUs here" in said
    assert "JAX_DUMP_IR_TO" in said
    assert "(8, 8)" in (module.parent / OUTPUT).read_text()
    assert capfd.readouterr().err.count("pgle: warning:") == 1


MANY_OPERATIONS = """
import jax, jax.numpy as jnp
train_step = jax.jit(lambda x: jnp.tanh(x @ x))
for width in (8, 2048):
    x = jnp.ones((width, width))
    print(width, " dot(" in train_step.lower(x).compile().as_text())
    for _ in range(2): train_step(x)
"""


def test_a_small_step_of_many_operations_is_not_compiled_for_the_cpu(captured):
    module = captured(MANY_OPERATIONS)
    assert "tensor<2048x2048xf32>" in module.read_text()
    said = (module.parent / OUTPUT).read_text().splitlines()
    assert said == ["8 True", "2048 False"]


CALLS_BACK = """
import jax, jax.numpy as jnp, numpy as np
@jax.jit
def train_step(x):
    jax.debug.print("loss {}", x[0, 0])
    jax.debug.callback(lambda value: None, x[0, 0])
    add = lambda x: np.asarray(x) + 1
    same = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jnp.linalg.qr(jax.pure_callback(add, same, x))[0]
x = jnp.ones((8, 8))
for _ in range(3):
    x = train_step(x)
"""


def test_a_step_that_calls_back_to_python_is_lowered_for_gpus(captured):
    module = captured(CALLS_BACK)
    text = module.read_text()
    assert "python_gpu_callback" in text
    assert "lapack" not in text
    assert capture_warnings(module) == ()


def test_a_step_that_calls_back_to_python_still_does_so_on_the_cpu(captured):
    module = captured(CALLS_BACK)
    assert "loss 1.0" in (module.parent / OUTPUT).read_text()


def test_a_program_that_sets_no_flags_has_none_of_its_own(captured):
    module = captured(OFFLOAD.format(inside="jnp.cos"))
    assert capture_warnings(module) == ()
    assert read_captured(module.parent).xla_flags == ""


TWO = """
import jax, jax.numpy as jnp
@jax.jit
def create_model(x):
    return [x @ x * i for i in range(12)]
@jax.jit
def train_step(weights, x):
    return [w - jnp.tanh(x @ w) for w in weights[:3]] + weights[3:]
x = jnp.ones((8, 8))
weights = create_model(x)
"""
STEPS = "for _ in range(5): weights = step(weights, x)"
RANDOM = "for i in range(9): jax.random.normal(jax.random.key(i), 9)"


def test_a_module_is_read_once_however_often_it_is_looked_at(tmp_path, monkeypatch):
    module = tmp_path / "jax_ir0001_jit_step_compile.mlir"
    module.write_text(
        "func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>) { stablehlo.dot_general }"
    )
    (tmp_path / ".program.json").write_text(
        json.dumps({"version": [3, 11], "executed": {module.name: 9}})
    )
    read = []
    monkeypatch.setattr(
        "pgle.run.capture.captured.read_bytes",
        lambda path: read.append(path) or path.read_bytes(),
    )
    assert [doubt_of(choose_module(modules_in(tmp_path), None)) for _ in range(3)] == [
        ""
    ] * 3
    assert read == [module] * 2  # for collectives, and for products
    module.write_text(module.read_text().replace("dot_general", "add"))
    assert doubt_of(module) == "a module that returns parameters, as training does"


def test_a_module_that_was_asked_for_by_name_is_not_waited_for_longer(tmp_path):
    (tmp_path / "jax_ir0001_jit_infer_compile.mlir").write_text(
        "func.func public @main() -> () { }"
    )
    (tmp_path / ".program.json").write_text('{"python": "python", "version": [3, 11]}')
    asked, modules = ("jit_infer", "jit_train", None), modules_in(tmp_path)
    assert [progress(modules, name)[1] for name in asked] == [True, False, False]


@pytest.mark.parametrize(
    "step", ["train_step", "train_step.lower(weights, x).compile()"]
)
def test_the_step_is_what_is_executed_again_and_again(captured, step):
    module = captured(f"{TWO}step = {step}\n{STEPS}")
    assert module_name(module) == "jit_train_step"
    assert read_captured(module.parent).executed[module.name] == 5
    largest, *others = candidates(modules_in(module.parent))
    assert re.fullmatch(r"jit_create_model \(\d+ kB, once\)", largest)
    assert re.fullmatch(r"jit_train_step \(\d+ kB, 5 times\)", others[0])


def test_of_modules_executed_once_the_last_large_one_is_the_step(captured):
    module = captured(f"{TWO}{RANDOM}\ntrain_step(weights, x)")
    executed = read_captured(module.parent).executed
    assert [
        executed[path.name]
        for path in modules_in(module.parent)
        if "_model" in path.name
    ] == [1]
    assert executed[module.name] == 1
    assert module_name(module) == "jit_train_step"


FOR_GPUS = """
import os
os.environ.update(XLA_FLAGS="--xla_gpu_enable_triton_gemm=false", JAX_PLATFORMS="cuda")
import jax, jax.numpy as jnp, numpy as np
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
jax.config.update("jax_platforms", "cuda")
mesh = jax.sharding.Mesh(np.array(jax.devices("gpu")), ("data",))
x = jax.device_put(jnp.ones((8, 8)), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
train_step = jax.jit(lambda x: jnp.tanh(x @ x))
for _ in range(jax.local_device_count(backend="gpu")): x = train_step(x)
"""


def test_a_program_that_wants_gpus_and_sets_its_own_flags_gets_the_devices(captured):
    module = captured(FOR_GPUS)
    assert "mhlo.num_partitions = 2" in module.read_text()
    program = read_captured(module.parent)
    assert program.executed[module.name] == 2
    assert "--xla_gpu_autotune_level=0" in program.xla_flags


@pytest.mark.parametrize(
    "joined", ['flags + "{0}"', '"{0}" + flags'], ids=["behind", "in front"]
)
def test_a_program_adds_a_flag_without_a_blank_as_to_an_empty_variable(
    joined, captured
):
    own = joined.format("--xla_gpu_autotune_level=0")
    module = captured(f"""
import os
flags = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = {own}
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x))
for _ in range(2): step(jnp.ones((8, 8)))
""")
    flags = read_captured(module.parent).xla_flags.split()
    assert "--xla_gpu_autotune_level=0" in flags
    assert "--xla_force_host_platform_device_count=2" in flags


def test_what_a_program_asks_of_the_compiler_beside_xla_flags_is_kept_by_module(
    captured,
):
    module = captured("""
import jax, jax.numpy as jnp
jax.config.update("jax_optimization_level", "O1")
jax.config.update("jax_compiler_enable_remat_pass", False)
step = jax.jit(lambda x: jnp.tanh(x @ x), compiler_options={"xla_gpu_enable_triton_gemm": False})
for _ in range(2): step(jnp.ones((8, 8)))
""")
    asked = "--jax_optimization_level=O1 --xla_disable_hlo_passes=rematerialization --xla_gpu_enable_triton_gemm=false"
    assert read_captured(module.parent).flags_of(module) == asked


def test_a_script_that_replaces_pythonpath_is_told_to_keep_it(tmp_path):
    words = [
        "sh",
        "-c",
        f"PYTHONPATH=/ exec {shlex.quote(sys.executable)} -c 'raise SystemExit(3)'",
    ]  # without the hook
    with pytest.raises(
        WorkloadError, match=r"let it keep the old: PYTHONPATH=…:\$PYTHONPATH"
    ):
        capture_modules(
            words, tmp_path / "captured", target=H100, devices=Devices(1), quiet_s=60
        )


LOADER = """
import os, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
where = NamedSharding(jax.make_mesh((2,), ("data",)), P("data"))
shuffle, train_step = jax.jit(lambda x: jnp.tanh(x) + 1), jax.jit(lambda x: jnp.cos(x) @ x)
x = jax.device_put(jnp.ones((8, 8)), where)
for _ in range(200): shuffle(jnp.ones((8, 8)))
for _ in range(2): x = train_step(x)
os._exit(0)
"""


def test_the_step_is_counted_at_once_after_thousands_of_executions_of_what_loads_data(
    captured,
):
    module = captured(LOADER)
    assert "dot_general" in module.read_text()
    assert read_captured(module.parent).executed[module.name] == 2


@pytest.mark.parametrize(("loads", "times"), [(2561, 0), (2561, 1), (1, 0)])
def test_what_loads_data_for_one_device_is_not_the_step(tmp_path, loads, times):
    modules = [
        tmp_path / f"jax_ir000{i}_jit_{name}_compile.mlir"
        for i, name in enumerate(("shuffle", "train_step"))
    ]
    for module, devices, lines in zip(modules, (1, 8), (30, 400), strict=True):
        head = f"#loc = loc(unknown)\nmodule @m attributes {{mhlo.num_partitions = {devices} : i32}} {{\n"
        module.write_text(head + "  stablehlo.add\n" * lines)
    executed = {modules[0].name: loads, modules[1].name: times}
    program = {
        "version": [3, 12, 1],
        "executed": executed,
        "compiling": "" if times else modules[1].name,
    }
    (tmp_path / ".program.json").write_text(json.dumps(program))
    assert choose_module(modules, None) == modules[1]


EVALUATION = """
import jax, jax.numpy as jnp
def loss(w, x): return jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"])
w, x = {name: jnp.ones((8, 8)) for name in "ab"}, jnp.ones((4, 8))
evaluate, train_step = jax.jit(lambda w, x: loss(w, x)), jax.jit(jax.grad(loss))
for _ in range(300): evaluate(w, x)
for _ in range(2): w = train_step(w, x)
"""


def test_hundreds_of_evaluations_before_the_first_training_step_are_not_the_step(
    captured,
):
    module = captured(EVALUATION)
    executed = read_captured(module.parent).executed
    assert executed[module.name] == 2
    assert 300 in executed.values()


SPLIT = '%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>}'


@pytest.mark.parametrize(
    ("main", "body", "is_step"),
    [
        ("%arg0: tensor<8xf32>", "stablehlo.all_reduce", True),
        (SPLIT, "stablehlo.dot_general", True),
        (SPLIT, "stablehlo.add", False),
        ("%arg0: tensor<8xf32>", "stablehlo.dot_general", False),
    ],
)
def test_a_module_that_communicates_goes_before_one_that_is_executed_more_often(
    tmp_path, main, body, is_step
):
    """brax trains so: an evaluation on one device, executed hundreds of times, and one epoch on all
    of them.
    """
    modules = [
        tmp_path / f"jax_ir000{i}_jit_{name}_compile.mlir"
        for i, name in enumerate(("evaluate", "epoch", "log"))
    ]
    for module, line, inside in zip(
        modules, ("", main, ""), ("stablehlo.dot_general", body, ""), strict=True
    ):
        head = "module @m attributes {mhlo.num_partitions = 1 : i32} {\n"
        module.write_text(
            f"{head}func.func public @main({line}) -> () {{\n" + f"  {inside}\n" * 9
        )
    executed = {modules[0].name: 200, modules[2].name: 200}
    (tmp_path / ".program.json").write_text(
        json.dumps({"version": [3, 12, 1], "executed": executed})
    )
    assert choose_module(modules, None) == modules[is_step]


PARTITIONS_ITSELF = """
import jax, jax.numpy as jnp
from jax.experimental import mesh_utils
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
try: mesh_utils.create_hybrid_device_mesh((1, 4), (4, 1), process_is_granule=True)
except ValueError as error: raise SystemExit(error)
devices = mesh_utils.create_hybrid_device_mesh((1, 8), (2, 1), allow_split_physical_axes=True)
assert [device.slice_index for device in devices[1]] == [1] * 8
assert {device.process_index for device in jax.devices()} == {jax.process_index()}, "as jax.process_count() says"
mesh = Mesh(devices, ("data", "fsdp"))
norm = custom_partitioning(lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)))
norm.def_partition(
    infer_sharding_from_operands=lambda mesh, arguments, result: arguments[0].sharding,
    partition=lambda mesh, arguments, result: (mesh, norm.fun, arguments[0].sharding, (arguments[0].sharding,)),
    sharding_rule="i j -> i j")
rows = NamedSharding(mesh, P(("data", "fsdp")))
split = jax.device_put(jnp.arange(32).reshape(16, 2), rows)
assert [shard.data.tolist() for shard in split.addressable_shards] == [[[2 * i, 2 * i + 1]] for i in range(16)]
assert jax.pmap(lambda x: x.sum())(jnp.arange(32).reshape(16, 2)).tolist() == list(range(1, 64, 4))
step = jax.jit(lambda w, x: (w, norm(x @ w)))
w, x = jax.device_put((jnp.ones((512, 512)), jnp.ones((1024, 512))), (NamedSharding(mesh, P()), rows))
for _ in range(2): w, x = step(w, x)
"""


@pytest.mark.rehearse
def test_a_program_partitions_its_own_operations_on_a_mesh_of_several_slices(tmp_path):
    words = [sys.executable, "-c", PARTITIONS_ITSELF]
    devices = devices_for(None, topology="2x2x4")
    chosen = choose_module(
        capture_modules(
            words, tmp_path / "captured", target=H100, devices=devices, quiet_s=60
        ),
        None,
    )
    assert "CustomSPMDPartitioning" in chosen.read_text()
    assert not list(chosen.parent.glob("*_multi_slice_*")), (
        "XLA takes minutes to cut an array for 2,048 devices"
    )
    program = read_captured(chosen.parent)
    request = settle([chosen], ForCompiler(), program, H100, tmp_path, topology="2x2x4")
    compiled = request.compilation().module
    module = read_module(compiled)
    shapes = {item.opcode: item.shape.dimensions for item in module.walk()}
    assert shapes["rsqrt"] == (64, 1), "of 1024 rows each of 16 devices has 64"
    assert not [
        item.name
        for item in module.walk()
        if item.opcode in ("all-gather", "custom-call")
    ]


STATE_FOR_LOSS = "module @m {\n  func.func public @main(%arg0: tensor<8xf32>) -> (tensor<{}f32>) {\n    dot_general\n"


def test_a_training_step_that_was_compiled_again_is_taken_as_it_was_compiled_last(
    tmp_path,
):
    names = ("evaluate", "train_step", "train_step", "evaluate")
    modules = [
        tmp_path / f"jax_ir000{i}_jit_{name}_compile.mlir"
        for i, name in enumerate(names)
    ]
    for module in modules:
        module.write_text(STATE_FOR_LOSS.replace("{}", "8x" * ("train" in module.name)))
    executed = {
        path.name: times for path, times in zip(modules, (61, 1, 1, 2), strict=True)
    }
    (tmp_path / ".program.json").write_text(
        json.dumps({"version": [3, 12, 1], "executed": executed})
    )
    assert choose_module(modules, None) == modules[2]


def test_what_jax_makes_random_numbers_with_is_not_the_step(captured):
    module = captured(f"{TWO}{RANDOM}\ntrain_step(weights, x)")
    assert module_name(module) == "jit_train_step"
    assert any("_normal" in name for name in read_captured(module.parent).of_jax)


def test_a_program_without_a_step_of_its_own_is_a_warning(tmp_path):
    module = tmp_path / "jax_ir0000_jit__multi_slice_compile.mlir"
    module.write_text("module @jit__multi_slice {}")
    (tmp_path / ".program.json").write_text(
        json.dumps({"version": [3, 12, 1], "of_jax": [module.name]})
    )
    (said,) = capture_warnings(module)
    assert said.startswith(
        "the program compiled no step: jit__multi_slice is a function of jax's own; "
        "compile the step with jax.jit, wait longer"
    )


@pytest.mark.parametrize(
    ("counts", "topology", "said"),
    [
        ({"partitions": 8, "replicas": 1}, "1x2x4", ""),
        ({"partitions": 1, "replicas": 8}, "1x2x4", ""),
        (
            {"partitions": 2, "replicas": 1},
            "1x1x2",
            "is for 2 devices, as the program has it, and not for 8",
        ),
        ({"partitions": 1, "replicas": 1}, "1x1x1", "its arrays are on one"),
        ({}, "1x2x4", ""),
    ],
)
def test_a_step_is_for_the_devices_that_its_program_took(
    tmp_path, counts, topology, said
):
    module = tmp_path / "jax_ir0001_jit_step_compile.mlir"
    numbers = ", ".join(
        f"mhlo.num_{name} = {count} : i32" for name, count in counts.items()
    )
    module.write_text(f"module @jit_step attributes {{{numbers}}} {{\n")
    assert topology_of_step(module, "1x2x4")[0] == topology
    assert said in "".join(topology_of_step(module, "1x2x4")[1])


@pytest.mark.parametrize(
    ("ending", "product"),
    [
        ("txt", b"  d = f32[8] dot(a, b)\n"),
        ("hlo.pb", b"\x12\x03dot\x1a"),
        ("mlir", b"  stablehlo.dot_general %1\n"),
    ],
)
def test_what_makes_the_parameters_is_not_the_step_of_a_dump(tmp_path, ending, product):
    init, step = (
        tmp_path / f"module_000{i}.jit_{name}.before_optimizations.{ending}"
        for i, name in enumerate("ab")
    )
    init.write_bytes(b"  a = f32[8] add(b, c)\n" * 9 + b" init_dot_general ")
    step.write_bytes(b"  a = f32[8] add(b, c)\n" * 7 + product)
    assert choose_module((init, step), None) == step


@pytest.mark.parametrize(
    ("times", "returned", "missing"),
    [
        (1, "8x8xf32", "a module twice"),
        (2, "f32", "a module that returns parameters"),
        (2, "8x8xf32", None),
    ],
)
def test_of_a_program_that_was_stopped_before_its_step_the_choice_is_called_a_guess(
    tmp_path, times, returned, missing
):
    module = tmp_path / "jax_ir0000_jit_init_compile.mlir"
    main = f"  func.func public @main(%arg0: tensor<8x8xf32>, %arg1: tensor<i32>) -> (tensor<{returned}>) {{\n"
    module.write_text(
        f"module @jit_init {{\n{main}    %0 = stablehlo.dot_general %arg0, %arg0\n"
    )
    (tmp_path / ".stopped").touch()
    (tmp_path / ".program.json").write_text(
        json.dumps({"version": [3, 12], "executed": {module.name: times}})
    )
    warnings = [
        line for line in capture_warnings(module) if "before it executed" in line
    ]
    assert [f"before it executed {missing}" in line for line in warnings] == [
        True
    ] * bool(missing)


@pytest.mark.parametrize(("choose", "good"), [(None, False), ("jit_init", True)])
def test_a_rehearsal_of_what_is_no_step_is_not_good_unless_it_was_named(
    tmp_path, choose, good
):
    module = tmp_path / "jax_ir0000_jit_init_compile.mlir"
    module.write_text(
        "module @jit_init {\n  func.func public @main(%arg0: tensor<i32>) -> (tensor<8xf32>) {\n"
    )
    (tmp_path / ".stopped").touch()
    program = {
        "python": sys.executable,
        "version": [3, 12],
        "executed": {module.name: 1},
    }
    (tmp_path / ".program.json").write_text(json.dumps(program))
    asked = ForCompiler(module=choose)
    request = settle([module], asked, read_captured(tmp_path), H100, tmp_path)
    found = SimpleNamespace(request=request, used=True, moves=(), lower_bound_why="")
    found.holds = Rehearsal.holds.fget(found)
    assert Rehearsal.good.fget(found) == good


def test_a_module_is_chosen_by_its_name(captured):
    modules = modules_in(captured(f"{TWO}step = train_step\n{STEPS}").parent)
    assert module_name(choose_module(modules, "jit_create_model")) == "jit_create_model"
    assert module_name(choose_module(modules, "create")) == "jit_create_model"
    with pytest.raises(UserError) as refused:
        choose_module(modules, "nosuch")
    assert all(module_name(path) in str(refused.value) for path in modules)


def test_the_programs_python_is_known(captured):
    program = read_captured(captured(OFFLOAD.format(inside="jnp.cos")).parent)
    assert (program.python, program.version) == (sys.executable, sys.version_info[:3])
    assert program.jaxlib == metadata.version("jaxlib")


def test_a_program_that_fails_before_its_step_passes_its_exit_code_on(captured):
    with pytest.raises(
        WorkloadError, match=r"ended with exit code 3 before any step ran twice"
    ) as failed:
        captured(
            "import jax.numpy as jnp\nfor _ in range(3): jnp.dot(jnp.ones(3), jnp.ones(3))\nraise SystemExit(3)"
        )
    assert failed.value.exit_code == 3


def test_a_program_that_a_signal_ends_passes_on_what_a_shell_says(tmp_path):
    with pytest.raises(WorkloadError, match="was ended by SIGSEGV before") as raised:
        capture_modules(
            ["sh", "-c", "kill -SEGV $$"],
            tmp_path / "captured",
            target=H100,
            devices=Devices(1),
            quiet_s=60,
        )
    assert raised.value.exit_code == 128 + 11


RANKS = """
import os, subprocess, sys
if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))
import jax, jax.numpy as jnp
jax.distributed.initialize("localhost:%d", 2, int(os.environ["RANK"]))
assert (jax.device_count(), jax.local_device_count()) == (2, 1), jax.devices()
step = jax.jit(lambda x: x * 2)
for _ in range(3): step(jnp.ones(3))
"""


SEES_A_GPU = """
import jax, jax.numpy as jnp
from jax.extend.backend import get_backend
jax.distributed.initialize()
assert (jax.process_count(), jax.device_count()) == (1, 2)
device = jax.devices()[0]
assert {jax.default_backend(), get_backend().platform, device.platform, device.client.platform} == {"gpu"}
peak = {"NVIDIA H100 80GB HBM3": 989e12}[device.device_kind]
assert device.compute_capability == "9.0" and 60e9 < device.memory_stats()["bytes_limit"] < 64e9
def loss(x):
    kept = jnp.where(jax.random.bernoulli(jax.random.key(0), 0.9, x.shape), x, 0)
    kind = "cudnn" if device.platform == "gpu" else None
    attended = jax.nn.dot_product_attention(kept, kept, kept, implementation=kind)
    return jnp.sum(attended.astype(jnp.float32))
train_step = jax.jit(lambda x: x - 1e-3 * jax.grad(loss)(x))
x = jnp.ones((2, 128, 4, 64), jnp.bfloat16)
for _ in range(2): x = train_step(x)
large = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((8192, 8192), jnp.float32)).compile()
assert large.cost_analysis()["flops"] == 2 * 8192 ** 3
"""


def test_a_program_sees_the_gpu_that_it_is_captured_for(captured, monkeypatch):
    monkeypatch.setenv(
        "SLURM_PROCID", "0"
    )  # pgle itself is in an allocation, nothing started the program four times
    monkeypatch.setenv("SLURM_NTASKS", "4")
    module = captured(SEES_A_GPU)
    assert module_name(module) == "jit__lambda"
    assert "__cudnn$fmha" in module.read_text(), "attention as GPUs have it"
    assert "stablehlo.while" not in module.read_text(), (
        "random bits are loops on CPUs alone"
    )


FINDS_CUDNN = """
import jax, jax.numpy as jnp
def attend(x):
    try:
        return jax.nn.dot_product_attention(x, x, x, implementation="cudnn")
    except RuntimeError as error:
        assert "cuDNN is not detected" in str(error)
        return jnp.sin(x)
train_step = jax.jit(attend)
x = jnp.ones((2, 128, 4, 64), jnp.bfloat16)
for _ in range(2): x = train_step(x)
"""


def test_a_program_finds_no_cudnn_on_gpus_of_amd(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FINDS_CUDNN)
    found = capture_modules(
        [sys.executable, str(script)],
        tmp_path / "captured",
        target=load_target("mi350x"),
        devices=Devices(1),
        quiet_s=60,
    )
    assert "stablehlo.sine" in choose_module(found, None).read_text()


def test_processes_of_one_job_share_its_devices_and_the_first_is_captured(captured):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    module = captured(RANKS % port)
    assert [
        path.name for path in modules_in(module.parent) if "lambda" in path.name
    ] == [module.name]


def test_what_a_stopped_program_started_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("pgle.run.capture.running.GRACE_S", 0.2)
    folder = tmp_path / "captured"
    rank = "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done"
    dump = "echo 'module @jit_f' > captured/jax_ir0001_jit_f_compile.mlir"
    launcher = f"cd {tmp_path}; (exec sh -c {shlex.quote(rank)}) & {dump}; wait"
    capture_modules(
        ["sh", "-c", launcher], folder, target=H100, devices=Devices(1), quiet_s=0.2
    )
    with pytest.raises(ProcessLookupError):
        while True:  # until init has taken note of its end
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_on_a_machine_with_more_work_than_cores_a_program_has_more_time(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "os.getloadavg", lambda: (100.0 * (os.cpu_count() or 1), 0.0, 0.0)
    )
    one, two = (f"echo 'module @jit_{name}' > {tmp_path}/captured/jax_ir000{at}_jit_{name}_compile.mlir"
                for at, name in enumerate("fg"))  # fmt: skip
    words = ["sh", "-c", f"{one}; sleep 1; {two}"]
    found = capture_modules(
        words, tmp_path / "captured", target=H100, devices=Devices(1), quiet_s=0.1
    )
    assert [module_name(path) for path in found] == ["jit_f", "jit_g"]


def test_a_program_that_fails_after_steps_is_rehearsed_with_a_warning(captured):
    module = captured(
        f"{TWO}for _ in range(5): weights = train_step(weights, x)\nraise SystemExit(3)"
    )
    (said,) = capture_warnings(module)
    assert said.endswith("ended with exit code 3 after its step was executed")
    assert own_failure(module.parent) == (3, "")


WAITS = """
import time, jax, jax.numpy as jnp
x = jnp.ones((64, 64))
%s
for _ in range(3): y = matmul(x, x)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("from jax.numpy import matmul", "jit_matmul is a function of jax's own"),
        ("@jax.jit\ndef matmul(x, y): return x @ y", ""),
    ],
    ids=["of jax", "of the program, by the same name"],
)
def test_a_function_of_jax_itself_is_no_step_of_a_program_that_was_stopped(
    function, why, tmp_path
):
    script = tmp_path / "waits.py"
    script.write_text(WAITS % function)
    found = capture_modules(
        [sys.executable, str(script)],
        tmp_path / "captured",
        target=H100,
        devices=Devices(1),
        quiet_s=2,
    )
    said = no_step(choose_module(found, None))
    assert said.endswith(why) if why else not said


UPDATED = f"""{TWO}
update = jax.jit(lambda w: [x * 2 for x in w])
for _ in range(5): weights = update(train_step(weights, x))
raise RuntimeError("late")
"""


def test_a_function_that_is_executed_in_every_step_too_is_named(captured):
    module = captured(UPDATED)
    assert module_name(module) == "jit_train_step"
    said = " ".join(capture_warnings(module))
    assert "as often as jit_train_step or more" in said
    assert "these figures leave out jit__lambda, executed" in said


def test_a_function_that_is_executed_before_or_after_all_steps_is_not_named(captured):
    evaluates = "for _ in range(9): evaluate(weights[0])"
    module = captured(f"""{TWO}
evaluate = jax.jit(lambda w: (w @ w).sum())
{evaluates}
for _ in range(5): weights = train_step(weights, x)
{evaluates.replace("evaluate(", "jnp.dot(x, ")}
""")
    assert module_name(module) == "jit_train_step"
    assert executed_alongside(module) == ()


def test_an_exception_of_a_program_whose_modules_were_all_executed_is_its_own(captured):
    code, error = own_failure(captured(UPDATED).parent)
    assert code == 1
    assert error.startswith("RuntimeError: late")


def test_a_folder_of_xlas_dumps_has_the_modules_before_optimisation(tmp_path):
    for name in (
        "module_0001.jit_f.before_optimizations.hlo.pb.xz",
        "module_0001.jit_f.sm_9.0_gpu_after.hlo.pb",
    ):
        (tmp_path / name).write_bytes(b"x")
    (found,) = modules_in(tmp_path, dumps=True)
    assert module_name(found) == "jit_f"


def test_a_folder_without_modules_says_how_to_get_some(tmp_path):
    with pytest.raises(
        UserError, match=r"no module is dumped there; dump them with JAX_DUMP_IR_TO=DIR"
    ):
        modules_in(tmp_path, dumps=True)


LARGE = """
import jax, jax.numpy as jnp, numpy as np, resource
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("x",))
rows = NamedSharding(mesh, P("x"))
@functools.partial(jax.jit, out_shardings={shardings})
def create_model(key):
    return [jax.random.normal(k, (65536, 65536), jnp.bfloat16) for k in jax.random.split(key, 4)], jax.random.key(7)
@jax.jit
def train_step(weights, x):
    x = jax.ffi.ffi_call("of_a_gpu_alone", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
    return [w - 1e-3 * jnp.tanh(x.T @ (x @ w)) for w in weights], jnp.sum(x)
weights, key = create_model(jax.random.key(0))
x = jnp.ones((8, 65536), jnp.bfloat16)
sharding = weights[0].sharding
for _ in range(3):
    weights, loss = train_step(weights, x)
assert weights[0].sharding.is_equivalent_to(sharding, 2), weights[0].sharding
assert weights[0].shape == (65536, 65536) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
small = jax.jit(lambda x: x + 1)(jnp.arange(3))
assert small.tolist() == [1, 2, 3], "small modules are computed"
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20, "kB, of 32 GiB of weights"
{more}
"""


@pytest.mark.parametrize("shardings", ["([rows] * 4, None)", "None"])
def test_a_model_larger_than_the_machine_is_captured(captured, capfd, shardings):
    module = captured("import functools" + LARGE.format(shardings=shardings, more=""))
    assert module_name(module) == "jit_train_step"
    assert "tensor<65536x65536xbf16>" in module.read_text()
    assert (
        "not executed on the CPU, their results were zeros: jit(create_model), jit(train_step)"
        in (capfd.readouterr().err)
    )


COUNTED = """
import jax, jax.numpy as jnp
steps = int(jax.jit(lambda x: (x @ x)[0, 0])(jnp.ones((2048, 2048))))
assert steps == 2048, steps
step = jax.jit(lambda x: jnp.sin(x))
x = jnp.ones((8, 8))
for _ in range(3):
    x = step(x)
"""

STOPS_AT_ZERO = """
import jax, jax.numpy as jnp
train_step = jax.jit(lambda w: w + w @ w)
assert train_step(jnp.ones((2048, 2048)))[0, 0] > 0
"""


def test_a_program_whose_check_of_its_first_step_fails_by_zeros_is_captured(captured):
    module = captured(STOPS_AT_ZERO)
    assert "ended with exit code 1" in capture_warnings(module)[0]
    assert capture_warnings(module)[0].endswith("zeros for its results may be why")
    assert own_failure(module.parent) == (0, "")


@pytest.fixture
def of_hook(monkeypatch):
    """Imports a module of the hook."""
    monkeypatch.syspath_prepend(str(HOOK_SITE))
    yield lambda name: importlib.import_module(f"pgle_hook.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "pgle_hook"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("error", "may"),
    [
        ("AssertionError", True),
        ("ValueError: loss is 0 (train.py, line 3)", True),
        ("Diverged: (train.py, line 3)", True),
        ("KeyError: 'flops' (train.py, line 41)", False),
        ("ModuleNotFoundError: No module named 'x' (train.py, line 1)", False),
        ("", False),
    ],
)
def test_which_exceptions_zeros_may_cause(error, may):
    assert CapturedProgram(uncomputed=("jit_init",), error=error).by_zeros == may
    assert not CapturedProgram(error=error).by_zeros
    traced = CapturedProgram(uncomputed=("jit_init",), error=error, traced=True)
    assert not traced.by_zeros


def test_an_exception_while_jax_traces_has_seen_no_numbers(of_hook):
    jax = pytest.importorskip("jax")
    private = of_hook("jax_private")

    def fails(x):
        raise ValueError("a shape is wrong")

    for call, is_traced in ((fails, False), (jax.jit(fails), True)):
        with pytest.raises(ValueError, match="shape") as raised:
            call(1.0)
        assert private.is_traced(raised.value) == is_traced


def test_jaxs_own_error_over_a_tree_has_seen_no_numbers(of_hook):
    jax = pytest.importorskip("jax")
    private = of_hook("jax_private")

    def differs():
        jax.tree.map(lambda x, y: x, {"a": 1}, {"b": 1})

    def is_split():
        jax.jit(lambda x: x, in_shardings=({"a": None},))([1.0])

    def is_zero():
        raise ValueError("loss is 0")

    for fails, is_own in ((differs, True), (is_split, True), (is_zero, False)):
        with pytest.raises(ValueError) as raised:
            fails()
        assert private.is_traced(raised.value) == is_own


@pytest.mark.parametrize(
    ("work", "found"),
    [("exec sleep 600", False), ("echo > m.after_spmd_partitioner.hlo.pb", True)],
)
def test_a_child_that_partitions_is_ended_once_it_has_written_the_module_or_hangs(
    of_hook, tmp_path, monkeypatch, work, found
):
    partition = of_hook("for_gpus")
    monkeypatch.setattr(partition, "IDLE_S", 0.3)
    child = subprocess.Popen(["sh", "-c", f"{work}; exec sleep 600"], cwd=tmp_path)
    assert bool(partition._dumped(child.pid, str(tmp_path))) == found
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.parametrize(
    ("code", "error", "may"),
    [
        (1, "", True),
        (1, "AssertionError", True),
        (1, "KeyError: 'flops'", False),
        (137, "", False),
    ],
)
def test_a_failed_program_learns_how_to_have_all_computed_if_zeros_may_be_why(
    tmp_path, monkeypatch, code, error, may
):
    def wait(child, folder, **_):
        child.wait()
        (folder / "jax_ir0001_jit_init_compile.mlir").write_text("module @jit_init")
        program = {
            "python": "python",
            "version": [3, 12],
            "uncomputed": ["jit_step"],
            "error": error,
        }
        (folder / ".program.json").write_text(json.dumps(program))
        return code

    monkeypatch.setattr("pgle.run.capture.running.wait_or_stop", wait)
    with pytest.raises(WorkloadError, match="before any step ran twice") as failed:
        capture_modules(
            ["true"], tmp_path / "captured", target=H100, devices=Devices(1), quiet_s=60
        )
    assert str(failed.value).endswith("PGLE_COMPUTE=1 executes all") == may


def test_the_exception_that_ended_a_program_is_named_and_assumed_devices_are(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    words = [sys.executable, "-c", "import jax.numpy as jnp; jnp.ones(3)\n{}['flops']"]
    with pytest.raises(WorkloadError) as failed:
        capture_modules(
            words,
            tmp_path / "captured",
            target=H100,
            devices=devices_for(None),
            quiet_s=60,
        )
    why = "ended with exit code 1 (KeyError: 'flops' (<string>, line 2)) before any step ran twice"
    assert why in str(failed.value)
    assert str(failed.value).endswith(
        "it had 4 devices, which is assumed: --devices N gives it others"
    )


@pytest.mark.parametrize(
    ("asked", "exported", "devices"),
    [
        (None, None, Devices(4, assumed=True)),
        (None, 2, Devices(2)),
        (8, None, Devices(8)),
        (8, 8, Devices(8)),
        (8, 4, Devices(8)),
    ],
)
def test_devices_are_those_asked_for_then_exported_then_assumed(
    asked, exported, devices, tmp_path, monkeypatch
):
    flag = (
        "" if exported is None else f"--xla_force_host_platform_device_count={exported}"
    )
    monkeypatch.setenv("XLA_FLAGS", f"--xla_a=1 {flag}")
    assert devices_for(asked) == devices
    flags = capture_environment(tmp_path, devices, H100)["XLA_FLAGS"].split()
    assert flags[:2] == [
        "--xla_a=1",
        f"--xla_force_host_platform_device_count={devices.count}",
    ]


def test_a_program_that_needs_the_results_gets_them_if_all_is_to_be_computed(
    captured, monkeypatch
):
    monkeypatch.setenv("PGLE_COMPUTE", "1")
    module = captured(COUNTED)
    assert read_captured(module.parent).executed[module.name] == 3


@pytest.mark.parametrize(
    "text",
    ["[]", "7", '{"version": 3}', '{"executed": {"x": "y"}}', "[" * 100_000, "{}"],
)
def test_of_a_damaged_record_of_a_program_nothing_is_known(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / ".program.json").write_text(text)
    assert read_captured(tmp_path) == CapturedProgram()


@pytest.mark.parametrize("is_written_in_jax", [True, False])
@pytest.mark.parametrize("is_jitted", [True, False])
@pytest.mark.parametrize("is_stopped", [True, False])
def test_what_is_of_jax_is_never_chosen_over_a_step(
    is_written_in_jax: bool, is_jitted: bool, is_stopped: bool, tmp_path: Path
) -> None:
    names = [f"jax_ir000{at}_jit_{name}_compile.mlir" for at, name in ((1, "matmul"), (2, "f"))]  # fmt: skip
    product = "  %0 = stablehlo.dot_general %arg0, %arg0\n"
    matmul, other = (tmp_path / name for name in names)
    matmul.write_text(f"module @jit_matmul {{\n{product * 40}}}\n")
    other.write_text(f"module @jit_f {{\n{product * 20}}}\n")
    sites = [{"kind": "jit", "where": "a.py:1", "now": "matmul"}] if is_jitted else []
    noted = {
        "executed": {matmul.name: 9, other.name: 9},
        "of_jax": [matmul.name],
        "in_jax": [matmul.name] if is_written_in_jax else [],
        "sites": sites,
    }
    (tmp_path / PROGRAM).write_text(json.dumps(noted))
    if is_stopped:
        (tmp_path / STOPPED).touch()
    is_of_jax = no_step(matmul).endswith("a function of jax's own")
    assert choose_module([matmul, other], None) == (other if is_of_jax else matmul)
