"""Which command mends jax's CUDA plugin: never one that moves jax, never one that adds a second
plugin.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pgle.run.ask.jaxlib import repair

pytestmark = pytest.mark.usefixtures("no_uv")
PYTHON = "/env/bin/python"
INSTALL = f"{PYTHON} -m pip install --no-deps"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def no_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)


def wheels(cuda: int, version: str) -> dict[str, str]:
    return {f"jax-cuda{cuda}-plugin": version, f"jax-cuda{cuda}-pjrt": version}


def jax(version: str, **plugins: str) -> dict[str, str]:
    return {"jax": version, "jaxlib": version, **plugins}


@pytest.mark.parametrize(
    ("versions", "command"),
    [
        (jax("0.4.38"), f"{INSTALL} jax-cuda12-plugin==0.4.38 jax-cuda12-pjrt==0.4.38"),
        (jax("0.7.1"), f"{INSTALL} jax-cuda12-plugin==0.7.1 jax-cuda12-pjrt==0.7.1"),
        (jax("0.7.2"), f"{INSTALL} jax-cuda13-plugin==0.7.2 jax-cuda13-pjrt==0.7.2"),
        (
            jax("0.12.0.1"),
            f"{INSTALL} jax-cuda13-plugin==0.12.0.1 jax-cuda13-pjrt==0.12.0.1",
        ),
        (
            jax("0.8.3", **wheels(12, "0.8.2")),
            f"{INSTALL} jax-cuda12-plugin==0.8.3 jax-cuda12-pjrt==0.8.3",
        ),
        (
            jax("0.8.3", **{"jax-cuda12-pjrt": "0.8.3"}),
            f"{INSTALL} jax-cuda12-plugin==0.8.3 jax-cuda12-pjrt==0.8.3",
        ),
    ],
    ids=str,
)
def test_what_is_missing_or_old_is_installed_alone(
    versions: dict[str, str], command: str
) -> None:
    found = repair(versions, PYTHON)
    assert found is not None
    assert found.line == command


@pytest.mark.parametrize(
    ("runtime", "removed"),
    [("nvidia-cuda-runtime-cu12", 13), ("nvidia-cuda-runtime", 12), ("nothing", 13)],
)
def test_of_two_plugins_the_one_without_its_cuda_goes(
    runtime: str, removed: int
) -> None:
    versions = jax(
        "0.10.2", **wheels(12, "0.10.2"), **wheels(13, "0.10.2"), **{runtime: "1"}
    )
    found = repair(versions, PYTHON)
    assert found is not None
    assert (
        found.line
        == f"{PYTHON} -m pip uninstall -y jax-cuda{removed}-pjrt jax-cuda{removed}-plugin"
    )


def test_of_two_plugins_the_one_of_another_release_goes() -> None:
    found = repair(jax("0.8.3", **wheels(12, "0.8.2"), **wheels(13, "0.8.3")), PYTHON)
    assert found is not None
    assert found.line.endswith(" jax-cuda12-pjrt jax-cuda12-plugin")


def test_a_whole_plugin_is_left_alone() -> None:
    assert repair(jax("0.8.3", **wheels(12, "0.8.3")), PYTHON) is None


def test_no_extra_chooses_a_cuda_for_the_user() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    naming_cuda = {
        name
        for name, needs in project["optional-dependencies"].items()
        if "cuda" in " ".join(needs)
    }
    assert naming_cuda == {"rehearse-cuda12", "rehearse-cuda13"}
    assert "cuda" not in " ".join(project["dependencies"])
