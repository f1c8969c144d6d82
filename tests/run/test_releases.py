"""One module by two interpreters: of the same release nothing may differ."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pgle
from pgle.report.releases import facts_table

MODULE = Path(__file__).parents[2] / "testdata/stablehlo/fsdp_mlp_jax_0.10.2.mlir"


@pytest.mark.rehearse
def test_the_same_release_twice_differs_in_nothing(tmp_path):
    twice = (sys.executable, sys.executable)
    answer = pgle.releases(MODULE, jax=twice, target="a100", output=tmp_path / "out")
    (upgrade,) = answer.result.upgrades
    assert upgrade.exact.is_empty
    assert upgrade.exact.has_same_fingerprint
    assert upgrade.carried_share == 1
    assert (upgrade.step.first.share, upgrade.profiled.first.share) == (0, 0)
    rows = {row[0]: row[2] for row in facts_table(answer.result).rows}
    assert rows["  order"] == rows["fingerprint"] == rows["peak memory"] == "same"
    assert answer.ok
