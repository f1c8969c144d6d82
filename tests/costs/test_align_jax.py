"""Windows of a real job: three processes, joined by jax.distributed on CPU devices, each begins a
step later.
"""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from pgle.costs.measure.alignment import MAX_SPREAD_NS, align_program
from pgle.costs.measure.measured import find_programs, unite_programs
from pgle.costs.profile.lookup import name_instructions
from pgle.trace.table import combine
from pgle.trace.xplane.read import find_xplanes, read_xplane

RANKS = 3

TRAIN = """
import random, sys, time
import jax
rank, size, port, logdir = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", size, rank)
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(jax.devices(), "data")
sharded, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
x = jax.make_array_from_callback((size * 64, 64), sharded, lambda index: jnp.ones((64, 64)))
w = jax.make_array_from_callback((64, 64), whole, lambda index: jnp.ones((64, 64)))

@jax.jit
def step(w, x):
    for _ in range(3):
        y = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), sharded)
        w = jax.lax.with_sharding_constraint(w / 2 + x.T @ y, whole)
    return w

pause = random.Random(rank)
for number in range(16):
    if number == 6 + rank:
        jax.profiler.start_trace(logdir)
    time.sleep(pause.uniform(0, 0.2))
    w = step(w, x).block_until_ready()
    if number == 11 + rank:
        jax.profiler.stop_trace()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """One of six executions per rank, of which rank n began with the n-th; again where the machine
    was too busy.
    """
    for _ in range(3):
        found = recorded(tmp_path_factory.mktemp("job"))
        if strays_ns(found) < MAX_SPREAD_NS / 2:
            break
    return found


def strays_ns(traces):
    """How far ends of collectives stray that are one by the order in which ranks began: more than
    GPUs' on CPUs.
    """
    ends = [last_ends_ns(trace) for trace in traces]
    apart = [end[: len(end) - rank] - ends[0][rank:] for rank, end in enumerate(ends)]
    return max(np.median(np.abs(one - np.median(one))) for one in apart)


def last_ends_ns(trace):
    reduces = np.array([name.startswith("all-reduce") for name in trace.instructions])[
        trace.instruction
    ]
    rows = reduces & (trace.instruction >= 0)
    end_ns = trace.start_ns + trace.duration_ns
    return np.array(
        [end_ns[rows & (trace.execution == number)].max() for number in range(6)]
    )


def recorded(folder):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environ = {
        name: value for name, value in os.environ.items() if name != "XLA_FLAGS"
    } | {"JAX_PLATFORMS": "cpu"}
    logdirs = [folder / f"rank{rank}" for rank in range(RANKS)]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(rank), str(RANKS), str(port), str(logdir)],
            env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for rank, logdir in enumerate(logdirs)
    ]  # fmt: skip
    results = [
        (child.communicate(timeout=240)[1], child.returncode) for child in children
    ]
    assert [code for _, code in results] == [0] * RANKS, results
    return [read_xplane(find_xplanes(logdir)) for logdir in logdirs]


def shifts(traces):
    trace = combine(traces)
    trace, programs = unite_programs(trace, find_programs(trace, []))
    step = next(program for program in programs if program.key.name == "jit_step")
    found = align_program(
        trace, step.index, name_instructions(trace, step.instructions, step.hlo)
    )
    number = {
        device.process: int(shift)
        for device, shift in zip(trace.devices, found.shift, strict=True)
    }
    return [number[one.devices[0].process] for one in traces]


def test_every_rank_recorded_six_executions(traces):
    for trace in traces:
        step = next(
            number for number, key in enumerate(trace.modules) if key.name == "jit_step"
        )
        assert np.unique(trace.execution[trace.module == step]).tolist() == [
            0,
            1,
            2,
            3,
            4,
            5,
        ]


def test_the_windows_are_laid_on_each_other_as_they_were_recorded(traces):
    assert shifts(traces) == [0, 1, 2]


def test_without_any_clock_too(traces):
    assert shifts([replace(trace, recordings={}) for trace in traces]) == [0, 1, 2]
