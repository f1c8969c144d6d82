"""What gaps in a profile do to XLA:GPU's schedule, with and without `pgle complete`. Needs no GPU.

    python -m pgle.workloads fsdp --devices 8 --layers 8 --platform cpu --compile-only   # with
    JAX_DUMP_IR_TO=ir python benchmarks/complete.py ir/jax_ir0000_jit_train_step_compile.mlir
    [--target a100]

The truth is assumed: estimates, each shape off by its own factor, collectives twice as slow. Steps
are predicted.
"""

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from pgle.costs.profile.coverage import complete_profile, estimate_profile
from pgle.costs.profile.files import profile_files
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.files import write_files
from pgle.run.compiler.compile import CompileRequest, compile_once
from pgle.schedule.predict import read_program
from pgle.schedule.simulate import run_program
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.module import Module
from pgle.xla.targets import find_hardware, load_target


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", type=Path)
    parser.add_argument("--target", default="a100")
    options = parser.parse_args()
    target = load_target(options.target)
    hardware = find_hardware(target)
    flags = ("--xla_gpu_enable_latency_hiding_scheduler=true",)

    def compiled(profile: Profile | None) -> Module:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "profile.pbtxt" if profile is not None else None
            if profile is not None and path is not None:
                write_files(profile_files(path, profile))
            request = CompileRequest(
                options.module,
                target.texts,
                Path(folder) / "dump",
                flags=flags,
                profile=path,
            )
            return read_module(compile_once(request).after_optimizations)

    baseline = compiled(None)
    truth = assume(estimate_profile(baseline, hardware))
    table = {cost.name: cost for cost in truth.costs}

    def report(label: str, module: Module) -> None:
        found = run_program(read_program(module, table, hardware)).breakdown
        print(
            f"{label:32}{found.step_us:12.1f}{found.exposed_communication_us:14.1f}",
            flush=True,
        )

    print(f"{'profile':32}{'step µs':>12}{'exposed µs':>14}")
    report("none", baseline)
    report("complete", compiled(truth))
    gaps: dict[str, Callable[[Cost], bool]] = {
        **{f"random half {seed}": chance(seed) for seed in range(4)},
        "no collectives": lambda cost: cost.kind is not CostKind.COLLECTIVE,
        "no compute": lambda cost: cost.kind is CostKind.COLLECTIVE,
    }
    for label, keep in gaps.items():
        part = Profile(tuple(cost for cost in truth.costs if keep(cost)))
        report(label, compiled(part))
        report(
            "  completed", compiled(complete_profile(part, baseline, hardware).profile)
        )


def chance(seed: int) -> Callable[[Cost], bool]:
    source = random.Random(f"half {seed}")
    return lambda cost: source.random() < 0.5


def assume(estimates: Profile) -> Profile:
    source, factors = random.Random(5), dict[tuple[str, str], float]()

    def true(cost: Cost) -> Cost:
        off = factors.setdefault((cost.opcode, cost.shape), source.uniform(0.7, 1.4))
        slower = 2.0 if cost.kind is CostKind.COLLECTIVE else 1.0
        return cost._replace(
            cost_us=cost.cost_us * off * slower, origin=Origin.MEASURED
        )

    return Profile(tuple(map(true, estimates.costs)))


if __name__ == "__main__":
    main()
