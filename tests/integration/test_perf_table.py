"""`pgle perf-table`: what XLA believes with the table is what was measured."""

import json
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.costs.estimate.cluster_table import Transfer, collective_table, completed_transfers, measured_products
from pgle.costs.profile.value import Cost
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

PAX = Path(__file__).parents[2] / "testdata" / "pax_fsdp4"
TRACES = [str(PAX / "proc0.sqlite"), str(PAX / "proc3.sqlite"), "--hlo", str(PAX / "proc0" / "dump")]


@pytest.mark.rehearse
def test_the_compiler_believes_every_entry_or_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cluster.pbtxt"
    assert run(["perf-table", *TRACES, "--target", "h100", "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["key"] == "sm_90"
    kinds = {item["kind"]: item["taken"] for item in found["collectives"]}
    assert kinds.keys() == {"all-gather", "all-reduce", "reduce-scatter"}
    # releases after 0.11 have kernels of their own for small all-reduces, and a model for these
    assert all(item["taken"] for item in found["collectives"] if item["kind"] != "all-reduce")
    assert found["matmuls"]
    # XLA splits deep products of few tiles along k, and then looks up the parts
    assert all(item["taken"] for item in found["matmuls"] if item["k"] < 8192)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cluster.matmul.pbtxt", "cluster.pbtxt"]


def test_gpus_without_that_model_are_sent_to_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_only_kernels_of_one_product_count() -> None:
    given = [Instruction(name, "parameter", Shape("bf16", (256, 256)), "e") for name in "xy"]
    dots = [Instruction(name, "dot", Shape("bf16", (256, 256)), "e", ("x", "y")) for name in ("d", "e")]
    module = Module("m", 1, "", "e", {"e": Computation("e", (*given, *dots), "e")}, True)
    found = measured_products(module, [Cost("d", 7.0), Cost("e", 9.0), Cost("x", 1.0)])
    assert list(found.values()) == [8.0]
