"""What lint and doctor say of flags that let ranks compile other schedules."""

from __future__ import annotations

import hashlib
import sys

import pytest

from pgle.xla.flags.catalogue import lint
from pgle.xla.flags.shared import AUTOTUNING, PROFILE
from pgle.xla.flags.text import parse_flags


def codes(text: str) -> list[tuple[str, str]]:
    found = lint(parse_flags(text), "0.10.2").findings
    return [(item.level, item.code) for item in found if item.code.startswith("own-")]


@pytest.mark.parametrize("name", [PROFILE, AUTOTUNING])
@pytest.mark.parametrize(
    ("path", "expected"),
    [("/tmp/profile.pbtxt", [("note", "own-file")]), ("/shared/profile.pbtxt", [])],
)
def test_a_file_on_a_host_of_its_own_is_noted(name, path, expected):
    assert (
        codes(f"--xla_gpu_enable_latency_hiding_scheduler=true --{name}={path}")
        == expected
    )


def test_autotuning_by_each_process_alone_is_warned_of():
    assert codes("--xla_gpu_shard_autotuning=false") == [("warning", "own-choice")]
    assert codes("--xla_gpu_shard_autotuning=true") == []


def test_the_doctor_says_which_profile_every_rank_must_have(tmp_path):
    from machines import machine

    from pgle.run.doctor import check_flags

    profile = tmp_path / "a.pbtxt"
    profile.write_text("")
    flags = {"XLA_FLAGS": f"--{PROFILE}={profile}"}
    found = check_flags(machine(environ=flags, python=sys.executable))
    assert hashlib.sha256(b"").hexdigest()[:12] in found.found
