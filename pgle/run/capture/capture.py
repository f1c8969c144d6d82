"""Capture the modules of a program from a run on virtual CPU devices, as StableHLO for the
compiler.

A jitted function of this process is only lowered for GPUs, without a run.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from subprocess import DEVNULL
from threading import RLock
from typing import Any

from pgle.errors import UserError, WorkloadError, cut, one_line, some
from pgle.files import write_files
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.run.ask.jax_private import PLUGIN_LOG
from pgle.run.capture.captured import (
    CODE,
    PROGRAM,
    SIGNALLED,
    STARTED,
    STOPPED,
    CapturedProgram,
    ComparedValues,
    candidates,
    choose_module,
    devices_of,
    doubt_of,
    is_step,
    modules_in,
    multiplies,
    read_captured,
)
from pgle.run.capture.running import OUTPUT, STDERR, progress, run_program, say
from pgle.run.compiler.compile import devices_in
from pgle.run.directory.directory import claim, free
from pgle.run.hook import hook_module, with_hook
from pgle.run.process.flags import OF_CPUS, user_flags
from pgle.run.process.launchers import LAUNCHERS
from pgle.run.process.memory import memory_fraction
from pgle.run.process.process import ended, last_line, refused_flag
from pgle.xla.flags.text import format_flags, to_be_extended
from pgle.xla.targets import Target
from pgle.xla.vendors import NVIDIA

SHOWN = 5  # modules that a message lists if it is about something else
MOST_SAID = 300  # characters of the program's line that a message quotes

COMPUTE = "PGLE_COMPUTE"
"""Variable that makes large modules execute. Otherwise their results are zeros."""


HOST_DEVICES, EFFORT_OF_CPUS = OF_CPUS

UNHOOKED = (
    "no Python with pgle's hook was seen: the command started none, or without "
    "the hook (python -I and -E; if a script "
    "sets PYTHONPATH, let it keep the old: PYTHONPATH=…:$PYTHONPATH)"
)


MOST_DEVICES = 2048
"""Most devices of a capture: XLA's CPU client assigns device 2,048 to another process
(`kMaxCpuDevicesPerProcess`).
"""

DEFAULT_DEVICES = 4  # virtual CPU devices if nothing names a number


@dataclass(frozen=True)
class Devices:
    """The number of devices of a captured program, and whether it was given."""

    count: int
    assumed: bool = False  # nothing names the number
    # ``SxHxD``: slices, hosts per slice, devices per host; None: one host
    topology: str | None = None


def devices_for(asked: int | None, *, topology: str | None = None) -> Devices:
    """Return the devices of a captured program: as asked, else from the topology, else from the
    user's XLA_FLAGS, else `DEFAULT_DEVICES`.
    """
    if topology and asked in (None, devices_in(topology)):
        return Devices(devices_in(topology), topology=topology)
    if asked is not None:
        return Devices(asked)
    exported = user_flags().value(HOST_DEVICES) or ""
    if exported.isdecimal():
        return Devices(int(exported))
    return Devices(DEFAULT_DEVICES, assumed=True)


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
    alternatives: Sequence[Mapping[str, str]] = (),
) -> tuple[Path, ...]:
    """Run a command on CPU devices and collect what it compiles; its output goes to a log.

    Args:
        command: the words of the command.
        folder: new folder for the modules.
        target: the GPU that the program sees.
        devices: virtual CPU devices.
        quiet_s: seconds without a new module after which the program is stopped, because steps may
            take hours on CPUs.
        choose: the wanted module, as in `choose_module`; None: the program's step. A program that
            fails must have executed it several times before.
        until_step: stop the program as soon as its step, or what `choose` names, is known.
        output: where the program's output goes: a descriptor, or `subprocess.DEVNULL`.
        alternatives: changes of the program that the hook makes: ``kind``, ``where``, ``value``.

    Returns:
        The dumped modules, in the order in which they were compiled.

    Raises:
        UserError: the command cannot be started or compiled nothing, or XLA refuses a flag.
        WorkloadError: it failed before it compiled anything, or before it executed its step several
            times.
    """
    if devices.count > MOST_DEVICES:
        raise UserError(
            f"{devices.count} devices; a capture has at most {MOST_DEVICES}",
            remedy="'pgle scale' grows its module from smaller captures",
        )
    how = partial(
        _run_once,
        command,
        target=target,
        devices=devices,
        quiet_s=quiet_s,
        choose=choose,
        output=output,
        alternatives=alternatives,
    )
    code = how(folder, ones=False, until_step=until_step)
    if why := ended_by_zeros(folder, code, choose):
        code = _with_ones(how, folder, code, why, choose)
    found = modules_in(folder)
    program = read_captured(folder)
    if not alternatives:
        _say_what_was_left_out(program)
    if not found and code:
        who = str(Next(kept_argv(command)))
        if words := refused_flag(folder / OUTPUT):
            raise _flag_error(words, who)
        raise WorkloadError(code, _no_module(folder, code, devices), who=who)
    unhooked = "" if program.python else UNHOOKED
    if unhooked and found:
        say(f"{unhooked}; how often a module was executed is not known")
    if not found:
        raise UserError("the program compiled no jax module", remedy=_no_call(folder))
    # a program that fails must have executed its step before, which multiplies matrices as all
    # training does
    if (
        code
        and choose is None
        and not (is_step(step := choose_module(found, None)) and multiplies(step))
    ):
        there = ", ".join(candidates(found)[:SHOWN])
        how_ended = _how_it_ended(program, code)
        what = (
            f"{how_ended} before any step ran twice; it had compiled {there} "
            f"(--module NAME){_hint(program, code, devices)}"
        )
        raise WorkloadError(code, what, who=str(Next(kept_argv(command))))
    if code:
        write_files({folder / CODE: str(code)}, force=True)
    return found


def compare_values(
    command: Sequence[str],
    folder: Path,
    *,
    target: Target,
    devices: Devices,
    quiet_s: float,
    step: str,
    alternatives: Sequence[Mapping[str, str]],
) -> ComparedValues:
    """Run a command until its step is traced, and compare the step's values with and without
    alternatives.

    Args:
        step: the name of its function. The others are as in `capture_modules`.
    """
    compare = {"kind": "compare", "where": step, "value": ""}
    code = _run_once(
        command,
        folder,
        target=target,
        devices=devices,
        quiet_s=quiet_s,
        choose=f"jit_{step}",
        output=DEVNULL,
        ones=False,
        until_step=True,
        alternatives=(*alternatives, compare),
    )
    found = read_captured(folder).compared
    return found or ComparedValues(why=_why_not_compared(folder, code))


def _why_not_compared(folder: Path, code: int) -> str:
    """Say in a clause why an ended program compared nothing."""
    if (folder / STOPPED).is_file():
        return "pgle stopped the program, which took longer than --quiet-for"
    how = "failed" if code else "ended"
    return f"the program {how} before its step was compared"


def _run_once(
    command: Sequence[str],
    folder: Path,
    *,
    target: Target,
    devices: Devices,
    quiet_s: float,
    choose: str | None,
    output: int,
    ones: bool,
    until_step: bool,
    alternatives: Sequence[Mapping[str, str]],
) -> int:
    """Run the command into a new folder. Return its exit code, as `run_program` does."""
    claim(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return run_program(
        command,
        capture_environment(
            folder, devices, target, ones=ones, alternatives=alternatives
        ),
        folder,
        quiet_s=quiet_s,
        choose=choose,
        until_step=until_step,
        output=output,
        names_log=not ones,  # a second run's folder may take the place of the first
    )


def ended_by_zeros(folder: Path, code: int, choose: str | None) -> str:
    """Say in a clause why zeros for results may have ended a captured program early; empty if they
    did not.

    They may if an exception due to numbers ended it, or if it ended by itself without a training
    step.
    """
    program = read_captured(folder)
    found = modules_in(folder)
    if not program.uncomputed or code >= SIGNALLED or (folder / STOPPED).is_file():
        return ""
    if code:
        return f"the program {ended(code)}" if program.by_zeros else ""
    if choose is not None:
        is_known = progress(found, choose)[0] if found else False
        return "" if is_known else f"the program ended without executing {choose}"
    if found and not doubt_of(choose_module(found, None)):
        return ""
    return "the program ended without a training step"


def _with_ones(
    how: Callable[..., int], folder: Path, code: int, why: str, choose: str | None
) -> int:
    """Run the program again, with ones for results. Keep the run that got further in the folder.

    Returns:
        The exit code of that run.
    """
    say(f"{why}, and results of large modules were zeros; running it again with ones")
    again = free(folder.with_name(f"{folder.name}-ones"))
    other = how(again, ones=True, until_step=not code)
    is_better = (
        not other
        and bool(modules_in(again))
        and not ended_by_zeros(again, other, choose)
    )
    # If the failure does not depend on numbers, it is the program's own.
    is_own = bool(code and other) and _is_further(again, folder)
    kept, gone = (again, folder) if is_better or is_own else (folder, again)
    shutil.rmtree(gone, ignore_errors=True)
    if kept is not folder:
        kept.rename(folder)
    return other if kept is again else code


def _is_further(one: Path, other: Path) -> bool:
    """Whether a run executed at least as many of its modules as another run."""
    counts = [len(read_captured(folder).executed) for folder in (one, other)]
    return counts[0] >= counts[1]


def _say_what_was_left_out(program: CapturedProgram) -> None:
    if program.uncomputed:
        what = "their results were zeros"
        if program.ones:
            what = "ones for small results, else zeros"
        say(f"not executed on the CPU, {what}: {some(program.uncomputed, SHOWN)}")


def _how_it_ended(program: CapturedProgram, code: int) -> str:
    return ended(code) + (f" ({program.error})" if program.error else "")


def _hint(program: CapturedProgram, code: int, devices: Devices) -> str:
    """Suggest why a program failed, if that may not be its own fault."""
    hint = ""
    if devices.assumed:
        hint = f"; it had {devices.count} devices, which is assumed: --devices N gives it others"
    if (
        program.uncomputed
        and code < SIGNALLED
        and (program.by_zeros or not program.error)
    ):
        hint += f"; zeros for results may be why: {COMPUTE}=1 executes all"
    return hint


def _flag_error(words: str, program: str) -> UserError:
    """Return the error for a program that XLA ended because of a flag, in XLA's words. The flag is
    from the user's XLA_FLAGS or from the program.
    """
    is_users = any(flag.name in words for flag in user_flags().flags)
    return UserError(
        f"XLA refuses a flag, and ended the program: {words}",
        where="XLA_FLAGS" if is_users else program,
        remedy=f"correct it or leave it out; see: {Next.of('flags', 'lint')}",
    )


def _no_module(folder: Path, code: int, devices: Devices) -> str:
    """Say how a failed program ended, and why it had compiled nothing."""
    program = read_captured(folder)
    before = "before it had compiled anything"
    if program.python:
        return f"{_how_it_ended(program, code)} {before}{_hint(program, code, devices)}"
    start = folder / STARTED
    if start.is_file():
        said = one_line(start.read_text(errors="replace")) or one_line(
            last_line(folder / OUTPUT)
        )
        why = f" ({cut(said, MOST_SAID)})" if said else ""
        return f"{ended(code)}{why} before it imported jax"
    said = cut(one_line(last_line(folder / OUTPUT)), MOST_SAID)
    return f"{ended(code)} {before}{said and f' ({said})'}; {UNHOOKED}"


def _no_call(folder: Path) -> str:
    """Say what to do about a program that succeeded and compiled nothing."""
    if read_captured(folder).python:
        return "does it call a jitted function?"
    if (folder / STARTED).is_file():
        return "it does not import jax; name the program that does"
    return UNHOOKED


def capture_environment(
    folder: Path,
    devices: Devices,
    target: Target,
    *,
    ones: bool = False,
    alternatives: Sequence[Mapping[str, str]] = (),
    serves: str = "",
    passes: int = 0,
) -> dict[str, str]:
    """Return the environment of a capturing run: CPU platform, virtual devices, dumps on, no
    compilation cache.

    Its hook shows the target GPU to the program, and dumps every module as lowered for GPUs. The
    devices are the job's if the command starts several processes. With `ones`, small results of
    large modules are ones. With `serves`, the program waits where it calls the function of this
    name (`WaitingProgram`), after `passes` other modules of that function.
    """
    user = user_flags()
    given = [flag for flag in user.flags if flag.name != HOST_DEVICES]
    flags = [f"--{HOST_DEVICES}={devices.count}"]
    if user.value(EFFORT_OF_CPUS) is None:  # the code for CPUs is discarded
        flags.append(f"--{EFFORT_OF_CPUS}=0")
    # XLA ignores everything after an invalid part of the user's text
    all_flags = filter(None, (format_flags(given), *flags, user.ignored))
    wanted = to_be_extended(" ".join(all_flags))
    memory_bytes = (memory_fraction(os.environ) or 1.0) * target.memory_bytes
    topology = devices.topology or f"1x1x{devices.count}"
    gpu = {
        "platform": target.vendor.platform,
        "client_version": target.vendor.client_version,
        "plugins": target.vendor.plugin.modules,
        "kind": target.device,
        "compute_capability": target.compute_capability,
        "core_count": target.core_count,
        "memory_bytes": int(memory_bytes),
        "targets": target.texts,
        "topology": topology,
    }
    ranks: dict[str, str | None] = {}
    for _, *variables in LAUNCHERS:
        ranks |= {name: os.environ.get(name) for name in variables}
    program = folder.resolve() / PROGRAM
    config = {
        "captured": str(program),
        "computes": bool(os.environ.get(COMPUTE)),
        "ones": ones,
        "devices": devices.count,
        "flags": flags,
        "given": wanted,
        "gpu": gpu,
        "ranks": ranks,
        "alternatives": list(alternatives),
        "serves": serves,
        "passes": passes,
    }
    return {
        **with_hook(os.environ, config),
        "JAX_PLATFORMS": "cpu",
        _CHECK: "1",  # the plugin must not search for CUDA libraries
        "XLA_FLAGS": wanted,
        "JAX_DUMP_IR_TO": str(folder.resolve()),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


# A jitted function of this process: make what a capture of its program would dump.

_CHECK = NVIDIA.plugin.skip_check
_GPUS = ("nvidia[0-9]*", "dxg")  # in /dev, on Linux and on WSL
# if it exists, jax looks for a GPU, even if there is none
_DRIVER = Path("/dev/nvidiactl")

_LOCK = RLock()
# before jax 0.7
_MESH = re.compile(r"(?:sdy\.mesh @\w+ = <|sharding = \"\{devices=)\[(.*?)\]")
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")
_OF_KERNEL = re.compile(r'(?<=")[^"\n]*/ipykernel_\d+/')
"""Folders of notebook cells. Each kernel has another folder for the same step."""


# jax's message, for example from cuDNN attention
_NEEDS_DEVICES = "AbstractMesh cannot be used"
_GIVE_THE_PROGRAM = "give the words of the program, whose process has devices"


def lowered_step(
    step: Callable[..., Any],
    args: Sequence[Any],
    folder: Path,
    target: Target,
) -> Path:
    """Write a step's module as StableHLO, as jax dumps it, and return the file.

    Only the shapes of arrays count. The mesh may be an `AbstractMesh`, which needs no devices.

    Args:
        step: a function jitted by jax, flax or equinox; any other function is jitted here.
        args: its arguments: arrays, or `jax.ShapeDtypeStruct` with or without shardings.
        folder: existing folder for the file.
        target: the GPU to lower for.
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
    elif not hasattr(step, "trace"):  # made by equinox
        given = jax.tree.map(_placed, given)
    try:
        with _for_gpus(target) as made:
            step.lower(*given)  # type: ignore[attr-defined]
        text = _OF_KERNEL.sub("", made[-1].as_text(debug_info=True))
    except Exception as error:  # errors of the user's function, or of jax about it
        what = f"cannot be lowered for GPUs: {type(error).__name__}: {one_line(str(error))[:400]}"
        remedy = _GIVE_THE_PROGRAM if _NEEDS_DEVICES in str(error) else ""
        raise UserError(what, where=name, remedy=remedy) from error
    _check_mesh(name, text)
    path = folder / f"jax_ir0000_{_module_name(text)}_compile.mlir"
    path.write_text(text, encoding="utf-8")
    return path


