"""The trace window in a training loop that no command watches: it opens and closes JAX's profiler."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.run.convert import Conversion

TRACE = "trace"


class Window:
    """Opens JAX's profiler for some of the steps that `pgle.step` marks.

    Args:
        folder: new or empty; the trace goes into one in it.
        first: steps before the window, which compile and warm up.
        count: steps in it.

    Raises:
        UserError: the folder holds something.
    """

    def __init__(self, folder: Path, first: int, count: int) -> None:
        if first < 0 or count < 1:
            raise UserError(f"no window: {count} steps after {first}", remedy="say first=5, count=5")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError("is not an empty folder", where=folder, remedy="name a new one")
        self.folder, self.first, self.last = folder, first, first + count
        self.seen = 0
        self.is_open = False

    def begin_step(self, number: int, source: str) -> None:
        """A step begins; as the hook of `pgle profile` takes it."""
        self.seen += 1
        if self.seen == self.first + 1:
            self._open()
        elif self.seen > self.last:
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
            jax.profiler.start_trace(str(self.folder / TRACE), **options)
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
