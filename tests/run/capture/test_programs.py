"""Programs that end early, fail, wait or are compiled again: what is captured of them, and what is
said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.errors import UserError, WorkloadError
from pgle.run.capture import running
from pgle.run.capture.capture import Devices, capture_modules
from pgle.run.capture.captured import (
    PROGRAM,
    STOPPED,
    CapturedProgram,
    capture_warnings,
    choose_module,
    module_name,
    modules_in,
    own_failure,
    read_captured,
)
from pgle.run.capture.running import (
    OUTPUT,
    STDERR,
    ProgramOutput,
    doing,
    patience_s,
    run_program,
)
from pgle.run.process import terminal
from pgle.xla.targets import load_target

H100 = load_target("h100")
WAITS = {"quiet_s": 1e6, "choose": None, "until_step": False, "output": STDERR}


@pytest.fixture
def captured(tmp_path, monkeypatch):
    """The folder of what a program's text compiles, given its words after the script."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)

    def capture(text: str, *words: str, devices: int = 2) -> Path:
        script = tmp_path / "train.py"
        script.write_text(text)
        folder = tmp_path / "captured"
        command = [sys.executable, str(script), *words]
        capture_modules(
            command, folder, target=H100, devices=Devices(devices), quiet_s=60
        )
        return folder

    return capture


def step_of(folder: Path) -> str:
    return module_name(choose_module(modules_in(folder), None))


# The loss is large enough not to be executed, and so is what trains.
VALIDATES_FIRST = """
import sys, jax, jax.numpy as jnp
def loss(w, x): return (1.0 - jnp.tanh(x @ w)).mean() ** 2 + 1.0
def update(w, x):
    value, slope = jax.value_and_grad(loss)(w, x)
    return w - slope, value
w = x = jnp.zeros((2048, 2048))
evaluate, train = jax.jit(loss), jax.jit(update)
if "aot" in sys.argv: train = train.lower(w, x).compile()
for step in range(6):
    if step % 2 == 0 and float(evaluate(w, x)) < 1e-4: break
    w, value = train(w, x)
"""


@pytest.mark.parametrize("how", ["jit", "aot"])
def test_a_program_that_zeros_end_before_it_trains_is_run_again_with_ones(
    captured, capfd, how
):
    folder = captured(VALIDATES_FIRST, how)
    assert step_of(folder) == "jit_update"
    assert read_captured(folder).ones
    assert "running it again with ones" in capfd.readouterr().err
    assert [path.name for path in folder.parent.iterdir() if "-ones" in path.name] == []


def test_a_program_that_divides_by_a_result_is_run_again_with_ones_and_is_no_failure(
    captured,
):
    folder = captured("""
import jax, jax.numpy as jnp
train = jax.jit(lambda w: (w - w @ w, (w @ w).sum()))
w = jnp.zeros((2048, 2048))
for step in range(3):
    w, total = train(w)
    1.0 / float(total)
""")
    assert own_failure(folder) == (0, "")
    assert (
        read_captured(folder).executed[choose_module(modules_in(folder), None).name]
        == 3
    )


def test_an_exception_that_comes_with_zeros_and_with_ones_is_the_programs_own(captured):
    folder = captured("""
import jax, jax.numpy as jnp
train = jax.jit(lambda w: w - w @ w)
w = jnp.zeros((2048, 2048))
for step in range(9):
    w = train(w)
    if step == 5: raise ValueError("bad batch")
""")
    assert own_failure(folder) == (1, "ValueError: bad batch (train.py, line 7)")


def test_a_training_step_that_was_compiled_and_never_ran_beats_a_smaller_evaluation(
    tmp_path,
):
    takes, gives = "(%arg0: tensor<4xf32>, %arg1: tensor<8xf32>)", "(tensor<f32>)"
    texts = {
        "loss": f"func.func public @main{takes} -> {gives} {{ stablehlo.dot_general }}",
        "train": f"func.func public @main{takes} -> (tensor<4xf32>, tensor<8xf32>) "
        "{ stablehlo.dot_general stablehlo.dot_general }",
    }
    names = [
        f"jax_ir000{at}_jit_{name}_compile.mlir"
        for at, name in enumerate(("train", "loss"))
    ]
    for name in names:
        (tmp_path / name).write_text(texts[name.split("_")[3]])
    (tmp_path / ".program.json").write_text(f'{{"executed": {{"{names[1]}": 4}}}}')
    assert step_of(tmp_path) == "jit_train"


