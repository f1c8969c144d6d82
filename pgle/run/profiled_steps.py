"""The trace window in a training loop that no command watches: it opens and closes JAX's profiler."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pgle.errors import UserError
from pgle.run.convert import Conversion

T = TypeVar("T")


@dataclass(eq=False)
class ProfiledSteps(Generic[T]):
    """What `pgle.profiled_steps` yields. It opens JAX's profiler for some of the steps that `pgle.step` marks."""

    folder: Path  # where everything is written, the trace into a folder in it
    first: int  # steps before the window, which compile and warm up
    count: int  # steps in it
    answer: T | None = None
    """The costs, after the end; None if there is no trace, or if several processes have one each."""
    seen: int = 0  # steps that began
    is_open: bool = False

    @property
    def trace(self) -> Path:
        """The folder of the trace."""
        return self.folder / "trace"

    def check(self) -> None:
        """Refuse a folder that holds something, and a window of nothing.

        Raises:
            UserError: as said.
        """
        if self.first < 0 or self.count < 1:
            raise UserError(f"no window: {self.count} steps after {self.first}", remedy="say first=5, count=5")
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise UserError("is not an empty folder", where=self.folder, remedy="name a new one")

    def begin_step(self, number: int, source: str) -> None:
        """A step begins; as the hook of `pgle profile` takes it."""
        self.seen += 1
        if self.seen == self.first + 1:
            self._open()
        elif self.seen > self.first + self.count:
            self.close()

    def leave_step(self) -> None:
        """The body of a step was left; as the hook takes it."""

    def _open(self) -> None:
        import jax

        _settle(jax)
        options: dict[str, Any] = {}
        if make := getattr(jax.profiler, "ProfileOptions", None):  # older releases have none
            options["profiler_options"] = make()
            options["profiler_options"].python_tracer_level = 0  # calls of Python cost time, and say nothing of costs
        try:
            jax.profiler.start_trace(str(self.trace), **options)
            self.is_open = True
        except Exception as error:  # another session is open
            warnings.warn(f"pgle: no trace: JAX's profiler did not start ({error})", stacklevel=4)

    def close(self) -> None:
        """Close the window, once the devices have done what they were asked for."""
        if self.is_open:
            import jax

            self.is_open = False
            _settle(jax)
            jax.profiler.stop_trace()


def _settle(jax: Any) -> None:
    """Wait for the devices: jax hands work over long before it is done."""
    for array in jax.live_arrays():
        with suppress(Exception):  # deleted or donated meanwhile
            array.block_until_ready()


def embedded_hlo(found: Conversion) -> dict[str, bytes]:
    """The HLO of the converted modules, which the trace holds, by the name that XLA gives the dump of each."""
    trace = found.measured.trace
    known = next((item.capability for item in trace.recordings.values() if item.capability), None)
    gpu = "" if known is None else f"sm_{known[0]}.{known[1]}_gpu_"
    keys = {item.program.key: re.sub(r"[^\w.-]", "_", item.program.key.name) for item in found.measured.costs}
    return {
        f"module_{key.program_id or 0:04d}.{name}.{gpu}after_optimizations.hlo.pb": trace.hlo[key]
        for key, name in keys.items()
        if trace.hlo.get(key)
    }
