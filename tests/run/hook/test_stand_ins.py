"""Functions that the hook puts in place of those of jax take the same arguments."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pgle.run.hook import hook_module
from pgle.run.variants import _alternatives, _Record

SWITCHES = [
    {"kind": "attention", "where": "by hand", "value": "cudnn"},
    {"kind": "donation", "where": "no_such_step", "value": "state"},
    {"kind": "compare", "where": "no_such_step", "value": ""},
]
NAMES = (
    "checkpoint",
    "remat",
    "grad",
    "value_and_grad",
    "vjp",
    "jit",
    "lax.scan",
    "lax.with_sharding_constraint",
    "nn.dot_product_attention",
)


def function(name: str) -> Callable[..., Any]:
    found: Any = jax
    for part in name.split("."):
        found = getattr(found, part)
    return found


USUAL = {name: inspect.signature(function(name)) for name in NAMES}


@pytest.fixture
def stand_ins() -> Iterator[None]:
    with _alternatives(_Record(), SWITCHES):
        yield


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("name", NAMES)
def test_a_stand_in_has_the_signature_of_jax(name: str) -> None:
    assert inspect.signature(function(name)) == USUAL[name]


@pytest.mark.usefixtures("stand_ins")
def test_a_function_to_differentiate_may_be_given_by_name() -> None:
    square = jnp.square
    assert jax.grad(fun=square)(3.0) == 6
    assert jax.value_and_grad(fun=square, argnums=0)(3.0) == (9, 6)
    assert jax.checkpoint(fun=square)(3.0) == 9
    assert jax.vjp(square, 3.0)[0] == 9


def test_a_scan_takes_all_arguments_by_place() -> None:
    add = lambda total, x: (total + x, x)
    scan = lambda xs: jax.lax.scan(*(add, 0.0, xs, None, True, 1, True))
    record = _Record()
    with _alternatives(record, []):
        jax.make_jaxpr(scan)(jnp.ones(8))
    (site,) = record.sites
    switch = {"kind": "unroll", "where": site.where, "value": "4"}
    with _alternatives(_Record(), [switch]):
        (made,) = jax.make_jaxpr(scan)(jnp.ones(8)).eqns
    settings = [made.params[name] for name in ("unroll", "reverse", "length")]
    assert settings == [4, True, 8]


def test_an_older_module_of_jax_gets_no_function_that_it_lacks() -> None:
    older = importlib.import_module("jax.ad_checkpoint")
    before = hasattr(older, "checkpoint")
    with _alternatives(_Record(), []):
        assert hasattr(older, "checkpoint") == before


def test_a_package_that_pip_put_into_a_folder_is_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = hook_module("records")
    for folder in ("own", "deps/flax-0.12.0.dist-info"):
        (tmp_path / folder).mkdir(parents=True)
    searched = [str(tmp_path / name) for name in ("script", "own", "deps")]
    monkeypatch.setattr(sys, "path", searched)
    assert records.is_own(str(tmp_path / "own/train.py"))
    assert not records.is_own(str(tmp_path / "deps/flax/nnx/jit.py"))
