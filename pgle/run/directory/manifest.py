"""The manifest of a run directory: commands, inputs and results.

It contains no credentials. Every rank writes its own file (``manifest.json`` for rank 0,
``manifest.rank0003.json`` for others), whole or not at all; reading merges them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TypedDict, get_args

import msgspec

from pgle.errors import UserError, some, with_counts
from pgle.files import Json, content_digest, is_bare, read_bytes, write_files
from pgle.requests.shared import Bounded
from pgle.run.directory.directory import (
    CAPTURE,
    CAPTURED,
    COMPARED,
    RunDirectory,
    StageName,
    free,
)
from pgle.xla.flags.text import parse_flags, same_value
from pgle.xla.vendors import VENDORS

SCHEMA = "pgle.manifest/1"
COMPARE = "compare"  # the stage that compares step times
MODELLED = "modelled_steps_us"
"""Fact of a simulated stage: the fields of `pgle.schedule.predict.Steps`."""


def now() -> str:
    """Return the present time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file, or a whole folder of files, that a stage read or wrote."""

    path: str  # relative to the run directory if it is inside; a folder's ends in ``/``
    sha256: str  # of the content; for a folder, of the names and contents in it
    size_bytes: int  # of all content


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver names it."""

    name: str
    driver: str = ""
    memory_mib: int = 0
    compute_capability: str = ""
    uuid: str = ""  # distinguishes GPUs of one kind


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage on one rank."""

    stage: str  # ``profile``, ``convert``, ``baseline``, ``perf`` …
    rank: int = 0  # rank of the process; 0 if there is only one
    ranks: int = 1  # number of ranks
    mode: str = ""  # mode of the flags, such as ``sync``
    argv: tuple[str, ...] = ()  # the user's command, masked
    # the whole XLA_FLAGS of the child, and jax's settings of effort
    xla_flags: str = ""
    # allowed variables of the child, masked
    environment: Mapping[str, str] = field(default_factory=dict)
    # by package, ``python`` too
    versions: Mapping[str, str] = field(default_factory=dict)
    # short commit of the working directory, with ``+`` if files have changes; empty without git
    commit: str = ""
    gpus: tuple[Gpu, ...] = ()  # GPUs of this host
    # facts about hosts, processes and devices, by name
    topology: Json = field(default_factory=dict)
    host: str = ""  # its name
    started: str = ""  # ISO time in UTC
    ended: str = ""  # ISO time in UTC; empty while it runs
    exit_code: int | None = None  # of the command; None while it runs
    inputs: tuple[FileRecord, ...] = ()  # files read
    # modules that the program imported from its working directory or its script's folder
    imported: tuple[FileRecord, ...] = ()
    outputs: tuple[FileRecord, ...] = ()  # files written
    warnings: tuple[str, ...] = ()  # as printed
    # results of the stage, by name, JSON types only
    facts: Json = field(default_factory=dict)
    # what was asked for, by option; if that changes, the stage runs again
    asked: Json = field(default_factory=dict)
    # why the stage missed its goal although the command ended with 0, such as a missing trace
    failed: str = ""
    # folder with the results of the last finished run, until this run has finished
    before: str = ""
    # folder with this run's files, if it failed and an earlier run counts instead
    aside: str = ""

    def __post_init__(self) -> None:
        """Refuse names outside the stage's own folders, because a later run would move them."""
        if not is_bare(self.stage):
            raise ValueError("a stage's folder must be in the run directory")
        own = re.escape(self.folder)
        is_own = re.fullmatch(rf"(?:{own}\.\d+)?", self.before) is not None
        was_own = re.fullmatch(rf"(?:{own}(?:\.\d+)?)?", self.aside) is not None
        has_folder = self.stage in (CAPTURE, *get_args(StageName))
        if not (is_own and was_own and (has_folder or not self.before)):
            raise ValueError("the folder before or aside is not one of the stage")

    @property
    def folder(self) -> str:
        """The name of its folder in the run directory."""
        return CAPTURED if self.stage == CAPTURE else self.stage

    @property
    def modelled_us(self) -> tuple[float, ...]:
        """Microseconds of a simulated step, likely and at the ends of its ranges.

        Empty if nothing was simulated.

        Raises:
            UserError: the manifest has invalid data there.
        """
        found = self.facts.get(MODELLED, [])
        numbers = isinstance(found, list) and all(
            isinstance(one, int | float) for one in found
        )
        if not numbers or any(not 0 < one < math.inf for one in found):
            raise UserError(
                f"{MODELLED} of {self.stage} is no list of times", where="manifest.json"
            )
        return tuple(map(float, found))

    @property
    def is_done(self) -> bool:
        """Whether the stage ended with code 0 and wrote its result."""
        return self.exit_code == 0 and not self.failed

    def why_changed(self, last: StageRecord) -> str:
        """Say what differs from the last run: options, inputs, or versions of jax, jaxlib and
        plugin. Empty if nothing differs, so that the last results still count.
        """
        # as a file keeps it: tuples are lists
        asked = json.loads(json.dumps(self.asked))
        for name in {**last.asked, **asked}:
            if last.asked.get(name) != asked.get(name):
                return f"its {name} has changed since its last run"
        for name, version in last.versions.items():
            present = self.versions.get(name, "gone")
            if name.startswith("jax") and present != version:
                return f"{name} is {present}, and was {version} in its last run"
        before = _digests(last.inputs)
        after = _digests(self.inputs)
        for path in {**before, **after}:
            if path not in after:
                return f"{path}, which its last run read, is gone"
            if before.get(path) != after[path]:
                return f"{path} is not what its last run read"
        return ""


