"""XLA's own "Found N" and "Missing M", told beforehand; the log lines are in checker.json of the dumps."""

import json
from pathlib import Path

from pgle.xla.checker import assumed_us, checker_counts, compute_capability
from pgle.xla.hlo_reader import read_modules
from pgle.xla.module import Instruction, Shape
from pgle.xla.schedule_dump import read_schedule_dump


def test_counts_and_names_are_those_that_xla_logs(dumps: Path) -> None:
    module = read_schedule_dump(dumps / "async" / "jit_step.schedule.pb.xz").module
    said = json.loads((dumps / "checker.json").read_text())
    assert len(said) >= 12
    for line in said:
        counts = checker_counts(module, line["names"])
        assert (line["names"], counts.found, sorted(counts.missing)) == (line["names"], line["found"], line["missing"])


def test_assumed_costs_are_those_of_a_real_schedule_without_profile(dumps: Path) -> None:
    schedule = read_schedule_dump(dumps / "async" / "jit_step.schedule.pb.xz")
    compared = set()
    for computation in schedule.computations.values():
        for name, slot in computation.slots.items():
            instruction = schedule.module.instructions[name]
            if instruction.opcode in ("fusion", "copy", "custom-call"):
                assert (name, slot.cycles) == (name, assumed_us(schedule.module, instruction))
                compared.add((instruction.opcode, instruction.fusion_kind))
    assert compared >= {("fusion", "kLoop"), ("fusion", "kInput"), ("fusion", "kCustom"), ("copy", "")}


def test_the_gpu_shows_in_the_name_of_the_dump(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    assert compute_capability(module) == (8, 0)


def test_a_start_is_taken_for_five_milliseconds(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    start = Instruction("s", "all-reduce-start", Shape("f32"), module.entry)
    assert assumed_us(module, start) == 5000
