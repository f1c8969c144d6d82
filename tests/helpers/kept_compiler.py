"""XLA's plugin is loaded once for all tests of a process that compile, not once for each of their
commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from pgle.run.compiler import worker
from pgle.run.compiler.compile import Compiler, CompileRequest, Unscheduled
from pgle.run.compiler.worker import CompilerProcess

_ask, _close = Compiler._ask, Compiler.close

Kind = tuple[str, frozenset[tuple[str, str]]]
"""Python and environment of a compiler's process."""

OURS = {"PYTEST_CURRENT_TEST", "XDG_CACHE_HOME", "PGLE_CACHE_MIB", "COLUMNS"}
"""Variables of the environment that XLA does not read."""


class KeptCompilers:
    """Processes that run; each is lent to one `Compiler` at a time, and is back when that is
    closed.
    """

    def __init__(self) -> None:
        self.idle: dict[Kind, list[CompilerProcess]] = {}
        self.lent: dict[Compiler, Kind] = {}
        self.lock = Lock()

    def ask(
        self,
        borrower: Compiler,
        request: CompileRequest,
        folder: Path,
        there: Unscheduled,
    ) -> dict[str, Any]:
        """In the place of `Compiler._ask`."""
        with self.lock:
            if borrower not in self.lent and not borrower.process.is_closed:
                kept = {
                    name: text
                    for name, text in worker.environment().items()
                    if name not in OURS
                }
                kept["vendor"] = request.vendor
                kind = self.lent[borrower] = borrower.python, frozenset(kept.items())
                if idle := self.idle.get(kind):
                    borrower.process.close()
                    borrower.process = idle.pop()
        return _ask(borrower, request, folder, there)

    def close(self, borrower: Compiler) -> None:
        """In the place of `Compiler.close`: what still compiles is ended, with the process."""
        kind = self.lent.pop(borrower, None)
        if kind is not None and not borrower.process.waiting:
            self.idle.setdefault(kind, []).append(borrower.process)
            borrower.process = CompilerProcess(borrower.python)
        _close(borrower)

    def end(self) -> None:
        """End all processes."""
        for kept in (kept for some in self.idle.values() for kept in some):
            kept.close()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within, `pgle` in this process compiles so."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Compiler, "_ask", lambda *words: self.ask(*words))
            patch.setattr(Compiler, "close", lambda borrower: self.close(borrower))
            yield
