"""How to begin: what `pgle` says about a folder and a machine, and what `pgle init` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.errors import cut, many, printable
from pgle.next import Commands, Next, Way, WayEnd, to_way, typed
from pgle.report.next_steps import way_in_run
from pgle.report.page.value import Cell, Page, Section, Tone, Value, table
from pgle.report.text import Document, flat, near
from pgle.run.directory.directory import RunDirectory
from pgle.run.inputs.folder import RUN, FolderContents, Sight
from pgle.run.inputs.next_command import UNKNOWN

if TYPE_CHECKING:
    # this module imports NumPy, which `pgle` alone does not need
    from pgle.run.ask.machine import MachineCheck
    from pgle.run.doctor import Chain, ChainLink, Diagnosis
    from pgle.run.init import Starter

START = (
    ("pgle doctor", "does this machine have what it takes?"),
    (
        "pgle rehearse --devices 8 -- python train.py",
        "without a GPU: what would a profile change?",
    ),
    ("pgle run -- python train.py", "on GPUs: measure, and run with the profile"),
)
"""What to do in a folder without pgle's files."""
COMMANDS = 3  # most commands to offer


def folder_page(found: FolderContents) -> Page:
    """Show the newest file of each kind in a folder, and the command for it."""
    note = ""
    if not found.complete:
        note = "This folder is large: pgle looked at a part of it."
    if not found.sights:
        return _empty_folder(note)
    listed = found.sights[:COMMANDS]
    newest = found.sights[0]
    verdict = f"Newest: {newest.paths[0]} ({newest.kind})"
    first, *rest = (to_way(_commands(sight)) for sight in found.sights)
    also = (*first.next[1:], *chain.from_iterable(way.next for way in rest))
    others = also[: COMMANDS - len(listed)]
    if first.next:
        lines = (first.next[0], *also)
        first = replace(first, next=lines[:COMMANDS])
    notes = [f"also: {line}" for line in others]
    paths = chain.from_iterable(map(_path_rows, found.sights))
    files = table(("kind", "path"), paths)
    section = Section("files", "All that was found", (files,))
    return Page(
        title="pgle",
        identity=("all commands: pgle --help",),
        verdict=printable(verdict),
        table=table(("here", "newest"), map(_newest_row, listed)),
        notes=(*notes, note),
        sections=(section,),
        way=first,
    )


def _commands(sight: Sight) -> Commands:
    """What to type for the newest file of a kind. For a run directory this is its next move."""
    if sight.kind != RUN:
        return sight.commands
    return way_in_run(RunDirectory(sight.paths[0]))


def _empty_folder(note: str) -> Page:
    """Say what to type in a folder that has no file of pgle."""
    return Page(
        title="pgle",
        identity=("No trace, profile, dump or run of pgle in this folder.",),
        verdict="pgle gives XLA's scheduler measured costs, and proves that they help.",
        table=table(("type", "to learn"), START),
        notes=(note,),
        way=Way((START[0][0], "pgle --help")),
    )


def _newest_row(sight: Sight) -> tuple[Value, ...]:
    """The kind of some files, the newest one, and the number of the others."""
    others = len(sight.paths) - 1
    more = f" and {others:,} more" if others else ""
    return sight.kind, printable(f"{sight.paths[0]}{more}")


def _path_rows(sight: Sight) -> Iterator[tuple[Value, ...]]:
    for path in sight.paths:
        yield sight.kind, printable(str(path))


def starters_page(starters: Mapping[str, Starter]) -> Page:
    """List the starters, a line each."""
    rows = (
        (name, item.purpose, ", ".join(item.files.values()))
        for name, item in starters.items()
    )
    return Page(
        title="pgle init",
        identity=(),
        verdict=f"{many(len(starters), 'starter')} to write",
        table=table(("name", "what", "files"), rows),
        way=to_way([Next.of("init", "NAME")]),
    )


def written_page(written: Sequence[Path], starter: Starter, folder: Path) -> Page:
    """The files that were written into a folder, and how to use them there."""
    command = starter.following
    if folder != Path():
        command = f"{typed('cd', near(folder))} && {command}"
    return Page(
        title="pgle init",
        identity=(starter.purpose,),
        verdict=f"wrote {many(len(written), 'file')}",
        tone="good",
        notes=tuple(f"wrote {near(path)}" for path in written),
        way=Way((command,)),
    )


FIRST, FOUND = 3, 48  # checks on the first screen, and most characters of each finding
TONES: dict[str, Tone] = {"ok": "good", "warn": "warn", "fail": "bad"}


class DoctorDocument(Document):
    """``pgle.doctor/1``: what this machine can do, then every check."""

    ok: bool  # no check failed; warnings are allowed
    profiles: bool
    rehearses: bool
    diagnosis: Diagnosis = flat()


def doctor_document(diagnosis: Diagnosis) -> DoctorDocument:
    """What this machine can do, and why."""
    return DoctorDocument(
        ok=diagnosis.ok,
        profiles=not diagnosis.keeps_from_profiling,
        rehearses=not diagnosis.keeps_from_rehearsing,
        diagnosis=diagnosis,
    )


class ProofDocument(Document):
    """``pgle.proof/1``."""

    ok: bool
    proof: Chain = flat()


