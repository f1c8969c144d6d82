"""HLO protos → modules: the real dumps of a four-process job, and protos made by hand."""

import gzip
import re
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.xla.hlo.dumps import read_module, read_modules, read_scheduled
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import module_from_bytes
from pgle.xla.protos import hlo_pb2

pytestmark = pytest.mark.usefixtures("read_once")

TESTDATA = Path(__file__).parents[3] / "testdata"
PAX = TESTDATA / "pax_fsdp4"
STEP = "module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"


@pytest.fixture(scope="module")
def step() -> Module:
    return read_module(PAX / "proc0/dump" / STEP)


def test_a_real_module_has_its_name_id_fingerprint_and_partitions(step: Module) -> None:
    assert (step.name, step.program_id, step.fingerprint, step.num_partitions) == (
        "pjit__wrapped_step_fn",
        40,
        "25fa0b3e673a92036f22550cd7bcb068",
        4,
    )


def test_every_instruction_is_read(step: Module) -> None:
    assert len(step.instructions) == 37026


def test_operands_run_before_their_users_in_a_scheduled_entry(step: Module) -> None:
    seen: set[str] = set()
    for instruction in step.entry_computation.instructions:
        assert seen.issuperset(instruction.operands)
        seen.add(instruction.name)


def test_a_collective_has_its_channel_groups_and_bytes(step: Module) -> None:
    gather = step.instructions["all-gather-start.9"]
    assert gather.replica_groups == ((0, 1, 2, 3),)
    assert gather.channel_id is not None
    assert (
        step.instructions[gather.operands[0]].shape.size_bytes * len(gather.operands)
        <= 175632
    )


def test_a_reduce_scatter_is_found_inside_its_async_start(step: Module) -> None:
    wrapped = step.wrapped(step.instructions["reduce-scatter-start"])
    assert wrapped is not None
    assert wrapped.opcode == "reduce-scatter"


def test_a_done_wraps_what_its_start_wraps(step: Module) -> None:
    wrapped = step.wrapped(step.instructions["reduce-scatter-done"])
    assert wrapped is not None
    assert wrapped.opcode == "reduce-scatter"


def test_a_module_before_optimizations_is_not_scheduled() -> None:
    module = read_module(
        PAX
        / "proc0/dump/module_0040.pjit__wrapped_step_fn.before_optimizations.hlo.pb.xz"
    )
    assert not module.is_scheduled
    assert module.fingerprint == ""


def test_a_dump_directory_gives_each_optimized_module_once() -> None:
    modules = read_modules(PAX / "proc0/dump")
    ids = [module.program_id for module in modules]
    assert ids == sorted(set(ids))  # type: ignore[type-var]
    assert 40 in ids
    assert all(module.is_scheduled for module in modules)


def test_processes_that_compiled_differently_are_both_kept() -> None:
    steps = [
        module.fingerprint for module in read_modules(PAX) if module.program_id == 40
    ]
    assert steps == [
        "25fa0b3e673a92036f22550cd7bcb068",
        "04555b1419fd4e5b8933dc47fbf80dbb",
    ]


def small_proto() -> hlo_pb2.HloModuleProto:
    proto = hlo_pb2.HloModuleProto(name="m", id=7, entry_computation_id=1 << 40)
    computation = proto.computations.add(name="main", id=1 << 40, root_id=(1 << 40) + 2)
    computation.instructions.add(name="p", opcode="parameter", id=(1 << 40) + 1)
    computation.instructions.add(
        name="r", opcode="negate", id=(1 << 40) + 2, operand_ids=[(1 << 40) + 1]
    )
    return proto


def test_a_proto_says_which_parameters_results_take_the_memory_of() -> None:
    proto = small_proto()
    proto.input_output_alias.entries.add(output_shape_index=[0], parameter_number=3)
    assert module_from_bytes(proto.SerializeToString(), "m.pb").donated == {3}


def test_ids_are_sixty_four_bits_wide() -> None:
    module = module_from_bytes(small_proto().SerializeToString(), "m")
    assert module.instructions["r"].operands == ("p",)


def test_a_bare_module_proto_reads_like_a_wrapped_one() -> None:
    bare = small_proto()
    wrapped = hlo_pb2.HloProto(hlo_module=bare)
    assert module_from_bytes(bare.SerializeToString(), "") == module_from_bytes(
        wrapped.SerializeToString(), ""
    )


def test_instructions_come_in_schedule_order() -> None:
    proto = small_proto()
    extra = proto.computations[0].instructions.add(
        name="late", opcode="constant", id=(1 << 40) + 3
    )
    proto.schedule.sequences[1 << 40].instruction_ids.extend(
        [extra.id, (1 << 40) + 1, (1 << 40) + 2]
    )
    module = module_from_bytes(proto.SerializeToString(), "")
    assert module.is_scheduled
    assert [item.name for item in module.entry_computation.instructions] == [
        "late",
        "p",
        "r",
    ]


def collective(**fields: object) -> tuple[tuple[int, ...], ...]:
    proto = small_proto()
    item = proto.computations[0].instructions[1]
    item.MergeFrom(hlo_pb2.HloInstructionProto(opcode="all-gather", **fields))
    return (
        module_from_bytes(proto.SerializeToString(), "")
        .instructions["r"]
        .replica_groups
    )


