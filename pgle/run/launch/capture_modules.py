"""The modules of a program, captured from a run on virtual CPU devices: StableHLO as jax hands it to the compiler."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgle.errors import UserError, WorkloadError
from pgle.files import write_files
from pgle.run.launch.environment import kept_argv
from pgle.run.launch.hook import with_hook
from pgle.run.launch.process import end_with_parent

STDERR = 2
"""File descriptor: results alone go to our stdout."""

KEPT = ".lowered_for_cuda"
"""The hook's list of modules with moves to host memory; ``!`` before those that it could not lower for GPUs."""

PROGRAM = ".program.json"
"""What the hook writes of the program: its interpreter, and how often each module was executed."""

CODE = ".exit_code"
"""There where the program failed."""

SHOWN = 5
"""Modules that a message about something else names."""

SUBSTANTIAL = 0.05
"""Part of the largest module's size that a step has at least."""

UNSETTLED = 3
"""A program is waited for so many times longer while it compiles something or has executed no module repeatedly."""

POLL_S = 0.2
GRACE_S = 5.0
"""How long a stopped program may take to end before it is killed."""

_DUMPED = re.compile(r"jax_ir\d+_(.+)_compile\.mlir|module_\d+\.(.+?)\.before_optimizations\..*")


def capture_modules(
    command: Sequence[str],
    folder: Path,
    *,
    devices: int,
    quiet_s: float,
    step_needed: bool = True,
    environment: Mapping[str, str] | None = None,
) -> tuple[Path, ...]:
    """Run a command on CPU devices and collect what it compiles; its output goes to stderr.

    Args:
        command: the words of the command.
        folder: new folder for the modules.
        devices: virtual CPU devices.
        quiet_s: once something is captured, stop the program when nothing new came for so long: on CPUs the steps
            themselves may take hours.
        step_needed: a program that fails must have executed a module again and again before.
        environment: instead of `os.environ`.

    Returns:
        The dumped modules, in the order in which they were compiled.

    Raises:
        UserError: the command cannot be started or compiled nothing.
        WorkloadError: it failed before it had compiled anything, or before its step was executed again and again.
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
    _copy_for_user((os.environ if environment is None else environment).get("JAX_DUMP_IR_TO", ""), found)
    if not found and code:
        raise WorkloadError(code, f"{shlex.join(kept_argv(command))} ended with {code} before it had compiled anything")
    if code and step_needed and not is_step(choose_module(found, None)):
        there = ", ".join(candidates(found)[:SHOWN])
        raise WorkloadError(
            code, f"{shlex.join(command)} ended with {code} before its step was executed twice; it had compiled {there}"
        )
    if code:
        write_files({folder / CODE: str(code)}, force=True)
    if not found:
        raise UserError("the program compiled no jax module", where=shlex.join(kept_argv(command)))
    return found


def _copy_for_user(wanted: str, modules: Sequence[Path]) -> None:
    """Where the user wanted jax's dumps, they lie there as well."""
    if wanted and "://" not in wanted:
        Path(wanted).mkdir(parents=True, exist_ok=True)
        for path in modules:
            shutil.copyfile(path, Path(wanted) / path.name)