def _digests(files: Iterable[FileRecord]) -> dict[str, str]:
    """The digest of each file, by its path."""
    return {item.path: item.sha256 for item in files}


@dataclass(frozen=True, slots=True)
class Manifest:
    """All stages of a run directory, in the order of writing, then by rank. Clocks may be set back,
    but this order stays.
    """

    stages: tuple[StageRecord, ...] = ()

    def of(self, stage: str) -> tuple[StageRecord, ...]:
        """Return the records of one stage, one per rank. For repeated runs it is the last whose
        files are in place.
        """
        last = {
            record.rank: record
            for record in self.stages
            if record.stage == stage and not record.aside
        }
        return tuple(last[rank] for rank in sorted(last))

    def last(self, stage: str) -> StageRecord | None:
        """Return the record of a stage on the lowest rank; None if it was not run."""
        return next(iter(self.of(stage)), None)

    def why_due(self, planned: StageRecord, run_dir: Path) -> str:
        """Say why a stage must run. Empty if it succeeded with the same inputs and options, and its
        files are unchanged.
        """
        record = self.last(planned.stage)
        if record is None:
            return "it has not been run yet"
        if record.exit_code is None:
            return "its last run did not end"
        if record.exit_code != 0:
            return f"its last run ended with exit code {record.exit_code}"
        if record.failed:
            return f"its last run failed: {record.failed}"
        if changed := planned.why_changed(record) or changed_import(record.imported):
            return changed
        for output in record.outputs:
            if not (run_dir / output.path).exists():
                return f"{output.path} is gone"
            if record_file(run_dir / output.path, run_dir) != output:
                return f"{output.path} has changed"
        return ""


def read_manifest(run_dir: Path) -> Manifest:
    """Read the merged manifest of a run directory; empty if there is none yet."""
    first = RunDirectory(run_dir).manifest()
    paths = [first] if first.exists() else []
    paths += sorted(run_dir.glob("manifest.rank*.json"))
    placed: list[tuple[int, StageRecord]] = []
    for path in paths:
        placed += enumerate(_load(path))
    placed.sort(key=lambda item: (item[0], item[1].rank))
    return Manifest(tuple(record for _, record in placed))


def extend_manifest(run_dir: Path, record: StageRecord) -> None:
    """Add a record, or replace the one of the same stage, rank and start (a stage that has now
    ended).

    Safe among ranks, which write different files, and among processes of one rank on a local file
    system.
    """
    path = RunDirectory(run_dir).manifest(record.rank)
    with _locked(path):
        before = _load(path) if path.exists() else []
        key = (record.stage, record.rank, record.started)
        kept = [item for item in before if (item.stage, item.rank, item.started) != key]
        # the record that was written last stays at the end
        stages = [asdict(item) for item in (*kept, record)]
        document = {"schema": SCHEMA, "stages": stages}
        text = json.dumps(document, indent=2, ensure_ascii=False)
        write_files({path: f"{text}\n"}, force=True)