def lowered_steps(
    build: Callable[[int], Sequence[Any]],
    devices: Sequence[int],
    folder: Path,
    target: Target,
) -> tuple[list[Path], dict[int, str]]:
    """Return the modules of a step at several sizes, and the reason for each size without one.
    `build` may raise ValueError.
    """
    found: list[Path] = []
    unfit: dict[int, str] = {}
    for count in devices:
        place = folder / str(count)
        place.mkdir()
        try:
            step, *args = build(count)
            path = lowered_step(step, args, place, target)
        except (UserError, ValueError) as error:
            unfit[count] = getattr(
                error, "what", f"{type(error).__name__}: {one_line(str(error))}"
            )
            continue
        if (own := devices_of(path)) not in (None, count):
            unfit[count] = f"the step is for {own} GPUs"
        else:
            found.append(path)
    return found, unfit


def _shape(leaf: Any) -> Any:
    """Replace an array by its shape, with its sharding if it is on several devices. Other leaves
    stay.
    """
    import jax

    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return leaf
    sharding = leaf.sharding if len(leaf.sharding.device_set) > 1 else None
    return jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype,
        sharding=sharding,
        weak_type=getattr(leaf, "weak_type", False),
    )


def _placed(leaf: Any) -> Any:
    """Make an array of a shape that takes no memory and knows its sharding, because equinox asks
    for arrays.
    """
    import jax
    import numpy as np

    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    array = np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    if leaf.sharding is None:
        return array
    return array.view(type("Placed", (np.ndarray,), {"sharding": leaf.sharding}))


