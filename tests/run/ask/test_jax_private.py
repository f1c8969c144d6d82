"""Programs in every form, as the compiler's process reads them, with no compilation."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.run.ask import jax_private
from pgle.run.ask.jax_private import (
    Plugin,
    SourceProgram,
    hlo_module_bytes,
    module_form,
    program_from_hlo,
    without_fields,
)
from pgle.xla.vendors import AMD, NVIDIA

HEADER = "HloModule jit_step, entry_computation_layout={(f32[8]{0})->f32[8]{0}}\n\n"


def test_a_plugin_without_a_function_is_to_be_replaced() -> None:
    plugin = Plugin.__new__(Plugin)
    plugin.vendor = AMD
    empty = ctypes.create_string_buffer(4096)
    plugin._api = ctypes.addressof(empty)
    with pytest.raises(UserError, match="the ROCm plugin lacks function") as error:
        plugin.topology("", "1x1x8")
    assert "jax-rocm7-plugin" in error.value.remedy


SHARDED = b"\x62\x01s"  # a module with nothing but GSPMD's sharding of its output


def read_facts(text: str, default_devices: int) -> SourceProgram:
    return program_from_hlo(SHARDED, text, default_devices)


def entry(*lines: str, header: str = HEADER) -> str:
    return f"{header}ENTRY main {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


PARAMETER = "p = f32[8]{0} parameter(0), sharding={devices=[4]<=[4]}"


@pytest.mark.parametrize(
    ("name", "data", "form"),
    [
        ("a", b"ML\xefR\x00\x01", "mlir"),
        (
            "jax_ir0000_jit_f_compile.mlir",
            b'#loc = loc("x")\nmodule @jit_f {\n}',
            "mlir",
        ),
        (
            "step.mlir",
            b"".join(b'#loc%d = loc("x")\n' % i for i in range(9999))
            + b"module @jit_f {\n}",
            "mlir",
        ),
        ("f.txt", b"HloModule jit_f, is_scheduled=true", "hlo-text"),
        (
            "module_0001.jit_f.before_optimizations.hlo.pb",
            b"\x0a\x05\x0a\x03abc",
            "hlo",
        ),
        (
            "module_0001.jit_f.before_optimizations.hlo.pb.xz",
            b"\x0a\x05\x0a\x03abc",
            "hlo",
        ),
        ("step.bin", b"\x14\x00\x00\x00\x00\x00", ""),
    ],
)
def test_form_of_a_module(name: str, data: bytes, form: str) -> None:
    assert module_form(name, data) == form


def test_module_inside_an_hlo_proto() -> None:
    module = b"\x0a\x03abc\x12\x01x"
    assert hlo_module_bytes(b"\x0a" + bytes([len(module)]) + module) == module


def test_a_scheduled_module_is_refused_before_xla_prints_it(
    testdata: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        jax_private, "_printed_hlo", pytest.fail
    )  # takes 22 GB for this one
    (dump,) = testdata.glob(
        "pax_fsdp4/proc0/dump/*_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
    )
    with pytest.raises(UserError, match="scheduled already"):
        jax_private.read_program(dump, read_bytes(dump), 4)


def test_an_hlo_module_proto_is_taken_as_it_is() -> None:
    assert hlo_module_bytes(b"\x0a\x03abc\x12\x01x") == b"\x0a\x03abc\x12\x01x"


def test_no_proto_at_all() -> None:
    assert hlo_module_bytes(b"hello") is None


def test_fields_are_cut_at_any_depth_and_the_rest_stays() -> None:
    # 1: "abc"; 3: {2: {1: "i", 40: "s"}, 5: "k"}; 12: "s"
    instruction = b"\x0a\x01i\xc2\x02\x01s"
    computation = b"\x12" + bytes([len(instruction)]) + instruction + b"\x2a\x01k"
    message = (
        b"\x0a\x03abc\x1a" + bytes([len(computation)]) + computation + b"\x62\x01s"
    )
    kept = without_fields(message, {3: {2: {40: None}}, 12: None})
    assert kept == b"\x0a\x03abc\x1a\x08\x12\x03\x0a\x01i\x2a\x01k"


def test_a_module_that_waits_for_the_partitioner() -> None:
    facts = read_facts(entry(PARAMETER, "ROOT n = f32[8]{0} negate(p)"), 1)
    assert (facts.name, facts.num_partitions, facts.is_partitioned, facts.code) == (
        "jit_step",
        4,
        False,
        SHARDED,
    )


def test_collectives_outside_of_shard_map_are_the_partitioners() -> None:
    gather = "ROOT g = f32[8]{0} all-reduce(p), channel_id=1, replica_groups=[2,64]<=[128], to_apply=add"
    facts = read_facts(
        entry("p = f32[8]{0} parameter(0), sharding={devices=[4]<=[4]}", gather), 1
    )
    assert facts.is_partitioned


def test_collectives_of_shard_map_are_its_authors() -> None:
    manual = 'm = f32[2]{0} custom-call(p), custom_call_target="SPMDFullToShardShape", sharding={manual}'
    gather = "ROOT g = f32[2]{0} all-reduce(m), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=add"
    assert not read_facts(entry(PARAMETER, manual, gather), 1).is_partitioned


@pytest.mark.parametrize(
    ("collective", "devices"),
    [
        (
            "all-reduce(p), channel_id=1, replica_groups=[2,64]<=[128], to_apply=add",
            (128, 1),
        ),
        (
            "all-reduce(p), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=add",
            (4, 1),
        ),
        (
            "collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}",
            (3, 1),
        ),
        ("all-reduce(p), replica_groups={{0,1,2,3}}, to_apply=add", (1, 4)),
        ("negate(p)", (7, 1)),
    ],
)
def test_devices_are_known_from_the_module(
    collective: str, devices: tuple[int, int]
) -> None:
    facts = read_facts(
        entry("p = f32[8]{0} parameter(0)", f"ROOT r = f32[8]{{0}} {collective}"), 7
    )
    assert (facts.num_partitions, facts.num_replicas) == devices


def test_the_header_has_the_last_word() -> None:
    header = HEADER.replace(", entry", ", num_partitions=16, replica_count=2, entry")
    facts = read_facts(
        entry(PARAMETER, "ROOT n = f32[8]{0} negate(p)", header=header), 1
    )
    assert (facts.num_partitions, facts.num_replicas) == (16, 2)


def test_devices_of_a_shardy_mesh() -> None:
    meshes = 'frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2, "y"=4]>}}'
    header = HEADER.replace(", entry", f", {meshes}, entry")
    facts = read_facts(
        entry(
            "p = f32[8]{0} parameter(0)", "ROOT n = f32[8]{0} negate(p)", header=header
        ),
        1,
    )
    assert (facts.num_partitions, facts.shardy, facts.code) == (8, True, b"")


def test_shardings_as_jax_0_12_writes_them() -> None:
    named = "p = f32[8]{0} parameter(0), sharding={mesh['x'=2,'y'=4], [{'x'}]}"
    facts = read_facts(entry(named, "ROOT n = f32[8]{0} negate(p)"), 1)
    assert (facts.num_partitions, facts.shardy, facts.code) == (8, True, SHARDED)


def test_parameters_without_a_sharding_are_left_to_the_compiler() -> None:
    facts = read_facts(
        entry("b = f32[8]{0} parameter(1)", PARAMETER, "ROOT n = f32[8]{0} negate(p)"),
        1,
    )
    assert facts.propagate_to_parameters == (False, True)


def test_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_private, "_folders", lambda name: [])
    with pytest.raises(
        UserError,
        match=r"CUDA plugin of jax is not installed.*pip install jax-cuda13-plugin",
    ):
        jax_private.library(NVIDIA)


def test_with_another_vendors_plugin_its_gpu_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = {"jax_plugins.xla_rocm7": [tmp_path]}
    monkeypatch.setattr(jax_private, "_folders", lambda name: here.get(name, []))
    with pytest.raises(
        UserError, match="GPU of AMD, whose plugin is here: --target mi350x"
    ):
        jax_private.library(NVIDIA)


@pytest.mark.parametrize("release", ["0.4.30", "0.4.37"])
def test_releases_that_cannot_rehearse(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jaxlib = pytest.importorskip("jaxlib")
    monkeypatch.setattr(jaxlib, "__version__", release)
    with pytest.raises(
        UserError,
        match=rf"jaxlib {release} cannot compile for a GPU.*jax 0.4.38 or newer",
    ):
        jax_private.version()
