"""A module whose calls only GPUs execute, made one that XLA compiles for CPUs."""

from __future__ import annotations

import importlib

import pytest
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

pytestmark = pytest.mark.usefixtures("hook_here")

ATTENTION = """
module @jit_step {
  func.func public @main(%q: tensor<2x4xbf16>) -> tensor<2x4xbf16> {
    %0:2 = stablehlo.custom_call @NAME(%q)
      : (tensor<2x4xbf16>) -> (tensor<2x4xbf16>, tensor<8xui8>)
    %1 = stablehlo.add %0#0, %q : tensor<2x4xbf16>
    return %1 : tensor<2x4xbf16>
  }
}
"""


def without_calls(name: str) -> str | None:
    """The module with one call of that name, as text; None if no call is replaced."""
    with mlir.make_ir_context():
        module = ir.Module.parse(ATTENTION.replace("NAME", name))
        jax_private = importlib.import_module("pgle_hook.jax_private")
        found = jax_private.without_calls(module)
        return None if found is None else str(found)


@pytest.mark.parametrize("name", ["__cudnn$fmhaSoftmax", "CustomSPMDPartitioning"])
def test_what_only_gpus_execute_becomes_zeros(name: str) -> None:
    text = without_calls(f'"{name}"')
    assert text is not None
    assert "custom_call" not in text
    assert "dense<0.0" in text
    assert "stablehlo.add" in text


def test_a_module_without_such_a_call_is_left_as_it_is() -> None:
    assert without_calls("Sharding") is None
