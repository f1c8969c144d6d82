"""What a part is told, and the programs that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.meters import GpuMeter, Meter, SimulatedMeter
from benchmarks.gpu.results import Results

ROOT = Path(__file__).parents[2]
KEPT = (".json", ".jsonl", ".pbtxt", ".log", ".xplane.pb", ".hlo.pb", ".schedule.pb")
"""How files of a run directory end that are recorded."""
LOOK_S = 2.0  # between two looks at a file
MOST_FILE = 32 << 20  # bytes; larger ones are named and left out


@dataclass(frozen=True)
class Bench:
    """Where a part runs."""

    simulated: bool  # whether there is no GPU
    target: str  # the GPU by pgle's name for it
    work: Path  # folder for what is not kept
    out: Path  # folder of the archives

    def meter(self) -> Meter:
        """How cases are measured here."""
        return SimulatedMeter(self.target, self.work) if self.simulated else GpuMeter()

    @property
    def capture(self) -> str:
        """The profiler of pgle's commands."""
        return "simulated" if self.simulated else "jax"


@dataclass(frozen=True)
class Done:
    """A program that ended."""

    code: int
    output: str  # stdout
    errors: str  # stderr


def start(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Done:
    """Run a command with this Python's environment and more variables."""
    done = subprocess.run(
        command,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def watched(words: Sequence[str], on_change: Callable[[], None], file: Path) -> Done:
    """Run a command of pgle, and call `on_change` each time that a file has changed, and at the
    end.
    """
    command = (sys.executable, "-m", "pgle", *words)
    seen_ns = 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=output, stderr=errors)
        while True:
            try:
                child.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                written_ns = file.stat().st_mtime_ns if file.is_file() else 0
                if written_ns != seen_ns:
                    seen_ns = written_ns
                    on_change()
                continue
            break
        on_change()
        output.seek(0)
        errors.seek(0)
        return Done(child.returncode, output.read(), errors.read())


def pgle(words: Sequence[str], variables: Mapping[str, str] | None = None) -> Done:
    """Run a command of pgle."""
    return start((sys.executable, "-m", "pgle", *words), variables)


def last_line(done: Done) -> str:
    """What a program said last, of its errors if there are some."""
    said = done.errors.strip() or done.output.strip()
    return said.splitlines()[-1][:300] if said else f"exit code {done.code}"


def record_folder(folder: Path, name: str, results: Results) -> None:
    """Record the files of a run directory, the smallest first, and write the archive."""
    for size, path in sorted(_sizes(folder)):
        kept = f"{name}/{path.relative_to(folder)}".replace("/", "--")
        if size > MOST_FILE:
            results.left_out.add(kept)
            continue
        try:
            results.keep(kept, path.read_bytes())
        except (OSError, ValueError):  # it is being written, or has gone
            continue
    results.write(complete=False)


def _sizes(folder: Path) -> Iterable[tuple[int, Path]]:
    """The files with their sizes in bytes; one may go while they are listed."""
    for path in _files(folder):
        with suppress(OSError):
            yield path.stat().st_size, path


def _files(folder: Path) -> Iterable[Path]:
    for path in folder.rglob("*"):
        is_early = "before_" in path.name or "after_spmd_partitioner" in path.name
        if (
            path.is_file()
            and not path.is_symlink()
            and path.name.endswith(KEPT)
            and not is_early
        ):
            yield path
