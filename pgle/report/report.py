"""`pgle report`: a page from whatever describes a run, as HTML, Markdown, JSON, text, a still picture or a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pgle.errors import UserError
from pgle.files import AnyPath, Progress, check_absent, write_files
from pgle.report import json
from pgle.report.page import stored
from pgle.report.page.html import render
from pgle.report.page.parts import Page
from pgle.report.page.plain import markdown
from pgle.report.page.run_page import run_page
from pgle.report.text import say
from pgle.report.timeline.perfetto import render_trace
from pgle.report.timeline.picture import render_svg
from pgle.report.timeline.scene import Panel
from pgle.run.inputs.folder import STORED
from pgle.run.inputs.measured_step import Side
from pgle.run.report import gather

BESIDE = (STORED, f"rehearsal/{STORED}")  # where the page of a folder of `rehearse` or `tune` is stored


def page_of(side: Side, *, progress: Progress | None = None) -> Page:
    """The page of a run directory or of traces; a stored one as it was stored.

    Raises:
        UserError: the input is bad.
    """
    if len(side.inputs) == 1:
        path = side.inputs[0]
        places = [path / name for name in BESIDE] if path.is_dir() else [path] * (path.suffix == ".json")
        for place in places:
            if place.is_file():
                return stored.read_page(place)
    return run_page(gather(side, progress=progress))


def _panels(page: Page, path: AnyPath) -> Sequence[Panel]:
    if page.timeline is None or not page.timeline.panels:
        remedy = "timeline.svg and timeline.trace.json lie beside it" if page.timeline else "it has no timeline"
        raise UserError("cannot be made of a stored report", where=path, remedy=remedy)
    return page.timeline.panels


def _window(page: Page) -> tuple[float, float] | None:
    """The part of time that the page shows first; None: all."""
    return (0.0, page.timeline.first_us) if page.timeline and page.timeline.first_us else None


FORMS: dict[str, Callable[[Page, AnyPath], str]] = {
    ".trace.json": lambda page, path: render_trace(_panels(page, path)),
    ".html": lambda page, path: render(page),
    ".md": lambda page, path: markdown(page),
    ".svg": lambda page, path: render_svg(_panels(page, path), _window(page)),
    ".json": lambda page, path: stored.as_json(page),
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


def write(page: Page, paths: Sequence[AnyPath], *, force: bool) -> None:
    """Write each file in its form, all or none; say on stderr what was written."""
    files = {path: next(form for end, form in FORMS.items() if path.name.endswith(end))(page, path) for path in paths}
    write_files(dict(files), force=force)
    for path, text in files.items():
        size = len(text.encode(errors="backslashreplace"))
        say(f"wrote {path} ({size / 1e6:.2g} MB)")


def show_json(page: Page) -> None:
    """``pgle.report/1``."""
    json.show(stored.SCHEMA, stored.document(page))
