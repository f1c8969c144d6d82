"""The modules of a program, captured from a run on virtual CPU devices: StableHLO as jax hands it to the compiler.

Of a jitted function of this process it is lowered here, for GPUs that are not there, without a run.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any

from pgle.errors import UserError, WorkloadError, inert, one_line, shell_code, some
from pgle.files import write_files
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.run.ask.jax_private import PLUGIN_LOG
from pgle.run.capture.captured import (
    CODE,
    PROGRAM,
    STOPPED,
    candidates,
    choose_module,
    devices_of,
    doubt_of,
    is_step,
    modules_in,
    multiplies,
    read_captured,
)
from pgle.run.compiler.compile import devices_in
from pgle.run.directory.directory import claim
from pgle.run.hook import with_hook
from pgle.run.process.environment import LAUNCHERS, memory_fraction
from pgle.run.process.process import ended, started
from pgle.xla.targets import Target

STDERR = 2  # file descriptor: results alone go to our stdout

SHOWN = 5  # modules that a message about something else names

UNSETTLED = 3
"""A program is waited for so many times longer while it compiles something, or no training step was executed twice."""

COMPUTE = "PGLE_COMPUTE"
"""Variable by which large modules are executed, too, instead of taking their results as zeros."""

SIGNALLED = 128  # exit codes from here on: a signal ended the program

_EXPORTED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")

POLL_S = 0.2
SAY_S = 30.0  # after so long without a compilation a line says that pgle waits; the next after twice as long
GRACE_S = 5.0  # how long a stopped program may take to end before it is killed


UNHOOKED = (
    "no jax was seen by pgle's hook (python -I and -E start without it; if a script sets PYTHONPATH, let it keep the "
    "old: PYTHONPATH=…:$PYTHONPATH)"
)


MOST_DEVICES = 2048
"""Of a capture: XLA's CPU client takes device 2,048 for one of another process (`kMaxCpuDevicesPerProcess`)."""

DEFAULT_DEVICES = 4  # virtual CPU devices when nobody says how many


@dataclass(frozen=True)
class Devices:
    """How many devices a captured program has, and who names it."""

    count: int
    assumed: bool = False  # nobody names it
    topology: str | None = (
        None  # ``SxHxD``: slices, hosts of each, devices of each host; None: one host
    )


def devices_for(asked: int | None, *, topology: str | None = None) -> Devices:
    """The devices of a captured program: as asked, else of the topology, else as the user's XLA_FLAGS say, else
    `DEFAULT_DEVICES`."""
    if topology and asked in (None, devices_in(topology)):
        return Devices(devices_in(topology), topology=topology)
    if asked is not None:
        return Devices(asked)
    exported = _EXPORTED.findall(os.environ.get("XLA_FLAGS", ""))
    return Devices(int(exported[-1])) if exported else Devices(DEFAULT_DEVICES, assumed=True)


