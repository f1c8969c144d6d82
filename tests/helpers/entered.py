"""Which modules of pgle a command loads, and in which of them a function runs.

    python tests/helpers/entered.py OUT COMMAND…

writes both to OUT as JSON. A function that runs while a module is imported, to make a table, does
not count.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

IS_FUNCTION = 3  # CO_OPTIMIZED and CO_NEWLOCALS: no body of a module or a class


class Entered:
    """A profile function for `sys.setprofile` that keeps the files of functions that run."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.importing = 0  # modules whose body runs now

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_name == "<module>":
            self.importing += 1 if event == "call" else -1
            return
        is_function = code.co_flags & IS_FUNCTION == IS_FUNCTION
        if event == "call" and is_function and not self.importing:
            self.files.add(code.co_filename)


def main(out: str, *words: str) -> None:
    entered = Entered()
    threading.setprofile(entered)
    sys.setprofile(entered)
    from pgle.cli.main import run

    run(list(words))
    sys.setprofile(None)
    loaded = {
        name: module.__file__
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "pgle"
    }
    ran = [name for name, file in loaded.items() if file in entered.files]
    found = {"loaded": sorted(loaded), "entered": sorted(ran)}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
