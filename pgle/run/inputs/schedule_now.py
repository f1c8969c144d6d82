"""Choose the schedule of the present step in the folder of an answer."""

from __future__ import annotations

from pgle.files import AnyPath
from pgle.run.directory.directory import STORED

PLACES = (STORED, f"rehearsal/{STORED}")
"""Where `rehearse` and `tune` write the page of their folder."""

_NOW = ("default", "baseline", "all-passes")
"""Folders of the schedule compiled with the user's flags. The first that exists counts."""


def page_of_answer(path: AnyPath) -> AnyPath | None:
    """Return the page in the folder of a rehearsal or search; None if the path is not such a
    folder.
    """
    pages = (path / place for place in PLACES)
    return next((page for page in pages if page.is_file()), None)


def schedule_now(path: AnyPath) -> AnyPath:
    """Return the folder of the present step, if a path is the folder of a rehearsal or search; else
    the path. Other schedules in such a folder are only alternatives.
    """
    page = page_of_answer(path)
    folders = [page.parent / name for name in _NOW] if page is not None else []
    return next((folder for folder in folders if folder.is_dir()), path)
