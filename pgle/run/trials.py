"""Trials of a search: settings compiled and simulated, and their record on disk, ``trials.jsonl``.

An interrupted search continues from it: the descent is deterministic, so it asks for the same settings again, and
those on record are answered at once.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from pgle import __version__
from pgle.costs.estimate.estimate import estimate_profile
from pgle.costs.lookup.contention import as_if_alone
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.files import profile_files, read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError, points_into
from pgle.files import check_absent, read_bytes, read_head, sha256, write_files
from pgle.run.compiler.dumps import UNSCHEDULED, is_full
from pgle.run.compiler.request import SCHEDULER_FLAGS, OnPhase, RehearsalResult
from pgle.run.compiler.session import Session, open_session
from pgle.run.directory.out import check_ours, emptied
from pgle.run.fitted import fitted, under_other_flags
from pgle.run.inputs.folder import PAGE_FILES
from pgle.run.rehearse import LHS_ON, RehearseRequest
from pgle.schedule.predict import Prediction, predict
from pgle.tune.moves import Axis, axes
from pgle.tune.trial import Flags, Trial, decoded, exposed_by_kind, key_of
from pgle.tune.worlds import World, steps_in, worlds
from pgle.xla.flags.text import typed_flag
from pgle.xla.hlo.module import Module

FOUND = ("flags.txt", "profile.pbtxt", "profile.pbtxt.json")
"""Files of what a search found, in its folder."""


@dataclass(frozen=True)
class TuneRequest(RehearseRequest):
    """What to tune; `out` is new or empty, or has the record of the same search, which then continues."""

    budget: int = 20  # trials at most
    time_limit_s: float | None = None  # begin no trial after so long, and end those at work; None: none
    memory_limit: int | None = None  # of temporary device memory, bytes; None: none
    worlds: int = 20  # how many
    seed: int = 0  # of the worlds


@dataclass(frozen=True)
class Scheduled:
    """One setting with its schedule."""

    trial: Trial  # its figures
    module: Module  # scheduled
    prediction: Prediction  # of its step
    profile: Profile  # the costs that XLA was given, and that the prediction uses


NAME = "trials.jsonl"


class Head(msgspec.Struct, frozen=True, tag_field="schema", tag="pgle.trials/2"):
    """The first line of a record: all that a trial depends on, but its flags."""

    module: str  # SHA-256 of the file, as of the next
    profile: str  # empty: estimates
    flags: tuple[str, ...]  # of the user
    target: str  # SHA-256 of its description
    topology: str | None
    network_gb_s: float | None
    memory_fraction: float
    worlds: int
    seed: int
    jaxlib: str = ""  # that compiles; empty: not known yet
    pgle: str = __version__

    @staticmethod
    def of(request: TuneRequest, jaxlib: str = "") -> Head:
        """That of a search."""
        setting = request.setting
        return Head(
            sha256(read_bytes(setting.module)), "" if request.profile is None else sha256(read_bytes(request.profile)),
            setting.flags, sha256(request.target.text.encode()), request.topology, request.network_gb_s,
            setting.memory_fraction, request.worlds, request.seed, jaxlib,
        )  # fmt: skip


class Record:
    """Trials on disk; `add` may be called from one thread at a time.

    Args:
        request: what is tuned.
        jaxlib: that compiles; empty: not known yet.

    Raises:
        UserError: the file is of another search, or none of ours.
    """

    def __init__(self, request: TuneRequest, jaxlib: str = "") -> None:
        self.path = request.out / NAME
        self._known: dict[str, Trial] = {}
        head = Head.of(request, jaxlib)
        if self.path.exists():
            self._read(head)
        elif jaxlib:
            write_files({self.path: msgspec.json.encode(head) + b"\n"})
        self.resumed = len(self._known)

    def known(self, flags: Flags) -> Trial | None:
        """A trial on record; None where there is none of this setting."""
        return self._known.get(key_of(flags))

    def add(self, trial: Trial) -> None:
        """Keep a trial. A line that is cut short by a kill is left aside when the file is read."""
        self._known[key_of(trial.flags)] = trial
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(trial) + b"\n")

    def forget(self) -> None:
        """Answer nothing from the record any more."""
        self._known.clear()

    def _read(self, expected: Head) -> None:
        remedy = "choose a new folder with -o DIR"
        if (head := _head(self.path)) is None:
            raise UserError("is not a record of trials", where=self.path, remedy=remedy)
        head = head if expected.jaxlib else msgspec.structs.replace(head, jaxlib="")
        other = [name for name in head.__struct_fields__ if getattr(head, name) != getattr(expected, name)]
        if other:
            what = f"holds the trials of another search ({', '.join(other)} differ{'s' if len(other) == 1 else ''})"
            raise UserError(what, where=self.path, remedy=remedy)
        data = read_bytes(self.path)
        *lines, rest = data.split(b"\n")
        if rest:  # cut short: what follows must begin on a line of its own
            os.truncate(self.path, len(data) - len(rest))
        for number, line in enumerate(lines[1:], 2):
            try:
                trial = decoded(line, expected.worlds) if line else None
            except (ValueError, RecursionError):
                what = f"line {number} is not a trial"
                raise UserError(what, where=self.path, remedy=f"delete that line, or {remedy}") from None
            # What did not compile is tried again: the reason may have been this machine's memory or disk.
            if trial is not None and not trial.failure:
                self._known[key_of(trial.flags)] = trial


def _head(path: Path) -> Head | None:
    """The first line of a record, if it is whole and ours."""
    try:
        line, newline, _ = read_head(path, 1 << 20).partition(b"\n")
        return msgspec.json.decode(line, type=Head) if newline else None
    except (UserError, ValueError, RecursionError):
        return None


def begun(folder: Path) -> bool:
    """Whether a search has begun in a folder."""
    return _head(folder / NAME) is not None


def check(request: TuneRequest) -> None:
    """What needs no compiler to be refused.

    Raises:
        UserError: as of `Record`; or something else has the place of what the search writes.
    """
    for name in (*FOUND, *PAGE_FILES, NAME):
        check_absent(request.out / name, force=True)
    for name in ("trials", "proof"):
        check_ours(request.out / name)
    Record(request)


AT_ONCE = min(os.cpu_count() or 1, 3)
"""Compilations side by side; each takes a core, and a step of the search has three settings at most."""
NO_PROFILE = "no-profile"
SCHEDULES = ("profile", "again")
"""Folders of a setting's schedules with its profile: the second where the first showed names without a cost."""


