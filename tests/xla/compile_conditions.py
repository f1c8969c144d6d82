"""Compile two loops for four GPUs, without a GPU, each with profiles that differ in one cost. Run
as a child process.

Arguments: dump folder, target text file. `plain` has a condition that computes, `meeting` one that
reduces over the GPUs. The schedule with a cost of N µs for the condition's last fusion is left as
``PROGRAM.N.schedule.pb``.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAST = "loop_and_fusion"


def main(folder: Path, target: Path) -> None:
    topology = topologies.get_topology_desc(
        "", platform="cuda", target_config=target.read_text(), topology="1x1x4"
    )
    mesh = Mesh(topology.devices, ("d",))
    sharded, whole = PartitionSpec("d"), PartitionSpec()

    def body(state):
        count, x, y, w = state
        gathered = jax.lax.all_gather(y, "d", axis=0, tiled=True)
        return count + 1, jnp.tanh(x @ w) + gathered.sum(), y * 1.01, w

    def run(condition):
        def program(x, w):
            return jax.lax.while_loop(condition, body, (0, x, x, w))[1]

        return jax.jit(
            jax.shard_map(
                program,
                mesh=mesh,
                in_specs=(sharded, whole),
                out_specs=sharded,
                check_vma=False,
            )
        )

    programs = {
        "plain": lambda state: (state[0] < 100) & (jnp.max(jnp.abs(state[3])) > 1e-3),
        "meeting": lambda state: (
            (state[0] < 100)
            & (jnp.abs(jax.lax.psum(state[1].sum(0), "d")).max() > 1e-3)
        ),
    }
    x = jax.ShapeDtypeStruct(
        (512, 512), jnp.float32, sharding=NamedSharding(mesh, sharded)
    )
    w = jax.ShapeDtypeStruct(
        (512, 512), jnp.float32, sharding=NamedSharding(mesh, whole)
    )
    for name, condition in programs.items():
        lowered = run(condition).lower(x, w)
        for cost in ("1", "90000"):
            text = f'costs {{ name: "{LAST}" cost_us: {cost} }}'
            try:
                lowered.compile(compiler_options={"fdo_profile": text.encode()})
            except (
                jax.errors.JaxRuntimeError
            ) as error:  # no ptxas: scheduling is done and dumped by then
                if "PTX" not in str(error) and "libdevice" not in str(error):
                    raise
            (folder / "jit_program.schedule.pb").rename(
                folder / f"{name}.{cost}.schedule.pb"
            )


main(Path(sys.argv[1]), Path(sys.argv[2]))
