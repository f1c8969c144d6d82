"""The `nsys` program: where it is, what it can read, and exports of its reports.

Versions and messages come from nsys 2022.4 to 2026.4. A report is read by its own and by newer
versions of nsys.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pgle.errors import UserError
from pgle.files import read_head
from pgle.next import typed
from pgle.run.ask.programs import last_line, ran
from pgle.trace.nsys import REPORT_MAGIC

Version: TypeAlias = tuple[int, ...]

PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
)
"""Where the packages of NVIDIA and Debian install it, if it is not on the PATH."""

IMPORTER = "host-*/QdstrmImporter"
IMPORTERS = (f"/usr/lib/nsight-systems/{IMPORTER}",)
"""Where Debian installs the importer. Debian's nsys 2022.4.2 does not find it there, so each
recording stays a ``.qdstrm``. NVIDIA's packages have it next to ``bin``.
"""

# first version of `nsys export` known to have ``--tables``
TABLES_SINCE: Version = (2023, 4)

TABLES = (
    "StringIds,NVTX_EVENTS,CUPTI_ACTIVITY_KIND_.*,CUDA_GRAPH.*,ThreadNames,"
    "TARGET_INFO_.*,META_DATA_.*,ANALYSIS_DETAILS"
)
"""The tables that pgle reads. The rest (OS runtime calls, samples) can be most of a report."""

# stands for the format "1." of reports before 2023, which every later nsys reads
OLD_FORMAT: Version = (2022,)

DOWNLOAD = "https://developer.nvidia.com/nsight-systems"
INSTALL = f"install it ({DOWNLOAD}), or run `nsys export --type sqlite` where the report was made"


@dataclass(frozen=True, slots=True)
class Nsys:
    """An installed nsys."""

    path: Path  # the program
    version: Version  # (2023, 4, 4, 54); empty if unknown


def dotted(version: Version) -> str:
    """``2023.4.4.54``."""
    return ".".join(map(str, version)) or "of unknown version"


def installed() -> tuple[Nsys, ...]:
    """Return every installed nsys: the one on the PATH first, then the others, newest first."""
    on_path = shutil.which("nsys")
    others = _matches(PLACES)
    found: dict[Path, Nsys] = {}
    for place in ([Path(on_path)] if on_path else []) + others:
        if os.access(place, os.X_OK) and place.resolve() not in found:
            found[place.resolve()] = Nsys(place, _version_of(place))
    nsys = list(found.values())
    first = nsys[: bool(on_path)]
    rest = nsys[bool(on_path) :]
    return (*first, *sorted(rest, key=lambda nsys: nsys.version, reverse=True))


def find_nsys() -> Nsys | None:
    """Return the nsys to use: the one on the PATH, else the newest."""
    return next(iter(installed()), None)


def _version_of(program: Path) -> Version:
    try:
        done = ran([program, "--version"], timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"version (\d+(?:\.\d+)+)", done.stdout)
    return tuple(map(int, match[1].split("."))) if match else ()


def report_version(path: Path) -> Version:
    """Return the version of nsys that wrote a report, from its first bytes; `OLD_FORMAT` for all
    before 2023.
    """
    head = read_head(path, 200)
    if not head:
        raise UserError(
            "is empty", where=path, remedy="record again, and let `nsys profile` finish"
        )
    if not head.startswith(REPORT_MAGIC):
        raise UserError(
            "not an Nsight Systems report",
            where=path,
            remedy="give what `nsys profile -o` wrote",
        )
    match = re.match(rb" (\d{4})@(\d+)@(\d+)", head[len(REPORT_MAGIC) :])
    return tuple(map(int, match.groups())) if match else OLD_FORMAT


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """Yield the SQLite export of a ``.nsys-rep`` file, or of a ``.qdstrm`` file that nsys could not
    import.

    It is written to `TMPDIR`, and removed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="pgle-nsys-") as folder:
        report = _imported(path, Path(folder)) if path.suffix == ".qdstrm" else path
        version = report_version(report)
        nsys = _able(report, version)
        output = Path(folder) / f"{report.name.removesuffix('.nsys-rep')}.sqlite"
        command: list[str | Path] = [
            nsys.path,
            "export",
            "--type",
            "sqlite",
            "--quiet",
            "true",
            "--force-overwrite",
            "true",
        ]
        command += ["--tables", TABLES] if nsys.version >= TABLES_SINCE else []
        done = _run([*command, "--output", output, report], report)
        if done.returncode or not output.exists():
            raise _failure(report, nsys, version, done)
        yield output


