"""The modules of a program, captured from a run on virtual CPU devices: StableHLO as jax hands it to the compiler."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pgle.errors import UserError, WorkloadError
from pgle.files import write_files
from pgle.run.launch.hook import with_hook
from pgle.run.launch.masking import kept_argv
from pgle.run.launch.process import end_with_parent

STDERR = 2
"""File descriptor: results alone go to our stdout."""

KEPT = ".lowered_for_cuda"
"""The hook's list of modules with moves to host memory; ``!`` before those that it could not lower for GPUs."""

CODE = ".exit_code"
"""There where the program failed."""

POLL_S = 0.2
GRACE_S = 5.0
"""How long a stopped program may take to end before it is killed."""


def capture_modules(
    command: Sequence[str], folder: Path, *, devices: int, quiet_s: float, environment: Mapping[str, str] | None = None
) -> tuple[Path, ...]:
    """Run a command on CPU devices and collect what it compiles; its output goes to stderr.

    Args:
        command: the words of the command.
        folder: new folder for the modules.
        devices: virtual CPU devices.
        quiet_s: once something is captured, stop the program when nothing new came for so long: on CPUs the steps
            themselves may take hours.
        environment: instead of `os.environ`.

    Returns:
        The dumped modules, in the order in which they were compiled.

    Raises:
        UserError: the command cannot be started or compiled nothing.
        WorkloadError: it failed before it had compiled anything.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        child = subprocess.Popen(
            command,
            env=capture_environment(os.environ if environment is None else environment, folder, devices),
            stdout=STDERR,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    except OSError as error:
        raise UserError(f"cannot be started ({error.strerror})", where=command[0]) from None
    try:
        code = _wait_or_stop(child, folder, quiet_s)
    except BaseException:
        _stop(child)
        raise
    found = modules_in(folder)
    if not found and code:
        raise WorkloadError(code, f"{shlex.join(kept_argv(command))} ended with {code} before it had compiled anything")
    if code:
        write_files({folder / CODE: str(code)}, force=True)
    if not found:
        raise UserError("the program compiled no jax module", where=shlex.join(kept_argv(command)))
    return found


def capture_environment(base: Mapping[str, str], folder: Path, devices: int) -> dict[str, str]:
    """The environment of a capturing run: CPU platform, virtual devices, dumps on, no compilation cache.

    The hook in it has modules that move data to host memory dumped as jax lowers them for GPUs; for CPUs it drops that.
    """
    flags = base.get("XLA_FLAGS", "")
    count = f"--xla_force_host_platform_device_count={devices}"
    if "xla_force_host_platform_device_count" not in flags:
        flags = f"{flags} {count}".strip()
    return {
        **with_hook(base, {"captured": str(folder.resolve())}),
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # the plugin has no CUDA libraries to look for
        "XLA_FLAGS": flags,
        "JAX_DUMP_IR_TO": str(folder.resolve()),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


def modules_in(folder: Path) -> tuple[Path, ...]:
    """Dumped modules in the order of their numbers."""
    return tuple(sorted(folder.glob("jax_ir*_compile.mlir")))


def capture_warnings(module: Path) -> tuple[str, ...]:
    """What to say of a module of `capture_modules`: its program failed, or its moves to host memory are lost."""
    code, kept = (module.parent / name for name in (CODE, KEPT))
    found = []
    if code.is_file():
        found.append(
            f"the program ended with exit code {code.read_text()}; {module.name} is the largest that it had compiled "
            "until then, and may not be its step: mend the program, or name another with --choose"
        )
    if kept.is_file() and f"!{module.name}" in kept.read_text().splitlines():
        found.append(
            f"{module.name} moves data to host memory, which jax drops when it lowers for CPUs, so this rehearsal has "
            "no offloading; set JAX_DUMP_IR_TO=DIR in a GPU run, then: pgle rehearse DIR/jax_ir…_compile.mlir"
        )
    return tuple(found)


def choose_module(modules: Sequence[Path], pattern: str | None) -> Path:
    """The largest module, or the largest whose file name matches.

    Raises:
        UserError: the expression is invalid or matches none.
    """
    try:
        chosen = [path for path in modules if pattern is None or re.search(pattern, path.name)]
    except re.error as error:
        raise UserError(f"invalid regular expression ({error})", where=f"--choose {pattern}") from None
    if not chosen:
        names = ", ".join(path.name for path in modules[:5])
        raise UserError("no captured module matches", where=f"--choose {pattern}", remedy=f"there are {names}")
    return max(chosen, key=lambda path: path.stat().st_size)


def _wait_or_stop(child: subprocess.Popen[bytes], folder: Path, quiet_s: float) -> int:
    """The exit code; 0 where we stopped the program ourselves."""
    seen, since = 0, time.monotonic()
    while True:
        try:
            return child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            pass
        size = sum(path.stat().st_size for path in modules_in(folder))
        if size != seen:
            seen, since = size, time.monotonic()
        if seen and time.monotonic() - since > quiet_s:
            count = len(modules_in(folder))
            said = (
                f"pgle: stopping the program on purpose: {count} modules are captured, none in the last {quiet_s:g} s"
            )
            print(f"{said} (--quiet-for)", file=sys.stderr, flush=True)
            _stop(child)
            return 0


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the program and what it started."""
    for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        if child.poll() is not None:
            return
        try:
            os.killpg(child.pid, number)
            child.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
