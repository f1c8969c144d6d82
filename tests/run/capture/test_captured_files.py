"""What a capture left is read with a bound: another thing than a file in its place is nothing, and
is not waited for.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pgle.run.capture.captured import (
    PROGRAM,
    CapturedProgram,
    own_exit_code,
    own_failure,
    read_captured,
)


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")]
)
def test_of_a_captured_program_that_is_no_file_nothing_is_known(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / PROGRAM)
    assert read_captured(tmp_path) == CapturedProgram()


def test_an_exit_code_that_is_no_number_is_none(tmp_path: Path) -> None:
    from pgle.run.capture.captured import CODE

    (tmp_path / CODE).write_text("one")
    assert own_failure(tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("code", "record", "passed"),
    [
        (3, {}, 3),
        (1, {"error": "KeyError: 'loss' (train.py, line 7)", "uncomputed": ["f"]}, 1),
        (1, {"error": "ValueError: nan (train.py, line 7)", "uncomputed": ["f"]}, 0),
        (
            1,
            {
                "error": "ValueError: x (t.py, line 7)",
                "uncomputed": ["f"],
                "ones": True,
            },
            1,
        ),
        (3, {"uncomputed": ["f"]}, 0),  # it may have looked at the zeros
        (1, {"error": "XlaRuntimeError: UNIMPLEMENTED (t.py, line 7)"}, 0),
        (139, {}, 0),
    ],
)
def test_a_program_that_fails_by_itself_passes_its_exit_code_on(
    code: int, record: dict[str, object], passed: int, tmp_path: Path
) -> None:
    (tmp_path / ".exit_code").write_text(str(code))
    (tmp_path / ".program.json").write_text(json.dumps({"executed": {}, **record}))
    assert own_exit_code(tmp_path / "m.mlir") == passed
