"""Capture a program with alternatives, and compare its values. The program is a command line, a
function of this process, or a module alone.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Protocol

import msgspec

from pgle.errors import UserError
from pgle.files import Json, write_files
from pgle.requests.predictions import Advise
from pgle.requests.shared import OnDevices
from pgle.run.alternatives import (
    HALVED,
    JIT,
    OF_COMMAND,
    ROUNDING,
    Alternative,
    Kind,
    halved,
    text_of,
)
from pgle.run.capture.capture import (
    capture_modules,
    compare_values,
    devices_for,
    lowered_step,
)
from pgle.run.capture.captured import (
    CallSite,
    ComparedValues,
    choose_module,
    module_name,
    modules_in,
    partitioned,
    read_captured,
)
from pgle.run.capture.waiting import WaitingProgram
from pgle.run.hook import hook_module
from pgle.run.rehearse_program import OF_XLA, RehearseRequest, Understood
from pgle.run.step_arguments import marked_as_donated, with_divided_batch
from pgle.run.trainers import settings_of
from pgle.scale.plan import SizeTrial, filled

Changes = Sequence[Alternative]


class Variants(Protocol):
    """A way to make variants of a program."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of alternatives that can be made."""
        ...

    @property
    def left_out(self) -> str:
        """The kinds that cannot be made, and why; empty: all can be made."""
        ...

    def sites(self) -> Sequence[CallSite]:
        """Return the program's calls that have alternatives."""
        ...

    def make_module(
        self, changes: Changes, folder: Path
    ) -> tuple[Path, Sequence[CallSite]]:
        """Write the step's module with the changes into a new folder. Return its path and the
        calls.
        """
        ...

    def compared(self, changes: Changes, folder: Path) -> ComparedValues:
        """Return how the changes alter the numbers that the step computes."""
        ...


def function_name(module: Path) -> str:
    """Return the name of a step's function."""
    return module_name(module).removeprefix("jit_")


@dataclass(frozen=True)
class ProgramVariants:
    """Variants of the program that a command line starts."""

    command: Understood
    request: RehearseRequest
    template: Sequence[str]  # the command, with placeholders
    # values of the placeholders; the first of each is the unchanged program's
    vary: Mapping[str, Sequence[str]]
    kinds: frozenset[Kind] = frozenset(Kind)
    left_out: str = ""
    # a waiting program that makes some alternatives; None: each alternative needs its own run
    waiting: WaitingProgram | None = None

    def sites(self) -> Sequence[CallSite]:
        """Return the calls that the first capture recorded."""
        return read_captured(self.request.module.parent).sites

    def make_module(
        self, changes: Changes, folder: Path
    ) -> tuple[Path, Sequence[CallSite]]:
        """Run the program on CPU devices until its step is known. Donation alone needs no run if
        XLA compiles the module's text: the text is edited.
        """
        module = self.request.module
        is_in_text = all(map(_is_in_text, changes))
        if changes and is_in_text and partitioned(module) == module:
            return rewritten(module, changes, folder), ()
        found, sites = self._captured(changes, folder)
        divide_batch(found, changes)
        return found, sites

    def _captured(
        self, changes: Changes, folder: Path
    ) -> tuple[Path, Sequence[CallSite]]:
        """Run the program, or ask the waiting one. The text of the module is not changed yet."""
        step = module_name(self.request.module)
        waiting = self._waiting_for(changes)
        if waiting is not None and waiting.make(_switches(changes), folder):
            return choose_module(modules_in(folder), step), read_captured(folder).sites
        found = capture_modules(
            self.words(changes),
            folder,
            choose=step,
            until_step=True,
            output=DEVNULL,
            alternatives=_switches(changes),
            **self._how(),
        )
        program = read_captured(folder)
        if program.error and not any(module_name(path) == step for path in found):
            raise UserError(program.error)
        return choose_module(found, step), program.sites

    def compared(self, changes: Changes, folder: Path) -> ComparedValues:
        """Run the program on the CPU until its step is traced, and compare the values."""
        if any(change.kind in OF_COMMAND for change in changes):
            return ComparedValues(why="words of its command make another program")
        waiting = self._waiting_for(changes)
        if waiting is not None:
            found = waiting.compare(_switches(changes), folder)
            if found is not None:
                return found
        return compare_values(
            self.words(changes),
            folder,
            step=function_name(self.request.module),
            alternatives=_switches(changes),
            **self._how(),
        )

    def words(self, changes: Changes) -> Sequence[str]:
        """Return the command with the changes."""
        varied = dict(_pair(one.value) for one in changes if one.kind == Kind.VARIED)
        words = with_values(self.template, self.vary, self.command.asked, varied)
        for setting in settings_of(words, self.request.target.vendor):
            if any(change.value == setting.text for change in changes):
                words = setting.within(words)
        return words

    def begin(self, changes: Changes, folder: Path) -> None:
        """Start `make_module` early, if the waiting program can make the changes."""
        waiting = self._waiting_for(changes)
        if waiting is not None and any(change.batch is None for change in changes):
            waiting.begin(_switches(changes), folder)

    def _waiting_for(self, changes: Changes) -> WaitingProgram | None:
        """Return the waiting program if it can make the changes. Changes of words and of
        `jax.jit`'s arguments must be there when the program starts.
        """
        from_start = OF_COMMAND | {Kind.DONATION}
        is_early = any(change.kind in from_start for change in changes)
        return None if is_early else self.waiting

    @contextmanager
    def at_its_step(self) -> Iterator[ProgramVariants]:
        """Open these variants with a program that waits at its step. The program ends with the
        block.
        """
        waiting = WaitingProgram(
            self.words(()),
            module=self.request.module,
            folder=self.request.out.resolve() / "waiting",
            **self._how(),
        )
        try:
            yield replace(self, waiting=waiting)
        finally:
            waiting.close()

    def _how(self) -> dict[str, Any]:
        asked = self.command.asked
        return {
            "target": self.request.target,
            "devices": devices_for(None, topology=asked.shape),
            "quiet_s": asked.quiet_s,
        }


