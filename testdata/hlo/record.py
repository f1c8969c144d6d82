"""Record the HLO dumps of this folder with the installed jax, without a GPU: ``python record.py OUT``.

Two programs are compiled for four A100s (the target of ../pax_fsdp4): `step`, an FSDP-sharded MLP in a loop with its
gradient, and `collectives`, one of every collective inside shard_map. `step` is compiled three ways: as a performance
run (LHS on), as a profile run (LHS on, collectives synchronous) and with LHS off and collectives synchronous.
``checker.json`` holds what XLA's accuracy checker said of profiles with few names.
"""

import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LHS = "--xla_gpu_enable_latency_hiding_scheduler=true"
SYNC = "--xla_gpu_disable_async_collectives=allcollectives"
RUNS = {
    "async": ("step", [LHS]),
    "sync": ("step", [LHS, SYNC]),
    "off": ("step", ["--xla_gpu_enable_latency_hiding_scheduler=false", SYNC]),
    "collectives": ("collectives", [LHS]),
}
KEPT = re.compile(
    r"jit_\w+\.schedule\.(txt|pb)|module_\d+\.jit_\w+\.sm_8\.0_gpu_after_optimizations\.(txt|hlo\.pb)"
)
FEW_NAMES = (
    "no-such-name",
    "gemm_fusion_dot.9",
    "all-gather-start",
    "all-gather.8",
    "reduce-scatter.2",
    "all-gather-start all-gather.8",
    "all-gather-done",
    "fusion-start",
    "fusion-done",
    "copy.9 copy.11",
    "while.26",
    "param.7",
)
BEFORE = "compiled with costs of: "


def compile_program(program: str, profiles: list[str]) -> None:
    """Compile a program, once with each of `profiles`, or without any: names, one space apart, that cost 7 µs each."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    target = next(
        (Path(os.environ["TARGETS"])).glob("module_0040*gpu_target_config.pbtxt.xz")
    )
    text = lzma.decompress(target.read_bytes()).decode()
    topology = topologies.get_topology_desc(
        "", platform="cuda", target_config=text, topology="1x1x4"
    )
    mesh = Mesh(np.array(topology.devices), ("d",))

    def struct(shape, *spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(
            shape, dtype, sharding=NamedSharding(mesh, P(*spec))
        )

    def step(params, x):
        def loss(params):
            def layer(h, w):
                return jnp.tanh(h @ w[0]) @ w[1], None

            h, _ = jax.lax.scan(layer, x, params["layers"])
            return ((h @ params["out"]).astype(jnp.float32) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    def collectives(x):
        lax = jax.lax
        y = lax.all_gather(x * 2, "d", axis=0, tiled=True)
        z = lax.psum_scatter(y + 1, "d", scatter_dimension=0, tiled=True)
        z = lax.all_to_all(jnp.tanh(z), "d", split_axis=1, concat_axis=1, tiled=True)
        z = lax.ppermute(z * 3, "d", [(i, (i + 1) % 4) for i in range(4)])
        z = lax.pbroadcast(z - 1, "d", 0)
        again = lax.all_gather(x - 2, "d", axis=0, tiled=True)
        return lax.psum(z, "d"), again.sum()

    if program == "step":
        layers = (struct((4, 512, 2048), None, "d"), struct((4, 2048, 512), None, "d"))
        params = {"layers": layers, "out": struct((512, 1024), "d")}
        lowered = jax.jit(step).lower(params, struct((128, 512), "d"))
    else:
        mapped = jax.shard_map(
            collectives,
            mesh=mesh,
            in_specs=P("d"),
            out_specs=(P("d"), P()),
            check_vma=False,
        )
        lowered = jax.jit(mapped).lower(struct((64, 64), "d", dtype=jnp.float32))
    for names in profiles or [""]:
        costs = "".join(
            f'costs {{ name: "{name}" cost_us: 7 }}\n' for name in names.split()
        )
        print(f"{BEFORE}{names}", file=sys.stderr, flush=True)
        try:
            lowered.compile(
                compiler_options={"fdo_profile": costs.encode()} if costs else {}
            )
        except (
            jax.errors.JaxRuntimeError
        ) as error:  # no ptxas: scheduling is finished and dumped
            print(error, file=sys.stderr)


def compile_in_forks(jobs: Sequence[tuple[str, list[str], list[str]]]) -> None:
    """`compile_program` for each (program, flags, profiles) in a fork, since XLA reads its flags once in a process."""
    import jax
    from jax.experimental import topologies

    del jax, topologies  # imported once for all; nothing has started a thread yet
    for program, flags, profiles in jobs:
        fork = os.fork()
        if fork == 0:
            os.environ["XLA_FLAGS"] = " ".join(flags)
            try:
                compile_program(program, profiles)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        if code := os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]):
            sys.exit(code)


def compiled(jobs: Sequence[tuple[str, list[str], Sequence[str]]]) -> str:
    """Compile all (program, flags, profiles) in a child process; returns its log."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "OPENBLAS_NUM_THREADS": "1",  # a process with threads is not to fork
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TARGETS": os.environ.get("TARGETS")
        or str(Path(__file__).resolve().parents[1] / "pax_fsdp4/proc0/dump"),
    }
    arguments = [sys.executable, __file__, "--compile", json.dumps(jobs)]
    return subprocess.run(
        arguments, env=environment, capture_output=True, text=True, check=True
    ).stderr


def child(program: str, flags: list[str], profiles: Sequence[str] = ()) -> str:
    """Compile one program with these XLA_FLAGS; returns the log."""
    return compiled([(program, flags, profiles)])


def record_runs(out: Path, runs: Sequence[str]) -> None:
    """Write the dumps of some of `RUNS`."""
    both = [
        "--xla_dump_hlo_as_text",
        "--xla_dump_hlo_as_proto",
    ]  # of schedules this gives the text alone
    jobs, dumps = [], []
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            program, flags = RUNS[run]
            for forms in (
                [both, both[1:]] if run in ("async", "collectives") else [both]
            ):
                dump = Path(folder) / f"{run}{len(forms)}"
                to = [
                    f"--xla_dump_to={dump}",
                    "--xla_dump_latency_hiding_schedule=true",
                ]
                jobs.append((program, [*flags, *forms, *to], []))
                dumps.append((run, dump))
        compiled(jobs)
        for run, dump in dumps:
            for file in sorted(dump.iterdir()):
                if KEPT.fullmatch(file.name):
                    kept = out / run / f"{file.name}.xz"
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_bytes(lzma.compress(file.read_bytes(), preset=9))


def record(out: Path) -> None:
    """Write everything that the README lists to a folder."""
    with ThreadPoolExecutor(2) as pool:
        logs = pool.submit(child, "step", [LHS], FEW_NAMES)
        record_runs(out, list(RUNS))
    said = []
    for names, log in zip(FEW_NAMES, logs.result().split(BEFORE)[1:], strict=True):
        lines = [
            line.partition("] ")[2]
            for line in log.splitlines()
            if "profile_guided_latency_estimator.cc" in line
        ]
        found = next(
            int(line.split()[1]) for line in lines if line.startswith("Found ")
        )
        missing = sorted(line.strip() for line in lines if line.startswith("  "))
        said.append({"names": names.split(), "found": found, "missing": missing})
    (out / "checker.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--compile":
        compile_in_forks(json.loads(sys.argv[2]))
    else:
        record(Path(sys.argv[1]))
