"""Alternatives of a function of this process, and what is left of them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import ad_checkpoint
from jax._src import source_info_util

from pgle.run.alternatives import BY_HAND, Alternative, Kind
from pgle.run.variants import StepVariants, _alternatives, _Record
from pgle.xla.targets import load_target

Scan = Callable[..., Any]


def summed(scan: Scan, xs: Any) -> Any:
    return scan(lambda total, x: (total + x, x), 0.0, xs)


def text(scan: Scan) -> str:
    """What jax traces of a sum, anew."""
    return str(jax.make_jaxpr(lambda xs: summed(scan, xs))(jnp.ones(8)))


def test_what_a_step_keeps_of_jax_makes_no_alternative_afterwards() -> None:
    record = _Record()
    with _alternatives(record, []):
        text(jax.lax.scan)
    (site,) = record.sites
    switch = {"kind": "unroll", "where": site.where, "value": "4"}
    with _alternatives(_Record(), [switch]):
        kept = jax.lax.scan
        assert "unroll=4" in text(kept)
    assert "unroll=4" not in text(kept)


@pytest.mark.parametrize("kind", ["precision", "remat"])
def test_a_precision_of_a_block_is_not_that_of_the_process_afterwards(
    kind: str,
) -> None:
    switch = {"kind": kind, "where": "", "value": "tensorfloat32"}
    before = jax.config.jax_default_matmul_precision
    with jax.default_matmul_precision("float32"), _alternatives(_Record(), [switch]):
        pass
    assert jax.config.jax_default_matmul_precision == before


def test_folders_that_jax_hides_do_not_add_up() -> None:
    counts = []
    for _ in range(2):
        with _alternatives(_Record(), []):
            counts.append(len(source_info_util._exclude_paths))
    assert counts[0] == counts[1]


def test_jax_is_as_it_was_after_alternatives_of_every_kind() -> None:
    owners = (jax, jax.lax, jax.nn, ad_checkpoint, jax.config)
    before = [dict(vars(owner)) for owner in owners]
    kinds = ("unroll", "remat", "attention", "donation", "precision", "compare")
    by_hand = {"kind": "attention", "where": "by hand", "value": "cudnn"}
    switches = [{"kind": kind, "where": "f", "value": "highest"} for kind in kinds]
    with _alternatives(_Record(), [*switches, by_hand]) as made:
        made.comparison(lambda found: None)
        changed = [
            vars(owner) != old for owner, old in zip(owners, before, strict=True)
        ]
    assert sum(changed) >= 4
    assert [dict(vars(owner)) for owner in owners] == before


def test_why_a_step_of_this_process_has_no_values_is_said_in_a_line(
    tmp_path: Path,
) -> None:
    kept: list[Any] = []

    def loss(table: Any, ids: Any) -> Any:
        kept.append(ids * 0.5)
        return (table[ids] ** 2).sum()

    def step(table: Any, ids: Any) -> Any:
        return jax.grad(loss)(table, ids), kept[-1] + 1

    request: Any = SimpleNamespace(target=load_target("a100"), out=tmp_path)
    variants = StepVariants(step, [jnp.ones((2048, 2)), jnp.arange(4)], request)
    change = Alternative(Kind.LOOKUP, BY_HAND, "sorted", "")
    found = variants.compared([change], tmp_path)
    assert found.why.startswith("a loss keeps values outside of itself")


def test_an_array_that_was_put_where_it_is_shares_its_memory() -> None:
    record = _Record()
    with _alternatives(record, []) as made:
        first = jnp.ones((4, 4))
        same = jax.device_put(first, jax.devices()[0])
        moved = jax.device_put(first + 0, jax.devices()[0])

        def step(params: Any, average: Any, other: Any) -> None: ...

        made.called(step, (first, same, moved), {})
    assert first is not same
    (site,) = [site for site in record.sites if site.kind == "shared"]
    assert site.options == "params,average"