def capture_environment(base: Mapping[str, str], folder: Path, devices: int) -> dict[str, str]:
    """The environment of a capturing run: CPU platform, virtual devices, dumps on, no compilation cache.

    The hook in it has modules that move data to host memory dumped as jax lowers them for GPUs; for CPUs it drops that.
    """
    flags = base.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        flags = f"{flags} --xla_force_host_platform_device_count={devices}".strip()
    if "xla_backend_optimization_level" not in flags:  # the code for CPUs is thrown away
        flags = f"{flags} --xla_backend_optimization_level=0"
    return {
        **with_hook(base, {"captured": str(folder.resolve())}),
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # the plugin has no CUDA libraries to look for
        "XLA_FLAGS": flags,
        "JAX_DUMP_IR_TO": str(folder.resolve()),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


def modules_in(folder: Path, *, dumps: bool = False) -> tuple[Path, ...]:
    """The modules that jax dumped into a folder (``JAX_DUMP_IR_TO``), in the order of their numbers.

    Args:
        folder: where they lie.
        dumps: where jax dumped none, those that XLA dumped before it optimised them (``--xla_dump_to``).

    Raises:
        UserError: `dumps`, and there is neither.
    """
    found = sorted(folder.glob("jax_ir*_compile.mlir"))
    if dumps and not found:
        found = sorted(path for path in folder.iterdir() if _DUMPED.fullmatch(path.name))
        if not found:
            raise UserError(
                "no module is dumped there",
                where=folder,
                remedy="dump them with JAX_DUMP_IR_TO=DIR, or run the program: pgle rehearse -- python train.py",
            )
    return tuple(found)


@dataclass(frozen=True)
class Program:
    """What the hook found out about a captured program.

    Attributes:
        python: its interpreter; empty where the hook did not run.
        version: of that Python, (3, 12, 1).
        jaxlib: version of its jaxlib.
        plugin: whether it has jax's CUDA plugin.
        executed: executions by the file name of the module.
        compiling: file name of the module that it is compiling.
    """

    python: str = ""
    version: tuple[int, ...] = ()
    jaxlib: str = ""
    plugin: bool = False
    executed: Mapping[str, int] = field(default_factory=dict)
    compiling: str = ""


def read_program(folder: Path) -> Program:
    """The program whose modules lie in a folder of captured modules."""
    try:
        found = json.loads((folder / PROGRAM).read_text())
    except (OSError, ValueError):
        return Program()
    return Program(**{**found, "version": tuple(found["version"])})


def capture_warnings(module: Path) -> tuple[str, ...]:
    """What to say of a module of `capture_modules`: its program failed, or its moves to host memory are lost."""
    code, kept = (module.parent / name for name in (CODE, KEPT))
    found = []
    if code.is_file():
        found.append(f"the program ended with exit code {code.read_text()} after {module.name} had been compiled")
    if kept.is_file() and f"!{module.name}" in kept.read_text().splitlines():
        found.append(
            f"{module.name} moves data to host memory, which jax drops when it lowers for CPUs, so this rehearsal has "
            "no offloading; set JAX_DUMP_IR_TO=DIR in a GPU run, then: pgle rehearse DIR/jax_ir…_compile.mlir"
        )
    return tuple(found)


def choose_module(modules: Sequence[Path], pattern: str | None) -> Path:
    """The program's step: the module that is executed again and again; else the last large one that is executed.

    A module of less than `SUBSTANTIAL` of the largest is no step, however often it is executed. Where executions were
    not counted it is the largest.

    Args:
        modules: of one folder, in the order in which they were compiled.
        pattern: a name (``jit_train_step``), a file name, or a regular expression on file names; of those the step.

    Raises:
        UserError: the expression is invalid or matches none; the message lists all modules.
    """
    executed = read_program(modules[0].parent).executed
    chosen = list(modules)
    if pattern is not None:
        exact = [path for path in modules if pattern in (path.name, module_name(path))]
        try:
            chosen = exact or [path for path in modules if re.search(pattern, path.name)]
        except re.error as error:
            raise UserError(f"invalid regular expression ({error})", where=f"--choose {pattern}") from None
        if not chosen:
            raise UserError(
                "no module matches", where=f"--choose {pattern}", remedy=f"there are {', '.join(candidates(modules))}"
            )
    sizes = {path: path.stat().st_size for path in chosen}
    large = [path for path in chosen if sizes[path] >= SUBSTANTIAL * max(sizes.values())]
    again = [path for path in large if executed.get(path.name, 0) > 1]
    once = [path for path in large if path.name in executed]
    if again:
        return max(again, key=lambda path: sizes[path] * executed[path.name])
    return once[-1] if once else max(large, key=sizes.__getitem__)


def is_step(module: Path) -> bool:
    """Whether a module was executed again and again."""
    return read_program(module.parent).executed.get(module.name, 0) > 1


def candidates(modules: Sequence[Path]) -> list[str]:
    """A word on each module, the largest first: ``jit_step (14 kB, 312 times)``."""
    executed = read_program(modules[0].parent).executed if modules else {}
    largest = sorted(modules, key=lambda path: -path.stat().st_size)
    return [_described(path, executed.get(path.name, 0)) for path in largest]


def _described(path: Path, times: int) -> str:
    often = {0: "", 1: ", once"}.get(times, f", {times} times")
    return f"{module_name(path)} ({max(1, round(path.stat().st_size / 1000))} kB{often})"


def module_name(path: Path) -> str:
    """The module's name in that of a dump of jax (``jax_ir0003_jit_step_compile.mlir``) or of XLA."""
    found = _DUMPED.fullmatch(path.name)
    return (found[1] or found[2]) if found else path.name


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
        patience = quiet_s * _patience(folder)
        if seen and time.monotonic() - since > patience:
            count = len(modules_in(folder))
            said = (
                f"pgle: stopping the program on purpose: {count} modules are captured, none in the last {patience:g} s"
            )
            print(f"{said} (--quiet-for)", file=sys.stderr, flush=True)
            _stop(child)
            return 0


def _patience(folder: Path) -> int:
    """How many times the quiet time a program is given: more before a step has been seen."""
    modules, program = modules_in(folder), read_program(folder)
    if not program.python:
        return 1  # no hook, nothing is known
    is_settled = not program.compiling and bool(modules) and is_step(choose_module(modules, None))
    return 1 if is_settled else UNSETTLED


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