class StartersDocument(Document):
    """``pgle.init/1`` without a name: each starter and what it is for."""

    starters: Mapping[str, str]


class WrittenStarter(Document):
    """``pgle.init/1`` of a starter."""

    written: tuple[Path, ...]
    folder: Path


_ABLE: Mapping[tuple[bool, bool], tuple[str, Tone]] = {
    (True, True): ("Ready to measure, rehearse and simulate", "good"),
    (False, True): ("Can rehearse and simulate; cannot measure", "warn"),
    (True, False): ("Can measure; cannot rehearse or simulate", "warn"),
    (False, False): ("Cannot measure, rehearse or simulate", "bad"),
}
"""The verdict by (can measure, can rehearse)."""


def doctor_page(diagnosis: Diagnosis) -> Page:
    """Each problem with its remedy; the rest with ``--all``."""
    marked = _problems(diagnosis)
    measures = not diagnosis.keeps_from_profiling
    rehearses = not diagnosis.keeps_from_rehearsing
    able, tone = _ABLE[measures, rehearses]
    passed = many(len(diagnosis.checks) - len(marked), "check")
    every = table(("check", "", "found"), map(_check_row, diagnosis.checks))
    heads = ("check", "", "found", "what to do")
    first = table(heads, map(_problem_row, marked), shown=FIRST)
    return Page(
        title="pgle doctor",
        identity=tuple(_installed(diagnosis)),
        verdict=f"{able}{_kept_by(diagnosis)}",
        tone=tone,
        table=first,
        notes=(f"{passed} ok (--all lists them)",),
        sections=(Section("checks", "All checks", (every,)),),
        way=_way(diagnosis, marked),
    )


def _problems(diagnosis: Diagnosis) -> list[MachineCheck]:
    """The checks that are not ok: failures first, then those that prevent rehearsals."""
    keeps = diagnosis.keeps_from_rehearsing
    marked = [check for check in diagnosis.checks if check.verdict != "ok"]
    marked.sort(key=lambda check: (check.verdict != "fail", check.name not in keeps))
    return marked


def _installed(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the jax and GPUs that were found, if both work."""
    for check in diagnosis.checks:
        if check.name in ("jax", "GPUs") and check.verdict == "ok":
            yield check.found


def _kept_by(diagnosis: Diagnosis) -> str:
    """`` (see jax, GPUs)``: the checks that prevent something; empty if none does."""
    keeps = (*diagnosis.keeps_from_profiling, *diagnosis.keeps_from_rehearsing)
    names = ", ".join(dict.fromkeys(keeps))
    return f" (see {names})" if names else ""


def _way(diagnosis: Diagnosis, marked: Sequence[MachineCheck]) -> Way:
    """Return commands that fix problems, then the run that this machine can do."""
    commands = tuple(check.command for check in marked if check.command)
    way = to_way(_runs(diagnosis))
    if not commands and not way.done:
        return Way(done=marked[0].remedy, end=WayEnd.TODO)
    return replace(way, next=commands)


def _runs(diagnosis: Diagnosis) -> Iterator[Next]:
    """Yield a run on the GPUs, or on the simulated GPU if this machine can only rehearse."""
    if not diagnosis.keeps_from_profiling:
        yield Next.of("run", "--", *UNKNOWN)
    elif not diagnosis.keeps_from_rehearsing:
        yield Next.of("run", "--capture", "simulated", "--", *UNKNOWN)


def _check_row(check: MachineCheck) -> tuple[Value, ...]:
    """A row for a check: its verdict, and what it found."""
    return *_verdict_cells(check), check.found


def _verdict_cells(check: MachineCheck) -> tuple[Value, ...]:
    return check.name, Cell(check.verdict, TONES[check.verdict])


def _problem_row(check: MachineCheck) -> tuple[Value, ...]:
    """A row for a check that is not ok, with the first sentence of what it found."""
    sentence, _, _ = check.found.partition(". ")
    remedy = "type the line below" if check.command else check.remedy
    return *_verdict_cells(check), cut(sentence, FOUND), remedy


def proof_page(proof: Chain) -> Page:
    """Show whether each link of the chain works."""
    broken = ", ".join(link.name for link in proof.links if not link.ok)
    verdict = f"All {len(proof.links)} links of the chain hold"
    tone: Tone = "good"
    command = Next.of("run", "--", *UNKNOWN)
    if broken:
        verdict = f"FAILED: {broken}"
        tone = "bad"
        command = Next.of("analyze", proof.run)
    where = "the GPUs of this machine"
    note = ""
    if proof.simulated:
        where = "simulated GPU"
        note = "Times are estimates: the GPU is simulated."
    heads = ("link", "", "evidence", "proves that")
    return Page(
        title="pgle doctor --prove",
        identity=("a small program", where, str(proof.run)),
        verdict=verdict,
        tone=tone,
        table=table(heads, map(_link_row, proof.links)),
        notes=(note,),
        way=to_way([command]),
    )


def _link_row(link: ChainLink) -> tuple[Value, ...]:
    """A row for a link of the chain: whether it works, and the evidence."""
    mark = Cell("ok", "good") if link.ok else Cell("FAILED", "bad")
    return link.name, mark, link.found, link.proves
