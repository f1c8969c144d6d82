"""The catalogue of settings, and lint by it.

It holds the meaning and default of each setting, the jaxlib releases that know it, and published
measurements. The files `flags_catalogue.toml` and `flags_environment.toml` describe the settings
that affect latency hiding. `flags_known.tsv` lists every flag that ten published jaxlib releases
accept. The list comes from offering each name to the XLA inside the wheels. Each file is read once.

`flags_record.toml` is pgle's own compilation of published figures. No figure of pgle depends on it.
It is shown next to predictions, and `benchmarks/public_record.py` compares the two.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import chain
from statistics import median
from typing import Any, Literal

from pgle.errors import UserError, many
from pgle.next import FLAGS_LINT, FLAGS_LIST, VERIFY
from pgle.xla.collective_kinds import ASYNC_FLAGS
from pgle.xla.flags.shared import AUTOTUNING, PROFILE
from pgle.xla.flags.text import (
    ACCUMULATING,
    COMMAND_BUFFER,
    Flag,
    FlagFinding,
    FlagList,
    as_bool,
    same_value,
)

OLDEST = "0.4.26"  # the oldest jaxlib in the catalogue

LHS = "xla_gpu_enable_latency_hiding_scheduler"
SOL = "xla_gpu_enable_analytical_sol_latency_estimator"
PROFILE_PATH = PROFILE
DISABLE_ASYNC = "xla_gpu_disable_async_collectives"
COMBINING = "xla_gpu_experimental_enable_heuristic_collective_combining"
PROFILE_SWITCHES_ON = "0.5.1"
"""Since this release a profile switches LHS on, and XLA reads only profiles named .pbtxt or .pb."""

HOPPER_DEFAULT = ("0.8.0", "0.11.2")
"""Since the first release LHS is on by default on Hopper and newer. Before the second release,
``=false`` does not switch it off.
"""

# list of the JAX-Toolbox guide, for releases without ``allcollectives``
ASYNC_KINDS = ",".join(ASYNC_FLAGS)


def release(version: str) -> tuple[int, ...]:
    """Return a jaxlib version as a tuple that can be compared: ``0.10.2`` → (0, 10, 2).

    Suffixes such as ``.dev2026`` are cut.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if found is None:
        raise UserError(
            f"'{version}' is not a version of jaxlib",
            remedy="write it as in --jaxlib 0.10.2",
        )
    return tuple(map(int, found[1].split(".")))