def test_what_only_gpus_can_compile_is_not_executed_however_small(captured):
    folder = captured("""
import jax, jax.numpy as jnp
@jax.jit
def train(x):
    return jax.ffi.ffi_call("of_a_gpu_alone", jax.ShapeDtypeStruct(x.shape, x.dtype))(x @ x)
x = jnp.ones((8, 8))
for _ in range(3): x = train(x)
""")
    assert step_of(folder) == "jit_train"
    assert "of_a_gpu_alone" in choose_module(modules_in(folder), None).read_text()
    assert read_captured(folder).uncomputed == ["jit(train)"]


def test_results_in_memory_of_the_host_are_there(captured, capfd):
    captured("""
import jax, jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
host = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
x = jnp.zeros((4096, 4096))
kept = jax.jit(lambda x: x @ x, out_shardings=host)(x)
assert kept.sharding.memory_kind == "pinned_host", kept.sharding
""")
    assert "hook failed" not in capfd.readouterr().err


GIVE = "give it the same arguments each time"
COMPILED_AGAIN = """
import functools, jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
@functools.partial(jax.jit, static_argnames="layers")
def train(w, rate, layers):
    return w - rate * layers * (w @ w)
w = jnp.ones((8, 8))
mesh = jax.make_mesh((2,), ("data",))
split = jax.device_put(w, NamedSharding(mesh, P("data")))
everywhere = NamedSharding(mesh, P())
for _ in range(2): train({first})
for _ in range(2): train({second})
"""


@pytest.mark.parametrize(
    ("first", "second", "why", "remedy"),
    [
        (
            "w, 0.1, layers=1",
            "w, jnp.float32(0.1), layers=1",
            "rate was weakly typed float32[] and is float32[]",
            GIVE,
        ),
        (
            "w, 0.1, layers=1",
            "w, 0.1, layers=2",
            "layers was static 1 and is static 2",
            GIVE,
        ),
        (
            "w, 0.1, layers=1.",
            "w, 0.1, layers=2.",
            "layers was static 1.0 and is static 2.0",
            "pass layers as an array, and not as static argument",
        ),
        (
            "w, 0.1, layers=1",
            "w[:4, :4], 0.1, layers=1",
            "w was float32[8,8] and is float32[4,4]",
            GIVE,
        ),
        (
            "w, 0.1, layers=1",
            "split, 0.1, layers=1",
            "w was float32[8,8] and is float32[8,8] sharded P('data')",
            "before the first step, jax.device_put it where the step returns it",
        ),
        (
            "split, jnp.float32(0.1), layers=1",
            "split, jax.device_put(jnp.float32(0.1), everywhere), layers=1",
            "rate was float32[] and is float32[] on every device of the mesh",
            "before the first step, jax.device_put it where the step returns it",
        ),
    ],
)
def test_a_step_that_is_compiled_twice_is_named_with_the_argument(
    captured, first, second, why, remedy
):
    folder = captured(COMPILED_AGAIN.format(first=first, second=second))
    (said,) = capture_warnings(choose_module(modules_in(folder), None))
    assert said == f"train is compiled 2 times: {why}; {remedy}"


def test_a_function_that_is_jitted_in_every_step_is_told_to_be_jitted_once(captured):
    folder = captured("""
import jax, jax.numpy as jnp
w = jnp.ones((8, 8))
for _ in range(3): w = jax.jit(lambda w: w - w @ w)(w)
""")
    (said,) = capture_warnings(choose_module(modules_in(folder), None))
    assert said.endswith(
        "each call has a new function object; call jax.jit once, outside the loop"
    )


@pytest.mark.parametrize(("is_known", "waited_s"), [(True, 20.0), (False, 150.0)])
def test_a_busy_machine_gives_time_to_reach_a_step_and_none_after_it(
    is_known, waited_s
):
    assert patience_s(20.0, load=7.5, is_known=is_known) == waited_s


PMAPPED = """
import jax, jax.numpy as jnp
@jax.pmap
def train(state, x): return {"w": state["w"] - x @ state["w"]}
@jax.pmap
def evaluate(state, x): return (x @ state["w"]).sum()
state, x, y = {"w": jnp.ones((2, 8, 8))}, jnp.ones((2, 8, 8)), jnp.ones((2, 4, 8))
"""


