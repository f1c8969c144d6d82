"""The verdict on one module, with its reason: from the block of the log that is about it, or from its silence."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from pgle.xla.log.blocks import Block, Blocks
from pgle.xla.log.events import Event, is_sub_module
from pgle.xla.log.remedies import Remedy
from pgle.xla.log.schedule_evidence import ScheduleEvidence


class Verdict(StrEnum):
    """Whether a module was scheduled with the profile."""

    USED = "used"
    USED_WITHOUT_MATCHES = "used-without-matches"
    NOT_USED = "not-used"
    WRONG_FORMAT = "wrong-format"
    CANNOT_TELL = "cannot-tell"


@dataclass(frozen=True)
class ModuleVerdict:
    """The verdict on one module.

    Attributes:
        module: its name; empty where the log names none.
        verdict: whether the profile was used.
        why: the reason, in words.
        line: number of the line that proves it; None where nothing in the log does.
        proof: that line, without its prefix.
        remedy: what to do; empty where nothing is to be done.
        profile: what was read: a path, or ``fdo_profile (text)``; empty where unknown.
        found: what XLA counts as found; None where it does not say.
        missing: what XLA counts as missing; None where it does not say. 0 is also said by silence (0.5.1 and newer).
        missing_names: of some or all of them.
        covered: instructions with a cost; None where XLA does not say.
        wanted: instructions that want one: XLA's `missing` also counts what no schedule needs, its `found` some twice.
        fingerprint: where the log gives it.
        times: how often the log schedules it.
        ranks: the line prefixes (ranks) that this verdict is about, where the log has several.
    """

    module: str
    verdict: Verdict
    why: str
    line: int | None = None
    proof: str = ""
    remedy: str = ""
    profile: str = ""
    found: int | None = None
    missing: int | None = None
    missing_names: tuple[str, ...] = ()
    covered: int | None = None
    wanted: int | None = None
    fingerprint: str = ""
    times: int = 1
    ranks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What else bears on the verdict on a block.

    Attributes:
        blocks: all of the log.
        names: in the profile, in file order.
        common_miss: the first missing name of most modules, in the wording of 2024.
        lists_missing: this XLA lists the instructions without a cost.
        schedule: what a schedule dump says of the main module.
    """

    blocks: Blocks
    names: tuple[str, ...]
    common_miss: str
    lists_missing: bool
    schedule: ScheduleEvidence | None = None


def judge_block(context: Context, name: str, block: Block) -> ModuleVerdict:
    """The verdict on a module by the last that the log says of its scheduling on one rank."""
    profile = block.read.subject if block.read else ""
    base = ModuleVerdict(name, Verdict.CANNOT_TELL, "", profile=profile, fingerprint=block.fingerprint)
    base = replace(base, found=block.found, missing=block.missing, missing_names=tuple(sorted(block.missing_names)))
    if block.discarded is not None:
        return _proved(base, Verdict.NOT_USED, "the accuracy checker failed the compilation", block.discarded,
                       Remedy.CHECKER)  # fmt: skip
    if block.profile is not None or block.found is not None:
        return _judge_used(context, base, block)
    if block.unreadable is not None:
        where = f" at {block.syntax.subject}" if block.syntax else ""
        return _proved(base, Verdict.WRONG_FORMAT, f"the profile cannot be parsed{where}", block.unreadable,
                       Remedy.FORMAT)  # fmt: skip
    if block.no_file is not None:
        directory = re.search(r"([0-9a-f]{32})\.pb(?:txt)?$", block.no_file.subject)
        why = "the directory has no file for this fingerprint" if directory else "the profile file does not exist"
        found = replace(base, fingerprint=base.fingerprint or (directory[1] if directory else ""))
        remedy = Remedy.DIRECTORY if directory else Remedy.PATH
        if directory and any(other.profile for other in context.blocks.last.values()):
            remedy = Remedy.OTHER_MODULE
        return _proved(found, Verdict.NOT_USED, why, block.no_file, remedy)
    if block.read is not None:
        why = "the profile was parsed, but no line says that the scheduler took it"
        return _proved(base, Verdict.CANNOT_TELL, why, block.read, Remedy.WHOLE_LOG)
    if block.estimator is not None:
        why = f"scheduled with XLA's {block.estimator.subject} model, without a profile"
        return _proved(base, Verdict.NOT_USED, why, block.estimator, Remedy.NOT_GIVEN)
    if block.lhs is not None:
        return _proved(base, Verdict.NOT_USED, "the scheduler ran, but no profile was found for it", block.lhs,
                       Remedy.NOT_GIVEN)  # fmt: skip
    return replace(base, why="the log says nothing about its scheduling", remedy=Remedy.WHOLE_LOG)