def _switches(changes: Changes) -> list[Mapping[str, str]]:
    return [
        change.switch
        for change in changes
        if change.kind not in OF_COMMAND and change.batch is None
    ]


def _is_in_text(change: Alternative) -> bool:
    """Whether an edit of the module's text makes the change, so that the program need not run."""
    return change.kind == Kind.DONATION or change.batch is not None


def _pair(setting: str) -> tuple[str, str]:
    name, _, value = setting.partition("=")
    return name, value


def with_values(
    words: Sequence[str],
    vary: Mapping[str, Sequence[str]],
    asked: OnDevices,
    chosen: Mapping[str, str],
) -> Sequence[str]:
    """Return a command with values for its placeholders: the chosen value, else the first."""
    if not vary:
        return words
    devices = devices_for(None, topology=asked.shape).count
    values = {name: given[0] for name, given in vary.items()} | dict(chosen)
    per_host = min(devices, OF_XLA)
    return filled(words, SizeTrial(devices, per_host, tuple(values.items())))


@dataclass(frozen=True)
class StepVariants:
    """Variants of a function of this process, which is traced again."""

    step: Callable[..., Any]
    args: Sequence[Any]
    request: RehearseRequest
    kinds: frozenset[Kind] = frozenset(Kind) - OF_COMMAND - {Kind.DONATION}
    left_out: str = (
        "donation is an argument of jax.jit, and the step is jitted already; functions of jax that "
        "the program holds from before the call are not seen: from jax import grad, jax.grad(f), "
        "jax.checkpoint(f) with its policy"
    )

    def sites(self) -> Sequence[CallSite]:
        """Trace the function once more, and return the calls that this records."""
        folder = self.request.out / "sites"
        return self.make_module((), folder)[1]

    def make_module(
        self, changes: Changes, folder: Path
    ) -> tuple[Path, Sequence[CallSite]]:
        """Trace and lower the function with the changes."""
        folder.mkdir(parents=True)
        record = _Record()
        with _alternatives(record, _switches(changes)) as made:
            made.use(True)
            made.divided(self.args, {})
            target = self.request.target
            try:
                module = lowered_step(self.step, self.args, folder, target)
            except UserError as error:
                if not changes or error.__cause__ is None:
                    raise
                raise UserError(made.why_not(error.__cause__)) from error
        divide_batch(module, changes)
        return module, record.sites

    def compared(self, changes: Changes, folder: Path) -> ComparedValues:
        """Trace the function at a small size, run it on the CPU, and compare the values."""
        record = _Record()
        precision = [one.value for one in changes if one.kind in ROUNDING]
        function = getattr(self.step, "__wrapped__", self.step)
        with _alternatives(record, _switches(changes)) as made:
            made.comparison(record.compared, *precision).compare(
                function, self.args, {}
            )
        return record.found


