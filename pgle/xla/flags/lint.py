"""Problems of a user's XLA flags: fatal, lost, contradictory or without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pgle.next import FLAGS_LINT, FLAGS_LIST, VERIFY
from pgle.xla.flags.catalogue import catalogue, known_flags, known_in, nearest, older_name, release
from pgle.xla.flags.presets import (
    ASYNC_KINDS,
    DISABLE_ASYNC,
    LHS,
    PROFILE_PATH,
    SOL,
    STREAMS,
    THRESHOLD,
    collective_matmul,
)
from pgle.xla.flags.text import ACCUMULATING, COMMAND_BUFFER, Finding, Flag, FlagList, as_bool, same_value

CHECKER = "xla_gpu_pgle_accuracy_checker"
_LEVELS = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Lint:
    """The remarks on a text of flags."""

    jaxlib: str  # the release that it was checked for
    asked: bool  # True where that jaxlib itself was asked, False where the catalogue alone answers
    flags: int  # how many flags XLA would read
    findings: tuple[Finding, ...]  # worst first, then in the order of the text

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(finding.level != "error" for finding in self.findings)


def lint(flags: FlagList, jaxlib: str, verdicts: Mapping[str, tuple[str, str]] | None = None) -> Lint:
    """Hold flags against a jaxlib release.

    Args:
        verdicts: by flag text, the status and message of the installed jaxlib (`pgle.run.ask.flag_probe`); where None,
            the catalogue and the recorded releases answer.
    """
    findings = [*flags.findings]
    for flag in dict.fromkeys(flags.flags):
        if flag.is_well_formed:
            findings += _known(flag, jaxlib, verdicts)
    findings += _repeated(flags)
    for check in _CHECKS:
        findings += check(flags, jaxlib)
    spoken_of = {finding.flag for finding in findings if finding.code != "default"}
    findings = [finding for finding in findings if finding.code != "default" or finding.flag not in spoken_of]
    ordered = sorted(findings, key=lambda finding: _LEVELS[finding.level])
    return Lint(jaxlib, verdicts is not None, len(flags.flags), tuple(dict.fromkeys(ordered)))


def _known(flag: Flag, jaxlib: str, verdicts: Mapping[str, tuple[str, str]] | None) -> Iterator[Finding]:
    if verdicts is None:
        known = known_in(flag.name, jaxlib)
        if known is None:
            table = known_flags()
            seen = ", ".join(item for item in table.releases if item in table.present.get(flag.name, ()))
            message = f"jaxlib {jaxlib} may not know it; of the releases asked, {seen} do"
            yield Finding("warning", "uncertain", flag.name, message, f"run '{FLAGS_LINT}' where jaxlib is installed")
        status, answer = ("unknown", "") if known is False else _value_verdict(flag)
    else:
        status, answer = verdicts.get(flag.text, ("known", ""))
    if status == "unknown":
        yield _unknown(flag, jaxlib)
    elif status in ("bad-value", "failed"):
        yield _bad_value(flag, answer)
    elif status == "known":
        yield from _superseded(flag, jaxlib)


_OLDER_VALUES = {"on": "true", "explicit": "true", "off": "false", "default": "false"}
"""Values of xla_gpu_pipeline_X as its older name takes them, a boolean."""


def _unknown(flag: Flag, jaxlib: str) -> Finding:
    """An unknown flag: a known one without its value, one that is gone, or one that never was."""
    if flag.value is None and known_in(flag.name, jaxlib):
        kind = known_flags().kinds.get(flag.name, "")
        return Finding("error", "needs-value", flag.name, f"needs a value ({kind})", f"write --{flag.name}=VALUE")
    setting = catalogue().get(flag.name)
    table = known_flags()
    if setting is not None and setting.is_flag:
        since = setting.since and release(jaxlib) < release(setting.since)
        if since:
            message = f"jaxlib {jaxlib} does not know it yet (since {setting.since}): XLA ends the program"
            older = older_name(flag.name, jaxlib)
            value = _OLDER_VALUES.get(flag.value or "", flag.value)
            there = f"write {Flag(older, value).text} there, or " if older else ""
            remedy = f"{there}use jaxlib {setting.since}{'' if older else ' or leave it out'}"
            return Finding("error", "too-new", flag.name, message, remedy)
        when = "was never a flag of XLA" if setting.gone == "always" else f"is gone since jaxlib {setting.gone}"
        remedy = f"use {setting.use}" if setting.use else (setting.remarks[0] if setting.remarks else "leave it out")
        return Finding("error", "removed", flag.name, f"{when}: XLA ends the program", remedy.rstrip("."))
    if flag.name in table.present:
        seen = [item for item in table.releases if item in table.present[flag.name]]
        message = f"jaxlib {jaxlib} does not know it (seen in {seen[0]} to {seen[-1]}): XLA ends the program"
        return Finding("error", "removed", flag.name, message, "leave it out")
    near = nearest(flag.name, [name for name in table.present if known_in(name, jaxlib)])
    remedy = f"did you mean {' or '.join(near)}?" if near else f"leave it out; '{FLAGS_LIST}' shows what there is"
    if flag.name.upper() in catalogue():
        remedy = f"it is no flag but a variable: export {flag.name.upper()}={flag.value or ''}"
    return Finding("error", "unknown", flag.name, f"jaxlib {jaxlib} does not know it: XLA ends the program", remedy)


def _bad_value(flag: Flag, answer: str) -> Finding:
    setting = catalogue().get(flag.name)
    values = ", ".join(setting.values) if setting is not None else ""
    remedy = f"one of {values}" if values else "write a value of its kind: " + known_flags().kinds.get(flag.name, "any")
    if flag.name == DISABLE_ASYNC and not flag.value:
        remedy = f"leave it out: all collectives are asynchronous without it; to disable: {ASYNC_KINDS}"
    words = f" ({answer})" if answer and "Flag parsing failed" not in answer else ""
    message = f"XLA does not take the value '{flag.value or ''}' and ends the program{words}"
    return Finding("error", "bad-value", flag.name, message, remedy)


def _value_verdict(flag: Flag) -> tuple[str, str]:
    """Whether a value is of its kind, by the catalogue."""
    kind = known_flags().kinds.get(flag.name, "")
    value = flag.value
    if value is None:
        return ("known", "") if kind in ("bool", "") else ("unknown", "")
    if kind == "bool" and as_bool(value) is None:
        return "bad-value", ""
    if kind in ("int", "float"):
        try:
            (int if kind == "int" else float)(value)
        except ValueError:
            return "bad-value", ""
    setting = catalogue().get(flag.name)
    if kind == "choice" and setting is not None and setting.values:
        allowed = {item.lower() for item in setting.values}
        items = [item.lstrip("+-").lower() for item in value.split(",")] if setting.kind == "list" else [value.lower()]
        may_be_empty = flag.name == COMMAND_BUFFER
        if any(item not in allowed and not (may_be_empty and not item) for item in items):
            return "bad-value", ""
    return "known", ""


def _superseded(flag: Flag, jaxlib: str) -> Iterator[Finding]:
    setting = catalogue().get(flag.name)
    if setting is None or not setting.use:
        return
    newer = catalogue().get(setting.use)
    if newer is not None and newer.known_in(jaxlib) and not setting.gone:
        yield Finding("note", "superseded", flag.name, f"{setting.use} is its newer name", "")


def _repeated(flags: FlagList) -> Iterator[Finding]:
    by_name: dict[str, list[Flag]] = {}
    for flag in flags.flags:
        by_name.setdefault(flag.name, []).append(flag)
    for name, found in by_name.items():
        signed = name == COMMAND_BUFFER and all((flag.value or "").startswith(("+", "-")) for flag in found[1:])
        if len(found) == 1 or name in ACCUMULATING or signed:
            continue
        if all(same_value(flag.value, found[0].value) for flag in found):
            yield Finding("note", "duplicate", name, f"is given {len(found)} times with the same value")
        else:
            values = ", ".join("(bare)" if flag.value is None else flag.value or "(empty)" for flag in found)
            message = f"is given {len(found)} times ({values}); the last counts"
            yield Finding("warning", "duplicate", name, message, "keep one")


def _profile(flags: FlagList, jaxlib: str) -> Iterator[Finding]:
    path = flags.value(PROFILE_PATH)
    if path is None:
        return
    at = release(jaxlib)
    if not path:
        message = "is empty: there is no profile"
        yield Finding("warning", "no-effect", PROFILE_PATH, message, "give a path or leave it out")
    elif path.startswith("~"):
        message = "XLA does not expand '~': no profile is read"
        yield Finding("error", "no-effect", PROFILE_PATH, message, "write the path")
    elif "." in path.rsplit("/", 1)[-1] and not path.endswith((".pbtxt", ".pb")) and at >= release("0.5.1"):
        message = "XLA reads .pbtxt and .pb only and ignores this file without a word"
        yield Finding("error", "no-effect", PROFILE_PATH, message, "rename it")
    if flags.is_true(LHS) is False and at >= release("0.11.2"):
        message = f"jaxlib {jaxlib} ignores the profile without a word if LHS is off"
        yield Finding("error", "contradiction", LHS, message, f"set --{LHS}=true")
    if flags.is_true(LHS) is not True and at < release("0.5.1"):
        message = f"jaxlib {jaxlib} ignores the profile without a word unless LHS is on"
        yield Finding("error", "contradiction", LHS, message, f"set --{LHS}=true")
    if flags.value(CHECKER) == "PGLE_STRICTNESS_LEVEL_ERROR":
        message = "fails every module that was not profiled; in 0.12.0.1 it fails inside XLA even with a full profile"
        yield Finding("warning", "strict", CHECKER, message, f"leave it at WARN and use '{VERIFY}'")


def _scheduler(flags: FlagList, jaxlib: str) -> Iterator[Finding]:
    at = release(jaxlib)
    still_on = release("0.8.0") <= at < release("0.11.2") and flags.is_true(SOL) is not False
    if flags.is_true(LHS) is False and still_on:
        message = f"does not turn LHS off in jaxlib {jaxlib} on Hopper and newer GPUs"
        yield Finding("warning", "no-effect", LHS, message, f"also set --{SOL}=false")
    if flags.is_true(LHS) and at >= release("0.8.0") and flags.value(PROFILE_PATH) is None:
        yield Finding("note", "default", LHS, f"is the default of jaxlib {jaxlib} on Hopper and newer GPUs")
    disabled = (flags.value(DISABLE_ASYNC) or "").lower()
    if disabled:
        message = "changes the fingerprint: files and entries named by it fit only runs with this flag"
        yield Finding("note", "fingerprint", DISABLE_ASYNC, message)
    if flags.is_true(LHS) and {"allcollectives", *ASYNC_KINDS.split(",")} & set(disabled.split(",")):
        message = "leaves LHS nothing to overlap for these collectives; right in a profile run only"
        yield Finding("warning", "contradiction", DISABLE_ASYNC, message)


def _dumps(flags: FlagList, jaxlib: str) -> Iterator[Finding]:
    if flags.value("xla_dump_to"):
        return
    for name in flags.effective():
        if name.startswith("xla_dump_") and name != "xla_dump_to" and as_bool(flags.value(name)) is not False:
            yield Finding("warning", "no-effect", name, "has no effect without --xla_dump_to", "add --xla_dump_to=DIR")


def _aliases(flags: FlagList, jaxlib: str) -> Iterator[Finding]:
    values = flags.effective()
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        old, new = f"xla_gpu_enable_pipelined_{kind}", f"xla_gpu_pipeline_{kind}"
        if old in values and new in values:
            yield Finding("warning", "contradiction", old, f"is an older name of {new}, which is given too", "keep one")


def _without_effect(flags: FlagList, jaxlib: str) -> Iterator[Finding]:
    values = flags.effective()
    if "xla_gpu_enable_cudnn_fmha" in values and release(jaxlib) >= release("0.5.1"):
        remedy = "call jax.nn.dot_product_attention(implementation='cudnn')"
        yield Finding("warning", "no-effect", "xla_gpu_enable_cudnn_fmha", "has no effect since 0.5.1", remedy)
    if flags.is_true("xla_gpu_enable_pipelined_collectives"):
        for name in values:
            if name.startswith("xla_gpu_enable_pipelined_a") or name == "xla_gpu_enable_pipelined_reduce_scatter":
                message = "is overridden by xla_gpu_enable_pipelined_collectives"
                yield Finding("warning", "contradiction", name, message, "keep one")
    threshold = flags.value(THRESHOLD)
    if threshold is not None:
        streams = flags.value(STREAMS)
        multi = (catalogue()[STREAMS].default(jaxlib) == "true") if streams is None else bool(flags.is_true(STREAMS))
        yield from collective_matmul(jaxlib, streams=multi)
    elif flags.is_true(STREAMS):
        message = "has no effect at the default threshold of 100000 MiB"
        yield Finding("warning", "no-effect", STREAMS, message, f"add --{THRESHOLD}=0")
    for name, value in values.items():
        setting = catalogue().get(name)
        default = None if setting is None else setting.default(jaxlib)
        described = default and value and known_in(name, jaxlib)
        if name != LHS and described and same_value(value, default) and name not in ACCUMULATING:
            yield Finding("note", "default", name, f"{value} is the default of jaxlib {jaxlib}")


Check: TypeAlias = Callable[[FlagList, str], Iterator[Finding]]
_CHECKS: Sequence[Check] = (_profile, _scheduler, _dumps, _aliases, _without_effect)
