"""What releases of jax before ours answer otherwise, on stand-ins for their private parts."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("hook_here")
SOURCE = "train at /home/me/train.py:12"


def train(w: float, rate: float, layers: int) -> float:
    return w - rate * layers


def described_by_0_4(
    traced_for: str,
    src: str,
    fun_signature: inspect.Signature,
    args: Any,
    kwargs: Any,
    static_argnums: Any,
    static_argnames: Any,
) -> str:
    """In the place of `debug_info` of jax 0.4.38, which is not given the function."""
    return src


@pytest.mark.parametrize(
    ("args", "kwargs", "numbers"),
    [((1.0, 0.1, 3), {}, (2,)), ((1.0, 0.1), {"layers": 3}, ())],
)
def test_a_static_argument_has_its_name_if_jax_gives_a_signature(
    args: Any, kwargs: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = importlib.import_module("pgle_hook.jax_private")
    pjit = SimpleNamespace(debug_info=described_by_0_4)
    monkeypatch.setitem(sys.modules, "jax._src.pjit", pjit)
    seen: list[Any] = []
    private.static_arguments(lambda name, _, static: seen.append((name, static)))
    describe: Callable[..., Any] = pjit.debug_info
    signature = inspect.signature(train)
    call = (args, kwargs, numbers, ("layers",))
    found = describe("jit", SOURCE, signature, *call)
    assert found == SOURCE
    assert seen == [(SOURCE, {"layers": "static 3"})]


@pytest.mark.parametrize("costs", [{"flops": 8.0}, [{"flops": 8.0}]])
def test_operations_are_read_from_one_analysis_or_a_list(costs: Any) -> None:
    private = importlib.import_module("pgle_hook.jax_private")
    compiled = SimpleNamespace(cost_analysis=lambda: costs)
    assert private._costs_of(compiled) == {"flops": 8.0}
