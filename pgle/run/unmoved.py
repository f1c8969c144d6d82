"""Find given flags that change nothing, by compiling the module without them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence

from pgle.errors import UserError
from pgle.run.compiler.compile import CompileResult
from pgle.run.compiler.session import Session
from pgle.run.rehearse_program import MODEL_OPTIONS
from pgle.xla.flags.catalogue import LHS, PROFILE_PATH, inert_flags
from pgle.xla.flags.text import COMMAND_BUFFER, FlagList, typed_flag

FOLDER = "unmoved"
MOST_ALONE = 4
"""Most flags that are tested one by one, if leaving out all of them changes something."""


def unmoved_warnings(
    session: Session, flags: Sequence[str], made: CompileResult
) -> list[str]:
    """Compile without the given flags. Return at most one line, which names the flags without
    effect.

    Args:
        session: the session that made `made`.
        flags: the given flags, as text.
        made: a schedule with all flags of the session's base, without a profile.
    """
    given = FlagList(tuple(map(typed_flag, flags)))
    explained = {
        LHS,
        MODEL_OPTIONS,
        PROFILE_PATH,
        COMMAND_BUFFER,
        *inert_flags(given, made.jaxlib),
    }
    asked = [
        name
        for name in given.effective()
        if name not in explained and not name.startswith("xla_dump_")
    ]
    search = _Search(session, made)
    try:
        found = search.without_effect(asked)
    except UserError:  # the program needs one of the flags
        return []
    finally:
        shutil.rmtree(session.base.dump_dir / FOLDER, ignore_errors=True)
    if not found:
        return []
    named = ", ".join(f"--{name}" for name in found)
    verb = "changes" if len(found) == 1 else "change"
    return [
        f"{named} {verb} neither this module nor its schedule: jaxlib {made.jaxlib} compiled it "
        "with and without, no profile given; at run time a flag may still act"
    ]


class _Search:
    """Compare compilations without some flags with the one that has all."""

    def __init__(self, session: Session, made: CompileResult) -> None:
        self._session = session
        self._made = made
        self._count = 0

    def without_effect(self, names: Sequence[str]) -> list[str]:
        """Return the names of flags whose absence changes nothing."""
        if not names or self._is_same_without(names):
            return list(names)
        if not 1 < len(names) <= MOST_ALONE:
            return []
        found: list[str] = []
        for name in names:
            if self._is_same_without([*found, name]):
                found.append(name)
        return found

    def _is_same_without(self, names: Collection[str]) -> bool:
        flags = [
            flag
            for flag in self._session.base.flags
            if typed_flag(flag).name not in names
        ]
        self._count += 1
        other = self._session.schedule(f"{FOLDER}/{self._count}", flags)
        return other.scheduled.computations == self._made.scheduled.computations
