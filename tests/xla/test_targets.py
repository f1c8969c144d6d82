"""GPU descriptions: the shipped ones against published figures, and a real dump of 2024."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.xla.targets import ALIASES, BUILT_IN, load_target, parse_target


# Data sheets: cores, memory GB (decimal), memory bandwidth TB/s, compute capability or gfx number
@pytest.mark.parametrize(
    ("name", "cores", "memory_gb", "bandwidth_tb_s", "capability"),
    [
        ("a100-40gb", 108, 40, 1.555, (8, 0)),
        ("a100-80gb", 108, 80, 2.039, (8, 0)),
        ("h100-sxm", 132, 80, 3.35, (9, 0)),
        ("h200-sxm", 132, 141, 4.8, (9, 0)),
        ("b200", 148, 180, 7.7, (10, 0)),
        ("gb200", 152, 186, 8, (10, 0)),
        ("gb300", 152, 288, 8, (10, 3)),
        ("mi300x", 304, 192, 5.3, (9, 4)),
        ("mi325x", 304, 256, 6, (9, 4)),
        ("mi350x", 256, 288, 7.78, (9, 5)),
        ("mi355x", 256, 288, 7.78, (9, 5)),
    ],
)
def test_shipped_targets_agree_with_data_sheets(
    name: str,
    cores: int,
    memory_gb: float,
    bandwidth_tb_s: float,
    capability: tuple[int, int],
) -> None:
    target = load_target(name)
    assert (target.core_count, target.architecture.version) == (cores, capability)
    # usable memory differs from the name plate by what the driver keeps, and by GiB against GB
    assert target.memory_bytes / 1e9 == pytest.approx(memory_gb, rel=0.08)
    assert target.memory_bandwidth / 1e12 == pytest.approx(bandwidth_tb_s, rel=0.01)


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_aliases_name_shipped_targets(alias: str) -> None:
    assert load_target(alias.upper()).name in BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_shipped_target_says_where_its_figures_are_from(name: str) -> None:
    assert re.search(r"# Figures: \S+ \S+ at [0-9a-f]{12}", load_target(name).text)


def test_a_short_name_is_of_the_first_gpu_that_begins_so() -> None:
    assert (
        ALIASES["a100"] == "a100-40gb"
        and ALIASES["a100-80"] == "a100-80gb"
        and ALIASES["h100"] == "h100-sxm"
    )


def test_description_that_a_run_dumped(testdata: Path) -> None:
    dump = (
        testdata
        / "pax_fsdp4/proc0/dump/module_0040.pjit__wrapped_step_fn.gpu_target_config.pbtxt.xz"
    )
    target = load_target(str(dump))
    assert (target.device, target.memory_bytes, target.clock_ghz) == (
        "NVIDIA A100-SXM4-40GB",
        42_505_273_344,
        1.41,
    )


def test_portable_text_drops_what_old_xla_does_not_know() -> None:
    target = load_target("h100-sxm")
    portable = parse_target(target.texts[1], name="portable")
    for field in (
        "feature_extension",
        "matrix_unit_description",
        "rate_infos",
        "pcie_bandwidth",
        "active_links",
    ):
        assert field in target.text
        assert field not in target.texts[1]
    assert (portable.clock_ghz, portable.core_count, portable.device) == (
        1.98,
        132,
        target.device,
    )


def test_the_clock_is_the_devices_own() -> None:
    text = load_target("h100-sxm").text.replace("  clock_rate_ghz: 1.98\n", "", 1)
    moved = text.replace(
        'platform_name: "CUDA"', 'clock_rate_ghz: 1.5\nplatform_name: "CUDA"'
    )
    assert parse_target(moved, name="moved").clock_ghz == 1.5


def test_unknown_name() -> None:
    with pytest.raises(
        UserError,
        match=r"no target called 'h300'; did you mean 'h200'\? choose a100-40gb, .*gpu_target_config",
    ):
        load_target("h300")


def test_missing_file() -> None:
    with pytest.raises(UserError, match=r"nowhere/x.pbtxt: no such file"):
        load_target("nowhere/x.pbtxt")


def test_a_file_that_describes_no_gpu(tmp_path: Path) -> None:
    path = tmp_path / "profile.pbtxt"
    path.write_text('costs { name: "a" cost_us: 1 }')
    with pytest.raises(UserError, match="not a description of a GPU of NVIDIA or AMD"):
        load_target(str(path))


def test_a_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "target.pb"
    path.write_bytes(b"\xff\x00\x01")
    with pytest.raises(UserError, match="not a text description"):
        load_target(str(path))


@pytest.mark.parametrize("figure", ["-", "0", "nan", "1e999", "many"])
def test_a_figure_that_no_gpu_has(tmp_path: Path, figure: str) -> None:
    path = tmp_path / "gpu_target_config.pbtxt"
    path.write_text(
        load_target("h100").text.replace("core_count: 132", f"core_count: {figure}")
    )
    with pytest.raises(UserError, match=f"core_count: {figure}"):
        load_target(str(path))


def test_a_description_of_an_old_dump_gets_a_cuda_runtime(testdata: Path) -> None:
    """Without one XLA takes CUDA for too old and compiles fp8 products as bf16."""
    dump = (
        testdata
        / "pax_fsdp4/proc0/dump/module_0040.pjit__wrapped_step_fn.gpu_target_config.pbtxt.xz"
    )
    assert "runtime_version { major: 12 minor: 9 }" in load_target(str(dump)).text


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_shipped_target_has_what_a_real_device_has(name: str) -> None:
    target = load_target(name)
    assert (
        f'name: "{target.device}"' in target.text
    )  # by which XLA finds its own figures of the GPU
    assert target.vendor.runtime in target.texts[1]
    assert "runtime_version" not in target.texts[2]