def test_functions_of_pmap_are_told_apart(captured):
    steps = "train(state, x)\nfor _ in range(4): train(state, x), evaluate(state, y)"
    folder = captured(f"{PMAPPED}{steps}")
    assert capture_warnings(choose_module(modules_in(folder), None)) == ()


def test_a_module_of_pmap_has_the_name_of_the_users_function(captured):
    folder = captured(f"{PMAPPED}for _ in range(4): train(state, x)")
    # jax before 0.10 names it after pmap itself
    found = module_name(choose_module(modules_in(folder), None))
    assert found in {"jit_train", "pmap_train"}


def test_an_argument_of_pmap_has_the_users_name(captured):
    steps = "for x in (x, x[:, :4, :4]): train({'w': state['w'][:, :x.shape[1]]}, x)"
    folder = captured(f"{PMAPPED}{steps}")
    (said,) = capture_warnings(choose_module(modules_in(folder), None))
    assert "compiled 2 times: state['w'] was float32[2,8,8]" in said


def test_a_compilation_in_the_second_step_alone_blames_no_new_function(captured):
    folder = captured(f"{PMAPPED}for _ in range(4): state = train(state, x)")
    (said,) = capture_warnings(choose_module(modules_in(folder), None))
    assert said.startswith(
        "train is compiled 2 times: the second time in its second step"
    )
    assert "its results are placed otherwise than its first arguments" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import not_here\nimport jax",
            "No module named 'not_here' (train.py, line 1)) before",
        ),
        (
            "import sys\nsys.exit('no data')",
            "exit code 1 (no data) before it imported jax",
        ),
        (
            "import jax\n{}['x']",
            "KeyError: 'x' (train.py, line 2)) before it had compiled",
        ),
    ],
)
def test_a_program_that_dies_early_says_why_and_nothing_of_the_hook(
    captured, text, said
):
    with pytest.raises(WorkloadError) as failed:
        captured(text)
    assert said in str(failed.value)
    assert "PYTHONPATH" not in str(failed.value)


OWN_FLAG = """
import os
os.environ['XLA_FLAGS'] = '{}'
import jax
jax.devices()
"""


@pytest.mark.parametrize("flag", ["--xla_of_nobody=1", "--xla_gpu_autotune_level=x"])
def test_a_flag_that_xla_refuses_is_the_user_s_error_in_one_line(captured, capfd, flag):
    with pytest.raises(UserError) as refused:
        captured(OWN_FLAG.format(flag))
    assert str(refused.value).endswith("see: pgle flags lint")
    assert flag.strip("-").partition("=")[0] in refused.value.what
    assert "train.py" in refused.value.where
    assert all(
        line.startswith("pgle: ") for line in capfd.readouterr().err.splitlines()
    )


def test_a_refused_flag_of_the_environment_is_said_to_be_there(captured, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_nobody=1")
    with pytest.raises(UserError, match=r"^XLA_FLAGS: XLA refuses a flag"):
        captured("import jax\njax.devices()")


def test_a_program_without_jax_is_told_so(captured):
    with pytest.raises(
        UserError, match="it does not import jax; name the program that does"
    ):
        captured("print('done')")


ALONE = """
import jax, jax.numpy as jnp
jax.distributed.initialize({given})
assert (jax.process_index(), jax.process_count(), jax.device_count()) == (0, 1, 2)
jax.jit(lambda x: x @ x)(jnp.ones((8, 8)))
jax.distributed.shutdown()
"""


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({"JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0:1"}, ""),
        ({"JAX_COORDINATOR_ADDRESS": "elsewhere.invalid:1"}, ""),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, ""),
        (
            {
                "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1",
                "OMPI_COMM_WORLD_SIZE": "8",
            },
            "",
        ),
        ({}, "'elsewhere.invalid:1', 1, 0"),
        ({}, "'elsewhere.invalid:1', num_processes=8, process_id=5"),
    ],
)
def test_a_process_that_nothing_started_several_times_waits_for_nobody(
    captured, monkeypatch, environment, given
):
    monkeypatch.setattr("pgle.run.capture.capture.LAUNCHERS", ())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    folder = captured(ALONE.format(given=given))
    assert modules_in(folder)


