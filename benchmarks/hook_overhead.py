"""What the capture hook costs a step outside the trace window: steps with it against steps without,
in turn.

Two programs that only differ by the hook run at the same time on one machine would disturb each
other, and one after the other would see the machine change. So one process holds both kinds of
step: `StepTraceAnnotation` as the hook left it, and as jax made it. Blocks of steps alternate; the
ratio of the medians over the blocks is what counts, with the spread of the ratios of neighbouring
blocks. The hook's thread runs all the time, so its cost is measured apart: the same steps in a
process without a hook.

    python benchmarks/hook_overhead.py [--size 512]
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pgle.run.directory.directory import RunDirectory
from pgle.run.hook import hook_config, with_hook
from pgle.run.process.launchers import Rank

BLOCKS = 20
STEPS = 20


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--size",
        type=int,
        default=512,
        help="side of the matmul of a step: sets its length",
    )
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.size)))
        return
    with_hook = [child(arguments.size, hook=True) for _ in range(2)]
    alone = [child(arguments.size, hook=False) for _ in range(2)]
    ratios = sorted(ratio for run in with_hook for ratio in run["ratios"])
    step = statistics.median(run["plain_us"] for run in with_hook)
    added = statistics.median(
        run["annotation_us"] for run in with_hook
    ) - statistics.median(run["annotation_us"] for run in alone)
    print(
        f"step without the hook's annotation: {step:.1f} µs (median of {2 * BLOCKS} blocks of {STEPS})"
    )
    print(f"with / without, block by block:     {statistics.median(ratios):.4f} "
          f"(quartiles {ratios[len(ratios) // 4]:.4f} to {ratios[3 * len(ratios) // 4]:.4f})")  # fmt: skip
    print(
        f"an empty annotated step:            {added:.1f} µs more than in a process without a hook"
    )
    print(
        f"of a step of 1 ms that is           {added / 10:.2f} %, of one of 100 ms {added / 1000:.4f} %"
    )
    counted = child(arguments.size, hook=True, window="auto")
    for name, (held, free) in counted["calls_us"].items():
        print(
            f"a call with {name}: {held:.0f} µs while executions are counted, {free:.0f} µs afterwards"
        )
    print(
        f"hook thread: {statistics.median(run['thread_percent'] for run in with_hook):.3f} % of one core"
    )


def child(size: int, *, hook: bool, window: str = "none") -> dict[str, Any]:
    """Measure in a process of its own, with the hook or without."""
    with tempfile.TemporaryDirectory() as folder:
        stage = RunDirectory(Path(folder)).stage("perf")
        stage.path.mkdir()
        environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
        if hook:
            config = hook_config(
                stage,
                Rank(0, 1),
                capture="none",
                window=window,
                flags=(),
                auto_pgle=False,
            )
            environ = with_hook(environ, config)
        words = [sys.executable, __file__, "--child", "--size", str(size)]
        return json.loads(
            subprocess.run(
                words, env=environ, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        )


def measure(size: int) -> dict[str, Any]:
    """Blocks of steps with the annotation as it is, in turn with blocks that go round the hook."""
    import jax
    import jax.numpy as jnp

    annotation = jax.profiler.StepTraceAnnotation
    hooked = annotation.__enter__, annotation.__exit__, annotation.__init__
    wrapped = "pgle_hook" in sys.modules
    plain = tuple(map(inspect.unwrap, hooked)) if wrapped else hooked
    step = jax.jit(lambda x: x @ x * 0.001)
    x = step(jnp.ones((size, size))).block_until_ready()

    def block(methods: tuple[Any, ...]) -> float:
        nonlocal x
        annotation.__enter__, annotation.__exit__, annotation.__init__ = methods
        begin = time.perf_counter()
        for number in range(STEPS):
            with annotation("train", step_num=number):
                x = step(x).block_until_ready()
        return (time.perf_counter() - begin) / STEPS * 1e6

    block(hooked)
    block(plain)
    pairs = []
    for number in range(
        BLOCKS
    ):  # the order alternates, so that a drift favours neither
        if number % 2:
            first, second = block(hooked), block(plain)
        else:
            second, first = block(plain), block(hooked)
        pairs.append((first, second))
    annotation.__enter__, annotation.__exit__, annotation.__init__ = hooked
    begin = time.perf_counter()
    for number in range(2000):
        with annotation("train", step_num=number):
            pass
    empty = (time.perf_counter() - begin) / 2000 * 1e6
    return {
        "ratios": [first / second for first, second in pairs],
        "plain_us": statistics.median(second for _, second in pairs),
        "annotation_us": empty,
        "thread_percent": idle_percent(),
        "calls_us": calls() if wrapped else {},
    }


def calls() -> dict[str, tuple[float, float]]:
    """µs a call of a small function takes with executions counted, and without."""
    import jax
    import jax.numpy as jnp
    import pgle_hook

    executions = pgle_hook.active().executions
    executions._on_execution = lambda module: None
    executions._kept = -(10**9)
    found = {}
    for count in (1, 300):
        tree = {str(number): jnp.ones(3) for number in range(count)}
        function = jax.jit(
            lambda tree: {name: value * 1.0001 for name, value in tree.items()}
        )
        medians = []
        for executions.counting in (
            True,
            False,
        ):  # in this order: a call from C++ is not counted any more
            taken = []
            for _ in range(200):
                begin = time.perf_counter()
                result = function(tree)
                taken.append((time.perf_counter() - begin) * 1e6)
                jax.block_until_ready(result)
            medians.append(statistics.median(taken))
        found[f"{count} arrays"] = (medians[0], medians[1])
    return found


def idle_percent() -> float:
    """Processor time of the whole process while it does nothing but what the hook's thread does."""
    begin, used = time.perf_counter(), time.process_time()
    time.sleep(2)
    return (time.process_time() - used) / (time.perf_counter() - begin) * 100


if __name__ == "__main__":
    main()
