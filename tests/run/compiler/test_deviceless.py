"""What XLA cannot compile without a GPU is compiled by a detour, and the answer says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pgle.run.compiler.cache import Cache
from pgle.run.compiler.compile import Compiler, CompileRequest, CompileResult
from pgle.run.compiler.deviceless import detour, only_choice
from pgle.xla.flags.catalogue import release
from pgle.xla.targets import load_target

TARGET = load_target("h100")
TRITON = "--xla_gpu_enable_triton_gemm=false"
SOLVER = "--xla_disable_hlo_passes=gpusolver-rewriter"

needs_xla = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("jax_cuda13_plugin", "jax_cuda12_plugin"))),
    reason="needs the CUDA plugin: pgle[rehearse-cuda13]",
)

# A product is split in three, and each part is multiplied by a part of the same weight.
SPLIT = """
module @jit_split {
  func.func public @main(%x: tensor<4x100x64xbf16>, %w: tensor<64x512xbf16>)
      -> (tensor<4x100x64xbf16>, tensor<4x100x64xbf16>, tensor<4x100x64xbf16>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0]
      : (tensor<4x100x64xbf16>, tensor<64x512xbf16>) -> tensor<4x100x512xbf16>
    %a = stablehlo.slice %0 [0:4, 0:100, 0:128]
      : (tensor<4x100x512xbf16>) -> tensor<4x100x128xbf16>
    %b = stablehlo.slice %0 [0:4, 0:100, 128:192]
      : (tensor<4x100x512xbf16>) -> tensor<4x100x64xbf16>
    %c = stablehlo.slice %0 [0:4, 0:100, 192:512]
      : (tensor<4x100x512xbf16>) -> tensor<4x100x320xbf16>
    %t = stablehlo.transpose %w, dims = [1, 0]
      : (tensor<64x512xbf16>) -> tensor<512x64xbf16>
    %p = stablehlo.slice %t [0:128, 0:64] : (tensor<512x64xbf16>) -> tensor<128x64xbf16>
    %q = stablehlo.slice %t [0:64, 0:64] : (tensor<512x64xbf16>) -> tensor<64x64xbf16>
    %r = stablehlo.slice %t [0:320, 0:64] : (tensor<512x64xbf16>) -> tensor<320x64xbf16>
    %d = stablehlo.dot_general %a, %p, contracting_dims = [2] x [0]
      : (tensor<4x100x128xbf16>, tensor<128x64xbf16>) -> tensor<4x100x64xbf16>
    %e = stablehlo.dot_general %b, %q, contracting_dims = [2] x [0]
      : (tensor<4x100x64xbf16>, tensor<64x64xbf16>) -> tensor<4x100x64xbf16>
    %f = stablehlo.dot_general %c, %r, contracting_dims = [2] x [0]
      : (tensor<4x100x320xbf16>, tensor<320x64xbf16>) -> tensor<4x100x64xbf16>
    return %d, %e, %f
      : tensor<4x100x64xbf16>, tensor<4x100x64xbf16>, tensor<4x100x64xbf16>
  }
}
"""


def compiled(tmp_path: Path, name: str, *flags: str) -> CompileResult:
    """The split product, compiled with a cache in the folder."""
    module = tmp_path / "split.mlir"
    module.write_text(SPLIT)
    with Compiler(cache=Cache(tmp_path / "kept", 1 << 30)) as compiler:
        return compiler.compile(
            CompileRequest(module, TARGET.texts, tmp_path / name, flags=flags)
        )


@needs_xla
@pytest.mark.rehearse
def test_a_product_without_tiles_is_compiled_without_triton_and_says_so(
    tmp_path: Path,
) -> None:
    found = compiled(tmp_path, "first")
    if release(found.jaxlib) not in {(0, 8, 3), (0, 9, 2), (0, 10, 2)}:
        pytest.skip(f"Triton has tiles for it in jaxlib {found.jaxlib}")
    assert found.detours == (TRITON,)
    assert found.warnings[0].endswith(f"compiled with {TRITON}")
    assert "output tile sizes" not in found.log.read_text()
    kept = compiled(tmp_path, "again")
    assert (kept.is_cached, kept.detours) == (True, (TRITON,))
    asked = compiled(tmp_path, "asked", TRITON)
    assert asked.warnings == ()
    assert asked.fingerprint == found.fingerprint


@pytest.mark.parametrize(
    ("said", "flags", "flag"),
    [
        ("Couldn't find output tile sizes that satisfy hlo: %dot.88", [], TRITON),
        ("Can not propagate dim orders and requirements.", [], TRITON),
        ("a failure of another kind", [TRITON], ""),
        ("cuSolver internal error", [], SOLVER),
        ("cuSolver internal error", [SOLVER], TRITON),
        (
            "cuSolver internal error",
            ["--xla_disable_hlo_passes=dce"],
            "--xla_disable_hlo_passes=dce,gpusolver-rewriter",
        ),
        (
            "CubSortPairs error: Error loading CUDA libraries.",
            [],
            "--xla_gpu_enable_cub_radix_sort=false",
        ),
    ],
)
def test_what_xla_says_chooses_the_detour_that_is_not_taken_yet(
    said: str, flags: list[str], flag: str
) -> None:
    assert detour(said, flags) == flag


@pytest.mark.parametrize(
    ("flags", "is_only"), [([], False), ([SOLVER], False), ([SOLVER, TRITON], True)]
)
def test_a_program_that_needs_other_kernels_has_no_second_choice(
    flags: list[str], is_only: bool
) -> None:
    assert bool(only_choice(flags)) is is_only
