"""When XLA's scheduling passes may run alone: the states of one program.

XLA's passes before scheduling take most of a compilation. They read neither the profile nor the
scheduler's flags. So pgle keeps a program as it was before scheduling, and makes its schedules by
the scheduling passes alone, which is ten times faster. It names these passes itself
(`SCHEDULING_PASSES`). So it first checks that they make the schedule that all passes make.

| state | XLA compiles the program by | XLA makes a schedule by | next |
|---|---|---|---|
| `TRUSTED` | the passes before scheduling | the scheduling passes alone | `REFUSED` → `COMPILING` |
| `COMPILING` | all passes | nothing: the caller waits | `KEPT` → `CHECKING` |
| | | | `NOT_KEPT` → `WHOLE` |
| `CHECKING` | all passes; meanwhile the | the scheduling passes alone; | `SAME` → `EQUAL` |
| | scheduling passes alone, too | the caller waits for the check | `OTHER` → `WHOLE` |
| `EQUAL` | (compiled) | the scheduling passes alone | – |
| `WHOLE` | (compiled) | all passes | – |

A program begins as `TRUSTED` if an earlier program of the same jaxlib was `EQUAL`, and the
latency-hiding scheduler made its schedule. Else it begins as `COMPILING`. `Trust` remembers it: in
the session, and in a file for later sessions.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from pathlib import Path

from pgle.errors import UserError
from pgle.files import write_files


class State(Enum):
    """How far pgle trusts the scheduling passes alone, for one program."""

    TRUSTED = "trusted"
    COMPILING = "compiling"
    CHECKING = "checking"
    EQUAL = "equal"
    WHOLE = "whole"

    @classmethod
    def first(cls, *, is_trusted: bool, is_limited: bool) -> State:
        """The state in which a program begins.

        Args:
            is_trusted: whether an earlier program that LHS scheduled was `EQUAL`.
            is_limited: whether the user's flags list the passes to run. XLA takes only one such
            list.
        """
        return cls.TRUSTED if is_trusted and not is_limited else cls.COMPILING

    def after(self, event: Event) -> State:
        """Return the next state. Raise `KeyError` if the event cannot happen in this state."""
        return TRANSITIONS[self, event]


class Event(Enum):
    """An event that moves a program to its next state."""

    REFUSED = "refused"  # XLA could not stop before scheduling
    KEPT = "kept"  # the program before scheduling was stored
    # it was not stored, or the scheduling passes cannot run alone
    NOT_KEPT = "not kept"
    SAME = "same"  # the scheduling passes alone made the schedule of all passes
    OTHER = "other"  # they failed, or made another schedule


TRANSITIONS = {
    (State.TRUSTED, Event.REFUSED): State.COMPILING,
    (State.COMPILING, Event.KEPT): State.CHECKING,
    (State.COMPILING, Event.NOT_KEPT): State.WHOLE,
    (State.CHECKING, Event.SAME): State.EQUAL,
    (State.CHECKING, Event.OTHER): State.WHOLE,
}


class Trust:
    """Whether an earlier program of this jaxlib that LHS scheduled was `EQUAL`."""

    def __init__(self, path: Path | None) -> None:
        """Read it from a file, which only has to exist; None: trust nothing yet."""
        self._path = path
        self.holds = False
        with suppress(OSError):  # the folder may be unreadable
            self.holds = path is not None and path.exists()

    def gain(self) -> None:
        """Trust other programs, in this session and later ones."""
        self.holds = True
        if self._path is not None:
            with suppress(OSError, UserError):  # the cache may not be writable
                write_files({self._path: ""}, force=True)

    def lose(self) -> None:
        """Make later sessions check again. This session does not change."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
