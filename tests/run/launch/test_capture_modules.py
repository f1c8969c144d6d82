"""What is captured of a program on CPUs, and what is said where that is not what a GPU run would compile."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pgle.run.launch.capture_modules import capture_modules, capture_warnings, choose_module

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


@pytest.fixture
def captured(tmp_path):
    """The largest module that a program compiles."""

    def capture(text: str) -> Path:
        script = tmp_path / "träin ing.py"
        script.write_text(text)
        environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        found = capture_modules(
            [sys.executable, str(script)], tmp_path / "captured", devices=2, quiet_s=60, environment=environ
        )
        return choose_module(found, None)

    return capture


def test_moves_to_host_memory_are_kept(captured):
    module = captured(OFFLOAD.format(inside="jnp.cos"))
    assert "train_step" in module.name
    assert "annotate_device_placement" in module.read_text()
    assert "pinned_host" in module.read_text()
    assert capture_warnings(module) == ()


def test_moves_that_cannot_be_lowered_for_gpus_are_a_warning_with_a_remedy(captured, capfd):
    module = captured(CPU_ONLY + OFFLOAD.format(inside="only.bind"))
    assert "annotate_device_placement" not in module.read_text()
    (said,) = capture_warnings(module)
    assert "moves data to host memory" in said
    assert "JAX_DUMP_IR_TO" in said
    captured_text = capfd.readouterr().err
    assert "(8, 8)" in captured_text
    assert captured_text.count("pgle: warning:") == 1


def test_a_program_without_host_memory_is_dumped_as_it_is(captured):
    module = captured("import jax, jax.numpy as jnp\njax.jit(lambda x: jnp.sin(x) + 1)(jnp.ones((8, 8)))")
    assert capture_warnings(module) == ()
    assert not (module.parent / ".lowered_for_cuda").exists()


def test_a_program_that_fails_after_its_first_compilation_is_no_silent_success(captured):
    module = captured("import jax.numpy as jnp\njnp.ones(3)\nraise SystemExit(3)")
    (said,) = capture_warnings(module)
    assert "ended with exit code 3" in said
    assert "--choose" in said


STAYS = """
import sys, time
import jax
jax.jit(lambda x: x * 2)(jax.numpy.ones(4))
time.sleep(1000)
"""


def test_a_program_that_is_stopped_on_purpose_is_said_to_be(tmp_path, capsys):
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    words = [sys.executable, "-c", STAYS]
    assert capture_modules(words, tmp_path / "captured", devices=1, quiet_s=0.5, environment=environ)
    err = capsys.readouterr().err
    assert err.startswith("pgle: stopping the program on purpose: ")
    assert err.endswith("none in the last 0.5 s (--quiet-for)\n")
