"""Compile a matmul of a sharded activation for four GPUs, without one; print its collectives. Argument: target text."""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main(target: Path) -> None:
    topology = topologies.get_topology_desc("", platform="cuda", target_config=target.read_text(), topology="1x1x4")
    mesh = Mesh(topology.devices, ("m",))

    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    jitted = jax.jit(lambda x, w: x @ w, out_shardings=NamedSharding(mesh, PartitionSpec(None, "m")))
    compiled = jitted.lower(array((8192, 4096), "m", None), array((4096, 16384), None, "m")).compile()
    print(sorted(set(re.findall(r"(all-gather|collective-permute)(?:-start)?\(", compiled.as_text()))))


main(Path(sys.argv[1]))
