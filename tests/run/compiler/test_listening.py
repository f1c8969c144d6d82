"""The thread that hears of the compiler's answers outlives whatever fails here, so that nobody
waits for ever.
"""

import io
import subprocess
import sys
from concurrent.futures import Future
from typing import Any

import pytest

from pgle.run.compiler.worker import CompilerProcess


def full(_: dict[str, Any]) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_here_is_the_answer_and_others_are_still_heard() -> None:
    process = CompilerProcess(sys.executable)
    failing: Future[dict[str, Any]] = Future()
    other: Future[dict[str, Any]] = Future()
    process.waiting = {1: (full, failing), 2: (lambda _: None, other)}
    said = b'{"id": 1, "phase": "x"}\n{"id": 1, "answer": {}}\n{"id": 2, "answer": {"ok": 1}}\n'
    child = subprocess.Popen([sys.executable, "-c", ""])
    process._listen(child, io.BytesIO(said))
    assert other.result(timeout=0) == {"ok": 1}
    with pytest.raises(OSError, match="No space"):
        failing.result(timeout=0)
