"""`pgle perf-table`: what XLA believes with the table is what was measured."""

import json
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.costs.estimate.communication import collective_us
from pgle.costs.profile.value import Cost
from pgle.run.perf_table import Transfer, collective_table, completed_transfers, measured_networks
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.targets import find_hardware

PAX = Path(__file__).parents[2] / "testdata" / "pax_fsdp4"
TRACES = [
    str(PAX / "proc0.sqlite"),
    str(PAX / "proc3.sqlite"),
    "--hlo",
    str(PAX / "proc0" / "dump"),
]


@pytest.mark.rehearse
@pytest.mark.usefixtures("plugin_loaded_once")
def test_the_compiler_believes_every_entry_or_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cluster.pbtxt"
    assert run(["perf-table", *TRACES, "--target", "h100", "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["key"] == "sm_90"
    kinds = {item["kind"]: item["taken"] for item in found["collectives"]}
    assert kinds.keys() == {"all-gather", "all-reduce", "reduce-scatter"}
    # releases after 0.11 have kernels of their own for small all-reduces, and a model for these
    assert all(item["taken"] for item in found["collectives"] if item["kind"] != "all-reduce")
    assert [file.name for file in tmp_path.iterdir()] == ["cluster.pbtxt"]


def test_gpus_without_that_model_are_sent_to_a_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["perf-table", *TRACES, "--target", "a100", "-o", str(tmp_path / "t.pbtxt")]) == 2
    assert "pgle convert" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_measured_point_replaces_those_of_xla_near_it() -> None:
    own = completed_transfers({}, "h100-sxm")
    measured = Transfer("all-gather", 1 << 24, 8)
    found = completed_transfers({measured: 123.0}, "h100-sxm")
    assert found[measured] == 123.0
    assert Transfer("all-gather", 1 << 23, 8) in own.keys() - found.keys()
    assert Transfer("all-gather", 1 << 21, 8) in found


def test_throughput_is_bytes_over_time_and_a_scatter_is_named_by_its_result() -> None:
    text = collective_table({Transfer("reduce-scatter", 8 << 20, 8): 100.0}, "sm_90")
    assert f"dimensions: {(8 << 20) // 4 // 8} " in text
    assert f"network_throughput_bytes_per_sec: {(8 << 20) * 10_000}" in text


def test_large_collectives_across_hosts_say_how_fast_the_network_is() -> None:
    sizes = {"p": 1 << 26, "small": 1 << 8}
    inside = tuple(tuple(range(8 * host, 8 * host + 8)) for host in (0, 1))
    items = [
        Instruction(name, "parameter", Shape("bf16", (size,)), "e") for name, size in sizes.items()
    ]
    for name, operand, groups in (
        ("far", "p", (tuple(range(16)),)),
        ("near", "p", inside),
        ("tiny", "small", ()),
    ):
        shape = Shape("bf16", (sizes[operand] * (8 if name == "near" else 16),))
        items.append(Instruction(name, "all-gather", shape, "e", (operand,), replica_groups=groups))
    module = Module(
        "m", 1, "", "e", {"e": Computation("e", tuple(items), "tiny")}, True, num_partitions=16
    )
    slow = find_hardware("h100", network_gb_s=37)
    costs = [Cost(name, collective_us(module, "all-gather", module.instructions[name], slow))
             for name in ("far", "near", "tiny")]  # fmt: skip
    assert measured_networks(module, costs, find_hardware("h100")) == [pytest.approx(37, rel=0.01)]
