"""What `pgle advise` takes for an alternative: the ratio of its processor time and that of one
compilation by jax alone, in one run.

    python benchmarks/advise.py [scan|unrolled] [--budget N]

The program has 16 layers (`programs/sixteen_layers.py`). The peer is
``jax.jit(step).lower(…).compile()`` of the program as it is, for the same GPU, in a Python of its
own: what trying one alternative by hand takes at least. `pgle advise` compiles most alternatives
twice, compares values, and prices all. The bound is 15 CPU-seconds an alternative.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from pgle.xla.targets import load_target

PROGRAM = Path(__file__).parent / "programs/sixteen_layers.py"
TARGET = "h100"
BOUND_S = 15.0


def used_s() -> float:
    """CPU seconds of all that was started here and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compiled_by_jax(form: str, description: Path) -> float:
    """CPU seconds of one compilation."""
    keep = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("XLA_", "JAX_", "TF_"))
    }
    own = {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    before = used_s()
    command = [sys.executable, str(PROGRAM), form, str(description)]
    subprocess.run(command, check=True, env=keep | own, capture_output=True)
    return used_s() - before


def advised(form: str, budget: int, folder: Path) -> tuple[float, int]:
    """CPU seconds of `pgle advise`, with nothing kept from before, and how many alternatives it has
    tried.
    """
    options = ["--target", TARGET, "--devices", "1", "--budget", str(budget), "--json"]
    words = [sys.executable, str(PROGRAM), form]
    command = [sys.executable, "-m", "pgle", "advise", *options]
    command += ["-o", str(folder / "advice"), "--", *words]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    before = used_s()
    told = subprocess.run(command, check=True, env=environment, capture_output=True)
    found = json.loads(told.stdout)
    return used_s() - before, len(found["tried"]) + len(found["unchanged"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("form", nargs="?", default="scan", choices=("scan", "unrolled"))
    parser.add_argument("--budget", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        description = folder / "target.txtpb"
        description.write_text(load_target(TARGET).text)
        peer_s = compiled_by_jax(arguments.form, description)
        whole_s, count = advised(arguments.form, arguments.budget, folder)
    each_s = whole_s / count
    print(f"jax compiles the program as it is: {peer_s:.1f} CPU-seconds")
    print(f"pgle advise: {whole_s:.1f} CPU-seconds for {count} alternatives")
    ratio = f"ratio {each_s / peer_s:.2f}, bound {BOUND_S:g} s"
    print(f"an alternative: {each_s:.1f} CPU-seconds, {ratio}")
    return 0 if each_s <= BOUND_S else 1


if __name__ == "__main__":
    sys.exit(main())
