"""Training steps that AMD measured on one MI350, against what pgle predicts: docs/evidence/amd.md.

python benchmarks/amd.py CHECKOUT [NAME…]

CHECKOUT: of ROCm/xla, for `perf_tools/hlo_eval_tools` (modules before optimisation, and their
times; Apache-2.0). NAME: of programs, by default all with a time. Needs jax's ROCm plugin, and no
GPU. Half a minute to three minutes of a core each.
"""

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pgle.run.compiler.compile import CompileRequest, compile_once
from pgle.schedule.predict import predict
from pgle.xla.targets import find_hardware, load_target

LHS = "--xla_gpu_enable_latency_hiding_scheduler=true"
MILLISECONDS = re.compile(r", ([\d.]+)ms$")


def measured_ms(results: Path) -> float:
    """The last time in a file of results."""
    *_, last = results.read_text().strip().splitlines()
    found = MILLISECONDS.search(last)
    assert found is not None, results
    return float(found[1])


def row(program: Path, module: Path) -> str:
    """A program's predicted step, its range, the measured step and their ratio."""
    target = load_target("mi350x")
    with TemporaryDirectory() as folder:
        request = CompileRequest(
            module,
            target.texts,
            Path(folder) / "dump",
            vendor=target.vendor.name,
            flags=(LHS,),
        )
        made = compile_once(request)
        prediction = predict(made.scheduled, None, find_hardware(target))
    measured = measured_ms(program / "results/training.csv")
    likely = prediction.step_us / 1e3
    least, most = (us / 1e3 for us in prediction.interval_us)
    figures = (likely, least, most, measured, likely / measured)
    return "\t".join((program.name, *(f"{figure:.2f}" for figure in figures)))


def main(checkout: str, *names: str) -> None:
    """Print a row for each program."""
    print("program\tpredicted ms\tleast\tmost\tmeasured\tratio")
    tools = Path(checkout) / "perf_tools/hlo_eval_tools"
    for results in sorted(tools.glob("*/*/results/training.csv")):
        program = results.parents[1]
        if names and program.name not in names:
            continue
        modules = list((program / "training").glob("*.before_optimizations.txt"))
        if not modules:
            print(f"{program.name}: the checkout lacks its module", file=sys.stderr)
            continue
        print(row(program, modules[0]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
