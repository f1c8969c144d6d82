"""What every function of the library returns: an answer, with its page and its document."""

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
    """What a command answers. A notebook shows its page, with the moving timeline; a terminal shows
    its text.
    """

    result: Result  # the values behind it
    page: Page  # what the command prints
    # what the command prints with ``--json``, by the schema of docs/schemas
    document: Json
    ok: bool  # whether the command's check is met, so that it exits with 0
    exit_code: int = 1  # that it exits with if the check is not met

    def __getitem__(self, key: str) -> Any:
        """A field of the JSON document: ``answer["step_us"]``."""
        return self.document[key]

    def to_json(self) -> str:
        """The JSON document as text."""
        return text.as_json(self.document["schema"], self.document)

    def save(self, path: StrPath, *, force: bool = False) -> None:
        """Write the page, by the end of the file's name: ``.html``, ``.md``; ``.json`` for the
        document; ``.trace.json`` or ``.json.gz`` for its timeline, which Perfetto opens.

        Raises:
            UserError: the name ends otherwise, the page has no timeline, or the file exists
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
        """The page in a frame of its own."""
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
    """The answer of a command, whose name is in the document's schema. The document ends in how
    the page leads on: commands, or the end in words, a line each.
    """
    named = {"schema": f"pgle.{command}/{version}", **text.plain(document)}
    named["next"] = page.way.lines
    return Answer(result, page, named, ok, exit_code)


def keep_met(run: RunDirectory | None, bounds: Bounds) -> None:
    """Keep bounds that a profile meets for later answers on its run directory, if somebody asked
    for others than the default.

    Args:
        run: None: the profile is of none, and nothing is kept.
        bounds: what it had to cover.
    """
    if run is None:
        return
    from pgle.run.directory.manifest import keep_bounds
    from pgle.xla.log.verdict import BOUNDS

    if bounds != BOUNDS:
        keep_bounds(run.path, bounds.time, bounds.collectives)
