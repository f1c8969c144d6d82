"""A history of step times: a file of JSON lines to keep in a repository, its trends, and how much launches differ."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from pgle.errors import UserError
from pgle.files import TextLines, check_file
from pgle.next import HISTORY_ADD, HISTORY_SHOW, Next
from pgle.run.ask.machine import read_gpus, this_machine
from pgle.steps.estimate import LaunchSpread
from pgle.steps.series import LONGEST_S, SHORTEST_S, Side, check_runs, level_shift

MOST = 10**12  # runs or steps of an entry
NEAR = 0.2  # step times of a trend within this share of a run's may belong to the same program


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run, or several of one state, as kept."""

    time: str  # ISO 8601
    name: str  # of the workload
    hardware: str  # what it ran on; series of different hardware are never joined
    commit: str = ""  # of the program; empty if unknown
    median_s: Annotated[float, Meta(ge=SHORTEST_S, le=LONGEST_S)]  # median step time
    spread: Annotated[float, Meta(ge=0, le=1e9)] = 0.0  # half the distance of the quartiles, relative
    runs: Annotated[int, Meta(ge=1, le=MOST)] = 1  # how many
    steps: Annotated[int, Meta(ge=0, le=MOST)] = 0  # steady steps in all
    simulated: bool = False  # on the simulated GPU
    note: str = ""  # free text


@dataclass(frozen=True)
class Trend:
    """The entries of one name and hardware in order of time."""

    name: str
    hardware: str
    entries: tuple[Entry, ...]

    @property
    def present(self) -> tuple[Entry, ...]:
        """The entries since the last clear change of level."""
        entries = self.entries
        while (shift := level_shift(np.log([entry.median_s for entry in entries]))) is not None:
            entries = entries[shift[0] :]
        return entries

    @property
    def level_s(self) -> float:
        """The present level: the median of its step times."""
        return float(np.median([entry.median_s for entry in self.present]))

    @property
    def noise(self) -> float | None:
        """Standard deviation between launches at the present level, relative; None for a single entry.

        An entry of several runs counts as often. It includes what commits changed, if too little to be a change of
        level: rather too large than too small.
        """
        if len(self.present) < 2:
            return None
        logs = np.log([entry.median_s for entry in self.present])
        runs = np.array([entry.runs for entry in self.present], float)
        return math.sqrt(float((runs * (logs - np.average(logs, weights=runs)) ** 2).sum()) / (len(logs) - 1))


def make_entry(side: Side, **about: str) -> Entry:
    """The entry of the runs of a side.

    Args:
        about: its time, name and hardware, also commit and note.
    """
    check_runs(side.runs)
    figures = {"runs": len(side.runs), "steps": side.steps, "simulated": side.simulated}
    return Entry(median_s=side.median_s, spread=side.spread, **figures, **about)  # type: ignore[arg-type]


def make_trends(entries: Iterable[Entry], *, name: str | None = None, hardware: str | None = None) -> tuple[Trend, ...]:
    """The entries by name and hardware, in order of time (as recorded where equal)."""
    chosen = [entry for entry in entries if name in (None, entry.name) and hardware in (None, entry.hardware)]
    if not chosen:
        raise UserError("no entry matches", where="--name, --hardware", remedy=f"see {HISTORY_SHOW} without them")
    chosen.sort(key=lambda entry: (entry.name, entry.hardware, entry.time))
    groups = groupby(chosen, key=lambda entry: (entry.name, entry.hardware))
    return tuple(Trend(*key, tuple(group)) for key, group in groups)


def measured_spread(trends: Iterable[Trend], median_s: float, *, simulated: bool, source: str) -> LaunchSpread:
    """By how much launches differ, from the trend whose present level is nearest to `median_s`."""
    known = [trend for trend in trends if trend.entries[-1].simulated == simulated]
    nearest = min(known, key=lambda trend: abs(math.log(median_s / trend.level_s)), default=None)
    if nearest is None or abs(math.log(median_s / nearest.level_s)) > math.log1p(NEAR):
        listed = ", ".join(f"{trend.name} on {trend.hardware} ({trend.level_s:.4g} s)" for trend in known) or "none"
        what = f"no trend has step times near {median_s:.4g} s (it has: {listed})"
        raise UserError(what, where=source, remedy=f"add runs of this program with {HISTORY_ADD}")
    if nearest.noise is None:
        what = f"{nearest.name} has too few entries at one level to show how launches differ"
        raise UserError(what, where=source, remedy=f"add more runs with {HISTORY_ADD}")
    what = f"{len(nearest.present)} entries of {nearest.name} on {nearest.hardware} in {source}"
    return LaunchSpread(nearest.noise, len(nearest.present) - 1, what)


_OTHER = "choose another --file"


def add(path: Path, entry: Entry) -> None:
    """Append an entry; a missing file is made. Another kind of file is left as it is."""
    is_new = not path.exists()
    line = json.dumps(asdict(entry), ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    if not is_new and not path.is_file():
        raise UserError("is not a file", where=path, remedy=_OTHER)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            with suppress(OSError):  # some file systems cannot lock
                fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if size:
                read(path)  # refuses any other file
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            try:
                if file.write(line) < len(line):
                    raise OSError("the disk is full")
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        with suppress(OSError):
            if is_new and path.stat().st_size == 0:
                path.unlink()
        raise UserError(f"cannot be written ({error.strerror or error})", where=path, remedy=_OTHER) from None


def read(path: Path) -> tuple[list[Entry], list[str]]:
    """The entries in the order kept, and a line for each that cannot be read."""
    add_to = Next.of("history", "add", "RUN", "--file", path, "--name", "NAME")
    if not path.exists():
        raise UserError("no such history", where=path, remedy=add_to)
    if not path.is_file():
        raise UserError("is not a file", where=path, remedy=_OTHER)
    check_file(path)
    entries: list[Entry] = []
    warnings: list[str] = []
    for number, line in enumerate(TextLines(path, f"a history is JSON lines; {_OTHER}"), 1):
        if not line.strip():
            continue
        try:
            entries.append(msgspec.convert(json.loads(line), Entry, strict=False))
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else error
            warnings.append(f"{path}: entry {number} could not be read ({reason})")
    if warnings and not entries:
        raise UserError("is not a history of pgle", where=path, remedy=_OTHER)
    if not entries:
        raise UserError("holds no entry", where=path, remedy=add_to)
    return entries, warnings


def hardware_name() -> str:
    """The GPUs of this host as a name for files and keys, such as ``8x-nvidia-h100-80gb-hbm3``; ``no-gpu``."""
    gpus = read_gpus(this_machine())
    if not gpus:
        return "no-gpu"
    slug = "".join(sign if sign.isalnum() else "-" for sign in gpus[0].name.lower()).strip("-")
    return f"{len(gpus)}x-{slug}"