def test_groups_as_lists() -> None:
    groups = [hlo_pb2.ReplicaGroup(replica_ids=ids) for ids in ([0, 2], [1, 3])]
    assert collective(replica_groups=groups) == ((0, 2), (1, 3))
    devices = hlo_pb2.CollectiveDeviceListProto(replica_groups=groups)
    assert collective(collective_device_list=devices) == ((0, 2), (1, 3))


def test_groups_as_transposed_iota() -> None:
    iota = hlo_pb2.IotaReplicaGroupListProto(
        num_replica_groups=2,
        num_devices_per_group=2,
        iota_reshape_dims=[2, 2],
        iota_transpose_perm=[1, 0],
    )
    assert collective(iota_collective_device_list=iota) == ((0, 2), (1, 3))
    devices = hlo_pb2.CollectiveDeviceListProto(iota_replica_group_list=iota)
    assert collective(collective_device_list=devices) == ((0, 2), (1, 3))


def mesh_list(
    axes: list[hlo_pb2.AxisRefProto], ids: list[int]
) -> hlo_pb2.MeshAxesReplicaGroupListProto:
    mesh = hlo_pb2.MeshProto(device_ids=ids)
    mesh.axes.add(name="x", size=2)
    mesh.axes.add(name="y", size=4)
    return hlo_pb2.MeshAxesReplicaGroupListProto(mesh=mesh, axes=axes)


def test_groups_along_a_mesh_axis() -> None:
    along_x = mesh_list([hlo_pb2.AxisRefProto(mesh_axis_index=0)], [])
    assert collective(mesh_axes_replica_group_list=along_x) == (
        (0, 4),
        (1, 5),
        (2, 6),
        (3, 7),
    )


def test_groups_along_part_of_a_mesh_axis() -> None:
    axis = hlo_pb2.AxisRefProto(mesh_axis_index=1)
    axis.sub_axis_info.pre_size, axis.sub_axis_info.size = 1, 2
    assert collective(mesh_axes_replica_group_list=mesh_list([axis], [])) == (
        (0, 2),
        (1, 3),
        (4, 6),
        (5, 7),
    )


def test_groups_of_a_mesh_with_its_own_device_order() -> None:
    along_x = mesh_list(
        [hlo_pb2.AxisRefProto(mesh_axis_index=0)], [7, 6, 5, 4, 3, 2, 1, 0]
    )
    assert collective(mesh_axes_replica_group_list=along_x) == (
        (7, 3),
        (6, 2),
        (5, 1),
        (4, 0),
    )


def test_hostile_group_sizes_are_refused() -> None:
    iota = hlo_pb2.IotaReplicaGroupListProto(
        num_replica_groups=1 << 40, num_devices_per_group=1 << 20
    )
    with pytest.raises(UserError, match="make no sense"):
        collective(iota_collective_device_list=iota)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.hlo.pb", b"", "empty file"),
        ("a.hlo.pb", b"HloModule jit_step, is_scheduled=true\n", "is HLO text"),
        ("a.hlo.pb", b"\x00\x01not a proto", "not an HLO protocol buffer"),
        (
            "a.hlo.pb",
            small_proto().SerializeToString()[:-3],
            "not an HLO protocol buffer, or cut short",
        ),
        (
            "a.hlo.pb.gz",
            gzip.compress(small_proto().SerializeToString(), mtime=0)[:-9],
            "damaged archive",
        ),
        (
            "a.hlo.pb",
            hlo_pb2.HloModuleProto(name="m").SerializeToString(),
            "no HLO computation",
        ),
    ],
)
def test_bad_files_are_user_errors(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_module(path)


def test_a_proto_without_what_it_refers_to_is_cut_short() -> None:
    proto = small_proto()
    del proto.computations[0].instructions[0]
    with pytest.raises(UserError, match="cut short"):
        module_from_bytes(proto.SerializeToString(), "x")


def test_a_directory_without_hlo_says_how_to_dump_it(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("hello")
    with pytest.raises(UserError, match="xla_dump_to"):
        read_modules(tmp_path)


def test_a_schedule_for_cpus_is_not_taken_for_a_gpus(tmp_path: Path) -> None:
    text = "HloModule jit_step, is_scheduled=true\n\nENTRY main {\n  ROOT a = f32[8]{0} parameter(0)\n}\n"
    (tmp_path / "module_0001.jit_step.cpu_after_optimizations.txt").write_text(text)
    with pytest.raises(UserError, match=r"compiled for CPUs, .*: pgle rehearse "):
        read_scheduled(tmp_path)
    (tmp_path / "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt").write_text(
        text.replace("f32", "f16")
    )
    assert [".sm_9.0_gpu_" in module.source for module in read_scheduled(tmp_path)] == [
        True
    ]


def test_text_and_proto_name_the_same_lines_of_the_program(dumps: Path) -> None:
    text, proto = (
        read_module(next((dumps / "async").glob(f"*after_optimizations{end}.xz")))
        for end in (".txt", ".hlo.pb")
    )
    sources = {item.name: item.source for item in proto.walk()}
    assert {
        item.name: item.source for item in text.walk() if item.name in sources
    }.items() <= sources.items()
    assert any(re.fullmatch(r"/.*record\.py:\d+", item.source) for item in text.walk())
