"""Captured modules: a folder of programs as jax gave them to the compiler, and how to find the step
among them.
"""

from __future__ import annotations

import builtins
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from pgle.account.captured_program import Recompiled
from pgle.errors import UserError, many, some
from pgle.files import read_bytes, read_kept
from pgle.xla.flags.text import Flag, format_flags

T = TypeVar("T")

_PRODUCT = re.compile(rb"\bdot_general\b| dot\(|\x12\x03dot|\bconvolution\b")
"""A matrix product in StableHLO, in HLO text, or in HLO protobuf, where the second field is the
opcode.
"""


_COLLECTIVE = re.compile(
    rb"stablehlo\.(?:all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute"
    rb"|collective_broadcast)\b"
    rb"|[ \x0a-\x14](?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\b[^-]"
)
"""A collective in the same forms."""

_SPLIT = re.compile(rb'sdy\.sharding<@[^>]*\{"|mhlo\.sharding = "\{devices=\[')
"""An argument divided over devices, in Shardy's or GSPMD's notation."""


def once(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Return the same function, but read a file again only after it has changed. A running program
    is examined several times a second.
    """
    kept = cache(lambda module, mtime_ns, size: read(module))

    def found(module: Path) -> T:
        now = module.stat()
        return kept(module, now.st_mtime_ns, now.st_size)

    return found


@once
def multiplies(module: Path) -> bool:
    """Whether a dump (StableHLO or HLO, text or protobuf) contains a matrix product or a
    convolution.
    """
    return _PRODUCT.search(read_bytes(module)) is not None


@once
def communicates(module: Path) -> bool:
    """Whether a dump contains collectives, or makes XLA insert some because it multiplies or sums
    sharded arguments.
    """
    data = read_bytes(module)
    if _COLLECTIVE.search(data):
        return True
    main = next((line for line in data.splitlines() if b" @main(" in line), b"")
    taken = main.partition(b") -> ")[0]
    return bool(_SPLIT.search(taken)) and (
        b"stablehlo.reduce" in data or multiplies(module)
    )


def _types_of(module: Path) -> tuple[Counter[str], Counter[str]]:
    """Count the arrays of each type that a dump by jax takes, and those that it returns."""
    with module.open(errors="replace") as lines:
        main = next((line for line in lines if " @main(" in line), "")
    taken, _, returned = main.partition(") -> ")
    each = re.compile(r"tensor<[^>]+>")
    return Counter(each.findall(taken)), Counter(each.findall(returned))


@once
def taken_by(module: Path) -> Counter[str]:
    """Count the arrays of each type, such as ``tensor<8x128xf32>``, that a dump by jax takes."""
    return _types_of(module)[0]


@once
def is_training(module: Path) -> bool:
    """Whether a dump by jax multiplies matrices and returns half of its arguments' types:
    parameters or gradients.
    """
    taken, returned = _types_of(module)
    return 2 * (taken & returned).total() >= taken.total() > 0 and multiplies(module)


@once
def devices_of(module: Path) -> int | None:
    """Return the number of devices of a dump by jax; None if it does not say."""
    with module.open(errors="replace") as lines:
        head = next((line for line in lines if line.startswith("module @")), "")
    found = re.findall(r"mhlo\.num_(?:partitions|replicas) = (\d+)", head)
    return math.prod(map(int, found)) if found else None


PROGRAM = ".program.json"  # the record that the hook writes: `CapturedProgram`

STARTED = f"{PROGRAM}.started"
"""Exists once a Python with the hook has started. If a program ended without jax, it contains the
exception.
"""

CODE = ".exit_code"  # exists if the program failed

#: exists if pgle stopped the program because it had compiled nothing new for long
STOPPED = ".stopped"

PARTITIONED = ".after_spmd_partitioner.hlo.pb"
"""Replaces ``_compile.mlir`` in the name of a module that the hook partitioned, for custom
partitioning.
"""

SIGNALLED = 128  # exit codes from here on mean that a signal ended the program

_OF_RUNTIME = ("JaxRuntimeError", "XlaRuntimeError")
"""Exceptions of the devices, which are CPUs in a capture."""

NEVER_OF_ZEROS = (
    ImportError,
    KeyError,
    AttributeError,
    NameError,
    TypeError,
    SyntaxError,
    OSError,
    MemoryError,
    NotImplementedError,
    UnicodeError,
)
"""Exceptions that do not depend on numbers."""

_STATIC_FLOAT = re.compile(r"static -?(\d+\.\d*(e[-+]?\d+)?|\d+e[-+]?\d+)")
"""A static argument, as the hook writes it, that could also be an array."""

MOST_CHANGES = 4  # most arguments that a line on a second compilation lists

SUBSTANTIAL = 0.05  # a step is at least this share of the largest module's size

STEP_REMEDY = (
    "compile the step with jax.jit, wait longer for it with --quiet-for 600, or name it with "
    "--module"
)

_DUMPED = re.compile(
    r"jax_ir\d+_(.+)_compile\.mlir|module_\d+\.(.+?)\.before_optimizations\..*"
)


def modules_in(folder: Path, *, dumps: bool = False) -> tuple[Path, ...]:
    """The modules that jax dumped into a folder (``JAX_DUMP_IR_TO``), in the order of their
    numbers.

    Args:
        folder: folder of the dumps.
        dumps: if jax dumped none, use XLA's dumps before optimization (``--xla_dump_to``).
    """
    found = sorted(folder.glob("jax_ir*_compile.mlir"))
    if dumps and not found:
        found = sorted(
            path for path in folder.iterdir() if _DUMPED.fullmatch(path.name)
        )
        if not found:
            raise UserError(
                "no module is dumped there",
                where=folder,
                remedy=(
                    "dump them with JAX_DUMP_IR_TO=DIR, or give the program in its "
                    "place: -- python train.py"
                ),
            )
    return tuple(found)


@dataclass(frozen=True)
class CallSite:
    """A call of the program that has alternatives."""

    # ``attention``, ``remat``, ``unroll``, ``sharding``; ``jit``: a function is compiled;
    # ``shared``: its first call passes one array several times
    kind: str
    where: str  # ``train.py:41``
    # present setting: implementation, policy, unrolled iterations, spec of a batch; for ``jit`` and
    # ``shared`` the function
    now: str = ""
    # iterations of a scan; of ``sharding`` the size of the batch
    length: int = 0
    # of attention by hand a window that queries see; of ``shared`` the parameters; of ``jit``
    # those that are donated; of ``sharding`` what divides a carry as the batch; of ``lookup`` the
    # rows that it takes
    options: str = ""
    # the fused call in place of attention by hand, as it is written; a lookup with its mode; of
    # ``sharding`` the name of the carry; what
    # else than `jax.config.update` sets a precision
    call: str = ""
    note: str = ""  # meaning of names in the call
    mask: str = ""  # for attention: ``own`` if the program gives a mask
    causal: bool = False  # for attention: whether queries see no later keys
    # whether it is a bare ``decorator``, or in a ``partial`` used as one; of ``sharding`` a
    # ``tree`` if the carry is no single array; of ``attention`` ``explicit`` if the type of its
    # queries says how they are divided; else empty
    form: str = ""
    #: file of an installed library that makes the call: ``flax/core/lift.py``
    library: str = ""
    called: str = ""  # the library's function that the program calls
    why: str = ""  # why it cannot be changed; empty: it can


ROUNDS_CONSTANTS = 2.0**-20  # unit of a comparison, as in `pgle_hook/values.py`


@dataclass(frozen=True)
class ComparedValues:
    """How far a step's values differ with and without alternatives, at a small size on the CPU.
    Both sides compute with 64-bit numbers.
    """

    # largest difference of loss, gradients and results, relative to the size of each
    difference: float = 0.0
    tolerance: float = 0.0  # largest difference that rounding explains
    worst: str = ""  # where the largest difference is: ``gradient['layer']['w']``
    #: size of one rounding: of products on Tensor Cores, else of constants
    unit: float = 0.0
    seen: int = 0  # number of compared losses and gradients
    results: int = 0  # number of compared results of the step
    #: number of results left out, because rounding the arguments changes them too much
    noisy: int = 0
    sizes: str = ""  # sizes that were reduced: ``2048 → 16``
    why: str = ""  # why nothing was compared; empty: values were compared

    @property
    def differs(self) -> bool:
        """Whether rounding does not explain the difference."""
        return self.difference > self.tolerance

    @property
    def are_rounded(self) -> bool:
        """Whether the alternative rounds more than its constants."""
        return self.unit > ROUNDS_CONSTANTS


@dataclass(frozen=True)
class CompiledAgain:
    """Why a function was compiled again."""

    function: str = ""  # name of the function in the program
    first: str = ""  # file name of its first module
    # arguments that differ from its last compilation, as (name, before, now)
    differing: Sequence[tuple[str, str, str]] = ()
    same: bool = False  # whether it is the same function object as before


@dataclass(frozen=True)
class CapturedProgram:
    """The hook's findings about a captured program."""

    python: str = ""  # its interpreter; empty if the hook did not run
    version: tuple[int, ...] = ()  # of that Python, (3, 12, 1)
    jaxlib: str = ""  # version of its jaxlib
    plugin: bool = False  # whether it has jax's CUDA plugin
    # number of executions, by the module's file name
    executed: Mapping[str, int] = field(default_factory=dict)
    # positions of its first and last execution among all executions, by the same name
    turns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    compiling: str = ""  # file name of the module being compiled
    # file names of modules named like functions of jax
    of_jax: Sequence[str] = ()
    # those whose function is defined in a file of jax
    in_jax: Sequence[str] = ()
    # functions that were not executed, and returned zeros
    uncomputed: Sequence[str] = ()
    # file names of modules that jax cannot lower for GPUs here
    not_lowered: Sequence[str] = ()
    error: str = ""  # the exception that ended it, in one line
    #: whether jax was tracing a function then; a traced function sees no numbers
    traced: bool = False
    #: whether small results of `uncomputed` were ones instead of zeros
    ones: bool = False
    # position of its main thread in its own code: ``train.py, line 41, in load``
    place: str = ""
    # by file name, for each module that is not the first of its function
    compiled_again: Mapping[str, CompiledAgain] = field(default_factory=dict)
    # SHA-256 by absolute path of the modules that it imported from below its working directory or
    # its script's folder
    sources: Mapping[str, str] = field(default_factory=dict)
    # its calls with alternatives
    sites: Sequence[CallSite] = ()
    # result of comparing its step's values with and without alternatives
    compared: ComparedValues | None = None
    # processes that it waits for in `jax.distributed.initialize`
    waits_for: str = ""
    # XLA_FLAGS as the program saw them, if it or a script changed them; empty: unchanged
    xla_flags: str = ""
    # by the module's file name, additional options for XLA: names of flags or jax settings, with
    # values
    options: Mapping[str, Sequence[tuple[str, str | None]]] = field(
        default_factory=dict
    )

    def is_between(self, name: str, step: str) -> bool:
        """Whether a module is known to have been executed between executions of another one."""
        if name not in self.turns or step not in self.turns:
            return True
        first, last = self.turns[name]
        first_step, last_step = self.turns[step]
        return first < last_step and last > first_step

    @property
    def by_zeros(self) -> bool:
        """Whether zeros as results may have caused the program's failure. False if it also fails
        with ones.
        """
        kind = getattr(builtins, self.error.partition(":")[0], Exception)
        may = bool(self.uncomputed and self.error) and not (self.ones or self.traced)
        return may and not issubclass(kind, NEVER_OF_ZEROS)

    def flags_of(self, module: Path) -> str:
        """Return the flags that the program sets for a module, if they differ from the given ones;
        else empty.
        """
        options = [Flag(*pair) for pair in self.options.get(module.name, ())]
        return " ".join(filter(None, (self.xla_flags, format_flags(options))))


def read_captured(folder: Path) -> CapturedProgram:
    """Read what the hook recorded about the program of a capture folder. If the file is damaged,
    nothing is known.
    """
    try:
        return msgspec.convert(
            json.loads(read_kept(folder / PROGRAM) or b""), CapturedProgram
        )
    except (ValueError, RecursionError):
        return CapturedProgram()


def _exit_code(folder: Path) -> int | None:
    """Return the exit code of a captured program; None if unknown."""
    text = read_kept(folder / CODE, max_bytes=100) or b""
    return int(text) if re.fullmatch(rb"-?\d{1,9}\s*", text) else None


def partitioned(module: Path) -> Path:
    """Return the module to compile: the partitioned one, if only the program itself can partition
    it.
    """
    found = module.with_name(module.name.removesuffix("_compile.mlir") + PARTITIONED)
    return found if found.is_file() else module


def capture_warnings(module: Path) -> tuple[str, ...]:
    """Warn how the program of a captured module ended, and about lost moves to host memory."""
    program = read_captured(module.parent)
    code = _exit_code(module.parent)
    found: list[str] = []
    if why := no_step(module):
        found.append(f"{why}; {STEP_REMEDY}")
    elif (
        (module.parent / STOPPED).is_file()
        and program.executed
        and (doubt := doubt_of(module))
    ):
        found.append(
            f"the program was stopped before it executed {doubt}, so "
            f"{module_name(module)} may not be its step; "
            f"{STEP_REMEDY}"
        )
    if again := recompiled(module):
        found.append(again.words)
    if code is not None:
        why = f" ({program.error})" if program.error else ""
        failed = (
            f"the program ended with exit code {code}{why} after its step was executed"
        )
        if not own_failure(module.parent)[0]:
            failed = f"{failed}; zeros for its results may be why"
        found.append(failed)
    if also := executed_alongside(module):
        found.append(
            f"these figures leave out {some(also, 3)}, executed between steps as often as "
            f"{module_name(module)} or more; choose another module with --module NAME"
        )
    if module.name in program.not_lowered:
        found.append(
            f"jax cannot lower {module_name(module)} for GPUs here, so its code "
            "for CPUs is compared, without moves to "
            "host memory; set JAX_DUMP_IR_TO=DIR in a GPU run, then: pgle "
            "rehearse DIR/jax_ir…_compile.mlir"
        )
    return tuple(found)


def executed_alongside(module: Path) -> tuple[str, ...]:
    """Name other functions that the program executes between executions of a captured module, at
    least as often. An example is a separate optimizer update. Several compilations of one function
    count as one.
    """
    program = read_captured(module.parent)
    times = program.executed.get(module.name, 0)
    others = (
        name
        for name, count in program.executed.items()
        if count >= times > 1
        and name not in program.of_jax
        and program.is_between(name, module.name)
    )
    names = dict.fromkeys(module_name(Path(name)) for name in others)
    names.pop(module_name(module), None)
    return tuple(names)


def recompiled(module: Path) -> Recompiled | None:
    """Say that a captured module's function was compiled several times, and why. None if it was
    compiled once, or if it is several similar functions.
    """
    program = read_captured(module.parent)
    own = program.compiled_again.get(module.name)
    first = module.name if own is None else own.first
    again = {
        name: item
        for name, item in program.compiled_again.items()
        if item.first == first
    }
    if not again:
        return None
    modules = (first, *again)
    executions = sum(program.executed.get(name, 0) for name in modules)
    differing = list(chain.from_iterable(item.differing for item in again.values()))
    is_same = all(item.same for item in again.values())
    if not is_same and not differing and executions >= 2 * len(modules):
        return None
    last = next(reversed(again.values()))
    why, remedy = _why_again(differing, is_same=is_same)
    is_second = len(modules) == 2 and program.executed.get(first, 0) == 1
    if is_second and is_same and _are_types_alike(differing):
        why = f"the second time in its second step, and never again: {why}"
    return Recompiled(last.function, len(modules), executions, why, remedy)


PLACED = "its results are placed otherwise than its first arguments"
PUT = "before the first step, jax.device_put %s where the step returns %s"


def _why_again(
    differing: Sequence[tuple[str, str, str]], *, is_same: bool
) -> tuple[str, str]:
    """Say why a function is compiled again, and how to avoid it, a clause for each reason."""
    if not differing and not is_same:
        why = "its arguments do not change, so each call has a new function object"
        return why, "call jax.jit once, outside the loop"
    if not differing:
        return PLACED, PUT % ("them", "them")
    first = {name: (was, now) for name, was, now in reversed(differing)}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, change in reversed(first.items()):
        alike.setdefault(change, []).append(name)
    changes = [_changed(names, *change) for change, names in alike.items()]
    why = some(changes, MOST_CHANGES)
    if _are_types_alike(differing):
        what = "it" if len(first) == 1 else "them"
        return why, PUT % (what, what)
    rates = [name for name, (_, now) in first.items() if _STATIC_FLOAT.fullmatch(now)]
    if len(rates) == len(first):
        names = " and ".join(rates)
        return why, f"pass {names} as an array, and not as static argument"
    return why, "give it the same arguments each time"


def _changed(names: Sequence[str], was: str, now: str) -> str:
    """Describe arguments that differ in the same way."""
    if len(names) == 1:
        return f"{names[0]} was {was} and is {now}"
    return f"{some(names, MOST_CHANGES)} were {was} and are {now}"


def _are_types_alike(differing: Sequence[tuple[str, str, str]]) -> bool:
    """Whether arguments differ only in their devices."""
    return all(_type_of(was) == _type_of(now) for _, was, now in differing)


def _type_of(argument: str) -> str:
    """Return the type of a captured function's argument, without its devices."""
    return re.split(" sharded | on ", argument, maxsplit=1)[0]


def own_failure(folder: Path) -> tuple[int, str]:
    """Return the exit code and the exception of a captured program that failed after its step; 0 if
    zeros as results may be why.
    """
    code = _exit_code(folder)
    program = read_captured(folder)
    if code is None or program.by_zeros:
        return 0, ""
    return code, program.error


def own_exit_code(module: Path) -> int:
    """The exit code of a captured module's program if the capture cannot have caused it, else 0.

    The capture may have caused it by zeros as results, by a signal, or by limits of the CPU
    compiler.
    """
    program = read_captured(module.parent)
    code, error = own_failure(module.parent)
    may_be_zeros = bool(program.uncomputed) and not program.ones and not error
    of_cpus = error.partition(":")[0] in _OF_RUNTIME
    return 0 if may_be_zeros or of_cpus or code >= SIGNALLED else code


def program_failure(module: Path) -> str:
    """Say how the program of a captured module failed by its own fault; empty if it did not."""
    code, error = own_failure(module.parent)
    return error or (f"exit code {code}" if code else "")


def no_step(module: Path) -> str:
    """Say in a clause why the chosen module is not a step; empty if it may be one."""
    program = read_captured(module.parent)
    is_stopped = _is_stopped(module, program)
    why = "the program compiled no step"
    if is_stopped:
        why = "the program was stopped before it executed a step"
    if _is_of_jax(module, program):
        return f"{why}: {module_name(module)} is a function of jax's own"
    is_again = program.executed.get(module.name, 0) > 1
    if is_stopped and not is_again and not is_training(module):
        return f"{why}: {module_name(module)} ran once or not at all"
    return ""


def _is_stopped(module: Path, program: CapturedProgram) -> bool:
    """Whether the program was stopped after some executions, so that its step may have come
    later.
    """
    return (module.parent / STOPPED).is_file() and bool(program.executed)


def choose_module(modules: Sequence[Path], pattern: str | None) -> Path:
    """The program's step. This is the one place that decides what a capture's step is.

    The step is the first by these facts, in this order: it communicates; it was executed, or
    awaited when the program was stopped; it is more than initialization (executed again, a training
    step, or the last); it has most devices; it is a training step; it was executed again; it does
    most work; it was compiled last.

    - A module that communicates goes first, since hiding communication is all that is asked here.
    - A training step goes before an evaluation, which programs run hundreds of times before they
    train.
    - A module of less than `SUBSTANTIAL` of the largest is no step, nor is a function of jax's own
    without products.
    - A training step that was compiled and never executed goes before evaluations that are smaller.
    - The last one counts as awaited if others were executed often meanwhile (they load data; a
    first step takes long
      on CPUs), or if it was being compiled when the program was stopped.

    If executions were not counted, it is the largest that communicates or multiplies matrices,
    which what makes the first parameters does not.

    Args:
        modules: of one folder, in the order in which they were compiled.
        pattern: a name (``jit_train_step``), a file name, or a regular expression on file names; of
            those the step.
    """
    program = read_captured(modules[0].parent)
    chosen = [path for path in modules if not _is_of_jax(path, program)] or list(
        modules
    )
    if pattern is not None:
        exact = [path for path in modules if pattern in (path.name, module_name(path))]
        chosen = exact or [path for path in modules if re.search(pattern, path.name)]
        if not chosen:
            raise UserError(
                "no module matches",
                where=f"--module {pattern}",
                remedy=f"there are {', '.join(candidates(modules))}",
            )
    sizes = {path: path.stat().st_size for path in chosen}
    large = [
        path for path in chosen if sizes[path] >= SUBSTANTIAL * max(sizes.values())
    ]
    times = {path: program.executed.get(path.name, 0) for path in large}
    if not any(times.values()):
        return max(
            large, key=lambda path: (communicates(path), multiplies(path), sizes[path])
        )
    executed = [path for path in large if times[path]]
    last = large[-1]
    before_it = max(map(sizes.__getitem__, executed))
    # Compiled ahead of time, and not reached: the program ended during its first evaluation.
    is_ended = not any(map(is_training, executed))
    unreached = {
        path
        for path in large
        if is_ended
        and not times[path]
        and sizes[path] > before_it
        and is_training(path)
    }
    is_awaited = max(times.values()) > 1 or last.name == program.compiling

    def facts(path: Path) -> tuple[bool, bool, bool, int, bool, bool, int, int]:
        again = times[path] > 1
        training = is_training(path)
        begins = not again and not training and path not in (executed[-1], last)
        ran = times[path] > 0 or (is_awaited and path == last) or path in unreached
        work = sizes[path] * times[path] if again else 0
        return (
            communicates(path),
            ran,
            not begins,
            devices_of(path) or 1,
            training,
            again,
            work,
            large.index(path),
        )

    return max(large, key=facts)


def doubt_of(module: Path) -> str:
    """Say what a program that was stopped early may still execute, if this module is not its step;
    else empty.
    """
    executed = read_captured(module.parent).executed
    own = module_name(module)
    times = sum(executed[name] for name in executed if module_name(Path(name)) == own)
    if times < 2 or not is_step(module):
        return "a module twice"
    if is_training(module):
        return ""
    return "a module that returns parameters, as training does"


def _is_of_jax(module: Path, program: CapturedProgram) -> bool:
    """Whether a module is one of jax's own functions, and so not a step.

    It has the name of one and no product, such as a random generator. Or the program calls it
    outside jit, such as `jnp.matmul`. If nobody knows where it is written, it is no step of a
    program that was stopped: that step may have been still to come.
    """
    if module.name not in program.of_jax:
        return False
    if not multiplies(module):
        return True
    if _is_jitted(module, program):
        return False
    return module.name in program.in_jax or _is_stopped(module, program)


def _is_jitted(module: Path, program: CapturedProgram) -> bool:
    """Whether the program itself jits a function with the module's name."""
    name = module_name(module).removeprefix("jit_")
    return any(site.kind == "jit" and site.now == name for site in program.sites)


def _devices_in(topology: str) -> int:
    return math.prod(map(int, topology.split("x")))


def topology_of_step(module: Path, topology: str) -> tuple[str, tuple[str, ...]]:
    """Return the topology (``SxHxD``) of a step, and a note if it differs from the program's
    devices.
    """
    given = _devices_in(topology)
    own = devices_of(module)
    if own is None or own == given:
        return topology, ()
    what = (
        f"{module_name(module)} is for {many(own, 'device')}, as the program has it, "
        f"and not for {given}"
    )
    remedy = "--module NAME takes another module"
    if own == 1:
        remedy = "its arrays are on one, so nothing is communicated"
    return f"1x1x{own}", (f"{what}; {remedy}",)


def check_fits(module: Path, topology: str) -> None:
    """Refuse a module with another number of devices than asked for. Its caller can build it for
    that number.
    """
    own = devices_of(module)
    if own is None or not topology_of_step(module, topology)[1]:
        return
    asked = _devices_in(topology)
    remedy = f"build the mesh with {asked} devices, or ask for {own}"
    if own == 1:
        shape = "jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(…))"
        remedy = f"give the arguments shardings on a mesh: {shape}"
    raise UserError(
        f"is for {many(own, 'device')}, and not for {asked}",
        where=module_name(module),
        remedy=remedy,
    )


def is_step(module: Path) -> bool:
    """Whether a module of the program was executed several times, or once as a training step."""
    program = read_captured(module.parent)
    times = program.executed.get(module.name, 0)
    return module.name not in program.of_jax and (
        times > 1 or (times == 1 and is_training(module))
    )


def candidates(modules: Sequence[Path]) -> list[str]:
    """Describe each module, the largest first: ``jit_step (14 kB, 312 times)``."""
    executed = read_captured(modules[0].parent).executed if modules else {}
    found = []
    for path in sorted(modules, key=lambda path: -path.stat().st_size):
        times = executed.get(path.name, 0)
        often = {0: "", 1: ", once"}.get(times, f", {times} times")
        found.append(
            f"{module_name(path)} ({max(1, round(path.stat().st_size / 1000))} kB{often})"
        )
    return found


def module_name(path: Path) -> str:
    """Return the module's name from the file name of a dump by jax
    (``jax_ir0003_jit_step_compile.mlir``) or XLA.
    """
    found = _DUMPED.fullmatch(path.name)
    return (found[1] or found[2]) if found else path.name