@contextmanager
def _for_gpus(target: Target) -> Iterator[list[Any]]:
    """Lower everything for GPUs within the block. The yielded list gets what was lowered."""
    import jax

    made: list[Any] = []
    platforms = (target.vendor.platform,)
    with _LOCK, _without_cuda(), _with_cudnn(target):
        usual = jax.stages.Traced.lower

        def lower(self: Any, **options: Any) -> Any:
            made.append(usual(self, **{**options, "lowering_platforms": platforms}))
            return made[-1]

        jax.stages.Traced.lower = lower
        try:
            yield made
        finally:
            jax.stages.Traced.lower = usual


@contextmanager
def _without_cuda() -> Iterator[None]:
    """On a machine without a GPU, keep jax from logging a traceback about CUDA libraries."""
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


_CUDNN = "jax._src.cudnn.fused_attention_stablehlo"
_QUESTIONS = (
    "check_cudnn_version",
    "check_compute_capability",
    "is_cuda_compute_capability_equal",
)
"""The questions that jax's cuDNN attention asks about this machine."""


@contextmanager
def _with_cudnn(target: Target) -> Iterator[None]:
    """Make jax's cuDNN attention find a cuDNN and the target GPU, which may be absent here."""
    try:
        module: Any = import_module(_CUDNN)
    except ImportError:  # a jax without cuDNN attention
        yield
        return
    usual = {
        name: getattr(module, name) for name in _QUESTIONS if hasattr(module, name)
    }
    own = _numbers(target.compute_capability)
    hook_module("for_gpus").see_cudnn(module, target.vendor.platform)
    module.check_compute_capability = lambda least: own >= _numbers(least)
    module.is_cuda_compute_capability_equal = lambda other: own == _numbers(other)
    try:
        yield
    finally:
        for name, function in usual.items():
            setattr(module, name, function)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _check_mesh(name: str, text: str) -> None:
    """Refuse a module whose mesh has several devices, but which jax lowered for a single device."""
    found = _PARTITIONS.search(text)
    sizes = [_size(mesh[1]) for mesh in _MESH.finditer(text)]
    if found and int(found[1]) == 1 and max(sizes, default=1) > 1:
        raise UserError(
            (
                f"its mesh has {max(sizes)} devices, and no argument has a sharding on "
                "it: jax takes it for one device"
            ),
            where=name,
            remedy=(
                "give an argument as jax.ShapeDtypeStruct(shape, dtype, "
                "sharding=NamedSharding(mesh, spec))"
            ),
        )


def _size(axes: str) -> int:
    return prod(map(int, re.findall(r"(?<![\w.])\d+", axes)))


def _module_name(text: str) -> str:
    found = re.search(r"module @([\w.<>-]+)", text)
    return re.sub(r"[^\w.-]", "", found[1]) if found else "step"
