"""`pgle rehearse --jax A,B` as a function: capture a program once, and compile it with several
releases of jax.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgle.costs.profile.carry import carry
from pgle.costs.profile.files import read_profile
from pgle.errors import UserError
from pgle.releases.changes import FlagChange, ProgramChanges, changes, flag_changes
from pgle.releases.facts import ProgramFacts, facts_of
from pgle.requests.predictions import Releases
from pgle.run.ask.jaxlib import installed, lint_flags
from pgle.run.compiler.compile import CompileResult, OnPhase
from pgle.run.directory.directory import free
from pgle.run.environments import Consent, environment_of, ready, release_of
from pgle.run.process.compilers import compiler_of
from pgle.run.rehearse import Rehearsal, rehearsed
from pgle.run.rehearse_program import (
    DEFAULT_TARGET,
    RehearseRequest,
    is_program,
    prepared,
)
from pgle.run.second_compilation import Schedules, both_schedules
from pgle.schedule.control import Controlled
from pgle.schedule.predict import gain
from pgle.xla.flags.text import FlagList, typed_flag
from pgle.xla.targets import load_target
from pgle.xla.vendors import Vendor

_REFUSED = ("unknown", "removed", "too-new", "needs-value", "bad-value")
"""Codes of findings about flags that make XLA end the process."""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that compiles."""

    python: str
    release: str  # version of its jaxlib


@dataclass(frozen=True)
class Release:
    """The result of compiling the program with one release of jax."""

    by: Interpreter
    rehearsal: Rehearsal
    facts: ProgramFacts  # facts of the schedule by LHS without a profile
    # facts of the second compilation; None: there is none
    control_facts: ProgramFacts | None
    # flags that this release does not accept, which were left out
    dropped: tuple[str, ...]

    @property
    def schedules(self) -> tuple[Schedules, ...]:
        """The schedules of both compilations (`both_schedules`)."""
        return both_schedules(self.rehearsal.schedules, self.rehearsal.control)


@dataclass(frozen=True)
class Upgrade:
    """What changes from one release to another."""

    before: Release
    after: Release
    exact: ProgramChanges
    control: ProgramChanges | None  # changes with the other kernels for products
    flags: tuple[FlagChange, ...]
    # share of a profile's time for `before` whose costs also match `after`, 0 to 1
    carried_share: float
    step: Controlled  # gain of the step without a profile
    profiled: Controlled  # gain of the step with equal costs as a profile