@dataclass
class Bench:
    """Compiles settings and simulates them; `start` comes first, `schedule` may be called from several threads."""

    request: TuneRequest  # what is tuned
    session: Session  # schedules of the module
    baseline: Scheduled = field(init=False)  # LHS alone, by the user's own flags
    pgle: Scheduled = field(init=False)  # the same with the profile
    jaxlib: str = ""  # that compiles
    carried: str = ""  # what of the profile had to be carried over to this module, in one line
    memory_share: float = 0.0  # part of the GPU's memory that the program needs
    until: float = math.inf  # by when (`time.monotonic`) compilations end, whatever they are at
    _first: LookupTable = field(init=False)
    _given: Profile = field(init=False)
    _worlds: tuple[World, ...] = ()
    _programs: dict[tuple[str, str], Trial] = field(default_factory=dict)
    _costs: dict[Path, tuple[Profile, int]] = field(default_factory=dict)
    _complete: set[Path] = field(default_factory=set)

    def start(self) -> None:
        """Compile by the user's own flags; again, by all passes, where the session does not trust fewer any more."""
        self._hurry()
        request = self.request
        self._worlds = worlds(request.worlds, request.seed)
        given = read_profile(request.profile) if request.profile is not None else None
        self._programs.clear()
        shutil.rmtree(self.session.folder / NO_PROFILE, ignore_errors=True)
        result = self.session.schedule(NO_PROFILE, self.session.base.flags)
        self.jaxlib, module = result.jaxlib, result.scheduled
        self.memory_share = (result.memory_bytes or 0) / request.target.memory_bytes
        table = _table(result)
        if given is not None and request.profile is not None:
            fit = fitted(request.profile, given, table, request.hardware)
            given, self.carried = fit.profile, fit.note
        self._given = as_if_alone(given, table.module) if given else estimate_profile(table.module, request.hardware)
        if not table.costs(self._given):
            remedy = "is it of this program, with these flags? 'pgle verify' shows what matches"
            raise UserError("has no cost of any instruction here", where=request.profile, remedy=remedy)
        self._first = table
        self.baseline = self.judged({}, "no profile", result, module, *self._estimated(table))
        try:
            self.pgle = self.schedule({}, "the profile")
        except UserError as error:
            raise UserError(f"does not compile with the profile: {error}", where=request.setting.module) from None
        self._programs[self._program(self._named({}), {})] = self.pgle.trial

    def trial(self, flags: Flags, label: str) -> Trial:
        """One setting: its figures, or why there are none; what another has compiled to is not simulated again."""
        folder = self.folder_of(flags)
        self._hurry()
        try:
            same = self._program(self._named(flags), flags)
            known = self._programs.get(same)
            if known is not None:
                return replace(known, flags=flags, label=label, same_as=known.label)
            trial = self.schedule(flags, label).trial
            self._programs.setdefault(same, trial)  # another thread may have made the same program meanwhile
            return trial
        except UserError as error:
            if is_full(folder.parent):
                raise
            return Trial(flags, label, failure=str(error))
        finally:
            for made in ("names", *SCHEDULES):
                shutil.rmtree(folder / made, ignore_errors=True)

    @property
    def is_late(self) -> bool:
        """Whether no compilation may begin any more."""
        return time.monotonic() >= self.until

    def unhurried(self) -> None:
        """Let compilations take as long as they take."""
        self.until, self.session.base = math.inf, replace(self.session.base, timeout_s=None)

    def _hurry(self) -> None:
        if self.until < math.inf:
            left_s = max(self.until - time.monotonic(), 0.0)
            self.session.base = replace(self.session.base, timeout_s=left_s)

    def schedule(self, flags: Flags, label: str) -> Scheduled:
        """One setting: compiled for its names, given costs, compiled with that profile, and simulated."""
        folder, named = self.folder_of(flags), self._named(flags)
        path = folder / "profile.pbtxt"
        for name in SCHEDULES:
            profile, modelled = self._costs_by_name(named)
            write_files(profile_files(path, profile), force=True)
            shutil.rmtree(folder / name, ignore_errors=True)
            result = self.session.schedule(f"{folder.name}/{name}", self.options(flags), path)
            module = result.scheduled
            if not self._has_new_names(named, result, module):
                break
        return self.judged(flags, label, result, module, profile, modelled)

    def in_less_memory(self, trial: Trial, part: float) -> tuple[Trial, Trial]:
        """A setting, and the profile alone, if the job's allocator has so much less: only scheduling sees that."""
        base = self.session.base
        self.session.base = replace(base, allocator_bytes=int(base.allocator_bytes * (1 - part)))
        try:
            return self.schedule(trial.flags, trial.label).trial, self.schedule({}, self.pgle.trial.label).trial
        finally:
            self.session.base = base

    def _costs_by_name(self, named: RehearsalResult) -> tuple[Profile, int]:
        """The costs under the names that a setting gives, and how many collectives are modelled."""
        program = named.after_optimizations  # flags of the scheduler share one
        if program not in self._costs:
            self._costs[program] = self._estimated(_table(named))
        return self._costs[program]

    def _has_new_names(self, named: RehearsalResult, result: RehearsalResult, module: Module) -> bool:
        """Whether a schedule shows names that the program had not before it; then they get costs.

        Since jaxlib 0.12 scheduling wraps copies of slices in loops. LHS assumes 5 ms for each without a cost.
        """
        program, final = named.after_optimizations, LookupTable(module)
        if program.name != UNSCHEDULED or program in self._complete:
            return False
        self._complete.add(program)
        known = final.costs(self._costs[program][0])
        if all(name in known or row.is_optional or not row.accepted for name, row in final.rows.items()):
            return False
        self._costs[program] = self._estimated(_table(result))
        return True

    def _estimated(self, table: LookupTable) -> tuple[Profile, int]:
        return under_other_flags(self._given, self._first, table, self.request.hardware)

    def _named(self, flags: Flags) -> RehearsalResult:
        return self.session.begun(f"{self.folder_of(flags).name}/names", self.options(flags)).result()

    def _program(self, named: RehearsalResult, flags: Flags) -> tuple[str, str]:
        """What a schedule follows from: the program before scheduling, and what else scheduling reads."""
        late = {name: value for name, value in flags.items() if f"--{name}" in SCHEDULER_FLAGS}
        program = self.session.program(named) or str(named.after_optimizations)
        return program, json.dumps(late, sort_keys=True)

    def judged(
        self, flags: Flags, label: str, result: RehearsalResult, module: Module, profile: Profile, modelled: int
    ) -> Scheduled:
        """A compilation simulated with its costs, as they are and in all worlds."""
        prediction = predict(module, profile, self.request.hardware)
        trial = Trial(
            flags,
            label,
            prediction.step_us,
            prediction.exposed_us,
            exposed_by_kind(prediction),
            steps_in(self._worlds, module, prediction),
            result.memory.get("temp"),
            result.memory_bytes,
            lower_bound=prediction.lower_bound,
            modelled=modelled,
            program=result.fingerprint,
        )
        return Scheduled(trial, module, prediction, profile)

    def axes(self) -> tuple[Axis, ...]:
        """What can be changed in the program besides the user's own flags."""
        given = [typed_flag(flag).name for flag in self.request.setting.flags]
        return axes(self.baseline.module, self.jaxlib, given, self.memory_share)

    def options(self, flags: Flags) -> tuple[str, ...]:
        """All XLA flags of a setting."""
        return (*self.session.base.flags, *(f"--{name}={value}" for name, value in flags.items()))

    def folder_of(self, flags: Flags) -> Path:
        """Where a setting is compiled."""
        return self.session.folder / sha256(key_of(flags).encode())[:12]


@contextmanager
def open_bench(request: TuneRequest, on_phase: OnPhase = lambda phase: None) -> Iterator[Bench]:
    """A bench whose dumps go to a folder of their own, emptied of what a killed search left, and removed at the end."""
    flags = (LHS_ON, *request.setting.flags)
    base = request.setting.request(request.target, request.out, topology=request.topology, flags=flags)
    folder = request.out / "trials"
    emptied(folder)
    with open_session(
        base, folder, request.hardware, python=request.setting.python, cached=request.cached, on_phase=on_phase
    ) as session:
        try:
            yield Bench(request, session)
        except BaseException as error:
            full = isinstance(error, UserError) and is_full(folder)
            if full or not points_into(error, folder):
                shutil.rmtree(folder, ignore_errors=True)
            if full:  # XLA cuts its dumps short, and says nothing
                remedy = "free some and give the same command again, or choose another folder with -o DIR"
                raise UserError("no space left on the device", where=request.out, remedy=remedy) from None
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _table(result: RehearsalResult) -> LookupTable:
    module = result.scheduled
    if result.after_optimizations.name == UNSCHEDULED:
        return LookupTable(module, module)  # nothing is renamed from there to LHS
    return LookupTable(module, None if result.lhs is None else result.lhs.module)
