"""Which of the schedules in the folder of an answer is the step as it is now."""

from __future__ import annotations

from pgle.files import AnyPath
from pgle.run.directory.directory import STORED

PLACES = (STORED, f"rehearsal/{STORED}")
"""Where `rehearse` and `tune` leave the page of their folder."""

_NOW = ("default", "baseline", "all-passes")
"""Folders of the schedule that the user's flags make: the first that is there is the answer's."""


def page_of_answer(path: AnyPath) -> AnyPath | None:
    """The page in the folder of a rehearsal or of a search; None if a path is no such folder."""
    pages = (path / place for place in PLACES)
    return next((page for page in pages if page.is_file()), None)


def schedule_now(path: AnyPath) -> AnyPath:
    """The folder of the step as it is now, if a path is the folder of a rehearsal or of a search.
    All else that these compiled is compared with that step. Of another path the path itself.
    """
    page = page_of_answer(path)
    folders = [page.parent / name for name in _NOW] if page is not None else []
    return next((folder for folder in folders if folder.is_dir()), path)
