"""Asking jaxlib about flags: what it says, and that its answers are kept."""

import json
import os
import stat
import sys

import pytest

from pgle.errors import UserError
from pgle.run.ask import jaxlib
from pgle.run.ask.jaxlib import FlagAnswer, answer, installed, probe
from pgle.xla.flags.catalogue import known_flags
from pgle.xla.flags.text import Flag

LHS = "xla_gpu_enable_latency_hiding_scheduler"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake_python(tmp_path, body):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_known_unknown_and_bad_values_are_told_apart():
    flags = [Flag(LHS, "true"), Flag("xla_gpu_no_such_flag", "1"), Flag(LHS, "maybe")]
    assert [probe(flags).verdicts[flag.text].status for flag in flags] == [
        "known",
        "unknown",
        "bad-value",
    ]


def test_xlas_own_words_are_kept():
    flag = Flag(LHS, "maybe")
    assert (
        probe([flag]).verdicts[flag.text].message
        == f"Couldn't interpret value maybe for flag {LHS}."
    )


def test_answers_are_kept_under_the_users_cache(tmp_path, monkeypatch):
    flag = Flag("xla_dump_to", "/some/where")
    first = probe([flag])
    kept = json.loads(next((tmp_path / "cache" / "pgle").iterdir()).read_text())
    assert kept == {"--xla_dump_to=PATH": ["known", ""]}
    monkeypatch.setattr(jaxlib, "PROBE_CHILD", "raise SystemExit('asked again')")
    assert probe([flag]) == first


def test_a_damaged_cache_is_asked_again(tmp_path):
    probe([Flag(LHS)])
    store = next((tmp_path / "cache" / "pgle").iterdir())
    store.write_text("{")
    assert probe([Flag(LHS)]).verdicts[Flag(LHS).text] == FlagAnswer("known")


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert probe([Flag(LHS)]).verdicts[Flag(LHS).text] == FlagAnswer("known")


def test_the_users_own_flags_do_not_disturb(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_no_such_flag")
    assert probe([Flag(LHS)]).verdicts[Flag(LHS).text].status == "known"


def test_a_python_that_is_not_there_is_one_line():
    with pytest.raises(UserError, match="/no/python: cannot be run"):
        installed("/no/python")


def test_a_python_without_jaxlib_is_one_line(tmp_path):
    with pytest.raises(
        UserError, match="has no jaxlib; name the Python of your program"
    ):
        probe([Flag(LHS)], fake_python(tmp_path, "echo '[{}, \"\"]'"))


@pytest.mark.parametrize(
    "body", ["echo hello", "exit 0", "echo 7", "echo '[1, 2, 3]'", r"printf '\377'"]
)
def test_a_program_that_is_no_python_is_one_line(tmp_path, body):
    with pytest.raises(
        UserError,
        match="python: does not answer as a Python; name a Python interpreter in its place",
    ):
        installed(fake_python(tmp_path, body))


def test_a_python_that_fails_is_quoted(tmp_path):
    with pytest.raises(UserError, match="out of order"):
        installed(fake_python(tmp_path, "echo out of order >&2; exit 1"))


def test_versions_are_read_without_importing_jax():
    import importlib.metadata

    assert installed(sys.executable).jaxlib == importlib.metadata.version("jaxlib")


def test_old_releases_end_with_abort_and_say_flags():
    said = "2024-12-17: F external/xla/xla/parse_flags_from_env.cc:225] Unknown flags in XLA_FLAGS: --x=true "
    assert answer(-6, said) == FlagAnswer(
        "unknown", "Unknown flags in XLA_FLAGS: --x=true"
    )


def test_an_enumeration_has_no_line_of_its_own():
    said = "F1121 parse_flags_from_env.cc:220] Check failed: tsl::Flags::Parse(…) Flag parsing failed.\nusage: …"
    assert answer(1, said).status == "bad-value"


def test_another_death_is_not_taken_for_an_answer():
    assert answer(-11, "").status == "failed"


def test_the_recorded_flags_are_those_of_the_installed_jaxlib():
    version = installed().jaxlib
    table = known_flags()
    if version not in table.releases:
        pytest.skip(f"jaxlib {version} is not among the recorded releases")
    recorded = {name for name, releases in table.present.items() if version in releases}
    found = probe([Flag(name, "") for name in table.present])
    # An empty value is known to lists and strings, and a bad value, not an unknown flag, to all
    # others.
    assert {
        name
        for name in table.present
        if found.verdicts[Flag(name, "").text].status != "unknown"
    } == recorded


def test_nothing_is_left_in_the_environment():
    before = dict(os.environ)
    probe([Flag(LHS)])
    assert dict(os.environ) == before


def test_another_interpreter_is_asked_once_until_its_packages_change(
    tmp_path, monkeypatch
):
    asked = []
    answer = [{"jaxlib": "0.10.2"}, str(tmp_path)]
    monkeypatch.setattr(
        jaxlib, "_answers", lambda *_, **__: asked.append(1) or list(answer)
    )
    python = str(tmp_path / "python")
    assert jaxlib.installed(python) == jaxlib.installed(python)
    assert len(asked) == 1
    (tmp_path / "numpy").mkdir()
    os.utime(tmp_path, ns=(1, 1))
    jaxlib.installed(python)
    assert len(asked) == 2
