"""Simulate modules of 25,000 to 200,000 instructions: seconds, and whether time grows linearly.

    python benchmarks/simulate.py [--instructions 200000]

The peer is networkx's longest path over the same instructions with the same costs (`pip install
networkx`; left out where it is not installed): it knows data dependencies only, no streams, gaps or
loops.
"""

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec

from pgle.costs.profile.value import Cost
from pgle.schedule.predict import read_program
from pgle.schedule.simulate import run_program
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.targets import find_hardware

ARRAY = Shape("bf16", (1024, 1024))
LAYER = 20


def layer(number: int) -> list[Instruction]:
    """One gather over eighteen fusions, as FSDP makes them."""

    def make(name: str, opcode: str, *operands: str) -> Instruction:
        return Instruction(f"{name}.{number}", opcode, ARRAY, "entry", operands)

    before = f"fusion17.{number - 1}" if number else "p"
    start = make("all-gather-start", "all-gather-start", "p")
    fusions = [
        make(f"fusion{i}", "fusion", f"fusion{i - 1}.{number}" if i else before)
        for i in range(18)
    ]
    done = make("all-gather-done", "all-gather-done", start.name)
    return [start, *fusions, done]


def make_module(instructions: int) -> Module:
    parameter = Instruction("p", "parameter", ARRAY, "entry")
    body = [item for number in range(instructions // LAYER) for item in layer(number)]
    entry = Computation("entry", (parameter, *body), body[-1].name)
    return Module(
        "jit_step",
        1,
        "",
        "entry",
        {"entry": entry},
        is_scheduled=True,
        num_partitions=8,
    )


def make_costs(module: Module) -> dict[str, Cost]:
    costs = {}
    for number, item in enumerate(module.entry_computation.instructions):
        if item.opcode in ("fusion", "all-gather-start"):
            costs[item.name] = Cost(
                item.name, 5.0 + number % 7 + (80 if item.opcode != "fusion" else 0)
            )
    return costs


def longest_path(module: Module, costs: dict[str, Cost]) -> float:
    import networkx

    graph = networkx.DiGraph()
    for item in module.entry_computation.instructions:
        cost = costs[item.name].cost_us if item.name in costs else 0.0
        graph.add_weighted_edges_from(
            (operand, item.name, cost) for operand in item.operands
        )
    return float(networkx.dag_longest_path_length(graph))


def seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", type=int, default=200_000)
    largest = parser.parse_args().instructions
    hardware = find_hardware("h100")
    print(
        f"{'instructions':>12}{'measured s':>12}{'estimated s':>13}{'µs each':>10}{'networkx s':>12}{'ratio':>8}"
    )
    for size in (largest // 8, largest // 4, largest // 2, largest):
        module = make_module(size)
        costs = make_costs(module)
        measured = seconds(lambda: run_program(read_program(module, costs, hardware)))  # noqa: B023
        estimated = seconds(lambda: run_program(read_program(module, {}, hardware)))  # noqa: B023
        line = (
            f"{size:12,}{measured:12.2f}{estimated:13.2f}{measured / size * 1e6:10.2f}"
        )
        if find_spec("networkx"):
            peer = seconds(lambda: longest_path(module, costs))  # noqa: B023
            line += f"{peer:12.2f}{measured / peer:8.2f}"
        print(line)


if __name__ == "__main__":
    main()
