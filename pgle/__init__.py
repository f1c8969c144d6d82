"""pgle: give XLA's latency-hiding scheduler measured costs, and prove that it used them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "step"]


@contextmanager
def step(number: int, name: str = "step") -> Iterator[None]:
    """Mark one step: ``with pgle.step(i): state = train(state)``.

    Under `pgle profile` and its kin the step is timed and opens the trace window. Where jax has been imported it is
    marked in every profiler's trace as well, as `jax.profiler.StepTraceAnnotation` does. Without both it does nothing.
    """
    module = sys.modules.get("pgle_hook")
    hook = None if module is None else module.active()
    jax = sys.modules.get("jax")
    if hook is not None:
        hook.begin_step(int(number), "api")
    mark: Any = nullcontext() if jax is None else jax.profiler.StepTraceAnnotation(name, step_num=number)
    try:
        with mark:
            yield
    finally:
        if hook is not None:
            hook.leave_step()
