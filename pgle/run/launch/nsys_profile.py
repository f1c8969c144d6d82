"""`nsys profile` around the user's command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pgle.errors import UserError
from pgle.run.ask.nsys import DOWNLOAD, find_importer, find_nsys
from pgle.run.experiment.directory import RankFiles

ENDED_BY_NSYS = 143
"""128 + SIGTERM: how a program ends that nsys stops after its capture range."""


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
