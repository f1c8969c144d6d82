"""The proto subsets read what XLA and the profiler write, skip what they do not know, and agree
with the originals.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from google.protobuf import text_format

from pgle.xla.protos import hlo_pb2, profiled_instructions_pb2, schedule_pb2, xplane_pb2

TESTDATA = Path(__file__).parents[2] / "testdata"
XPLANES = sorted((TESTDATA / "jax_xplane").glob("*.xplane.pb"))
HLO = sorted((TESTDATA / "jax_xplane" / "hlo_proto").glob("*.pb"))
STEP = (
    TESTDATA
    / "pax_fsdp4/proc0/dump/module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
)


def test_hlo_dump_is_read():
    module = hlo_pb2.HloProto.FromString(lzma.decompress(STEP.read_bytes())).hlo_module
    opcodes = {i.opcode for c in module.computations for i in c.instructions}
    assert module.name == "pjit__wrapped_step_fn"
    assert "all-gather-start" in opcodes
    assert (
        len(module.schedule.sequences[module.entry_computation_id].instruction_ids)
        > 1000
    )


@pytest.mark.parametrize("path", XPLANES, ids=lambda path: path.name)
def test_xplane_survives_reading_and_writing(path: Path):
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    assert xplane_pb2.XSpace.FromString(space.SerializeToString()) == space
    assert any(plane.lines for plane in space.planes)


def test_unknown_fields_are_kept_through_reading_and_writing():
    data = (
        b"\x0a\x03abc" + b"\xf2\x3f\x02hi"
    )  # entry of HloModuleProto: name, then field 1022
    module = hlo_pb2.HloModuleProto.FromString(data)
    assert module.name == "abc"
    assert module.SerializeToString() == data


def test_schedule_dump_text_with_unknown_fields_is_read():
    text = """
      hlo_module { name: "jit_step" made_up { deep: 1 } computations { name: "main" id: 4294967296 } }
      computation_schedules {
        computation_id: 4294967296
        instructions { id: 4294967297 start_timestamp_cycles: 1 end_timestamp_cycles: 301 brand_new: "x" }
        scheduler_statistics { all_gather_wasted_cycles: 12.5 total_cycles: 301 }
        cycles_per_microsecond: 1
      }
    """
    schedule = text_format.Parse(
        text, schedule_pb2.ScheduleProto(), allow_unknown_field=True
    )
    (computation,) = schedule.computation_schedules
    assert computation.scheduler_statistics.all_gather_wasted_cycles == 12.5
    assert computation.instructions[0].end_timestamp_cycles == 301


def test_schedule_dump_of_jaxlib_0_5_0_is_read():
    text = 'instructions { id: 3 end_timestamp_cycles: 7 } computation_id: 2 hlo_module { name: "m" }'
    schedule = text_format.Parse(
        text, schedule_pb2.EntryScheduleProto(), allow_unknown_field=True
    )
    assert (
        schedule.computation_id,
        schedule.instructions[0].id,
        schedule.hlo_module.name,
    ) == (
        2,
        3,
        "m",
    )


def test_profile_text_is_read():
    text = (TESTDATA / "maxtext_pgle" / "llama2_70b_bf16_pgle_16vm.pbtxt").read_text()
    profile = text_format.Parse(
        text, profiled_instructions_pb2.ProfiledInstructionsProto()
    )
    assert len(profile.costs) > 500


@pytest.mark.tensorflow
@pytest.mark.parametrize("path", XPLANES, ids=lambda path: path.name)
def test_xplane_agrees_with_the_original(path: Path):
    original = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2").XSpace
    theirs = original.FromString(path.read_bytes())
    ours = xplane_pb2.XSpace.FromString(path.read_bytes())
    assert text_format.MessageToString(theirs) == text_format.MessageToString(ours)
    assert original.FromString(ours.SerializeToString()) == theirs


@pytest.mark.tensorflow
@pytest.mark.parametrize("path", [*HLO, STEP], ids=lambda path: path.name[:40])
def test_hlo_agrees_with_the_original(path: Path):
    original = pytest.importorskip("tensorflow.compiler.xla.service.hlo_pb2").HloProto
    data = (
        lzma.decompress(path.read_bytes())
        if path.suffix == ".xz"
        else path.read_bytes()
    )
    theirs, ours = original.FromString(data), hlo_pb2.HloProto.FromString(data)
    assert original.FromString(ours.SerializeToString()) == theirs
    their_text = text_format.MessageToString(theirs)
    from_text = text_format.Parse(
        their_text, hlo_pb2.HloProto(), allow_unknown_field=True
    )
    ours.DiscardUnknownFields()
    assert from_text == ours


@pytest.mark.tensorflow
def test_field_numbers_and_types_are_the_originals():
    hlo = pytest.importorskip("tensorflow.compiler.xla.service.hlo_pb2")
    data = pytest.importorskip("tensorflow.compiler.xla.xla_data_pb2")
    xplane = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    compared = 0
    for file, originals in ((hlo_pb2, (hlo, data)), (xplane_pb2, (xplane,))):
        for name, ours in file.DESCRIPTOR.message_types_by_name.items():
            theirs = next(
                (
                    m.DESCRIPTOR.message_types_by_name.get(name)
                    for m in originals
                    if name in m.DESCRIPTOR.message_types_by_name
                ),
                None,
            )
            if theirs is None:
                continue
            for field in ours.fields:
                original = theirs.fields_by_number.get(field.number)
                if original is not None:
                    assert (original.name, original.type) == (field.name, field.type), (
                        f"{name}.{field.name}"
                    )
                    compared += 1
    assert compared > 150
