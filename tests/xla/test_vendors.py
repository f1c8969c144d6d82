"""Makers of GPUs: what names of dumps, traces and machines say, each in one value."""

from __future__ import annotations

import pytest

from pgle.xla.targets import TABLE, by_architecture
from pgle.xla.vendors import (
    AMD,
    NVIDIA,
    VENDORS,
    architecture_in,
    is_modelled,
    maker_of,
    traced_architecture,
)


@pytest.mark.parametrize(
    ("name", "vendor", "version", "gpu"),
    [
        ("m.jit_f.sm_8.0_gpu_after_optimizations.txt", NVIDIA, (8, 0), "a100-40gb"),
        ("m.jit_f.sm_9.0a_gpu_after_optimizations.txt", NVIDIA, (9, 0), "h100-sxm"),
        ("m.jit_f.sm_10.3_gpu_after_optimizations.txt", NVIDIA, (10, 3), "gb300"),
        ("m.jit_f.gfx90a_gpu_after_optimizations.txt", AMD, (9, 0), "mi300x"),
        ("m.jit_f.gfx942_gpu_after_optimizations.txt", AMD, (9, 4), "mi300x"),
        ("m.jit_f.gfx950_gpu_after_optimizations.txt", AMD, (9, 5), "mi350x"),
        ("m.jit_f.gfx1250_gpu_after_optimizations.txt", AMD, (12, 5), "mi350x"),
    ],
)
def test_the_architecture_in_the_name_of_a_dump(name, vendor, version, gpu) -> None:
    found = architecture_in(name)
    assert found is not None
    assert (found.vendor, found.version) == (vendor.name, version)
    assert by_architecture(found).name == gpu


def test_a_name_without_an_architecture() -> None:
    assert architecture_in("module_0001.jit_step.before_optimizations.txt") is None


@pytest.mark.parametrize(
    ("vendor", "expected"),
    [("Nvidia", NVIDIA.name), ("AMD", AMD.name), ("", NVIDIA.name), ("Intel", None)],
)
def test_the_vendor_that_a_trace_names(vendor: str, expected: str | None) -> None:
    found = traced_architecture(vendor, (9, 0))
    assert (found and found.vendor) == expected


@pytest.mark.parametrize(
    ("name", "modelled"), [("sm_8.0", False), ("sm_9.0", True), ("gfx950", False)]
)
def test_xla_knows_costs_from_hopper_on(name: str, modelled: bool) -> None:
    assert is_modelled(architecture_in(name)) == modelled


@pytest.mark.parametrize("gpu", TABLE)
def test_each_gpu_has_one_maker(gpu: str) -> None:
    owners = [maker for maker in VENDORS.values() if TABLE[gpu] in maker.gpus]
    assert owners == [maker_of(TABLE[gpu])]


def test_words_for_nvidias_gpus_and_for_amds() -> None:
    text = "check NVLink and NCCL's choice (NCCL_DEBUG=INFO)"
    assert NVIDIA.worded(text) == text
    assert AMD.worded(text) == "check xGMI and RCCL's choice (NCCL_DEBUG=INFO)"