@dataclass
class _Record:
    """What the hook's alternatives record about a function of this process."""

    sites: list[CallSite] = field(default_factory=list)
    found: ComparedValues = field(default_factory=ComparedValues)

    def site(self, found: Json) -> None:
        """Record a call site once."""
        site = CallSite(**found)
        if site not in self.sites:
            self.sites.append(site)

    def compared(self, found: Json) -> None:
        """Record the result of a comparison of values."""
        self.found = msgspec.convert(found, ComparedValues)


@contextmanager
def _alternatives(
    record: _Record, switches: Sequence[Mapping[str, str]]
) -> Iterator[Any]:
    """Use the hook's alternatives in this process. The block's end restores jax and clears its
    traces, so that traces with alternatives are not used again.
    """
    jax = importlib.import_module("jax")
    # the hook replaces functions of this module too
    importlib.import_module("jax.ad_checkpoint")
    made = hook_module("alternatives").Alternatives(jax, record, switches)
    try:
        made.watch()
        yield made
    finally:
        made.undo()


_PRECISION = re.compile(r"precision = \[(?:HIGHEST|HIGH), (?:HIGHEST|HIGH)\]")


def rewritten(module: Path, changes: Changes, folder: Path) -> Path:
    """Write a module (StableHLO as jax dumps it) with changes of its text into a new folder."""
    text = text_of(module)
    for change in changes:
        if change.batch is not None:
            text = with_divided_batch(text, change.batch)
        elif change.kind == Kind.DONATION:
            text = marked_as_donated(text, change.value.split(","))
        elif change.value == HALVED:
            text = halved(text)
        else:
            text = _PRECISION.sub("precision = [HIGH, HIGH]", text)
    folder.mkdir(parents=True)
    changed = folder / module.name
    write_files({changed: text})
    return changed


def divide_batch(module: Path, changes: Changes) -> None:
    """Change the text of a captured module, if the batch is to be divided."""
    for change in changes:
        if change.batch is not None:
            divided = with_divided_batch(text_of(module), change.batch)
            write_files({module: divided}, force=True)


@dataclass(frozen=True)
class ModuleVariants:
    """Variants of a module alone, made by changes of its StableHLO text."""

    request: RehearseRequest
    kinds: frozenset[Kind] = frozenset((Kind.PRECISION, Kind.DONATION, Kind.SHARDING))
    left_out: str = (
        "a module shows no calls: attention, remat and unroll cannot be tried, and no values are "
        "compared; give the program: -- python train.py"
    )

    def sites(self) -> Sequence[CallSite]:
        """Return the one site that a module shows: its compilation. A module shows no calls."""
        return (CallSite(JIT, "", function_name(self.request.module)),)

    def make_module(
        self, changes: Changes, folder: Path
    ) -> tuple[Path, Sequence[CallSite]]:
        """Change the text of the module."""
        return rewritten(self.request.module, changes, folder), ()

    def compared(self, changes: Changes, folder: Path) -> ComparedValues:
        """Return an empty comparison, since there is no function to run."""
        return ComparedValues(why="the function is not here")


def variants_of(
    asked: Advise, command: Understood, request: RehearseRequest
) -> Variants:
    """Return the variants of the program that the request names."""
    if asked.function is not None:
        step, args = asked.function
        return StepVariants(step, args, request)
    if command.is_program:
        template = asked.words if asked.vary else command.asked.words
        return ProgramVariants(command, request, template, asked.vary)
    if request.module.suffix != ".mlir":
        remedy = "give the program: -- python train.py"
        what = "has no alternatives: it is not StableHLO as text"
        raise UserError(what, where=request.module, remedy=remedy)
    return ModuleVariants(request)
