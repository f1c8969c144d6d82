"""What LHS believed, from real dumps in both forms."""

from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format

from pgle.errors import UserError
from pgle.xla.hlo.dumps import read_module, read_modules
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.schedule_dump import (
    LhsSchedule,
    find_schedule_dumps,
    read_schedule_dump,
)
from pgle.xla.protos import schedule_pb2


@pytest.fixture
def schedule(dumps: Path) -> LhsSchedule:
    return read_schedule_dump(dumps / "async" / "jit_step.schedule.txt.xz")


def without_source(module: Module) -> list[Instruction]:
    """Of a text dump the stack frames are not read."""
    return [replace(item, source="", called_from="") for item in module.walk()]


def test_text_and_binary_say_the_same(dumps: Path, schedule: LhsSchedule) -> None:
    binary = read_schedule_dump(dumps / "async" / "jit_step.schedule.pb.xz")
    assert without_source(binary.module) == without_source(schedule.module)
    assert binary.computations == schedule.computations
    assert binary.latencies == schedule.latencies


def test_the_module_has_the_fingerprint_of_the_final_one(
    dumps: Path, schedule: LhsSchedule
) -> None:
    (final,) = read_modules(dumps / "async")
    assert schedule.module.fingerprint == final.fingerprint != ""


def test_entry_and_loop_bodies_are_scheduled(schedule: LhsSchedule) -> None:
    bodies = {
        item.called[0] for item in schedule.module.walk() if item.opcode == "while"
    }
    assert set(schedule.computations) == bodies | {schedule.module.entry}


def test_slots_cover_the_whole_computation_in_order(schedule: LhsSchedule) -> None:
    for name, computation in schedule.computations.items():
        in_module = [
            item.name for item in schedule.module.computations[name].instructions
        ]
        assert list(computation.slots) == in_module
        starts = [slot.start_cycles for slot in computation.slots.values()]
        assert starts == sorted(starts)


def test_costs_are_the_t_shirt_sizes_of_a_run_without_profile(
    schedule: LhsSchedule,
) -> None:
    entry = schedule.computations[schedule.module.entry]
    assert entry.slots["gemm_fusion_dot.9"].cycles == 1
    assert entry.slots["loop_multiply_fusion"].cycles == 1000


def test_a_collective_that_nothing_hides_shows_its_believed_latency(
    schedule: LhsSchedule,
) -> None:
    latency = schedule.latencies["all-gather-start.3"]
    assert (latency.pair.kind, latency.span_cycles) == ("all-gather", 5000)


def test_statistics_add_up(schedule: LhsSchedule) -> None:
    for computation in schedule.computations.values():
        statistics = computation.statistics
        busy = sum(slot.cycles for slot in computation.slots.values())
        assert statistics.total_wasted_cycles > 0
        assert statistics.total_cycles == pytest.approx(
            statistics.total_wasted_cycles + busy
        )


def test_a_dump_reads_as_a_module_too(dumps: Path, schedule: LhsSchedule) -> None:
    dump = read_module(dumps / "async" / "jit_step.schedule.pb.xz")
    assert without_source(dump) == without_source(schedule.module)


def test_dumps_are_found_by_module_name(dumps: Path) -> None:
    assert set(find_schedule_dumps(dumps)) == {"jit_step", "jit_collectives"}


@pytest.mark.parametrize("suffix", ["txt", "pb"])
def test_the_name_inside_counts_where_the_file_name_lost_an_underscore(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"jit__lambda.schedule.{suffix}"
    if suffix == "txt":
        path.write_text('hlo_module {\n  name: "jit__lambda_"\n}\n')
    else:
        proto = schedule_pb2.ScheduleProto()
        proto.hlo_module.name = "jit__lambda_"
        path.write_bytes(proto.SerializeToString())
    assert find_schedule_dumps(tmp_path) == {"jit__lambda_": path}


OLD = """instructions { id: 1 end_timestamp_cycles: 1 }
instructions { id: 2 start_timestamp_cycles: 1 end_timestamp_cycles: 1001 }
computation_id: 5
hlo_module {
  name: "m"
  computations {
    name: "main"
    id: 5
    root_id: 2
    instructions { name: "p" opcode: "parameter" id: 1 }
    instructions { name: "n" opcode: "negate" id: 2 operand_ids: 1 }
  }
  entry_computation_id: 5
}
cycles_per_microsecond: 1
"""


@pytest.mark.parametrize("suffix", ["txt", "pb"])
def test_the_form_of_jaxlib_0_5_0_has_one_computation(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"main.schedule.{suffix}"
    proto = text_format.Parse(OLD, schedule_pb2.EntryScheduleProto())
    path.write_bytes(OLD.encode() if suffix == "txt" else proto.SerializeToString())
    assert find_schedule_dumps(tmp_path) == {"m": path}
    schedule = read_schedule_dump(path)
    entry = schedule.computations[schedule.module.entry]
    assert entry.slots["n"].cycles == 1000
    assert entry.statistics.total_cycles == 1001


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.schedule.txt", "", "empty schedule dump"),
        ("m.schedule.txt", OLD[:300], "cut short"),
        ("m.schedule.txt", "costs { name: 'x' }", "holds no HLO module"),
        ("m.schedule.txt", OLD.replace("id: 2 start", "id: 9 start"), "unknown id 9"),
        ("m.schedule.pb", OLD, "not a binary schedule dump"),
    ],
)
def test_bad_dumps_are_user_errors(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_schedule_dump(path)


def test_messages_within_messages_are_an_error(tmp_path: Path) -> None:
    dump = tmp_path / "m.schedule.txt"
    dump.write_text("hlo_module {" * 400 + "}" * 400)
    with pytest.raises(UserError, match="not a schedule dump"):
        read_schedule_dump(dump)
