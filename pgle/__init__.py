"""pgle: give XLA's latency-hiding scheduler measured costs, and prove that it used them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgle.api import (
        Answer,
        advise,
        analyze,
        compare,
        confirm,
        convert,
        predict,
        ranks,
        rehearse,
        releases,
        scale,
        tune,
        verify,
    )
    from pgle.errors import UserError
    from pgle.profiled import profiled_steps

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "UserError",
    "__version__",
    "advise",
    "analyze",
    "compare",
    "confirm",
    "convert",
    "predict",
    "profiled_steps",
    "ranks",
    "rehearse",
    "releases",
    "scale",
    "step",
    "tune",
    "verify",
]


_window: Any = None  # of `profiled_steps`


def _watched() -> Any:
    """What wants to know of steps: the hook of the command that runs this program, else
    `profiled_steps`, else None.
    """
    module = sys.modules.get("pgle_hook")
    return (None if module is None else module.active()) or _window


@contextmanager
def step(number: int, name: str = "step") -> Iterator[None]:
    """Mark one step: ``with pgle.step(i): state = train(state)``.

    Under `pgle profile` and its kin the step is timed and opens the trace window; in
    `profiled_steps` it opens that. Where jax has been imported it is marked in every profiler's
    trace as well, as `jax.profiler.StepTraceAnnotation` does. Without both it does nothing.
    """
    hook = _watched()
    jax = sys.modules.get("jax")
    if hook is not None:
        hook.begin_step(int(number), "api")
    mark: Any = (
        nullcontext()
        if jax is None
        else jax.profiler.StepTraceAnnotation(name, step_num=number)
    )
    try:
        with mark:
            yield
    finally:
        if hook is not None:
            hook.leave_step()


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext pgle``: `%pgle` and `%%pgle` in a notebook."""
    from pgle.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    """What `pgle.api` and `pgle.profiled` have, imported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'pgle' has no attribute {name!r}")
    if name == "profiled_steps":
        from pgle.profiled import profiled_steps

        return profiled_steps
    from pgle import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Library(ModuleType):
    """The package. Some of its functions have the names of folders in it: importing one does not
    take its place.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library