@dataclass(frozen=True)
class ReleasesResult:
    """One program compiled by several releases. The first release is compared with each other
    one.
    """

    request: RehearseRequest
    # jaxlib that captured the program; empty: the input is a module file
    captured_by: str
    releases: tuple[Release, ...]
    upgrades: tuple[Upgrade, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings, each once. A warning that only some releases have names its release."""
        found: dict[str, list[str]] = {}
        for item in self.releases:
            release = item.by.release
            for line in item.rehearsal.warnings:
                found.setdefault(line, []).append(release)
            for flag in item.dropped:
                line = f"unknown to the jaxlib, so it is left out: {flag}"
                found.setdefault(line, []).append(release)
        lines = []
        for line, of in found.items():
            is_general = len(of) == len(self.releases)
            lines.append(line if is_general else f"jaxlib {', '.join(of)}: {line}")
        return tuple(lines)

    @property
    def good(self) -> bool:
        """Whether every release compiled a step that can be compared."""
        return not any(
            item.rehearsal.request.no_step or item.rehearsal.lower_bound_why
            for item in self.releases
        )


def compare_releases(
    asked: Releases, consent: Consent, on_phase: OnPhase
) -> ReleasesResult:
    """Find or make the interpreters, capture the program once, and compile it with each
    interpreter.
    """
    if not asked.jax:
        raise UserError(
            "no release of jax is named",
            remedy="name one or several: --jax 0.10.2,0.12.0.1",
        )
    vendor = load_target(asked.target or DEFAULT_TARGET).vendor
    own = sys.executable
    if is_program(asked.words):
        own = compiler_of(asked.words, vendor)[0] or own
    named = interpreters(asked.jax, own, vendor, consent)
    with prepared(asked) as (known, request):
        by = named
        if len(named) == 1:
            mine = Interpreter(request.python, installed(request.python).jaxlib)
            by = (mine, *named)
        releases = tuple(compiled_by(item, request, on_phase) for item in by)
        first, *others = releases
        captured_by = ""
        if known.is_program:
            captured_by = installed(own).jaxlib
        return ReleasesResult(
            request=request,
            captured_by=captured_by,
            releases=releases,
            upgrades=tuple(upgrade(first, item) for item in others),
        )


def interpreters(
    names: Sequence[str], own: str, vendor: Vendor, consent: Consent
) -> tuple[Interpreter, ...]:
    """Return the interpreters of the given releases or paths.

    Args:
        names: releases such as ``0.12.0.1``, or paths of interpreters.
        own: the interpreter to use if it has a wanted release.
        vendor: the vendor of the GPUs to compile for.
        consent: asked before an environment is made.
    """
    mine = installed(own).jaxlib
    found: list[Interpreter] = []
    wanted = []
    for name in names:
        if "/" in name:
            path = shutil.which(name)
            if path is None:
                raise UserError(
                    "is no interpreter",
                    where=name,
                    remedy="give a release, or the path of a Python",
                )
            found.append(Interpreter(path, release_of(path)))
        elif name == mine:
            found.append(Interpreter(own, mine))
        else:
            environment = environment_of(name, vendor)
            wanted.append(environment)
            found.append(Interpreter(str(environment.python), name))
    ready(wanted, consent)
    return tuple(found)


def compiled_by(
    by: Interpreter, request: RehearseRequest, on_phase: OnPhase = lambda phase: None
) -> Release:
    """Compile the module with one release, in a folder of its own."""
    flags, dropped = taken(request.flags, by.python)
    out = free(request.out / f"jax-{by.release}")
    wanted = replace(request, python=by.python, flags=flags, out=out)
    try:
        found = rehearsed(wanted, on_phase)
    except UserError as error:
        raise UserError(
            f"jaxlib {by.release}: {error.what}", where=error.where, remedy=error.remedy
        ) from None
    first, *others = both_schedules(found.schedules, found.control)
    facts = _facts(first.compiled)
    control_facts = None
    for other in others:
        control_facts = facts if other is first else _facts(other.compiled)
    return Release(
        by=by,
        rehearsal=found,
        facts=facts,
        control_facts=control_facts,
        dropped=dropped,
    )


def _facts(made: CompileResult) -> ProgramFacts:
    found = facts_of(made.scheduled, made.memory_bytes)
    return replace(found, fingerprint=made.fingerprint)


def taken(flags: Sequence[str], python: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the flags that an interpreter's jaxlib accepts, and those that it does not accept."""
    typed = [typed_flag(flag) for flag in flags]
    of_xla = [flag for flag in typed if flag.name.startswith("xla_")]
    if not of_xla:
        return tuple(flags), ()
    findings = lint_flags(FlagList(tuple(of_xla)), python=python).findings
    refused = {item.flag for item in findings if item.code in _REFUSED}
    kept = tuple(flag.word for flag in typed if flag.name not in refused)
    left = tuple(flag.word for flag in typed if flag.name in refused)
    return kept, left


def upgrade(before: Release, after: Release) -> Upgrade:
    """Compare one release with another."""
    control = None
    if before.control_facts is not None and after.control_facts is not None:
        control = changes(before.control_facts, after.control_facts)
    flags = (*before.rehearsal.request.flags, *before.dropped)
    step, profiled = _gains(before, after)
    return Upgrade(
        before=before,
        after=after,
        exact=changes(before.facts, after.facts),
        control=control,
        flags=flag_changes(
            list(map(typed_flag, flags)), before.by.release, after.by.release
        ),
        carried_share=_carried_share(before.rehearsal, after.rehearsal),
        step=step,
        profiled=profiled,
    )


def _gains(before: Release, after: Release) -> tuple[Controlled, Controlled]:
    """Return the gains of the step without and with the profile, by both compilations."""
    pairs = list(zip(before.schedules, after.schedules, strict=False))
    step = [gain(old.baseline, new.baseline) for old, new in pairs]
    profiled = [gain(old.profiled, new.profiled) for old, new in pairs]
    return Controlled(*step), Controlled(*profiled)


def _carried_share(before: Rehearsal, after: Rehearsal) -> float:
    """Return the share of a profile's time that `pgle carry` matches, by measured costs if there
    are any, else by estimates.
    """
    old, new = (side.baseline.compiled.table for side in (before, after))
    return carry(read_profile(before.profile), old, new).share