def capture_modules(
    command: Sequence[str],
    folder: Path,
    *,
    target: Target,
    devices: Devices,
    quiet_s: float,
    choose: str | None = None,
    until_step: bool = False,
    output: int = STDERR,
) -> tuple[Path, ...]:
    """Run a command on CPU devices and collect what it compiles; its output goes to stderr.

    Args:
        command: the words of the command.
        folder: new folder for the modules.
        target: the GPU that the program sees.
        devices: virtual CPU devices.
        quiet_s: once something is captured, stop the program when nothing new came for so long: on CPUs the steps
            themselves may take hours.
        choose: the module that is wanted, as in `choose_module`; None: the program's step, which a program that fails
            must have executed again and again before.
        until_step: stop the program as soon as its step, or what `choose` names, is known.
        output: descriptor that the program's output goes to.

    Returns:
        The dumped modules, in the order in which they were compiled.

    Raises:
        UserError: the command cannot be started or compiled nothing.
        WorkloadError: it failed before it had compiled anything, or before its step was executed again and again.
    """
    if devices.count > MOST_DEVICES:
        remedy = "'pgle scale' grows its module from smaller captures"
        raise UserError(
            f"{devices.count} devices; a capture has at most {MOST_DEVICES}", remedy=remedy
        )
    claim(folder)
    folder.mkdir(parents=True, exist_ok=True)
    streams = {"stdout": output, "stderr": None if output == STDERR else output}
    child = started(
        command, capture_environment(folder, devices, target), **streams, start_new_session=True
    )
    with suppress(OSError):  # of all processes this one ends first where memory runs out
        Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        code = _wait_or_stop(child, folder, quiet_s=quiet_s, choose=choose, until_step=until_step)
    except BaseException:
        _stop(child)
        raise
    program = read_captured(folder)
    if program.uncomputed:
        _say(
            f"not executed on the CPU, their results were zeros: {some(program.uncomputed, SHOWN)}"
        )
    found, shown = modules_in(folder), str(Next(kept_argv(command)))
    unhooked = "" if program.python else UNHOOKED
    how = ended(code) + (f" ({program.error})" if program.error else "")
    hint = (
        f"; it had {devices.count} devices, which is assumed: --devices N gives it others"
        if devices.assumed
        else ""
    )
    if program.uncomputed and code < SIGNALLED and (program.by_zeros or not program.error):
        hint += f"; zeros for results may be why: {COMPUTE}=1 executes all"
    if not found and code:
        raise WorkloadError(
            code,
            f"{shown} {how} before it had compiled anything{unhooked and f'; {unhooked}'}{hint}",
        )
    if unhooked and found:
        _say(f"{unhooked}; how often a module was executed is not known")
    if not found:
        remedy = "does it call a jitted function? If it clears its environment, start pgle behind what does so"
        raise UserError("the program compiled no jax module", remedy=remedy)
    # a program that fails must have executed its step before, which multiplies matrices as all training does
    if (
        code
        and choose is None
        and not (is_step(step := choose_module(found, None)) and multiplies(step))
    ):
        there = ", ".join(candidates(found)[:SHOWN])
        what = f"{shown} {how} before any step ran twice; it had compiled {there} (--choose NAME){hint}"
        raise WorkloadError(code, what)
    if code:
        write_files({folder / CODE: str(code)}, force=True)
    return found


def _say(text: str) -> None:
    print(inert(f"pgle: {one_line(text)}"), file=sys.stderr, flush=True)


def capture_environment(folder: Path, devices: Devices, target: Target) -> dict[str, str]:
    """The environment of a capturing run: CPU platform, virtual devices, dumps on, no compilation cache.

    The hook in it has the program see the target, and has every module dumped as jax lowers it for GPUs. The devices
    are the job's if the command starts several processes.
    """
    given = _EXPORTED.sub("", os.environ.get("XLA_FLAGS", "")).strip()
    flags = [f"--xla_force_host_platform_device_count={devices.count}"]
    if "xla_backend_optimization_level" not in given:  # the code for CPUs is thrown away
        flags.append("--xla_backend_optimization_level=0")
    wanted = " ".join([given, *flags]).strip()
    config = {
        "captured": str(folder.resolve() / PROGRAM),
        "computes": bool(os.environ.get(COMPUTE)),
        "devices": devices.count,
        "flags": flags,
        "given": wanted,
        "gpu": {
            "kind": target.device,
            "compute_capability": ".".join(map(str, target.compute_capability)),
            "core_count": target.core_count,
            "memory_bytes": int((memory_fraction(os.environ) or 1.0) * target.memory_bytes),
            "targets": target.texts,
            "topology": devices.topology or f"1x1x{devices.count}",
        },
        "ranks": {name: os.environ.get(name) for launcher in LAUNCHERS for name in launcher[1:]},
    }
    return {
        **with_hook(os.environ, config),
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # the plugin has no CUDA libraries to look for
        "XLA_FLAGS": wanted,
        "JAX_DUMP_IR_TO": str(folder.resolve()),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


def _wait_or_stop(
    child: subprocess.Popen[bytes],
    folder: Path,
    *,
    quiet_s: float,
    choose: str | None,
    until_step: bool,
) -> int:
    """The exit code, 128 + N where signal N ended it; 0 where we stopped the program ourselves."""
    seen, since = 0, time.monotonic()
    told_s, told_size = SAY_S, 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            return shell_code(child.wait(POLL_S))
        modules = modules_in(folder)
        size = sum(path.stat().st_size for path in modules)
        if size != seen:
            seen, since = size, time.monotonic()
        waited = time.monotonic() - since
        if not seen:
            if waited > told_s:
                who = read_captured(folder).waits_for
                remedy = (
                    "start all of them in the command, or none: one process has all devices here"
                )
                why = f": jax.distributed.initialize waits ({who}; {remedy})" if who else ""
                _say(
                    f"the program has compiled nothing in {told_s:g} s{why}; waiting on (Ctrl-C ends it)"
                )
                told_s *= 2
            continue
        is_known, is_settled = _progress(modules, choose)
        if until_step and is_known:
            _stop(child)
            return 0
        # If several programs want each core of this machine, everything takes so many times longer.
        quiet = waited / max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)
        if quiet <= quiet_s:
            continue
        patience = quiet_s * (1 if is_settled else UNSETTLED)
        if quiet > patience:
            what = f"stopping the program on purpose: {len(modules)} modules are captured, none in the last"
            _say(f"{what} {waited:.0f} s (--quiet-for)")
            _stop(child)
            write_files({folder / STOPPED: ""}, force=True)
            return 0
        if seen != told_size:
            told_size = seen
            _say(
                f"no training step yet; waiting {patience:g} s for one (--choose NAME takes another module)"
            )


