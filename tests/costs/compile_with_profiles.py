"""Compile a small program for four GPUs once per profile, without a GPU. Run as a child process of
tests.

Arguments: the program (``products``; ``sum`` where only the reading of the profile matters), dump
folder, target text file, profile files. On stderr XLA's log, a line ``PROFILE name`` before each;
the schedule of products that LHS believed in is left as ``PROFILE name.schedule.txt`` in the dump
folder, with a file ``fingerprint``. In all profiles but the first ``FP`` becomes that.
"""

import os
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FINGERPRINT = re.compile(r'key: "fingerprint_before_lhs"\s+value: "([0-9a-f]{32})"')


def main(program: str, folder: Path, target: Path, profiles: list[Path]) -> None:
    topology = topologies.get_topology_desc(
        "", platform="cuda", target_config=target.read_text(), topology="1x1x4"
    )
    mesh = Mesh(topology.devices, ("x",))
    sharded, whole = (
        NamedSharding(mesh, PartitionSpec("x")),
        NamedSharding(mesh, PartitionSpec()),
    )

    def step(w, v, a):
        return jnp.sin(a @ w) @ v if program == "products" else w + 1

    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    jitted = jax.jit(step, in_shardings=(sharded, sharded, whole), out_shardings=whole)
    lowered = jitted.lower(shape, shape, shape)
    for profile in profiles:
        os.write(2, f"\nPROFILE {profile.name}\n".encode())
        try:
            lowered.compile(
                compiler_options={
                    "xla_gpu_pgle_profile_file_or_directory_path": str(profile)
                }
            )
        except Exception as error:  # no ptxas: scheduling is done and dumped by then
            if "PTX" not in str(error) and "libdevice" not in str(error):
                raise
        if program == "products":
            schedule = (folder / "jit_step.schedule.txt").rename(
                folder / f"{profile.name}.schedule.txt"
            )
            if profile is profiles[0]:
                fingerprint = FINGERPRINT.search(schedule.read_text(errors="replace"))[
                    1
                ]
                (folder / "fingerprint").write_text(fingerprint)
                for later in profiles[1:]:
                    later.write_text(later.read_text().replace("FP", fingerprint))


folder, target, *profiles = map(Path, sys.argv[2:])
main(sys.argv[1], folder, target, profiles)
