"""Nothing that pgle starts outlives a pgle that is killed: neither workers nor what a launcher left
running.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

WORKERS = """
import os, time
from pgle.run.process.process import executor
with executor(2) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""

LAUNCHED = """
import os, subprocess
from pgle.run.process.process import ending_with_us, started
words = ["sh", "-c", "sleep 600 & echo $!; wait"]
child = started(words, dict(os.environ), stdout=subprocess.PIPE, start_new_session=True)
with ending_with_us(child):
    print(int(child.stdout.readline()), flush=True)
    child.wait()
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


def test_what_a_launcher_started_ends_with_a_pgle_that_is_killed() -> None:
    assert ends(LAUNCHED)