def record_file(path: Path, run_dir: Path) -> FileRecord:
    """Path, hash and size of a file, or of a folder of them."""
    text = str(path)
    if path.resolve().is_relative_to(run_dir.resolve()):
        text = path.resolve().relative_to(run_dir.resolve()).as_posix()
    elif path.is_relative_to(run_dir):
        # a link to a file outside
        text = path.relative_to(run_dir).as_posix()
    if not path.is_dir():
        return FileRecord(text, *content_digest(path))
    digest = hashlib.sha256()
    total = 0
    for item in sorted(item for item in path.rglob("*") if item.is_file()):
        sha, size = content_digest(item)
        digest.update(f"{item.relative_to(path)}\0{sha}\n".encode())
        total += size
    return FileRecord(f"{text}/", digest.hexdigest(), total)


def imported_files(digests: Mapping[str, str]) -> tuple[FileRecord, ...]:
    """Records of the modules that a program imported.

    Args:
        digests: SHA-256 by absolute path, which the hook computed at the import. Paths below the
            working directory are recorded as relative, so that a checkout can move.
    """
    here = Path.cwd()
    found = []
    for name in sorted(digests):
        path = Path(name)
        size = path.stat().st_size if path.is_file() else 0
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        found.append(FileRecord(str(shown), digests[name], size))
    return tuple(found)


def changed_import(imported: Iterable[FileRecord]) -> str:
    """Name a module that the program imported and that has changed since; empty if none has."""
    for item in imported:
        path = Path(item.path)
        if not path.is_file():
            return f"{item.path}, which the program imports, is gone"
        if content_digest(path)[0] != item.sha256:
            return f"{item.path}, which the program imports, has changed"
    return ""


def _load(path: Path) -> list[StageRecord]:
    """Read the records of a file. `json` reads them, because names that are not UTF-8 must be
    kept.
    """
    try:
        document = json.loads(read_bytes(path))
        if document["schema"] != SCHEMA:
            raise UserError(
                f"is of schema {document['schema']}, not {SCHEMA}",
                where=path,
                remedy="use the pgle that wrote it",
            )
        records = msgspec.convert(document["stages"], list[StageRecord])
        for record in records:
            msgspec.convert({**record.facts, **record.asked}, _Reckoned)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            "is not a manifest of pgle",
            where=path,
            remedy="move it away and run the stage again",
        ) from None
    return records


class _Reckoned(TypedDict, total=False):
    """The types of the results and requests that later commands rely on."""

    command: list[str] | None
    verdict: str | None
    why: str | None
    module: str | None
    XLA_FLAGS: str | None
    capture: str | None
    change: float | None
    time_coverage: float | None
    kept_share: float | None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".manifest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def waiting(run: RunDirectory, stage: str, aside: str, *, force: bool) -> str:
    """Return the folder to restore if the new run of a stage fails: `aside`, if the run in it had
    finished. With `force` return nothing, because the user wants nothing from earlier runs.
    """
    last = read_manifest(run.path).last(stage)
    return aside if last is not None and last.is_done and not force else ""


def settle(run: RunDirectory) -> None:
    """Restore the results of finished runs whose successors were interrupted. The caller must hold
    `run`.
    """
    last = {
        record.stage: record
        for record in read_manifest(run.path).stages
        if record.rank == 0
    }
    for record in last.values():
        is_waiting = bool(record.before) and (run.path / record.before).exists()
        if record.is_done or not is_waiting:
            continue
        if record.exit_code is None:
            record = replace(record, failed="it did not end")
        put_back(run, record)


def put_back(run: RunDirectory, record: StageRecord) -> StageRecord:
    """Move a failed run's files aside, restore the finished run's files, and return that run's
    record.

    The record is written first, so that `settle` can finish the job after a kill.
    """
    folder = run.path / record.folder
    aside = run.path / (record.aside or free(folder, ".", 1).name)

    def moved(item: FileRecord) -> FileRecord:
        within = item.path.removeprefix(f"{folder.name}/")
        if within == item.path:  # it is not in the folder
            return item
        return replace(item, path=f"{aside.name}/{within}")

    record = replace(
        record, aside=aside.name, outputs=tuple(map(moved, record.outputs))
    )
    extend_manifest(run.path, record)
    if folder.is_symlink() or (folder.exists() and next(folder.iterdir(), None)):
        folder.rename(free(aside, ".", 1))
    elif folder.exists():
        folder.rmdir()
    (run.path / record.before).rename(folder)
    return record


