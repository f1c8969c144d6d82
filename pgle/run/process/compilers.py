"""Find the Python whose XLA a user's command uses, and a Python that can compile for GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pgle.run.ask.jaxlib import installed
from pgle.xla.vendors import Vendor


def interpreter(command: Sequence[str]) -> str | None:
    """Return the Python that a command names, to ask which flags its jaxlib knows; None means
    ours.
    """
    name = Path(command[0]).name if command else ""
    is_script = name.endswith((".sh", ".py"))  # python_job.sh would start its job
    if is_script or not name.startswith("python"):
        return None
    return shutil.which(command[0])


def compiler_of(
    command: Sequence[str], vendor: Vendor
) -> tuple[str | None, tuple[str, ...]]:
    """Return the Python whose XLA compiles a command's modules without a GPU (None means ours), and
    warnings.

    The command's own Python compiles if it has jax and the vendor's plugin. If ours compiles and
    has another release, a warning says so, because releases make different schedules.
    """
    python = interpreter(command)
    if python is None:
        return None, ()
    theirs = installed(python)
    if theirs.plugins_of(vendor):
        return python, ()
    ours = installed(None)
    if not theirs.jaxlib or theirs.jaxlib == ours.jaxlib:
        return None, ()
    warning = (
        f"{python} has jaxlib {theirs.jaxlib} and no {vendor.toolkit} plugin: "
        f"pgle's jaxlib {ours.jaxlib} compiles in its place, "
        f"and schedules of two releases differ; pgle doctor --python {python}"
    )
    return None, (warning,)


def check_compiler(
    command: Sequence[str], vendor: Vendor, *, by_name: bool = False
) -> None:
    """Refuse a program before it runs if nothing here can compile its modules for GPUs.

    `by_name` accepts a command that names no Python, because it may start one that can compile.
    """
    if compiler_of(command, vendor)[0] is not None:
        return
    if by_name and interpreter(command) is None:
        return
    from pgle.run.ask.jax_private import library, version

    version()
    library(vendor)
