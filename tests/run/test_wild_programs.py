"""Programs as people write them, lowered here and rehearsed with the real compiler."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.requests.predictions import Rehearse
from pgle.run.rehearse import Rehearsal, rehearse

JAX = importlib.util.find_spec("jax_plugins") and any(
    importlib.util.find_spec(f"jax_plugins.{name}")
    for name in ("xla_cuda13", "xla_cuda12")
)
pytestmark = [
    pytest.mark.rehearse,
    pytest.mark.usefixtures("plugin_loaded_once"),
    pytest.mark.skipif(not JAX, reason="needs the CUDA plugin: pgle[rehearse]"),
]
WILD = Path(__file__).parents[1] / "helpers" / "wild_programs.py"


def rehearsed(name: str, folder: Path) -> Rehearsal:
    module = folder / f"{name}.mlir"
    subprocess.run(
        [sys.executable, str(WILD), name, str(module)], check=True, capture_output=True
    )
    command = Rehearse(str(module), target="h100", output=folder / "out", cached=False)
    return rehearse(command)


def kinds(found: Rehearsal) -> set[str]:
    return {move.before.kind for move in found.moves if move.before is not None}


def test_experts_send_tokens_to_each_other(tmp_path: Path) -> None:
    found = rehearsed("experts", tmp_path)
    assert found.used
    assert "all-to-all" in kinds(found)


@pytest.mark.minutes
def test_activations_kept_in_host_memory_are_copies(tmp_path: Path) -> None:
    found = rehearsed("host_offload", tmp_path)
    assert found.used
    assert found.baseline.prediction.timeline.breakdown.copy_us > 0


def test_a_kernel_behind_the_ffi_is_named_as_of_unknown_cost(tmp_path: Path) -> None:
    found = rehearsed("foreign_call", tmp_path)
    assert found.used
    assert any(
        "no cost is known for custom calls (my_fused_norm × 4)" in line
        for line in found.warnings
    )