EXPECTED_TO_DIFFER = re.compile(
    r"xla_dump_\w+|xla_gpu_(pgle_\w+|enable_latency_hiding_scheduler|"
    r"enable_analytical_sol_latency_estimator|disable_async_collectives|enable_command_buffer)"
)
"""Flags that differ between a profile run and a perf run of one program."""


_PLUGINS = chain.from_iterable(each.plugin.all_packages for each in VENDORS.values())
_MAY = "costs or names may differ"
_NAMES = "names and fingerprints differ: profile again"
_FOLLOWS = {
    **dict.fromkeys(("python", "protobuf", "numpy"), "seldom matters"),
    "jax": "the program that XLA gets may differ",
    "jaxlib": _NAMES,
    **dict.fromkeys(_PLUGINS, _NAMES),
    "command": "the program may not be the same",
    "GPU": "costs do not carry over",
    "driver": "costs may differ",
    "number of ranks": "the modules are not the same",
}
"""What a difference between two stages means, by the package or fact that differs."""


def same_program(first: StageRecord, second: StageRecord) -> tuple[str, ...]:
    """Say why the costs of one stage may not fit another: a line for each difference, with what it
    may change.

    It compares versions, command, flags (except `EXPECTED_TO_DIFFER`), GPUs, driver and number of
    ranks.
    """
    mine = _compared(first)
    theirs = _compared(second)
    packages = sorted({*first.versions, *second.versions})
    flags = sorted(name for name in {*mine, *theirs} if name.startswith("--"))
    found = []
    for name in (*packages, "command", *flags, "GPU", "driver", "number of ranks"):
        one = mine.get(name) or "unset"
        two = theirs.get(name) or "unset"
        if same_value(one, two):
            continue
        follows = _FOLLOWS.get(name, _MAY)
        if name.startswith("--"):
            follows = "names and fingerprints may change"
        found.append(f"{name} differs: {one} and {two}; {follows}")
    digests = _digests(first.imported)
    edited = [
        item.path
        for item in second.imported
        if digests.get(item.path, item.sha256) != item.sha256
    ]
    if edited:
        found.append(
            f"other code is imported ({some(edited, 3)}); {_FOLLOWS['command']}"
        )
    return tuple(found)


def _compared(record: StageRecord) -> dict[str, str]:
    """Return what `same_program` compares, in words, by name; flags by ``--name``."""
    found = {**record.versions, "command": " ".join(record.argv)}
    for name, value in parse_flags(record.xla_flags).effective().items():
        if not EXPECTED_TO_DIFFER.fullmatch(name):
            found[f"--{name}"] = "true" if value is None else value or "(empty)"
    found["GPU"] = with_counts(sorted(gpu.name for gpu in record.gpus))
    found["driver"] = ", ".join(sorted({gpu.driver for gpu in record.gpus}))
    found["number of ranks"] = str(record.ranks)
    return found


def is_compared(manifest: Manifest) -> bool:
    """Whether step times were compared after the last run of their stages."""
    stages = [record.stage for record in manifest.stages]
    timed = [stage for stage in stages if stage in (COMPARE, *COMPARED)]
    return timed[-1:] == [COMPARE]


VERIFY = "verify"  # the record with the coverage that a profile must reach


def kept_bounds(run_dir: Path) -> Bounded:
    """Return the coverage that a profile must reach in a run directory: what was last asked for,
    else the default.
    """
    with suppress(UserError, KeyError, TypeError, ValueError):
        record = read_manifest(run_dir).last(VERIFY)
        if record is not None:
            time, collectives = record.asked["time"], record.asked["collectives"]
            return Bounded(
                min_time_coverage=float(time), min_collectives=float(collectives)
            )
    return Bounded()


def keep_bounds(run_dir: Path, time: float, collectives: float) -> None:
    """Record the coverage that a profile must reach, if it changed. A manifest that cannot be
    written is not an error.
    """
    asked = Bounded(min_time_coverage=time, min_collectives=collectives)
    if asked == kept_bounds(run_dir):
        return
    record = StageRecord(
        VERIFY,
        started=now(),
        ended=now(),
        exit_code=0,
        asked={"time": time, "collectives": collectives},
    )
    with suppress(UserError, OSError):
        extend_manifest(run_dir, record)
