"""XLA's plugin is loaded once for all tests of a process that compile, not once for each of their commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pgle.run.compiler import compile as compiling
from pgle.run.compiler.compile import Compiler, CompileRequest, Unscheduled

_ask, _close = Compiler._ask, Compiler.close

Kind = tuple[str, frozenset[tuple[str, str]]]
"""Python and environment of a compiler's process."""

OURS = {"PYTEST_CURRENT_TEST", "XDG_CACHE_HOME", "PGLE_CACHE_MIB", "COLUMNS"}
"""Variables of the environment that XLA does not read."""


class KeptCompilers:
    """Compilers whose processes run; each is lent to one `Compiler` at a time, and is back when that is closed."""

    def __init__(self) -> None:
        self.idle: dict[Kind, list[Compiler]] = {}
        self.lent: dict[Compiler, tuple[Kind, Compiler]] = {}

    def ask(self, borrower: Compiler, request: CompileRequest, folder: Path, there: Unscheduled) -> dict[str, Any]:
        """In the place of `Compiler._ask`."""
        with borrower._lock:
            if borrower._is_closed:
                return _ask(borrower, request, folder, there)
            if borrower not in self.lent:
                environment = {name: text for name, text in compiling.environment().items() if name not in OURS}
                kind = borrower.python, frozenset(environment.items())
                idle = self.idle.get(kind)
                self.lent[borrower] = kind, idle.pop() if idle else Compiler(borrower.python)
            _, kept = self.lent[borrower]
            kept.on_phase = borrower.on_phase
        return _ask(kept, request, folder, there)

    def close(self, borrower: Compiler) -> None:
        """In the place of `Compiler.close`: what still compiles is ended, with the process."""
        if borrower in self.lent:
            kind, kept = self.lent.pop(borrower)
            if kept._waiting:
                _close(kept)
            else:
                self.idle.setdefault(kind, []).append(kept)
        _close(borrower)

    def end(self) -> None:
        """End all processes."""
        for kept in (kept for some in self.idle.values() for kept in some):
            _close(kept)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within, `pgle` in this process compiles so."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Compiler, "_ask", lambda *words: self.ask(*words))
            patch.setattr(Compiler, "close", lambda borrower: self.close(borrower))
            yield