def _progress(modules: Sequence[Path], choose: str | None) -> tuple[bool, bool]:
    """Whether the step, or the module that is wanted, is known; and whether it was seen: else the program is given
    more time."""
    try:
        wanted = choose_module(modules, choose)
    except UserError:  # it has not come yet
        return False, False
    program = read_captured(wanted.parent)
    if choose is not None:
        return program.executed.get(wanted.name, 0) > 0, True
    doubt = doubt_of(wanted)
    return not doubt, not program.python or not (
        program.compiling or doubt
    )  # no hook: nothing is known


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the program and what it started, which may outlive it: ranks that a launcher started, loaders of data."""
    until = time.monotonic() + GRACE_S
    number = signal.SIGTERM
    while _signalled(child, number) and number != signal.SIGKILL:
        while _signalled(child, 0) and time.monotonic() < until:
            time.sleep(POLL_S / 4)
        number = signal.SIGKILL
    child.wait()


def _signalled(child: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to the group of the program; False where nothing of it is left."""
    child.poll()
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


# A jitted function of this process: what a capture of its program would dump of it.

PLATFORM = "cuda"

_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
_GPUS = ("nvidia[0-9]*", "dxg")  # in /dev, of Linux and of WSL
_DRIVER = Path("/dev/nvidiactl")  # where it exists jax looks for a GPU, also if there is none

_LOCK = RLock()
_MESH = re.compile(
    r"(?:sdy\.mesh @\w+ = <|sharding = \"\{devices=)\[(.*?)\]"
)  # the latter before jax 0.7
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")
_OF_KERNEL = re.compile(r'(?<=")[^"\n]*/ipykernel_\d+/')
"""Where a notebook's cells are files: another folder in every kernel, for the same step."""


def lowered_step(step: Callable[..., Any], args: Sequence[Any], folder: Path) -> Path:
    """The file of a step's module, StableHLO as jax dumps it.

    Arrays stand for their shapes. The mesh may be an `AbstractMesh`, which needs no devices.

    Args:
        step: jitted by jax, flax or equinox; any other function is jitted.
        args: what it takes: arrays, or `jax.ShapeDtypeStruct` with or without shardings.
        folder: for the file; it exists.
    """
    import jax

    if not callable(step):
        raise UserError(
            f"a function is needed, not {type(step).__name__}",
            remedy="give a jitted step, or a path",
        )
    name = getattr(step, "__name__", type(step).__name__)
    given: Any = jax.tree.map(_shape, tuple(args))
    if not hasattr(step, "lower"):
        step = jax.jit(step)
    elif not hasattr(step, "trace"):  # of equinox
        given = jax.tree.map(_placed, given)
    try:
        with _for_gpus() as made:
            step.lower(*given)  # type: ignore[attr-defined]
        text = _OF_KERNEL.sub("", made[-1].as_text(debug_info=True))
    except Exception as error:  # of the user's function, and whatever jax says of it
        what = f"cannot be lowered for GPUs: {type(error).__name__}: {one_line(str(error))[:400]}"
        raise UserError(what, where=name) from error
    _check_mesh(name, text)
    path = folder / f"jax_ir0000_{_module_name(text)}_compile.mlir"
    path.write_text(text, encoding="utf-8")
    return path


