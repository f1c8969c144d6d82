"""The files that a comparison can leave: HTML, picture, JUnit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pgle.errors import UserError
from pgle.files import AnyPath, check_absent, write_files
from pgle.steps.compare import Comparison
from pgle.steps.gate import Check


def write_reports(
    found: Comparison,
    checks: Sequence[Check],
    *,
    html: Path | None = None,
    picture: Path | None = None,
    junit: Path | None = None,
    force: bool = False,
) -> tuple[Path, ...]:
    """Write what was asked for, all or nothing; the paths written.

    Raises:
        UserError: a file exists (without `force`), cannot be written, or the picture is neither SVG nor PNG.
    """
    wanted = tuple(path for path in (html, picture, junit) if path is not None)
    for path in wanted:
        check_absent(path, force=force)
    files: dict[AnyPath, bytes | str] = {}
    if html is not None:
        from pgle.report.compare_html import page

        files[html] = page(found, checks)
    if picture is not None:
        from pgle.report.compare_plot import plot

        if picture.suffix not in (".svg", ".png"):
            raise UserError("neither .svg nor .png", where=picture, remedy="choose one of these")
        files[picture] = plot(found, picture.suffix[1:])
    if junit is not None:
        from pgle.report.junit import xml

        files[junit] = xml(found, checks)
    if files:
        write_files(files, force=force)
    return wanted