@dataclass(frozen=True, slots=True)
class KnownSetting:
    """A flag or environment variable as described in the catalogue."""

    name: str  # as written in XLA_FLAGS or the environment
    # ``XLA_FLAGS`` for a flag; for a variable, who reads it (``JAX``, ``NCCL`` …)
    reader: str
    kind: str  # ``bool``, ``int``, ``float``, ``string``, ``list`` or ``choice``
    meaning: str  # what the setting does
    # (release, value) pairs: the default since that release
    defaults: tuple[tuple[str, str], ...] = ()
    since: str = ""  # first release that knows the setting; empty: all in the catalogue
    # first release without the setting; ``always``: no release knows it; empty: all later ones do
    gone: str = ""
    # allowed values of a choice or list; empty if any value is allowed
    values: tuple[str, ...] = ()
    use: str = ""  # name of its replacement
    # (old value, flags that mean the same now) pairs; with empty flags, the old value is now
    # standard
    instead: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()  # traps
    # whether the setting ``changes`` the fingerprint or leaves it the ``same``; empty: unknown
    fingerprint: str = ""
    source: tuple[str, ...] = ()  # sources of the facts
    # ``program``: the setting changes the instructions; ``schedule``: only passes from scheduling
    # on read it; empty: neither, or unknown
    stage: str = ""
    tries: tuple[str, ...] = ()  # values that a flag search tries
    # value in the preset fsdp, which the search tries as a whole; empty if not in the preset
    fsdp: str = ""
    # kind of collective that the setting affects; empty: all, or no particular one
    about: str = ""
    # what a program needs for the setting to have an effect (`pgle.tune.search`); empty: nothing
    where: str = ""
    # jaxlib releases whose compiler ignores the setting without a GPU
    inert: tuple[str, ...] = ()
    interacts: tuple[str, ...] = ()  # settings that change its effect

    @property
    def is_flag(self) -> bool:
        """Whether the setting belongs into XLA_FLAGS."""
        return self.reader == "XLA_FLAGS"

    def default(self, version: str | None = None) -> str | None:
        """Return the default in a jaxlib release, or in the newest one; None if unknown."""
        at = None if version is None else release(version)
        values = [
            value
            for start, value in self.defaults
            if at is None or release(start) <= at
        ]
        if values:
            return values[-1]
        return self.defaults[0][1] if self.defaults and not self.since else None

    def known_in(self, version: str) -> bool:
        """Whether that jaxlib release knows the setting."""
        if self.gone == "always":
            return False
        at = release(version)
        return (not self.since or release(self.since) <= at) and (
            not self.gone or at < release(self.gone)
        )

    @property
    def lifetime(self) -> str:
        """The releases that know it, in words: ``all``, ``>=0.5.1``, ``0.4.33 to before 0.4.36``,
        ``never``.
        """
        if self.gone == "always":
            return "never"
        if self.since and self.gone:
            return f"{self.since} to before {self.gone}"
        if self.since:
            return f">={self.since}"
        return f"<{self.gone}" if self.gone else "all"


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """Every flag of several jaxlib releases."""

    releases: tuple[str, ...]  # the recorded releases, oldest first
    # kind of value by flag: ``bool``, ``int``, ``float``, ``string`` or ``choice``
    kinds: Mapping[str, str]
    present: Mapping[str, frozenset[str]]  # the releases that know each flag

    def seen(self, name: str) -> list[str]:
        """Return the releases that know a flag, oldest first."""
        return [item for item in self.releases if item in self.present.get(name, ())]

    def known_in(self, name: str, version: str) -> bool | None:
        """Whether a release knows the flag; None if the recorded releases before and after it
        disagree.
        """
        at = release(version)
        before = [item for item in self.releases if release(item) <= at]
        after = [item for item in self.releases if release(item) >= at]
        near = {
            before[-1] if before else self.releases[0],
            after[0] if after else self.releases[-1],
        }
        answers = {item in self.present.get(name, frozenset()) for item in near}
        return answers.pop() if len(answers) == 1 else None


@cache
def catalogue() -> Mapping[str, KnownSetting]:
    """Return every described setting by name, flags first."""
    settings: dict[str, KnownSetting] = {}
    for file, reader in (
        ("flags_catalogue.toml", "XLA_FLAGS"),
        ("flags_environment.toml", ""),
    ):
        for entry in _entries(
            file, "setting"
        ):  # a setting has one ``default``, or ``defaults`` by release
            default = entry.pop("default", None)
            defaults = (
                ((OLDEST, default),)
                if default is not None
                else tuple(map(tuple, entry.pop("defaults", ())))
            )
            settings[entry["name"]] = KnownSetting(
                **({"reader": reader} | entry | {"defaults": defaults})
            )
    return settings


@cache
def known_flags() -> KnownFlags:
    """Return the flags of all recorded releases."""
    lines = [
        line
        for line in _data("flags_known.tsv").splitlines()
        if line and not line.startswith("#")
    ]
    releases = tuple(lines[0].split("\t")[1].split())
    kinds: dict[str, str] = {}
    present: dict[str, frozenset[str]] = {}
    for line in lines[1:]:
        name, kind, spans = line.split("\t")
        kinds[name] = kind
        each = (_span(span, releases) for span in spans.split(","))
        present[name] = frozenset(chain.from_iterable(each))
    return KnownFlags(releases, kinds, present)


def find(name: str) -> KnownSetting:
    """Return the setting called `name`.

    Leading dashes and a value after ``=`` are cut. Names of JAX variables may be in lower case.
    """
    wanted = name.strip().lstrip("-").split("=")[0]
    settings = catalogue()
    if wanted.upper() in settings:
        return settings[wanted.upper()]
    for candidate in (wanted, f"xla_gpu_{wanted}", f"xla_gpu_enable_{wanted}"):
        if candidate in settings:
            return settings[candidate]
        if candidate in known_flags().kinds:
            return _undescribed(candidate)
    near = nearest(wanted, [*settings, *known_flags().kinds])
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"'{FLAGS_LIST}' shows the described ones"
    )
    raise UserError(f"no setting called '{wanted}'", remedy=hint)


def known_in(name: str, version: str) -> bool | None:
    """Whether a jaxlib release knows the flag; None if uncertain.

    The catalogue and the recorded releases decide.
    """
    setting = catalogue().get(name)
    if setting is not None and setting.is_flag:
        return setting.known_in(version)
    return known_flags().known_in(name, version)


