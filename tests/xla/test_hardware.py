"""One value of hardware from a target, a topology and a network."""

import pytest

from pgle.xla.targets import find_hardware, load_target


@pytest.mark.parametrize(
    ("target", "topology", "share_nvlink"),
    [
        ("h100", None, 8),
        ("h100", "2x2x8", 8),
        ("h100", "1x4x4", 4),
        ("h100", "1x1x64", 8),  # no host has 64
        ("gb200", None, 72),
        ("gb200", "1x16x4", 64),
        ("gb200", "2x16x4", 64),  # two racks
        ("gb200", "1x36x4", 72),  # two racks in one slice
        ("gb200", "1x1x64", 64),
        ("h100", "nonsense", 8),  # refused elsewhere
    ],
)
def test_the_topology_says_which_devices_share_nvlink(
    target: str, topology: str | None, share_nvlink: int
) -> None:
    assert (
        find_hardware(load_target(target), topology=topology).devices_per_host
        == share_nvlink
    )


def test_the_users_network_replaces_the_tables() -> None:
    assert find_hardware("h100").nic_gb_s == 50
    assert find_hardware("h100", network_gb_s=12.5).nic_gb_s == 12.5


def test_a_file_that_describes_a_rack_is_a_rack() -> None:
    described = load_target("gb200")
    moved = type(described)(**{**vars(described), "name": "my/gpu_target_config.pbtxt"})
    assert find_hardware(moved).is_rack


def test_a_type_that_a_gpu_lacks_takes_the_next_wider_one() -> None:
    assert find_hardware("a100").peak_tflops("f8e4m3fn") == 312
