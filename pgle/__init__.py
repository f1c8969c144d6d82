"""pgle: give XLA's latency-hiding scheduler measured costs, and prove that it used them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgle.api.answer import Answer as Answer
    from pgle.api.looks import analyze as analyze
    from pgle.api.looks import confirm as confirm
    from pgle.api.looks import ranks as ranks
    from pgle.api.predictions import advise as advise
    from pgle.api.predictions import predict as predict
    from pgle.api.predictions import rehearse as rehearse
    from pgle.api.predictions import releases as releases
    from pgle.api.predictions import scale as scale
    from pgle.api.predictions import tune as tune
    from pgle.api.profiles import convert as convert
    from pgle.api.profiles import verify as verify
    from pgle.api.steps import compare as compare
    from pgle.errors import UserError as UserError
    from pgle.profiled import profiled_steps as profiled_steps

__version__ = "0.1.0"
_HOMES = {
    "Answer": "pgle.api.answer",
    "UserError": "pgle.errors",
    "advise": "pgle.api.predictions",
    "analyze": "pgle.api.looks",
    "compare": "pgle.api.steps",
    "confirm": "pgle.api.looks",
    "convert": "pgle.api.profiles",
    "predict": "pgle.api.predictions",
    "profiled_steps": "pgle.profiled",
    "ranks": "pgle.api.looks",
    "rehearse": "pgle.api.predictions",
    "releases": "pgle.api.predictions",
    "scale": "pgle.api.predictions",
    "tune": "pgle.api.predictions",
    "verify": "pgle.api.profiles",
}
"""Each public name and the file that defines it. The file is imported when the name is first
used.
"""
__all__ = sorted(("__version__", "step", *_HOMES))


_window: Any = None  # the open `profiled_steps`, if any


def _watched() -> Any:
    """Return the object that wants to know of steps: the hook of the pgle command that runs this
    program, else the open `profiled_steps`, else None.
    """
    module = sys.modules.get("pgle_hook")
    return (None if module is None else module.active()) or _window


@contextmanager
def step(number: int, name: str = "step") -> Iterator[None]:
    """Mark one step: ``with pgle.step(i): state = train(state)``.

    Under `pgle profile` and similar commands the step is timed, and may open the trace window. In
    `profiled_steps` it may open that window. If jax has been imported, the step is also marked in
    the trace of any profiler, as by `jax.profiler.StepTraceAnnotation`. Otherwise this does
    nothing.
    """
    hook = _watched()
    jax = sys.modules.get("jax")
    if hook is not None:
        hook.begin_step(int(number), "api")
    mark: Any = nullcontext()
    if jax is not None:
        mark = jax.profiler.StepTraceAnnotation(name, step_num=number)
    try:
        with mark:
            yield
    finally:
        if hook is not None:
            hook.leave_step()


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext pgle``: register `%pgle` and `%%pgle` in a notebook."""
    from pgle.notebook import register

    register(shell)


def __getattr__(name: str) -> Any:
    """Return a public name, and import its file when the name is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pgle' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Library(ModuleType):
    """The package as a module. Some of its functions share their name with a folder. Importing such
    a folder does not replace the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Library
