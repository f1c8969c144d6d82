"""`pgle report`: a page from whatever describes a run, as HTML, Markdown, JSON, a still picture or a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pgle.errors import UserError
from pgle.files import AnyPath, Progress, check_absent, write_files
from pgle.report.page import stored
from pgle.report.page.html import render
from pgle.report.page.markdown import markdown
from pgle.report.page.run_page import run_page
from pgle.report.page.value import Page
from pgle.report.text import near
from pgle.report.timeline.perfetto import render_trace
from pgle.report.timeline.picture import render_svg
from pgle.report.timeline.scene import Panel
from pgle.run.inputs.folder import STORED
from pgle.run.inputs.measured_step import Side
from pgle.run.inputs.traces import is_run_dir
from pgle.run.report import gather

PLACES = (STORED, f"rehearsal/{STORED}")  # where `rehearse` and `tune` leave the page of their folder
DEFAULT = "report.html"


def page_of(
    side: Side, other: Side | None = None, *, progress: Progress | None = None
) -> tuple[Page, tuple[Panel, ...]]:
    """The page of a run directory or of traces, and what its timeline shows; a stored page has no panels.

    Raises:
        UserError: the input is bad.
    """
    if len(side.inputs) == 1 and other is None:
        path = side.inputs[0]
        places = [path / name for name in PLACES] if path.is_dir() else [path] * (path.suffix == ".json")
        for place in places:
            if place.is_file():
                return stored.read_page(place), ()
    return run_page(gather(side, other, progress=progress))


def default_output(inputs: Sequence[AnyPath]) -> Path:
    """``report.html`` in the run directory, else here; the first name that is free."""
    first = inputs[0]
    folder = Path(first) if isinstance(first, Path) and is_run_dir(first) else Path()
    path = folder / DEFAULT
    number = 2
    while path.exists():
        path, number = folder / f"report-{number}.html", number + 1
    return path


def _drawn(panels: Sequence[Panel], path: AnyPath) -> Sequence[Panel]:
    if not panels:
        remedy = "use timeline.svg and timeline.trace.json of that folder, or report on the traces"
        raise UserError("cannot be made of a stored report", where=path, remedy=remedy)
    return panels


FORMS: dict[str, Callable[[Page, Sequence[Panel], AnyPath], str]] = {
    ".trace.json": lambda page, panels, path: render_trace(_drawn(panels, path)),
    ".html": lambda page, panels, path: render(page),
    ".md": lambda page, panels, path: markdown(page),
    ".svg": lambda page, panels, path: render_svg(_drawn(panels, path)),
    ".json": lambda page, panels, path: stored.as_json(page),
}
"""What is written, by how the file's name ends."""


def check_outputs(paths: Iterable[AnyPath], *, force: bool, inputs: Iterable[AnyPath]) -> None:
    """Refuse what cannot be written before anything is read.

    Raises:
        UserError: a name ends in no known way, or the file exists (without `force`).
    """
    given = tuple(inputs)
    for path in paths:
        if not path.name.endswith(tuple(FORMS)):
            raise UserError("is of no known form", where=path, remedy=f"choose a name that ends in {', '.join(FORMS)}")
        check_absent(path, force=force, inputs=given)


def write(page: Page, panels: Sequence[Panel], paths: Sequence[AnyPath], *, force: bool) -> tuple[str, ...]:
    """Write each file in its form, all or none; a line on each that was written."""
    makers = {path: next(form for end, form in FORMS.items() if path.name.endswith(end)) for path in paths}
    files = {path: make(page, panels, path) for path, make in makers.items()}
    write_files(dict(files), force=force)
    sizes = ((path, len(text.encode(errors="backslashreplace"))) for path, text in files.items())
    return tuple(
        f"wrote {near(path) if isinstance(path, Path) else path} ({size / 1e6:.2g} MB)" for path, size in sizes
    )


def short(page: Page, lines: Sequence[str]) -> Page:
    """Identity and verdict of a page that was written, and where it is."""
    return replace(page, table=None, notes=tuple(lines), actions=(), sections=(), warnings=())