def _able(path: Path, version: Version) -> Nsys:
    """Return an installed nsys that is not older than the report."""
    found = installed()
    if not found:
        raise UserError(
            "needs nsys, which is not installed", where=path, remedy=INSTALL
        )
    able = (
        nsys
        for nsys in found
        if not nsys.version or nsys.version >= version[: len(nsys.version)]
    )
    if nsys := next(able, None):
        return nsys
    raise _too_new(path, found[0], version)


def _too_new(path: Path, nsys: Nsys, version: Version) -> UserError:
    needed = (
        f"nsys >= {dotted(version[:3])}" if version != OLD_FORMAT else "a newer nsys"
    )
    return UserError(
        f"needs {needed}; installed is {dotted(nsys.version)}",
        where=path,
        remedy=INSTALL,
    )


def _imported(path: Path, folder: Path) -> Path:
    """Convert a raw ``.qdstrm`` file to a report with nsys's importer."""
    if not path.is_file():
        raise UserError("no such file", where=path, remedy="check the path")
    importer = find_importer()
    if importer is None:
        remedy = (
            f"install the full Nsight Systems package ({DOWNLOAD}); the command-line "
            "package lacks it"
        )
        raise UserError(
            "needs QdstrmImporter, which is not installed", where=path, remedy=remedy
        )
    report = folder / f"{path.stem}.nsys-rep"
    done = _run([importer, "--input-file", path, "--output-file", report], path)
    if done.returncode or not report.exists():
        raise UserError(
            f"cannot be imported ({_last_line(done)})",
            where=path,
            remedy="record again",
        )
    return report


def find_importer() -> Path | None:
    """Find QdstrmImporter on the PATH or next to an installed nsys."""
    on_path = shutil.which("QdstrmImporter")
    if on_path:
        return Path(on_path)
    for nsys in installed():
        for place in nsys.path.resolve().parent.parent.glob(IMPORTER):
            return place
    return next(iter(_matches(IMPORTERS)), None)


def _matches(patterns: Iterable[str]) -> list[Path]:
    """The paths that match absolute patterns, in the order of the patterns, then by name."""
    found: list[Path] = []
    for pattern in patterns:
        found += sorted(Path("/").glob(pattern.lstrip("/")))
    return found


def _run(command: Sequence[str | Path], path: Path) -> subprocess.CompletedProcess[str]:
    try:
        return ran(command)
    except OSError as error:
        raise UserError(
            f"{command[0]} does not start ({error.strerror or error})", where=path
        ) from None


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a program, without its progress bar."""
    lines = re.split(r"[\r\n]+", f"{done.stdout}\n{done.stderr}")
    bar = re.compile(r"\s*(Processing|Exporting)\b.*%")
    said = "\n".join(line for line in lines if not bar.match(line))
    return last_line(said, f"exit code {done.returncode}")[:200]


def _failure(
    path: Path, nsys: Nsys, version: Version, done: subprocess.CompletedProcess[str]
) -> UserError:
    """Explain a failed export by nsys's own words."""
    output = f"{done.stdout}\n{done.stderr}".lower()
    if re.search("version number is invalid|newer version|please update", output):
        return _too_new(path, nsys, version)
    if re.search("cannot read from stream|magic number|corrupt", output):
        return UserError(
            "damaged report",
            where=path,
            remedy="copy it again, or record again and let nsys finish",
        )
    if re.search("disk is full|no space|disk i/o error", output):
        remedy = (
            "set TMPDIR to a file system with more room (an export is about as large "
            "as the report)"
        )
        return UserError(
            f"no room for the export in {tempfile.gettempdir()}",
            where=path,
            remedy=remedy,
        )
    if done.returncode < 0:
        return UserError(
            f"nsys export was ended by signal {-done.returncode}",
            where=path,
            remedy="run it again",
        )
    what = f"nsys export failed with exit code {done.returncode} ({_last_line(done)})"
    again = typed("nsys", "export", "--type", "sqlite", path)
    return UserError(
        what, where=path, remedy=f"give the .sqlite file that this makes: {again}"
    )
