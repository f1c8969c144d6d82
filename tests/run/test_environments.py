"""Environments of other releases: nothing is made silently, and errors leave nothing."""

from __future__ import annotations

import sys

import pytest

import pgle
from pgle.errors import UserError
from pgle.run import environments
from pgle.run.ask.jaxlib import installed
from pgle.run.environments import environment_of, find_uv, ready
from pgle.run.releases import interpreters, taken
from pgle.xla.vendors import AMD, NVIDIA

OURS = installed().jaxlib
MODULE = "testdata/stablehlo/fsdp_mlp_jax_0.10.2.mlir"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and a script for uv that makes a file per command."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pgle" / "environments"


def fake_uv(tmp_path, monkeypatch, lines):
    script = tmp_path / "uv"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{lines}\n')
    script.chmod(0o755)
    monkeypatch.setattr(environments, "find_uv", lambda: str(script))


MAKES = 'test $1 = venv && mkdir -p "$5/bin" && touch "$5/bin/python"; exit 0'


def test_a_release_is_jax_with_the_plugin_of_its_version():
    found = environment_of("0.12.0.1", NVIDIA).packages
    plugin = ("jax-cuda13-plugin==0.12.0.1", "jax-cuda13-pjrt==0.12.0.1")
    assert found == ("jax==0.12.0.1", *plugin)
    old = environment_of("0.6.0", NVIDIA).packages
    assert old[1] == "jax-cuda12-plugin==0.6.0"
    assert environment_of("0.12.0.1", AMD).packages[1] == "jax-rocm7-plugin==0.12.0"


def test_without_consent_it_says_what_how_large_and_where(cache, tmp_path, monkeypatch):
    fake_uv(tmp_path, monkeypatch, MAKES)
    with pytest.raises(UserError) as error:
        pgle.releases(MODULE, jax=("0.9.2", "0.12.0.1"))
    line = error.value.line()
    assert "2 environments with jax 0.9.2, 0.12.0.1" in line
    assert "1.8 GiB" in line
    assert str(cache) in line
    assert "--yes" in line
    assert not cache.exists()
    assert not (tmp_path / "asked").exists()


def test_with_consent_uv_makes_it_once(cache, tmp_path, monkeypatch):
    fake_uv(tmp_path, monkeypatch, MAKES)
    wanted = environment_of("0.9.2", NVIDIA)
    asked = []
    ready([wanted], lambda words: not asked.append(words))
    ready([wanted], lambda words: not asked.append(words))
    assert len(asked) == 1
    assert [path.name for path in cache.iterdir()] == [wanted.folder.name]
    venv, install = (tmp_path / "asked").read_text().splitlines()
    assert venv.startswith("venv --quiet --python ")
    assert install.endswith(" ".join(wanted.packages))


def test_a_failure_of_uv_is_one_line_and_leaves_nothing(cache, tmp_path, monkeypatch):
    fake_uv(tmp_path, monkeypatch, 'echo "no such release" >&2; exit 1')
    with pytest.raises(UserError, match="no such release"):
        ready([environment_of("9.9.9", NVIDIA)], lambda words: True)
    assert list(cache.iterdir()) == []


def test_where_uv_is_missing_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="uv is not installed") as error:
        find_uv()
    assert "pip install uv" in error.value.line()


def test_the_release_of_the_programs_python_needs_no_environment():
    found = interpreters([OURS], sys.executable, NVIDIA, lambda words: False)
    assert [item.python for item in found] == [sys.executable]


def test_an_interpreter_may_be_named_by_its_path():
    found = interpreters([sys.executable], sys.executable, NVIDIA, lambda words: False)
    assert [item.release for item in found] == [OURS]
    with pytest.raises(UserError, match="is no interpreter"):
        interpreters(["../nowhere"], sys.executable, NVIDIA, lambda words: False)


def test_a_flag_that_a_release_does_not_take_is_left_out_there():
    known = "--xla_gpu_enable_latency_hiding_scheduler=true"
    unknown = "--xla_gpu_no_such_flag=true"
    assert taken((known, unknown), sys.executable) == ((known,), (unknown,))


@pytest.mark.rehearse
def test_an_error_of_a_compiler_names_its_release(tmp_path):
    broken = tmp_path / "broken.mlir"
    broken.write_text("module @jit_step { this is no module }\n")
    with pytest.raises(UserError, match=f"jaxlib {OURS}: "):
        pgle.releases(broken, jax=(sys.executable, sys.executable), target="h100")