@pytest.mark.parametrize(
    ("program", "modules", "said"),
    [
        (CapturedProgram(), 0, "it has not imported jax yet"),
        (
            CapturedProgram(python="python", place="train.py, line 3, in load"),
            0,
            "it has compiled 0 modules, and is at train.py, line 3, in load",
        ),
        (
            CapturedProgram(
                python="python", compiling="jax_ir0001_jit_step_compile.mlir"
            ),
            1,
            "it compiles jit_step",
        ),
    ],
)
def test_what_a_program_does_while_it_is_waited_for_is_said(program, modules, said):
    assert doing(program, modules) == said


def printed(tmp_path: Path, text: str, *, failed: bool = False) -> None:
    output = ProgramOutput(tmp_path / OUTPUT)
    child = subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    output.follow(child)
    child.wait()
    output.end()
    if failed:
        output.show_last_lines()


def test_what_a_program_prints_goes_to_a_log_that_is_named_once(tmp_path, capfd):
    printed(tmp_path, "for step in range(100): print('loss', step)")
    log = tmp_path / OUTPUT
    named = f"pgle: what the program prints is in {log} (-s shows it)\n"
    assert capfd.readouterr().err == named
    assert log.read_text().splitlines()[-1] == "loss 99"


def test_the_last_lines_of_a_program_that_fails_are_shown(tmp_path, capfd):
    printed(tmp_path, "for step in range(100): print('loss', step)", failed=True)
    _, *shown = capfd.readouterr().err.splitlines()
    assert shown == [f"loss {step}" for step in range(80, 100)]


def test_an_exception_that_the_hook_has_noted_is_not_shown_again(tmp_path, capfd):
    (tmp_path / PROGRAM).write_text(
        json.dumps({"error": "ValueError: no (train.py, line 3)"})
    )
    fails = ["sh", "-c", "echo Traceback >&2; exit 3"]
    assert run_program(fails, os.environ, tmp_path, **WAITS) == 3
    assert "Traceback" not in capfd.readouterr().err
    assert "Traceback" in (tmp_path / OUTPUT).read_text()


def test_a_program_that_compiles_nothing_is_ended_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "UNSTARTED", 0)
    wait = WAITS | {"quiet_s": 20}
    with pytest.raises(UserError, match="compiled nothing") as ended:
        run_program(["sleep", "600"], os.environ, tmp_path, **wait)
    assert "--quiet-for 40" in ended.value.remedy


def test_a_program_that_compiles_on_and_on_without_a_step_is_ended(
    tmp_path, monkeypatch
):
    (tmp_path / "jax_ir0001_jit_init_compile.mlir").write_text("module @jit_init")
    (tmp_path / PROGRAM).write_text(json.dumps({"python": "python"}))
    monkeypatch.setattr(running, "UNSTARTED", 0)
    assert run_program(["sleep", "600"], os.environ, tmp_path, **WAITS) == 0
    assert (tmp_path / STOPPED).is_file()


def test_who_asks_for_it_sees_what_a_program_prints(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(terminal, "shows_output", True)
    printed(tmp_path, "for step in range(100): print('loss', step)")
    shown = capfd.readouterr().err.splitlines()
    assert shown == [f"loss {step}" for step in range(100)]


def test_quiet_hides_what_a_program_prints_unless_it_fails(
    tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(terminal, "is_quiet", True)
    printed(tmp_path, "print('loss 1')")
    assert capfd.readouterr().err == ""
    printed(tmp_path, "print('loss 1')", failed=True)
    assert capfd.readouterr().err == "loss 1\n"


def test_the_live_line_is_taken_away_before_a_programs_bytes(capfd):
    terminal.draw("⠋ compiling")
    terminal.pass_on(2, b"loss 1\n")
    assert capfd.readouterr().err == "\r\x1b[2K⠋ compiling\r\x1b[2Kloss 1\n"


def test_no_live_line_is_drawn_behind_a_line_that_the_program_has_not_ended(capfd):
    terminal.pass_on(2, b"Password: ")
    terminal.draw("⠋ compiling")
    terminal.say("pgle: waiting")
    assert capfd.readouterr().err == "Password: \npgle: waiting\n"
