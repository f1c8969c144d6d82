"""Nothing that pgle starts outlives a pgle that is killed: neither workers nor what a launcher left
running.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

WORKERS = """
import os, time
from pgle.run.process.process import executor
with executor(2) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""

LAUNCHED = """
import os, subprocess
from pathlib import Path
from pgle.run.process.process import launch
launch(["sh", "-c", {code!r}], dict(os.environ), Path({log!r}))
"""


def ends(code: str) -> bool:
    """Whether the process, whose number a program prints, ends once that program is killed."""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with os.fdopen(os.pidfd_open(int(parent.stdout.readline()))) as file:
        parent.kill()
        found, _, _ = select.select([file], [], [], 60)
    parent.wait()
    parent.stdout.close()
    return bool(found)


def test_workers_end_with_a_pgle_that_is_killed() -> None:
    assert ends(WORKERS)


@pytest.mark.parametrize(
    "code",
    [
        "sleep 600 & echo $!; wait",
        "setsid sh -c 'echo $$; exec sleep 600' & wait",  # in a group of its own
    ],
)
def test_what_a_command_started_ends_with_a_pgle_that_is_killed(
    code: str, tmp_path: Path
) -> None:
    assert ends(LAUNCHED.format(code=code, log=str(tmp_path / "output.log")))
