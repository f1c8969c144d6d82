"""XLA:ROCm compiles without ROCm and without a GPU. Skipped where jax's ROCm plugin is not
installed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.run.ask.jax_private import library
from pgle.run.compiler.compile import CompileRequest, compile_once
from pgle.xla.targets import BUILT_IN, load_target
from pgle.xla.vendors import AMD


def has_plugin() -> bool:
    try:
        return library(AMD).is_file()
    except UserError:
        return False


pytestmark = pytest.mark.skipif(
    not has_plugin(), reason="jax's ROCm plugin is not installed"
)
OF_AMD = [name for name in BUILT_IN if load_target(name).vendor is AMD]


@pytest.mark.parametrize("name", OF_AMD)
def test_every_target_is_compiled_for(
    name: str, testdata: Path, tmp_path: Path
) -> None:
    target = load_target(name)
    made = compile_once(
        CompileRequest(
            testdata / "stablehlo/fsdp_mlp_jax_0.12.0.1.mlir",
            target.texts,
            tmp_path / "dump",
            vendor=AMD.name,
            flags=("--xla_gpu_enable_latency_hiding_scheduler=true",),
        )
    )
    assert made.scheduled.architecture == target.architecture
    assert made.schedule is not None
