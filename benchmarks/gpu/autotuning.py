"""What XLA chose for matrix products: which library, and which configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pgle.xla.hlo.module import Instruction, Module

TRITON = "triton_gemm_config"


def choices(module: Module) -> Iterator[Mapping[str, Any]]:
    """What multiplies matrices in a module: its instruction, the kind, and the configuration that
    was chosen.
    """
    for item in module.walk():
        kind = _kind(item)
        if kind:
            yield {
                "instruction": item.name,
                "kind": kind,
                "configuration": _configuration(item),
            }


def _kind(item: Instruction) -> str:
    """The library of a product; empty if the instruction is none."""
    target = item.custom_call_target
    if target.startswith(("__cublas", "__cudnn")):
        return target
    if item.opcode != "fusion" or not item.backend_config:
        return (
            "dot"
            if item.opcode == "dot" and not item.computation.startswith("gemm")
            else ""
        )
    fusion = json.loads(item.backend_config).get("fusion_backend_config", {})
    kind: str = fusion.get("kind", "")
    return kind if "gemm" in kind or "cudnn" in kind or "cublas" in kind else ""


def _configuration(item: Instruction) -> Mapping[str, Any]:
    """Tile sizes of Triton, or the algorithm of cuBLAS; empty if there is none."""
    config = json.loads(item.backend_config) if item.backend_config else {}
    fusion = config.get("fusion_backend_config", {})
    for key in (
        TRITON,
        "block_level_fusion_config",
        "cudnn_fusion_config",
        "custom_fusion_config",
    ):
        if key in fusion:
            return {key: fusion[key]}
    gemm = config.get("gemm_backend_config", {})
    wanted = ("selected_algorithm", "algorithm", "epilogue", "autotune_workspace_size")
    return {key: gemm[key] for key in wanted if key in gemm}
