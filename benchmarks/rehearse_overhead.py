"""What a rehearsal costs beyond the bare XLA compile: the ratio of both, measured in turns in one
run.

    python benchmarks/rehearse_overhead.py [MODULE] [--repeats N]

Bare: a Python that imports jax and compiles the same module for the same GPU with the same flags,
without log, dumps or anything of pgle. MODULE: StableHLO text; default: a 24-layer FSDP step,
lowered here. The bound is 1.2.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pgle.run.compiler.compile import CompileRequest, compile_once
from pgle.xla.targets import load_target

LHS = "--xla_gpu_enable_latency_hiding_scheduler=true"
BOUND = 1.2

# The least that compiles: JAX's public topology, private client, the options that JAX sets.
BARE = """
import sys
import jax
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies
import numpy as np
module_path, target_path, devices = sys.argv[1:]
topology = topologies.get_topology_desc(
    "", platform="cuda", target_config=open(target_path).read(), topology=f"1x1x{devices}")
options = xla_client.CompileOptions()
options.num_partitions = int(devices)
options.device_assignment = xla_client.DeviceAssignment.create(np.arange(int(devices)).reshape(1, -1))
options.executable_build_options.use_spmd_partitioning = True
options.executable_build_options.use_shardy_partitioner = True
with mlir.make_ir_context():
    module = ir.Module.parse(open(module_path).read())
    try:
        topology.devices[0].client.compile(module, xla_client.DeviceList(tuple(topology.devices)), options)
    except Exception as error:
        if "ptxas" not in str(error) and "libdevice" not in str(error):
            raise
import os
os._exit(0)
"""


def lowered(folder: Path, layers: int) -> Path:
    """The recorded program with more layers."""
    source = (Path(__file__).parent.parent / "testdata/stablehlo/record.py").read_text()
    script = folder / "record.py"
    script.write_text(
        source.replace(
            "LAYERS, WIDTH, HIDDEN, BATCH = 2,",
            f"LAYERS, WIDTH, HIDDEN, BATCH = {layers},",
        )
    )
    out = folder / "step.mlir"
    subprocess.run([sys.executable, script, out], check=True)
    return out


def bare(module: Path, target: Path) -> float:
    keep = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("XLA_", "JAX_", "TF_"))
    }
    environment = keep | {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "XLA_FLAGS": LHS,
    }
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", BARE, module, target, "4"],
        check=True,
        env=environment,
        capture_output=True,
    )
    return time.perf_counter() - began


def rehearsal(module: Path, targets: tuple[str, ...], folder: Path) -> float:
    began = time.perf_counter()
    compile_once(CompileRequest(module, targets, folder, flags=(LHS,)))
    return time.perf_counter() - began


def cpu_seconds() -> float:
    """CPU time of this process and its children so far."""
    used = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(item.ru_utime + item.ru_stime for item in used)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module", nargs="?", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    target = load_target("h100-sxm")
    ratios, bares, rehearsals, cpu_ratios = [], [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        description = folder / "target.txtpb"
        description.write_text(target.text)
        module = arguments.module or lowered(folder, arguments.layers)
        bare(module, description)  # the first one also reads the plugin from disk
        for turn in range(arguments.repeats):
            before = cpu_seconds()
            bares.append(bare(module, description))
            between = cpu_seconds()
            rehearsals.append(rehearsal(module, target.texts, folder / f"dump{turn}"))
            ratios.append(rehearsals[-1] / bares[-1])
            cpu_ratios.append((cpu_seconds() - between) / (between - before))
    ratio = statistics.median(ratios)
    print(
        f"bare compile {statistics.median(bares):.2f} s, rehearsal {statistics.median(rehearsals):.2f} s (medians)"
    )
    print(
        f"ratio {ratio:.3f} (of {len(ratios)}: {', '.join(f'{value:.3f}' for value in sorted(ratios))}), bound {BOUND}"
    )
    print(
        f"CPU time, which a busy machine disturbs less: ratio {statistics.median(cpu_ratios):.3f}"
    )
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
