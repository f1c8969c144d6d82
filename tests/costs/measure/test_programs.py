"""Which of several programs is the main one."""

from dataclasses import replace

import numpy as np

from pgle.costs.measure.measured import find_programs
from pgle.steps.executions import execution_series
from pgle.trace.table import ModuleKey


def test_a_barrier_in_which_ranks_wait_is_not_the_main_module(make_trace):
    steps = [
        (0, number, "fusion.1", 2 * number, 10_000 * number, 100) for number in range(3)
    ]
    barrier = [(0, 0, "all-reduce.1", 9, 40_000, 5000)]
    trace = make_trace([*steps, *barrier])
    module = np.array([0, 0, 0, 1], np.int32)
    trace = replace(
        trace,
        module=module,
        modules=(ModuleKey("jit_step", 1), ModuleKey("jit__psum", 2)),
    )
    assert [program.key.name for program in find_programs(trace, [])] == [
        "jit_step",
        "jit__psum",
    ]
    assert len(execution_series(trace, "trace")) == 3
