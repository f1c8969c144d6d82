"""What pip would install beside a jax that is there, and what wheel and source package hold. Asks
the registry.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from present import needs

ROOT = Path(__file__).parents[2]
RELEASES = (
    "0.4.38",
    "0.5.3",
    "0.6.2",
    "0.7.2",
    "0.8.3",
    "0.9.2",
    "0.10.2",
    "0.11.2",
    "0.12.0.1",
    "",
)
"""Of jax: the oldest, one of each line, the newest that there is."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

pytestmark = [needs("uv"), pytest.mark.minutes]


def uv(
    *words: str | Path, text: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uv", *map(str, words)]
    return subprocess.run(
        command, input=text, cwd=folder, capture_output=True, text=True, check=False
    )


def resolved(python: str, *requirements: str) -> dict[str, str]:
    """Names and versions of what would be installed; empty where there is no solution."""
    words = (
        "pip",
        "compile",
        "-q",
        "--no-header",
        "--no-annotate",
        "--only-binary",
        ":all:",
        "--python-version",
        python,
    )
    done = uv(*words, "-", text="\n".join(requirements))
    assert not done.returncode or "No solution found" in done.stderr, done.stderr
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", done.stdout, re.M))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = uv("build", "-q", "--out-dir", folder, ROOT)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("release", RELEASES)
def test_wherever_jax_installs_pgle_does_and_moves_nothing(
    release: str, python: str, built: Path
) -> None:
    jax = f"jax=={release}" if release else "jax"
    alone = resolved(python, jax)
    if not alone:
        pytest.skip(f"jax {release} has no wheels for Python {python}")
    wheel = next(built.glob("*.whl"))
    together = resolved(
        python,
        *(f"{name}=={version}" for name, version in alone.items()),
        f"pgle @ {wheel.as_uri()}",
    )
    assert together, "no solution"
    assert {name: together.get(name) for name in alone} == alone
    assert not [name for name in together if name.startswith(("nvidia-", "jax-cuda"))]


def test_the_source_package_is_complete(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(tracked) - names <= {".gitignore"}
    assert "NOTICE" in names


def test_a_wheel_in_a_clean_environment_brings_its_files_with_it(
    built: Path, tmp_path: Path
) -> None:
    wheel = next(built.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"LICENSE", "NOTICE", "METADATA"} <= {
        Path(name).name for name in names if ".dist-info/" in name
    }
    assert not [name for name in names if not name.startswith("pgle")]
    assert uv("venv", "-q", tmp_path / "venv").returncode == 0
    done = uv(
        "pip",
        "install",
        "-q",
        "--python",
        tmp_path / "venv/bin/python",
        f"pgle @ {wheel.as_uri()}",
    )
    assert done.returncode == 0, done.stderr
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }
    for words in (
        ["--help"],
        ["--version"],
        ["init", "slurm"],
        ["init", "k8s"],
        ["init", "docker"],
        ["flags", "list"],
    ):
        command = [tmp_path / "venv/bin/pgle", *words]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "pgle.sbatch").exists()