def _judge_used(context: Context, base: ModuleVerdict, block: Block) -> ModuleVerdict:
    """The module was scheduled with a profile: did any of its names match?"""
    proof = block.counted if block.counted is not None else block.profile
    assert proof is not None
    if base.found is not None or base.missing is not None:
        return _judge_counted(context, base, block, proof)
    if block.not_in_module is not None:
        return _judge_2024(context, base, block.not_in_module)
    if context.lists_missing:
        why = "XLA lists no instruction without a cost: every one has one"
        return _proved(replace(base, missing=0), Verdict.USED, why, proof, "")
    if block.costs_found:
        return _proved(base, Verdict.USED, f"{block.costs_found} times a cost of the profile was taken", proof, "")
    why = (
        "the scheduler has the profile and lists nothing as missing: from jax 0.5.1 on that is proof, before it is not"
    )
    return _proved(base, Verdict.CANNOT_TELL, why, proof, Remedy.OLD_XLA)


def _judge_counted(context: Context, base: ModuleVerdict, block: Block, proof: Event) -> ModuleVerdict:
    """XLA counted found and missing names."""
    covered, wanted = block.covered
    dump = context.schedule
    if dump is not None and dump.module == base.module and dump.wanted is not None:
        covered, wanted = dump.covered or 0, dump.wanted
    base = replace(base, covered=covered, wanted=wanted)
    if not base.found:
        why = f"no instruction of the module has a cost in the profile (0 of {wanted})"
        return _proved(base, Verdict.USED_WITHOUT_MATCHES, why, proof, Remedy.NO_NAMES)
    if covered == wanted:
        why = "every instruction that wants a cost has one; XLA misses only what no schedule needs"
        return _proved(base, Verdict.USED, why, proof, "")
    why = f"{covered} of {wanted} instructions have a cost; the others got XLA's own guess"
    return _proved(base, Verdict.USED, why, proof, Remedy.PARTIAL)


def _judge_2024(context: Context, base: ModuleVerdict, line: Event) -> ModuleVerdict:
    """XLA of early 2024 looks the profile's names up in the module, in file order, and names the first it lacks."""
    name = line.subject
    if name in context.names:
        before = context.names.index(name)
        if before:
            why = f"the first {before} of the profile's {len(context.names)} names are in the module, {name} is not"
            return _proved(base, Verdict.USED, why, line, Remedy.STALE)
    elif context.common_miss and name != context.common_miss:
        why = f"{name} is not in the module; the names before it are, {context.common_miss} among them"
        return _proved(base, Verdict.USED, why, line, Remedy.STALE)
    why = f"the profile was given to the scheduler, but already its name {name} is not in the module"
    return _proved(base, Verdict.CANNOT_TELL, why, line, Remedy.OTHER_MODULE)


def judge_silence(blocks: Blocks, wanted: str | None) -> ModuleVerdict:
    """No line about the scheduling of the main module: tell the reasons apart."""
    base = ModuleVerdict("", Verdict.CANNOT_TELL, "")
    hit = next((event for name, event in blocks.cache_hits.items() if wanted is None or re.search(wanted, name)), None)
    if blocks.flag_refused is not None:
        flag = blocks.flag_refused.subject
        why = f"XLA ended over a flag{': ' + flag if flag else ''}"
        return _proved(base, Verdict.NOT_USED, why, blocks.flag_refused, Remedy.FLAG)
    if blocks.discarded is not None:
        why = "the accuracy checker failed the compilation"
        return _proved(base, Verdict.NOT_USED, why, blocks.discarded, Remedy.CHECKER)
    if hit is not None:
        why = "loaded from JAX's compilation cache, so nothing was scheduled in this run"
        return _proved(replace(base, module=hit.module), Verdict.CANNOT_TELL, why, hit, Remedy.CACHE)
    if wanted is not None and blocks.last:
        names = ", ".join(sorted(name for _, name in blocks.last if name and not is_sub_module(name))[:5])
        return replace(base, why=f"no module of the log matches {wanted!r}; it has {names}", remedy=Remedy.MODULE)
    if blocks.info is None:
        return replace(base, why="the log holds no INFO line of XLA: its log level hides them", remedy=Remedy.LEVEL)
    if blocks.compiled is not None:
        why = "XLA compiled and logs at INFO, but neither read a profile nor ran the scheduler"
        return _proved(base, Verdict.NOT_USED, why, blocks.compiled, Remedy.SILENT)
    return replace(base, why="the log shows no compilation", remedy=Remedy.CACHE)


def _proved(base: ModuleVerdict, verdict: Verdict, why: str, line: Event, remedy: str) -> ModuleVerdict:
    return replace(base, verdict=verdict, why=why, line=line.line, proof=line.text.strip(), remedy=str(remedy))
