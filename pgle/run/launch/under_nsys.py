"""The user's program under `nsys profile`: its words, its start, and what its end means."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pgle.errors import UserError
from pgle.run.ask.nsys import DOWNLOAD, find_importer, find_nsys
from pgle.run.experiment.directory import RankFiles
from pgle.run.launch.evidence import BLOCK_BYTES
from pgle.xla.log.wordings import NSYS_NOT_READY

ENDED_BY_NSYS = 143  # 128 + SIGTERM: how a program ends that nsys stops after its capture range


def nsys_command(command: Sequence[str], report: Path) -> tuple[str, ...]:
    """The words that run a command under nsys.

    CUDA and NVTX only: the default adds OS calls and OpenGL, which make reports large. The window is the CUDA profiler
    range that the hook opens; ``stop`` lets the program go on after it, where the default would end it.

    Args:
        command: the user's words.
        report: path of the report without suffix.

    Raises:
        UserError: nsys is not installed.
    """
    nsys = find_nsys()
    if nsys is None:
        raise UserError("nsys is not installed", where="--capture nsys", remedy=f"use --capture jax, or see {DOWNLOAD}")
    return (
        str(nsys.path), "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--force-overwrite=true",
        "--output", str(report), *command,
    )  # fmt: skip


OWN_FAILURE = 1  # the exit code of nsys where it failed itself
NSYS_STARTS = 8  # how often nsys is started where it fails before the program runs; a third fails on a busy machine


def start_nsys(start: Callable[[], int], files: RankFiles) -> tuple[int, tuple[str, ...]]:
    """Run the program under nsys; again where nsys failed before the program ran.

    Args:
        start: runs `nsys profile` and gives its exit code.
        files: of the rank that is traced.

    Returns:
        The program's exit code, and warnings.

    Raises:
        UserError: nsys failed each time.
    """
    for failures in range(NSYS_STARTS):
        before = files.log.stat().st_size if files.log.exists() else 0
        code = start()
        if code != OWN_FAILURE or files.seen.exists() or not _is_not_ready(files.log, before):
            code, warnings = judge_end(code, files)
            again = f"nsys failed before it ran the program ({NOT_READY}); start {failures + 1} of {NSYS_STARTS} ran it"
            return code, (*warnings, again) if failures else warnings
        if failures + 1 < NSYS_STARTS:
            os.truncate(files.log, before)  # else its words would mix with the log of the start that ran the program
    raise UserError(
        f"nsys failed {NSYS_STARTS} times before it ran the program ({NOT_READY}; see {files.log})",
        where="--capture nsys",
        remedy="start it again when this machine has less to do, install a newer nsys, or use --capture jax",
    )


NOT_READY = "sem_open: No such file or directory, a race inside nsys on a busy machine"


def _is_not_ready(log: Path, start: int) -> bool:
    """Whether nsys says in a log, from a byte on, that it failed before the program ran."""
    with log.open("rb") as file:
        file.seek(start)
        return NSYS_NOT_READY.search(file.read(BLOCK_BYTES).decode(errors="replace")) is not None


def judge_end(code: int, files: RankFiles) -> tuple[int, tuple[str, ...]]:
    """The program's exit code as nsys passes it on, and warnings about the report.

    Args:
        code: of `nsys profile`.
        files: of the rank that was traced.
    """
    left = files.report.with_suffix(".qdstrm")
    warnings = []
    if left.exists() and not files.report.exists():
        how = "does" if find_importer() else "needs QdstrmImporter for it, which is not installed here"
        warnings.append(f"nsys left {left} and could not import it; 'pgle convert' {how}")
    if code == ENDED_BY_NSYS and files.report.exists():
        return 0, (*warnings, "nsys ended the program after its capture range (exit code 143); the report is whole")
    return code, tuple(warnings)


def is_readable(files: RankFiles) -> bool:
    """Whether a profiler left a trace that can be read here; the raw recordings of nsys need its importer."""
    return any(path.suffix != ".qdstrm" or find_importer() for path in files.traces())
