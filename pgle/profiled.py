"""`pgle.profiled_steps`: profile a part of a training loop in the user's own process."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pgle
from pgle.api.answer import Answer
from pgle.api.profiles import convert
from pgle.checks import Rule
from pgle.errors import UserError
from pgle.files import write_files
from pgle.requests.given import StrPath

if TYPE_CHECKING:
    from pgle.run.convert import Conversion


@dataclass(eq=False)
class ProfiledSteps:
    """The value that `profiled_steps` yields. It opens JAX's profiler for some of the steps that
    `pgle.step` marks.
    """

    folder: Path  # for all output; the trace goes to a folder in it
    first: int  # steps before the window, which compile and warm up
    count: int  # steps in the window
    answer: Answer[Conversion] | None = None
    """The costs, set at the end. None without a trace, or if there are several processes, because
    each has its own trace.
    """
    seen: int = 0  # steps begun so far
    is_open: bool = False

    @property
    def trace(self) -> Path:
        """The folder of the trace."""
        return self.folder / "trace"

    def begin_step(self, number: int, source: str) -> None:
        """Begin a step. Same interface as the hook of `pgle profile`."""
        self.seen += 1
        if self.seen == self.first + 1:
            self._open()
        elif self.seen > self.first + self.count:
            self.close()

    def leave_step(self) -> None:
        """Leave the body of a step. Same interface as the hook of `pgle profile`."""

    def _open(self) -> None:
        import jax

        _settle(jax)
        options: dict[str, Any] = {}
        make = getattr(jax.profiler, "ProfileOptions", None)
        if make:  # older jax releases lack it
            asked = make()
            # tracing Python calls takes time, and costs do not need it
            asked.python_tracer_level = 0
            options["profiler_options"] = asked
        try:
            jax.profiler.start_trace(str(self.trace), **options)
            self.is_open = True
        except Exception as error:  # another profiler session is open
            warnings.warn(
                f"pgle: no trace: JAX's profiler did not start ({error})", stacklevel=4
            )

    def close(self) -> None:
        """Wait for the devices, then close the window."""
        if self.is_open:
            import jax

            self.is_open = False
            _settle(jax)
            jax.profiler.stop_trace()


def _settle(jax: Any) -> None:
    """Wait for the devices, because jax returns long before they finish."""
    for array in jax.live_arrays():
        with suppress(Exception):  # arrays deleted or donated meanwhile
            array.block_until_ready()


def _embedded_hlo(found: Conversion) -> dict[str, bytes]:
    """Return the HLO of the converted modules, which the trace contains, by the file name of XLA's
    dumps.
    """
    trace = found.measured.trace
    capabilities = (item.capability for item in trace.recordings.values())
    known = next(filter(None, capabilities), None)
    gpu = "" if known is None else f"sm_{known[0]}.{known[1]}_gpu_"
    files: dict[str, bytes] = {}
    for item in found.measured.costs:
        key = item.program.key
        hlo = trace.hlo.get(key)
        if hlo:
            number = f"module_{key.program_id or 0:04d}"
            name = re.sub(r"[^\w.-]", "_", key.name)
            files[f"{number}.{name}.{gpu}after_optimizations.hlo.pb"] = hlo
    return files


def _compare_ranks(found: ProfiledSteps) -> None:
    """End all processes if one of them would start its collectives in another order."""
    from importlib import import_module, metadata

    import jax

    from pgle.run.hook import HOOK_SITE

    sys.path.insert(0, str(HOOK_SITE))
    try:
        agreement = import_module("pgle_hook.agreement")
    finally:
        sys.path.remove(str(HOOK_SITE))
    versions = {"jax": jax.__version__, "jaxlib": metadata.version("jaxlib")}
    agreement.attach(jax, versions, str(found.folder), lambda line: None)


@contextmanager
def profiled_steps(
    folder: StrPath, *, first: int = 5, count: int = 5
) -> Iterator[ProfiledSteps]:
    """Profile some steps of a training loop with JAX's profiler. The loop marks its steps with
    `pgle.step`.

    If there are several processes, they compare each program that is first executed in the block.
    All processes end at once if the order of collectives differs.

    The folder gets the trace, the cost profile and the HLO of the profiled module. With several
    processes nothing is converted: pass the traces of all to `pgle.convert`. Under `pgle profile`
    and similar commands, which make their own trace, this does nothing.

    Args:
        folder: new or empty.
        first: steps before the window, which compile and warm up.
        count: steps in the window.
    """
    found = ProfiledSteps(Path(folder), first, count)
    if pgle._watched() is not None:
        yield found
        return
    Rule(0, whole=True).check("first", first)
    Rule(1, whole=True).check("count", count)
    place = found.folder
    is_empty = not place.exists() or (place.is_dir() and not any(place.iterdir()))
    if not is_empty:
        raise UserError("is not an empty folder", where=place, remedy="name a new one")
    pgle._window = found
    _compare_ranks(found)
    try:
        yield found
    finally:
        pgle._window = None
        found.close()
    try:
        if found.seen <= first:
            raise UserError(
                f"the window opens after {first} steps, and pgle.step marked {found.seen}"
            )
        if found.trace.is_dir() and sys.modules["jax"].process_count() == 1:
            found.answer = convert(found.trace, found.folder / "profile.pbtxt")
            hlo = _embedded_hlo(found.answer.result)
            write_files(
                {found.folder / "hlo" / name: data for name, data in hlo.items()}
            )
    except UserError as error:  # training continues without costs
        warnings.warn(f"pgle: no costs: {error}", stacklevel=3)
