"""Signals that end the work of an answer, and not the answer."""

from __future__ import annotations

import signal

import pytest

from pgle.run.process.endings import Ending, noted_signals


@pytest.mark.parametrize(
    ("number", "raised", "code"),
    [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, SystemExit, 143)],
)
def test_a_signal_interrupts_the_work_once(
    number: int,
    raised: type[BaseException],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as in a terminal; a shell starts jobs in the background with SIGINT ignored
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)
    with noted_signals() as ending:
        with pytest.raises(raised), ending.interrupting():
            signal.raise_signal(number)
        signal.raise_signal(number)  # while the rest is finished
    assert ending.code == code


def test_a_signal_before_the_work_is_known_when_it_begins() -> None:
    with noted_signals() as ending:
        ending.interrupts = False
        signal.raise_signal(signal.SIGTERM)
        assert ending.code == 143


def test_a_signal_ends_everything_as_long_as_nothing_is_known() -> None:
    with noted_signals(), pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)


def test_what_handled_signals_before_does_so_again() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with noted_signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_exception_without_a_signal_counts_as_one() -> None:
    ending = Ending()
    ending.by(KeyboardInterrupt())
    assert ending.code == 130