def nearest(name: str, candidates: Iterable[str]) -> tuple[str, ...]:
    """Return the candidates spelled most like `name`, best first; empty if none is similar."""
    return tuple(get_close_matches(name, sorted(set(candidates)), cutoff=0.8))


def _undescribed(name: str) -> KnownSetting:
    """Make the entry of a flag that is in recorded releases but not in the catalogue."""
    table = known_flags()
    seen = table.seen(name)
    later = table.releases[table.releases.index(seen[-1]) + 1 :]
    return KnownSetting(
        name,
        "XLA_FLAGS",
        table.kinds[name],
        "(not described in the catalogue)",
        since="" if seen[0] == table.releases[0] else seen[0],
        gone=later[0] if later else "",
        source=("asked of the published wheels",),
    )


def _span(span: str, releases: tuple[str, ...]) -> tuple[str, ...]:
    first, _, last = span.partition("-")
    start = releases.index(first)
    return releases[start : releases.index(last or first) + 1]


def _entries(file: str, kind: str) -> list[dict[str, Any]]:
    """Return the tables of a data file, with lists as tuples."""
    tables = tomllib.loads(_data(file))[kind]
    for each in tables:
        for key, value in each.items():
            if isinstance(value, list):
                each[key] = tuple(value)
    return list(tables)


def _data(name: str) -> str:
    return files("pgle.xla").joinpath("data", name).read_text(encoding="utf-8")


_OFF = ("false", "off", "0", "")


@dataclass(frozen=True, slots=True)
class Effect:
    """One published comparison of two settings of one program."""

    id: str  # name chosen by pgle
    # the changed setting, ``NAME=value``, or ``NAME`` if left at its default; empty: no flag
    set: tuple[str, ...]
    # change of the step time in per cent, one number per reading; negative is shorter
    change: tuple[float, ...]
    program: str  # program that was measured
    model: Literal["experts", "dense", "kernel"]  # kind of the program
    gpus: str  # number and type of GPUs
    base: str  # the setting that it was compared with
    source: str  # link to the source
    # why a schedule model cannot predict this effect; empty: it can be compiled and simulated
    unseen: str = ""
    note: str = ""  # more that a reader must know

    @property
    def readings(self) -> str:
        """The changes of the step time in words: ``+3.4 % and −1 %``."""
        return " and ".join(
            f"{reading:+.2g} %".replace("-", "−").replace("+0 %", "0 %")
            for reading in self.change
        )

    @property
    def line(self) -> str:
        """The effect in one line."""
        more = (
            f" with {many(len(self.set) - 1, 'other flag')}"
            if len(self.set) > 1
            else ""
        )
        return f"{self.readings}{more}: {self.program}, {self.gpus}. {self.source}"


@cache
def public_record() -> tuple[Effect, ...]:
    """All effects, in the order of the file."""
    return tuple(Effect(**entry) for entry in _entries("flags_record.toml", "effect"))


def effects_of(name: str, value: str | None = None) -> tuple[Effect, ...]:
    """Return the effects of changing a setting, also under its older and newer names.

    Args:
        name: name of the flag or variable, without dashes.
        value: only changes in this direction, on or off; a number counts as on. None: all.
    """
    known = catalogue()
    current = known[name].use or name if name in known else name
    names = {
        name,
        current,
        *(other.name for other in known.values() if other.use == current),
    }

    def is_change(text: str) -> bool:
        name, _, other = text.partition("=")
        return name in names and (
            value is None or (value.lower() in _OFF) == (other.lower() in _OFF)
        )

    return tuple(
        effect for effect in public_record() if any(map(is_change, effect.set))
    )


def is_slower(effects: Iterable[Effect]) -> bool:
    """Whether most readings show a longer step."""
    readings = list(chain.from_iterable(effect.change for effect in effects))
    return bool(readings) and median(readings) > 0


def summary(effects: Iterable[Effect]) -> str:
    """Summarise reports: their number, range and kind of program: ``3 reports, +2.4 to +7.1 %,
    …``.
    """
    found = tuple(effects)
    if not found:
        return "no report"
    readings = sorted(chain.from_iterable(effect.change for effect in found))
    ends = dict.fromkeys(
        f"{reading:+.1f}".replace("-", "−") for reading in (readings[0], readings[-1])
    )
    dense = sum(effect.model == "dense" for effect in found)
    return (
        f"{many(len(found), 'report')}, {' to '.join(ends)} %, "
        f"{dense or 'none'} on a dense model"
    )


