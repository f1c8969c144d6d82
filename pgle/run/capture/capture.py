"""The modules of a program, captured from a run on virtual CPU devices: StableHLO as jax hands it to the compiler."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pgle.errors import UserError, WorkloadError, one_line, shell_code, some
from pgle.files import write_files
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.run.capture.captured import (
    CODE,
    PROGRAM,
    STOPPED,
    candidates,
    choose_module,
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
    topology: str | None = None  # ``SxHxD``: slices, hosts of each, devices of each host; None: one host


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
        raise UserError(f"{devices.count} devices; a capture has at most {MOST_DEVICES}", remedy=remedy)
    claim(folder)
    folder.mkdir(parents=True, exist_ok=True)
    streams = {"stdout": output, "stderr": None if output == STDERR else output}
    child = started(command, capture_environment(folder, devices, target), **streams, start_new_session=True)
    with suppress(OSError):  # of all processes this one ends first where memory runs out
        Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        code = _wait_or_stop(child, folder, quiet_s=quiet_s, choose=choose, until_step=until_step)
    except BaseException:
        _stop(child)
        raise
    program = read_captured(folder)
    if program.uncomputed:
        _say(f"not executed on the CPU, their results were zeros: {some(program.uncomputed, SHOWN)}")
    found, shown = modules_in(folder), str(Next(kept_argv(command)))
    unhooked = "" if program.python else UNHOOKED
    how = ended(code) + (f" ({program.error})" if program.error else "")
    hint = f"; it had {devices.count} devices, which is assumed: --devices N gives it others" if devices.assumed else ""
    if program.uncomputed and code < SIGNALLED and (program.by_zeros or not program.error):
        hint += f"; zeros for results may be why: {COMPUTE}=1 executes all"
    if not found and code:
        raise WorkloadError(code, f"{shown} {how} before it had compiled anything{unhooked and f'; {unhooked}'}{hint}")
    if unhooked and found:
        _say(f"{unhooked}; how often a module was executed is not known")
    if not found:
        remedy = "does it call a jitted function? If it clears its environment, start pgle behind what does so"
        raise UserError("the program compiled no jax module", remedy=remedy)
    # a program that fails must have executed its step before, which multiplies matrices as all training does
    if code and choose is None and not (is_step(step := choose_module(found, None)) and multiplies(step)):
        there = ", ".join(candidates(found)[:SHOWN])
        what = f"{shown} {how} before any step ran twice; it had compiled {there} (--choose NAME){hint}"
        raise WorkloadError(code, what)
    if code:
        write_files({folder / CODE: str(code)}, force=True)
    return found


def _say(text: str) -> None:
    print(f"pgle: {one_line(text)}", file=sys.stderr, flush=True)


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
    child: subprocess.Popen[bytes], folder: Path, *, quiet_s: float, choose: str | None, until_step: bool
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
                remedy = "start all of them in the command, or none: one process has all devices here"
                why = f": jax.distributed.initialize waits ({who}; {remedy})" if who else ""
                _say(f"the program has compiled nothing in {told_s:g} s{why}; waiting on (Ctrl-C ends it)")
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
            _say(f"no training step yet; waiting {patience:g} s for one (--choose NAME takes another module)")


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
    return not doubt, not program.python or not (program.compiling or doubt)  # no hook: nothing is known


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
