"""The `pgle` program as a process: what becomes of output that nobody can take."""

import subprocess
import sys
from pathlib import Path

import pytest


def pgle(shell_end, profile):
    command = f'"{sys.executable}" -m pgle show "{profile}" {shell_end}'
    return subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "profile.pbtxt"
    path.write_text('costs { name: "fusion.1" cost_us: 7 }')
    return path


def test_a_closed_stdout_is_no_error(profile):
    assert pgle(">&-", profile).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(profile):
    ended = pgle("> /dev/full", profile)
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == ["pgle: the output cannot be written: No space left on device; free some space"]
