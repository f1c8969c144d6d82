"""The manifest of a run directory: what was run, with what, and what came out of it.

Every rank writes a file of its own (``manifest.json`` for rank 0, ``manifest.rank0003.json`` for others), whole or not
at all; reading merges them. `StageRecord.environment` and `argv` come from
`pgle.run.launch.masking`: nothing secret is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes, sha256, write_files
from pgle.xla.flags.text import parse_flags, same_value

SCHEMA = "pgle.manifest/1"
EXPECTED_TO_DIFFER = frozenset(
    {
        "xla_gpu_enable_latency_hiding_scheduler",
        "xla_gpu_enable_analytical_sol_latency_estimator",
        "xla_gpu_disable_async_collectives",
        "xla_gpu_enable_command_buffer",
        "xla_gpu_pgle_profile_file_or_directory_path",
        "xla_gpu_pgle_accuracy_checker",
        "xla_dump_to",
        "xla_dump_hlo_as_proto",
        "xla_dump_hlo_as_text",
        "xla_dump_latency_hiding_schedule",
    }
)
"""Flags by which a profile run and a performance run of one program differ."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that a stage read or wrote; `path` is relative to the run directory where it lies inside."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver names it."""

    name: str
    driver: str = ""
    memory_mib: int = 0
    compute_capability: str = ""


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage on one rank.

    Attributes:
        stage: ``profile``, ``convert``, ``baseline``, ``perf`` …
        rank: of the process, 0 where there is one.
        ranks: how many there are.
        mode: of the flags, such as ``sync``.
        argv: the user's command, masked.
        xla_flags: the whole XLA_FLAGS of the child.
        environment: allowed variables of the child, masked.
        versions: by package, ``python`` too.
        gpus: of this host.
        topology: what is known of hosts, processes and devices, by name.
        host: its name.
        started: ISO time in UTC.
        ended: ISO time in UTC; empty while it runs.
        exit_code: of the command; None while it runs.
        inputs: files read.
        outputs: files written.
        warnings: as printed.
        facts: results of the stage, by name, JSON types only.
    """

    stage: str
    rank: int = 0
    ranks: int = 1
    mode: str = ""
    argv: tuple[str, ...] = ()
    xla_flags: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    topology: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""
    started: str = ""
    ended: str = ""
    exit_code: int | None = None
    inputs: tuple[FileRecord, ...] = ()
    outputs: tuple[FileRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All stages of a run directory, in the order they started, then by rank."""

    stages: tuple[StageRecord, ...] = ()

    def of(self, stage: str) -> tuple[StageRecord, ...]:
        """The records of one stage, every rank; of repeated runs each rank's last."""
        last = {record.rank: record for record in self.stages if record.stage == stage}
        return tuple(last[rank] for rank in sorted(last))

    def last(self, stage: str) -> StageRecord | None:
        """The record of a stage on the lowest rank; None where it did not run."""
        return next(iter(self.of(stage)), None)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something in which two stages differ that should not.

    Attributes:
        what: such as ``jaxlib`` or ``--xla_gpu_autotune_level``.
        first: the value in the first stage, ``unset`` where it has none.
        second: the value in the second.
        consequence: what follows.
    """

    what: str
    first: str
    second: str
    consequence: str

    def line(self) -> str:
        """One line."""
        return f"{self.what} differs: {self.first} and {self.second}; {self.consequence}"


def read_manifest(run_dir: AnyPath) -> Manifest:
    """The merged manifest of a run directory; empty where there is none yet.

    Raises:
        UserError: a file is damaged or written by a newer pgle.
    """
    records = [record for path in _files(run_dir) for record in _load(path)]
    return Manifest(tuple(sorted(records, key=lambda record: (record.started, record.rank))))


def extend_manifest(run_dir: AnyPath, record: StageRecord) -> None:
    """Add a record, or replace the one of the same stage, rank and start (a stage that has now ended).

    Safe among ranks, which write different files, and among processes of one rank on a local file system.

    Raises:
        UserError: the file cannot be read or written.
    """
    path = run_dir / _name(record.rank)
    with _locked(path):
        before = _load(path) if path.exists() else []
        key = (record.stage, record.rank, record.started)
        kept = [item for item in before if (item.stage, item.rank, item.started) != key]
        entries = [asdict(item) for item in (*kept, record)]
        text = json.dumps({"schema": SCHEMA, "stages": entries}, indent=2, ensure_ascii=False) + "\n"
        write_files({path: text}, force=True)


def record_file(path: AnyPath, run_dir: AnyPath) -> FileRecord:
    """Path, hash and size of a file."""
    data = path.read_bytes()
    text = str(path)
    if isinstance(path, Path) and isinstance(run_dir, Path) and path.resolve().is_relative_to(run_dir.resolve()):
        text = path.resolve().relative_to(run_dir.resolve()).as_posix()
    return FileRecord(text, sha256(data), len(data))


def same_program(first: StageRecord, second: StageRecord) -> tuple[Mismatch, ...]:
    """In what two stages differ so that the costs of one need not fit the other.

    Compared are versions, command, flags (but `EXPECTED_TO_DIFFER`), GPUs, driver and number of ranks.
    """
    found: list[Mismatch] = []
    for name in sorted({*first.versions, *second.versions}):
        found += _differs(name, first.versions.get(name), second.versions.get(name), _BY_VERSION.get(name, _MAY))
    found += _differs("command", " ".join(first.argv), " ".join(second.argv), "the program may not be the same")
    mine, theirs = (parse_flags(record.xla_flags).effective() for record in (first, second))
    for name in sorted({*mine, *theirs} - EXPECTED_TO_DIFFER):
        if name not in mine or name not in theirs or not same_value(mine[name], theirs[name]):
            found += _differs(
                f"--{name}", _value(mine, name), _value(theirs, name), "names and fingerprints may change"
            )
    found += _differs("GPU", _gpus(first), _gpus(second), "costs do not carry over")
    found += _differs("driver", _drivers(first), _drivers(second), "costs may differ")
    found += _differs("number of ranks", str(first.ranks), str(second.ranks), "the modules are not the same")
    return tuple(found)


_MAY = "costs or names may differ"
_BY_VERSION = {
    "python": "seldom matters",
    "jax": "the program that XLA gets may differ",
    "jaxlib": "names and fingerprints differ: profile again",
    "protobuf": "seldom matters",
    "numpy": "seldom matters",
} | dict.fromkeys(
    ("jax-cuda12-pjrt", "jax-cuda13-pjrt", "jax-cuda12-plugin", "jax-cuda13-plugin"),
    "names and fingerprints differ: profile again",
)


def _differs(what: str, first: str | None, second: str | None, consequence: str) -> list[Mismatch]:
    return [] if first == second else [Mismatch(what, first or "unset", second or "unset", consequence)]


def _value(values: Mapping[str, str | None], name: str) -> str | None:
    if name not in values:
        return None
    value = values[name]
    return "true" if value is None else value or "(empty)"


def _gpus(record: StageRecord) -> str:
    names = [gpu.name for gpu in record.gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))


def _drivers(record: StageRecord) -> str:
    return ", ".join(sorted({gpu.driver for gpu in record.gpus}))


def _name(rank: int) -> str:
    return "manifest.json" if rank == 0 else f"manifest.rank{rank:04d}.json"


def _files(run_dir: AnyPath) -> list[AnyPath]:
    return [path for path in (run_dir / "manifest.json",) if path.exists()] + sorted(
        run_dir.glob("manifest.rank*.json")
    )


def _load(path: AnyPath) -> list[StageRecord]:
    try:
        document = json.loads(read_bytes(path))
        if document["schema"] != SCHEMA:
            what = f"is of schema {document['schema']}, not {SCHEMA}"
            raise UserError(what, where=path, remedy="use the pgle that wrote it")
        return [_record(entry) for entry in document["stages"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            "is not a manifest of pgle", where=path, remedy="move it away and run the stage again"
        ) from None


def _record(entry: Mapping[str, Any]) -> StageRecord:
    names = {item.name for item in fields(StageRecord)}
    record = StageRecord(**{name: value for name, value in entry.items() if name in names})
    return replace(
        record,
        argv=tuple(record.argv),
        warnings=tuple(record.warnings),
        gpus=tuple(Gpu(**gpu) for gpu in entry.get("gpus", ())),
        inputs=tuple(FileRecord(**item) for item in entry.get("inputs", ())),
        outputs=tuple(FileRecord(**item) for item in entry.get("outputs", ())),
    )


@contextmanager
def _locked(path: AnyPath) -> Iterator[None]:
    """Hold the lock of a manifest file; object stores have none."""
    if not isinstance(path, Path):
        yield
        return
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".manifest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
