"""What a capture left is read with a bound: another thing than a file in its place is nothing, and
is not waited for.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pgle.run.capture.captured import (
    PROGRAM,
    CapturedProgram,
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
