"""One program under several program ids."""

import dataclasses

import numpy as np
from calls import calls_of

from pgle.costs.measure.measured import find_programs, unite_programs
from pgle.trace.table import Device, ModuleKey
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape


def two_modules(
    make_trace, *, processes, names=("gemm", "gemm"), first_starts=(0, 1_000)
):
    """A module of one instruction under two program ids, two executions each, the first on the
    first process.
    """
    devices = tuple(dict.fromkeys(Device(process, 0) for process in processes))
    rows = [
        (
            which % len(devices),
            number,
            f"{which}.{name}",
            10 * which + number,
            first_starts[which] + 100 * number,
            10,
        )
        for which, name in enumerate(names)
        for number in range(2)
    ]
    trace = make_trace(rows)
    module, name = zip(
        *(trace.instructions[code].split(".") for code in trace.instruction),
        strict=True,
    )
    instructions = tuple(dict.fromkeys(name))
    return dataclasses.replace(
        trace,
        modules=(ModuleKey("jit_step", 40), ModuleKey("jit_step", 42)),
        module=np.array(module, np.int32),
        instructions=instructions,
        instruction=np.array([instructions.index(item) for item in name], np.int32),
        devices=devices,
    )


def hlo(program_id, fingerprint):
    root = Instruction(
        name="gemm", opcode="fusion", shape=Shape("f32", (8,)), computation="main"
    )
    computation = Computation("main", (root,), "gemm")
    return Module(
        "jit_step",
        program_id,
        fingerprint,
        "main",
        {"main": computation},
        is_scheduled=True,
    )


def test_ranks_that_number_a_module_differently_run_one_program(make_trace):
    trace = two_modules(make_trace, processes=("rank0", "rank1"))
    united, programs = unite_programs(trace, find_programs(trace, ()))
    assert len(programs) == 1
    assert set(united.module.tolist()) == {programs[0].index}
    assert united.execution.tolist() == [0, 1, 0, 1]


def test_equally_named_modules_of_one_process_stay_apart(make_trace):
    trace = two_modules(make_trace, processes=("rank0", "rank0"))
    assert len(unite_programs(trace, find_programs(trace, ()))[1]) == 2


def test_equally_named_modules_of_other_instructions_stay_apart(make_trace):
    trace = two_modules(
        make_trace, processes=("rank0", "rank1"), names=("gemm", "conv")
    )
    assert len(unite_programs(trace, find_programs(trace, ()))[1]) == 2


def test_a_module_compiled_twice_is_one_program_whose_executions_go_on(make_trace):
    trace = two_modules(
        make_trace, processes=("rank0", "rank0"), first_starts=(1_000, 0)
    )
    united, (program,) = unite_programs(
        trace, find_programs(trace, [hlo(40, "f" * 32), hlo(42, "f" * 32)])
    )
    assert program.fingerprints == ("f" * 32,)
    by_start = united.start_ns.argsort()
    assert united.execution[by_start].tolist() == [0, 1, 2, 3]


def test_fingerprints_of_all_ranks_are_kept(make_trace):
    trace = two_modules(make_trace, processes=("rank0", "rank1"))
    _, (program,) = unite_programs(
        trace, find_programs(trace, [hlo(40, "a" * 32), hlo(42, "b" * 32)])
    )
    assert program.fingerprints == ("a" * 32, "b" * 32)


def many_ids(make_trace, ranks):
    """A module that has another program id on each rank."""
    trace = make_trace([(rank, 0, "gemm", rank, 0, 10) for rank in range(ranks)])
    return dataclasses.replace(
        trace,
        modules=tuple(ModuleKey("jit_step", rank) for rank in range(ranks)),
        module=np.arange(ranks, dtype=np.int32),
        devices=tuple(Device(f"rank{rank}", 0) for rank in range(ranks)),
    )


def test_four_times_the_program_ids_are_four_times_the_work(make_trace):
    def unite(trace):
        assert len(unite_programs(trace, find_programs(trace, ()))[1]) == 1

    traces = [many_ids(make_trace, ranks) for ranks in (50, 200)]
    few, many = (calls_of(lambda each=each: unite(each)) for each in traces)
    assert many <= 4.1 * few