def lowered_steps(
    build: Callable[[int], Sequence[Any]], devices: Sequence[int], folder: Path
) -> tuple[list[Path], dict[int, str]]:
    """The modules of a step at several sizes, and of each other size why not; `build` may raise ValueError."""
    found, unfit = [], {}
    for count in devices:
        place = folder / str(count)
        place.mkdir()
        try:
            step, *args = build(count)
            path = lowered_step(step, args, place)
        except (UserError, ValueError) as error:
            unfit[count] = getattr(error, "what", f"{type(error).__name__}: {one_line(str(error))}")
            continue
        if (own := devices_of(path)) not in (None, count):
            unfit[count] = f"the step is for {own} GPUs"
        else:
            found.append(path)
    return found, unfit


def _shape(leaf: Any) -> Any:
    """An array as its shape, with its sharding if it is on several devices; anything else as it is."""
    import jax

    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return leaf
    sharding = leaf.sharding if len(leaf.sharding.device_set) > 1 else None
    return jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding, weak_type=getattr(leaf, "weak_type", False)
    )


def _placed(leaf: Any) -> Any:
    """A shape as an array that takes no memory and says how it is sharded: equinox asks for arrays."""
    import jax
    import numpy as np

    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    array = np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    if leaf.sharding is None:
        return array
    return array.view(type("Placed", (np.ndarray,), {"sharding": leaf.sharding}))


@contextmanager
def _for_gpus() -> Iterator[list[Any]]:
    """Have everything lowered for GPUs, whoever asks jax for it; the list gets what was lowered."""
    import jax

    made: list[Any] = []
    with _LOCK, _without_cuda():
        usual = jax.stages.Traced.lower

        def lower(self: Any, **options: Any) -> Any:
            made.append(usual(self, **{**options, "lowering_platforms": (PLATFORM,)}))
            return made[-1]

        jax.stages.Traced.lower = lower
        try:
            yield made
        finally:
            jax.stages.Traced.lower = usual


@contextmanager
def _without_cuda() -> Iterator[None]:
    """On a machine without a GPU, keep jax from logging a traceback about CUDA libraries when it first looks at it."""
    if _CHECK in os.environ or any(any(Path("/dev").glob(name)) for name in _GPUS):
        yield
        return
    log = logging.getLogger(PLUGIN_LOG)
    was, log.disabled = log.disabled, True
    if not _DRIVER.exists():
        os.environ[_CHECK] = "1"
    try:
        yield
    finally:
        log.disabled = was
        os.environ.pop(_CHECK, None)


def _check_mesh(name: str, text: str) -> None:
    """Refuse a module with a mesh of several devices that jax takes for one of a single device."""
    found = _PARTITIONS.search(text)
    sizes = [_size(mesh[1]) for mesh in _MESH.finditer(text)]
    if found and int(found[1]) == 1 and max(sizes, default=1) > 1:
        what = f"its mesh has {max(sizes)} devices, and no argument has a sharding on it: jax takes it for one device"
        remedy = "give an argument as jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))"
        raise UserError(what, where=name, remedy=remedy)


def _size(axes: str) -> int:
    return prod(map(int, re.findall(r"(?<![\w.])\d+", axes)))


def _module_name(text: str) -> str:
    found = re.search(r"module @([\w.<>-]+)", text)
    return re.sub(r"[^\w.-]", "", found[1]) if found else "step"