CHECKER = "xla_gpu_pgle_accuracy_checker"
_LEVELS = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Lint:
    """The remarks on a text of flags."""

    jaxlib: str  # the jaxlib release that was checked
    asked: bool  # whether that jaxlib itself answered, not only the catalogue
    flags: int  # number of flags that XLA would read
    findings: tuple[FlagFinding, ...]  # worst first, then in the order of the text

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(finding.level != "error" for finding in self.findings)


SHARD_AUTOTUNING = "xla_gpu_shard_autotuning"


def lint(
    flags: FlagList, jaxlib: str, verdicts: Mapping[str, tuple[str, str]] | None = None
) -> Lint:
    """Check flags against a jaxlib release.

    Args:
        flags: the parsed flags.
        jaxlib: the release.
        verdicts: by flag text, the status and message of the installed jaxlib
            (`pgle.run.ask.jaxlib`). If None, the catalogue and the recorded releases answer.
    """
    findings = [*flags.findings]
    for flag in dict.fromkeys(flags.flags):
        if flag.is_well_formed:
            findings += _known(flag, jaxlib, verdicts)
    findings += [
        *_repeated(flags),
        *profile_findings(flags, jaxlib),
        *_scheduler(flags, jaxlib),
        *_lost(flags),
        *_of_ranks(flags),
        *_inert(flags, jaxlib),
    ]
    ordered = sorted(findings, key=lambda finding: _LEVELS[finding.level])
    return Lint(
        jaxlib, verdicts is not None, len(flags.flags), tuple(dict.fromkeys(ordered))
    )


def _known(
    flag: Flag, jaxlib: str, verdicts: Mapping[str, tuple[str, str]] | None
) -> Iterator[FlagFinding]:
    if verdicts is None:
        known = known_in(flag.name, jaxlib)
        if known is None:
            seen = ", ".join(known_flags().seen(flag.name))
            message = (
                f"jaxlib {jaxlib} may not know it; of the releases asked, {seen} do"
            )
            remedy = f"run '{FLAGS_LINT}' where jaxlib is installed"
            yield FlagFinding("warning", "uncertain", flag.name, message, remedy)
        status = "unknown" if known is False else _status(flag)
        answer = ""
    else:
        status, answer = verdicts.get(flag.text, ("known", ""))
    if status == "unknown":
        code, message, remedy = _unknown(flag, jaxlib)
        yield FlagFinding("error", code, flag.name, message, remedy)
    elif status in ("bad-value", "failed"):
        yield _bad_value(flag, answer)


def _unknown(flag: Flag, jaxlib: str) -> tuple[str, str, str]:
    """Return code, message and remedy of an unknown flag.

    The flag may be a known one without its value, a removed one, or one that never existed.
    """
    if flag.value is None and known_in(flag.name, jaxlib):
        kind = known_flags().kinds.get(flag.name, "")
        message = f"needs a value ({kind})"
        return "needs-value", message, f"write --{flag.name}=VALUE"
    setting = catalogue().get(flag.name)
    table = known_flags()
    if setting is not None and setting.is_flag:
        if setting.since and release(jaxlib) < release(setting.since):
            message = (
                f"jaxlib {jaxlib} does not know it yet (since "
                f"{setting.since}): XLA ends the program"
            )
            return "too-new", message, f"use jaxlib {setting.since} or leave it out"
        when = (
            "was never a flag of XLA"
            if setting.gone == "always"
            else f"is gone since jaxlib {setting.gone}"
        )
        remedy = setting.remarks[0] if setting.remarks else "leave it out"
        if setting.use:
            remedy = f"use {setting.use}"
        remedy = _instead(setting, flag) or remedy
        return "removed", f"{when}: XLA ends the program", remedy.rstrip(".")
    if seen := table.seen(flag.name):
        message = (
            f"jaxlib {jaxlib} does not know it (seen in {seen[0]} to "
            f"{seen[-1]}): XLA ends the program"
        )
        return "removed", message, "leave it out"
    near = nearest(
        flag.name, [name for name in table.present if known_in(name, jaxlib)]
    )
    remedy = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"leave it out; '{FLAGS_LIST}' shows what there is"
    )
    if flag.name.upper() in catalogue():
        remedy = f"it is not a flag but a variable: export {flag.name.upper()}={flag.value or ''}"
    message = f"jaxlib {jaxlib} does not know it: XLA ends the program"
    return "unknown", message, remedy


