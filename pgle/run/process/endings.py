"""Signals that end the work but not the answer. The answer still reports what is known."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Ending:
    """Whether a signal has asked to end. While `interrupts` is set, the signal interrupts the work
    as usual. Otherwise it is only noted, so that no step is left half done.
    """

    interrupts: bool = True  # nothing is known yet, so a signal ends everything
    code: int = 0  # the shell's exit code for the first signal; 0: none arrived

    def note(self, number: int, _: FrameType | None = None) -> None:
        """Note a signal. Interrupt the work once, if that is allowed."""
        self.code = self.code or 128 + number
        if not self.interrupts:
            return
        self.interrupts = False
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Open a block that a signal interrupts by raising an exception."""
        self.interrupts = True
        try:
            yield
        finally:
            self.interrupts = False

    def by(self, error: KeyboardInterrupt | SystemExit) -> None:
        """Note the exception that left a block, if it came from a signal that pgle did not
        handle.
        """
        usual = 128 + signal.SIGINT
        given = getattr(error, "code", usual)
        self.code = self.code or (given if isinstance(given, int) else usual)


@contextmanager
def noted_signals() -> Iterator[Ending]:
    """Record signals that would end the program in an `Ending`."""
    ending = Ending()
    with handling(ENDING, ending.note):
        yield ending


@contextmanager
def handling(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """Call `handler` for these signals, except ignored ones, as under `nohup`. Only the main thread
    can do that.
    """
    is_main = threading.current_thread() is threading.main_thread()
    taken = [
        number
        for number in numbers
        if is_main and signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, signal.SIG_DFL if usual is None else usual)
