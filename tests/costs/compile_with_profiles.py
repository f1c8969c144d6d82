"""Compile a small program for four GPUs once per profile, without a GPU. Run as a child process of tests.

Arguments: dump folder, target text file, profile files. On stderr XLA's log, a line ``PROFILE name`` before each; the
schedule that LHS believed in is left as ``PROFILE name.schedule.txt`` in the dump folder.
"""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main(folder: Path, target: Path, profiles: list[str]) -> None:
    topology = topologies.get_topology_desc("", platform="cuda", target_config=target.read_text(), topology="1x1x4")
    mesh = Mesh(topology.devices, ("x",))
    sharded, whole = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())

    def step(w, v, a):
        return jnp.sin(a @ w) @ v

    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    jitted = jax.jit(step, in_shardings=(sharded, sharded, whole), out_shardings=whole)
    lowered = jitted.lower(shape, shape, shape)
    for profile in profiles:
        os.write(2, f"\nPROFILE {Path(profile).name}\n".encode())
        try:
            lowered.compile(compiler_options={"xla_gpu_pgle_profile_file_or_directory_path": profile})
        except Exception as error:  # no ptxas: scheduling is done and dumped by then
            if "PTX" not in str(error) and "libdevice" not in str(error):
                raise
        (folder / "jit_step.schedule.txt").rename(folder / f"{Path(profile).name}.schedule.txt")


main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