def _instead(setting: KnownSetting, flag: Flag) -> str:
    """Return what to write for the value of an old flag; empty if unknown.

    The replacement may have the opposite sense.
    """
    meant = next(
        (new for old, new in setting.instead if same_value(flag.value, old)), None
    )
    if meant is None:
        return ""
    return f"write {meant}" if meant else "leave it out: XLA does so by default now"


def _bad_value(flag: Flag, answer: str) -> FlagFinding:
    setting = catalogue().get(flag.name)
    values = ", ".join(setting.values) if setting is not None else ""
    remedy = (
        f"one of {values}"
        if values
        else "write a value of its kind: " + known_flags().kinds.get(flag.name, "any")
    )
    if flag.name == DISABLE_ASYNC and not flag.value:
        remedy = (
            "leave it out: all collectives are asynchronous without it; to "
            f"disable: {ASYNC_KINDS}"
        )
    words = f" ({answer})" if answer and "Flag parsing failed" not in answer else ""
    message = (
        f"XLA does not take the value '{flag.value or ''}' and ends the program{words}"
    )
    return FlagFinding("error", "bad-value", flag.name, message, remedy)


def _status(flag: Flag) -> str:
    """Return how XLA treats a value, by the catalogue: ``known``, ``unknown`` (value missing) or
    ``bad-value``.
    """
    kind = known_flags().kinds.get(flag.name, "")
    setting = catalogue().get(flag.name)
    if flag.value is None:
        return "known" if kind in ("bool", "") else "unknown"
    value = flag.value.lower()
    good = kind != "bool" or as_bool(value) is not None
    if kind in ("int", "float"):
        try:
            (int if kind == "int" else float)(value)
        except ValueError:
            good = False
    if kind == "choice" and setting is not None and setting.values:
        items = (
            [item.lstrip("+-") for item in value.split(",")]
            if setting.kind == "list"
            else [value]
        )
        empty = {""} if flag.name == COMMAND_BUFFER else set()
        good = {item.lower() for item in setting.values} | empty >= set(items)
    return "known" if good else "bad-value"


def _repeated(flags: FlagList) -> Iterator[FlagFinding]:
    by_name: dict[str, list[Flag]] = {}
    for flag in flags.flags:
        by_name.setdefault(flag.name, []).append(flag)
    for name, found in by_name.items():
        signed = name == COMMAND_BUFFER and all(
            (flag.value or "").startswith(("+", "-")) for flag in found[1:]
        )
        if len(found) == 1 or name in ACCUMULATING or signed:
            continue
        if all(same_value(flag.value, found[0].value) for flag in found):
            yield FlagFinding(
                "note",
                "duplicate",
                name,
                f"is given {len(found)} times with the same value",
            )
        else:
            values = ", ".join(map(_shown_value, found))
            message = f"is given {len(found)} times ({values}); the last counts"
            yield FlagFinding("warning", "duplicate", name, message, "keep one")


def _shown_value(flag: Flag) -> str:
    return "(bare)" if flag.value is None else flag.value or "(empty)"


def profile_findings(flags: FlagList, jaxlib: str) -> Iterator[FlagFinding]:
    """Yield why XLA does not read or use the profile that the flags name."""
    path = flags.value(PROFILE_PATH)
    if path is None:
        return
    at = release(jaxlib)
    on = flags.is_true(LHS)
    of_home = path.startswith("~")
    named = "." in path.rsplit("/", 1)[-1] and not path.endswith((".pbtxt", ".pb"))
    ignored = f"jaxlib {jaxlib} silently ignores the profile"
    if not path:
        yield FlagFinding(
            "warning",
            "no-effect",
            PROFILE_PATH,
            "is empty: there is no profile",
            "give a path or leave it out",
        )
    if of_home:
        yield FlagFinding(
            "error",
            "no-effect",
            PROFILE_PATH,
            "XLA does not expand '~': no profile is read",
            "write the path",
        )
    if named and not of_home and at >= release(PROFILE_SWITCHES_ON):
        yield FlagFinding(
            "error",
            "no-effect",
            PROFILE_PATH,
            "XLA reads .pbtxt and .pb only and silently ignores this file",
            "rename it",
        )
    if on is False and at >= release(HOPPER_DEFAULT[1]):
        yield FlagFinding(
            "error",
            "contradiction",
            LHS,
            f"{ignored} if LHS is off",
            f"set --{LHS}=true",
        )
    if on is not True and at < release(PROFILE_SWITCHES_ON):
        yield FlagFinding(
            "error",
            "contradiction",
            LHS,
            f"{ignored} unless LHS is on",
            f"set --{LHS}=true",
        )
    if flags.value(CHECKER) == "PGLE_STRICTNESS_LEVEL_ERROR":
        yield FlagFinding(
            "warning",
            "strict",
            CHECKER,
            "fails every module that was not profiled; in 0.12.0.1 it fails inside "
            "XLA even with a full profile",
            f"leave it at WARN and use `{VERIFY}`",
        )


