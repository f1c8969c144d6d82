"""Two processes of one job, joined by jax.distributed on CPU devices, that start their collectives
in different orders: without the comparison they wait for one another.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from pgle.cli.main import run

RANKS = 2
LIMIT_S = 400  # nothing is timed: a bound for a test that hangs

TRAIN = """
import os, sys
import jax
rank, size, port = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"]), sys.argv[1]
jax.distributed.initialize(f"localhost:{port}", size, rank)
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def reduced_first(x):
    x = lax.psum(x, "d")
    return lax.ppermute(x, "d", [(0, 1), (1, 0)])

def moved_first(x):
    x = lax.ppermute(x, "d", [(0, 1), (1, 0)])
    return lax.psum(x, "d")

def step(x):
    return reduced_first(x) if rank == 1 and sys.argv[2] == "differ" else moved_first(x)

mesh = Mesh(jax.devices(), "d")
sharded = NamedSharding(mesh, P("d"))
x = jax.make_array_from_callback((size, 8), sharded, lambda index: jnp.ones((1, 8)))
train = jax.jit(shard_map(step, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
for number in range(3):
    x = train(x).block_until_ready()
print("rank", rank, "has done its steps")
"""

pytestmark = pytest.mark.slow


def start_all(tmp_path, kind):
    """What pgle printed for each rank, with its exit code."""
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, "-m", "pgle", "perf", "--baseline", "--run-dir", "run"]
    words += ["--capture", "jax", "--", sys.executable, str(program), port, kind]
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    children = []
    for rank in range(RANKS):
        mine = {
            "JAX_PLATFORMS": "cpu",
            "JAX_PROCESS_ID": str(rank),
            "JAX_NUM_PROCESSES": str(RANKS),
        }
        children.append(
            subprocess.Popen(
                words,
                env=environ | mine,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return [
        (child.communicate(timeout=LIMIT_S)[0], child.returncode) for child in children
    ]


def test_ranks_that_differ_are_ended_with_one_line_and_read_afterwards(
    tmp_path, capsys
):
    results = start_all(tmp_path, "differ")
    assert [code for _, code in results] == [1] * RANKS, results
    for output, _ in results:
        assert "has done its steps" not in output
        lines = [line for line in output.splitlines() if "the job could" in line]
        assert len(lines) == 1
        assert "collective-permute" in lines[0]
        assert "all-reduce" in lines[0]
    assert run(["ranks", str(tmp_path / "run"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["differences"][0]["ranks"] == [["0"], ["1"]]


def test_ranks_that_agree_are_left_alone(tmp_path, capsys):
    results = start_all(tmp_path, "agree")
    assert [code for _, code in results] == [0] * RANKS, results
    assert run(["ranks", str(tmp_path / "run")]) == 0
    assert (
        "All 2 ranks start their collectives in the same order"
        in capsys.readouterr().out
    )
