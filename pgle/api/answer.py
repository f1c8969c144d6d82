"""The result of every function of the library: an answer, with its page and its JSON document."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgle.checks import check_switch
from pgle.files import Json, as_path, write_files
from pgle.report import text
from pgle.report.page import plain
from pgle.report.page.value import Page
from pgle.requests.given import StrPath

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from pgle.run.directory.directory import RunDirectory
    from pgle.xla.log.verdict import Bounds

R = TypeVar("R")
Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, eq=False, repr=False)
class Answer(Generic[Result]):
    """The answer of a command. A notebook shows its page, with the moving timeline; a terminal
    shows its text.
    """

    result: Result  # the values behind it
    page: Page  # what the command prints
    # the object that the command prints with ``--json``; docs/schemas has its schema
    document: Json
    ok: bool  # whether the command's check succeeded; if so, it exits with 0
    exit_code: int = 1  # exit code if the check failed

    def __getitem__(self, key: str) -> Any:
        """A field of the JSON document: ``answer["step_us"]``."""
        return self.document[key]

    def to_json(self) -> str:
        """The JSON document as text."""
        return text.as_json(self.document["schema"], self.document)

    def save(self, path: StrPath, *, force: bool = False) -> None:
        """Write a file, whose ending decides the format. ``.html`` and ``.md`` hold the page,
        ``.json`` the document. ``.trace.json`` and ``.json.gz`` hold the timeline for Perfetto.

        Raises:
            UserError: the ending is another one, the page has no timeline, or the file exists
                (without `force`).
        """
        from pgle.report.report import FORMS, form_of

        file = as_path(path)
        ending = form_of(file)
        check_switch("force", force)
        content = self.to_json() if ending == ".json" else FORMS[ending](self.page)
        write_files({file: content}, force=force)

    def __repr__(self) -> str:
        with redirect_stdout(StringIO()) as printed:
            plain.show(self.page)
        return printed.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the page in its own frame, for IPython."""
        from pgle.report.page.html import frame

        return frame(self.page)


def answer(
    command: str,
    result: R,
    page: Page,
    document: DataclassInstance,
    ok: bool = True,
    version: int = 1,
    exit_code: int = 1,
) -> Answer[R]:
    """Make the answer of a command. The document's schema has the command's name. The document ends
    with the next commands, or with a sentence if no command follows.
    """
    named = {"schema": f"pgle.{command}/{version}", **text.plain(document)}
    named["next"] = page.way.lines
    return Answer(result, page, named, ok, exit_code)


def keep_met(run: RunDirectory | None, bounds: Bounds) -> None:
    """Record that a profile meets bounds other than the default, for later answers on its run
    directory.

    Args:
        run: the run directory of the profile; if None, nothing is recorded.
        bounds: the least coverage that was asked for.
    """
    if run is None:
        return
    from pgle.run.directory.manifest import keep_bounds
    from pgle.xla.log.verdict import BOUNDS

    if bounds != BOUNDS:
        keep_bounds(run.path, bounds.time, bounds.collectives)