def _scheduler(flags: FlagList, jaxlib: str) -> Iterator[FlagFinding]:
    stays = (
        release(HOPPER_DEFAULT[0]) <= release(jaxlib) < release(HOPPER_DEFAULT[1])
        and flags.is_true(SOL) is not False
    )
    disabled = (flags.value(DISABLE_ASYNC) or "").lower()
    collectives = {"allcollectives", *ASYNC_KINDS.split(",")} & set(disabled.split(","))
    if stays and flags.is_true(LHS) is False:
        yield FlagFinding(
            "warning",
            "no-effect",
            LHS,
            f"does not turn LHS off in jaxlib {jaxlib} on Hopper and newer GPUs",
            f"also set --{SOL}=false",
        )
    if disabled:
        yield FlagFinding(
            "note",
            "fingerprint",
            DISABLE_ASYNC,
            "changes the fingerprint: files and entries named by it fit only runs with this flag",
        )
    if flags.is_true(LHS) and collectives:
        yield FlagFinding(
            "warning",
            "contradiction",
            DISABLE_ASYNC,
            "leaves LHS nothing to overlap for these collectives; right in a profile run only",
        )


def _inert(flags: FlagList, jaxlib: str) -> Iterator[FlagFinding]:
    """Yield the flags that a jaxlib's compiler ignores without a GPU."""
    for name in inert_flags(flags, jaxlib):
        yield FlagFinding(
            "warning",
            "no-effect",
            name,
            f"jaxlib {jaxlib} does nothing with it without a GPU: a rehearsal shows no change",
            "rehearse with a newer jaxlib, or measure it on GPUs",
        )


def inert_flags(flags: FlagList, jaxlib: str) -> list[str]:
    """Return the names of flags that a jaxlib's compiler ignores without a GPU."""
    known = catalogue()
    return [
        name
        for name in flags.effective()
        if name in known and jaxlib in known[name].inert
    ]


def inert_warnings(flags: FlagList, jaxlib: str) -> list[str]:
    """Return one line for each given flag that a compiler without a GPU ignores."""
    return [finding.line() for finding in _inert(flags, jaxlib)]


LOCAL_FOLDERS = ("/tmp/", "/var/tmp/", "/dev/shm/", "/scratch/", "/local/")
"""Folders that are usually local to a host."""


def _of_ranks(flags: FlagList) -> Iterator[FlagFinding]:
    """Yield flags that may let ranks of one job compile different schedules."""
    for name in (PROFILE_PATH, AUTOTUNING):
        if (flags.value(name) or "").startswith(LOCAL_FOLDERS):
            yield FlagFinding(
                "note",
                "own-file",
                name,
                "each host may have another file there; ranks with other files can hang",
                "with several hosts put it where all of them see it",
            )
    if as_bool(flags.value(SHARD_AUTOTUNING)) is False:
        yield FlagFinding(
            "warning",
            "own-choice",
            SHARD_AUTOTUNING,
            "each process chooses kernels by its own measurements; ranks with other "
            "schedules can hang",
            "leave it on if there are several processes",
        )


def _lost(flags: FlagList) -> Iterator[FlagFinding]:
    """Yield flags that have no effect because of other flags, or without others."""
    values = flags.effective()
    for name in values:
        if (
            name.startswith("xla_dump_")
            and not flags.value("xla_dump_to")
            and as_bool(flags.value(name)) is not False
        ):
            yield FlagFinding(
                "warning",
                "no-effect",
                name,
                "has no effect without --xla_dump_to",
                "add --xla_dump_to=DIR",
            )
        newer = catalogue()[name].use if name in catalogue() else ""
        if newer in values:
            yield FlagFinding(
                "warning",
                "contradiction",
                name,
                f"is an older name of {newer}, which is given too",
                "keep one",
            )
