"""Signals that end the work of an answer, and not the answer: it says what is known by then."""

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
    """Whether a signal has asked to end.

    It interrupts the work as it does without this, as long as `interrupts`. Otherwise it is noted,
    so that nothing stays half done.
    """

    interrupts: bool = True  # nothing is known yet: a signal ends everything
    code: int = 0  # of a shell for the first signal; 0: none came

    def note(self, number: int, _: FrameType | None = None) -> None:
        """Note a signal, and interrupt what may be interrupted, once."""
        self.code = self.code or 128 + number
        if not self.interrupts:
            return
        self.interrupts = False
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """A block that a signal interrupts. It is left by the signal's exception."""
        self.interrupts = True
        try:
            yield
        finally:
            self.interrupts = False

    def by(self, error: KeyboardInterrupt | SystemExit) -> None:
        """Note by which exception a block was left, if no handler of ours has raised it."""
        usual = 128 + signal.SIGINT
        given = getattr(error, "code", usual)
        self.code = self.code or (given if isinstance(given, int) else usual)


@contextmanager
def noted_signals() -> Iterator[Ending]:
    """Have an `Ending` note the signals that end a program."""
    ending = Ending()
    with handling(ENDING, ending.note):
        yield ending


@contextmanager
def handling(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """Have `handler` take signals, but for those that are ignored, as `nohup` does. Other threads
    than the main one get none.
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
