"""Dumps and traces of AMD's GPUs: which GPU they are of, and what is expected on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pgle.analyze.layers import multiplied
from pgle.costs.profile.lookup import T_SHIRT_SIZES, fallback_of
from pgle.run.analyze import StepInput, measured_step
from pgle.run.target import gpu_of, target_named_by
from pgle.schedule.predict import predict
from pgle.xla.hlo.dumps import read_module
from pgle.xla.targets import find_hardware, target_beside

GPUS = ("mi300x", "mi350x")


def dump(testdata: Path, gpu: str) -> Path:
    (found,) = (testdata / "hlo/rocm-0.12.0" / gpu).glob("*after_optimizations*")
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_the_description_next_to_a_dump_names_the_gpu(testdata: Path, gpu: str) -> None:
    found = gpu_of(str(dump(testdata, gpu)))
    assert (found.hardware.name, found.by) == (gpu, "description")


@pytest.mark.parametrize("gpu", GPUS)
def test_the_name_of_a_dump_names_the_gpu(
    testdata: Path, tmp_path: Path, gpu: str
) -> None:
    alone = shutil.copy(dump(testdata, gpu), tmp_path)
    found = gpu_of(str(alone))
    assert (found.hardware.name, found.by) == (gpu, "file name")
    assert "gfx" in found.by_words
    assert target_named_by(str(alone)) == gpu


def test_a_dump_of_another_vendor_than_the_target_is_named(testdata: Path) -> None:
    nvidia = target_beside(
        str(testdata / "pax_fsdp4/proc0/dump/module_0040.pjit__wrapped_step_fn.hlo.pb")
    )
    assert nvidia is not None
    found = gpu_of(str(dump(testdata, "mi350x")), nvidia)
    assert "was compiled for gfx950 (mi350x)" in found.doubt


@pytest.mark.parametrize("gpu", GPUS)
def test_a_step_has_collectives_over_xgmi_and_a_range(testdata: Path, gpu: str) -> None:
    hardware = find_hardware(gpu)
    prediction = predict(read_module(dump(testdata, gpu)), None, hardware)
    least, most = prediction.interval_us
    assert least < prediction.step_us < most
    assert 0 < prediction.exposed_us < prediction.step_us
    assert hardware.library.fabric == "xGMI"


def test_xla_takes_gaps_for_constants_on_amds_gpus(testdata: Path) -> None:
    assert fallback_of(read_module(dump(testdata, "mi350x"))) == T_SHIRT_SIZES


def test_a_trace_of_amds_gpus_has_expected_times(testdata: Path) -> None:
    trace = testdata / "jax_xplane/jax08_gemm.xplane.pb"
    step = measured_step(StepInput((trace,)))
    assert step.hardware is not None and step.hardware.name == "mi300x"
    (products,) = step.products
    assert products.dtype == "bf16" and products.peak_tflops == 1307.4
    assert 0 < products.tflops < products.peak_tflops


def test_hipblaslts_kernels_say_what_they_multiply(testdata: Path) -> None:
    names = (testdata / "jax_xplane/jax08_gemm.xplane.pb").read_bytes()
    start = names.index(b"Cijk_Ailk")
    kernel = names[start : start + 60].decode()
    found = multiplied(kernel)
    assert found is not None and (found.dtype, found.tensor_cores) == ("bf16", True)
