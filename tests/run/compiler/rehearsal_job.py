"""A job as JAX runs it, with everything dumped: `python rehearsal_job.py DIR TARGET`, no GPU
needed.

Compiles a small sharded step for four devices through JAX's public API only, with specified and
unspecified shardings.
"""

import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ["JAX_DUMP_IR_TO"] = sys.argv[1]
os.environ["XLA_FLAGS"] = f"--xla_dump_to={sys.argv[1]} --xla_dump_hlo_as_proto=true"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TARGET = Path(sys.argv[2]).read_text()


def step(w, x):
    def loss(w):
        return jnp.mean(jnp.square(jnp.tanh(x @ w) @ w.T))

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.01 * gradient, value


topology = topologies.get_topology_desc(
    "", platform="cuda", target_config=TARGET, topology="1x1x4"
)
mesh = Mesh(np.array(topology.devices), ("data",))
rows = NamedSharding(mesh, PartitionSpec("data", None))
shapes = (
    jax.ShapeDtypeStruct((512, 2048), jnp.float32),
    jax.ShapeDtypeStruct((256, 512), jnp.float32),
)
jax.jit(step, in_shardings=(rows, None), out_shardings=(rows, None)).lower(
    *shapes
).compile()
