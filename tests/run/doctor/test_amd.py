"""`pgle doctor` on machines with AMD's GPUs: the driver's own lists say which there are."""

import pytest
from machines import VERSIONS, machine

from pgle.run.ask.amd_gpus import read_amd_gpus
from pgle.run.doctor import diagnose
from pgle.xla.vendors import AMD

NODE = "/sys/class/kfd/kfd/topology/nodes/{}/properties"
BANK = "/sys/class/kfd/kfd/topology/nodes/{}/mem_banks/0/properties"
CPU = "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n"
MI350X = "simd_count 1024\ngfx_target_version 90500\nunique_id 77\n"
MEMORY = f"heap_type 1\nsize_in_bytes {252 << 30}\n"
FILES = {NODE.format(0): CPU, NODE.format(1): MI350X, BANK.format(1): MEMORY}
ROCM = {
    name: version
    for name, version in VERSIONS.items()
    if not name.startswith("jax-cuda")
}
WITH_PLUGIN = ROCM | {"jax-rocm7-plugin": "0.10.2", "jax-rocm7-pjrt": "0.10.2"}


def check(name, **changes):
    given = {"files": FILES | {"/dev/kfd": ""}, "versions": WITH_PLUGIN} | changes
    found = diagnose(machine(smi=None, **given))
    return next(item for item in found.checks if item.name == name)


def test_the_drivers_list_names_gpus_and_their_memory() -> None:
    made_up = machine(files=FILES)
    (gpu,) = read_amd_gpus(made_up.read, made_up.glob)
    assert (gpu.compute_capability, gpu.memory_mib) == ("gfx950", 252 << 10)
    assert "MI350X" in gpu.name


def test_gpus_that_may_be_used() -> None:
    assert check("GPUs").verdict == "ok"


def test_a_container_without_the_device_for_computing() -> None:
    found = check("GPUs", files=FILES)
    assert found.verdict == "fail" and "--device /dev/kfd" in found.remedy


def test_a_user_outside_of_the_groups() -> None:
    found = check("GPUs", writable=lambda path: path != "/dev/kfd")
    assert found.verdict == "fail" and "render and video" in found.remedy


@pytest.mark.parametrize("name", AMD.presence.hiding_variables)
def test_hidden_gpus(name: str) -> None:
    assert name in check("GPUs", environ={name: ""}).remedy


def test_the_plugin_of_jaxlibs_first_three_numbers_fits() -> None:
    versions = WITH_PLUGIN | {"jaxlib": "0.10.2.1", "jax": "0.10.2.1"}
    assert check("ROCm plugin", versions=versions).verdict == "ok"


def test_the_line_that_installs_the_plugin() -> None:
    found = check("ROCm plugin", versions=ROCM)
    assert found.command.endswith("jax-rocm7-plugin==0.10.2 jax-rocm7-pjrt==0.10.2")


def test_nvidias_tools_are_not_asked_for() -> None:
    made_up = machine(smi=None, files=FILES, versions=WITH_PLUGIN)
    names = {item.name for item in diagnose(made_up).checks}
    assert names.isdisjoint({"CUPTI", "DCGM", "nsys", "CUDA plugin"})
