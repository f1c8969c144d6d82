"""What a release is made by: pinned actions and packages, few rights, and files that agree on the version."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pgle
from pgle.cli.main import run
from pgle.run.init import STARTERS

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
LOCKS = [
    ROOT / ".github/release.txt",
    ROOT / "pgle/starters/docker/requirements.lock",
    ROOT / "pgle/starters/rocm/requirements-rocm.lock",
]


def release() -> dict[str, Any]:
    path = ROOT / ".github/workflows/release.yml"
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def test_only_the_jobs_that_publish_have_an_identity() -> None:
    found = release()
    assert found["permissions"] == {"contents": "read"}
    rights = {
        name: job["permissions"]
        for name, job in found["jobs"].items()
        if "permissions" in job
    }
    assert {name for name, given in rights.items() if "id-token" in given} == {
        *("publish", "site-online"),
    }
    assert {name for name, given in rights.items() if "write" in given.values()} == {
        *("publish", "notes", "site-online"),
    }
    publish = found["jobs"]["publish"]
    assert set(publish["needs"]) == {"build", "install", "test"}
    assert publish["environment"]["name"] == "pypi"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_package_of_a_lock_has_a_hash_and_no_address(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text.replace("file://$PWD/WHEEL", "")
    packages = re.split(r"^(?=\w)", re.sub(r"^#.*\n", "", text, flags=re.M), flags=re.M)
    assert len(packages) > 10
    for package in filter(str.strip, packages):
        assert re.match(r"[\w.-]+==\S+", package)
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", package)


def test_what_builds_the_package_is_pinned_by_hash() -> None:
    steps = release()["jobs"]["build"]["steps"]
    (build,) = [step["run"] for step in steps if "uv build" in step.get("run", "")]
    assert "--build-constraints .github/release.txt --require-hashes" in build
    names = set(re.findall(r"^([\w.-]+)==", LOCKS[0].read_text(), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for needed in project["build-system"]["requires"]:
        assert re.split(r"[^\w.-]", needed)[0] in names


def test_files_agree_on_the_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == pgle.__version__
    assert cited["license"] in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["bug", "wrong-prediction", "idea"])
def test_a_report_has_what_doctor_says(name: str) -> None:
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
    (field,) = [item for item in form["body"] if item["id"] == "doctor"]
    assert "pgle doctor --json" in field["attributes"]["label"]


@pytest.mark.parametrize("name", STARTERS)
def test_a_starter_names_the_version_that_made_it(name: str, tmp_path: Path) -> None:
    assert run(["init", name, "-o", str(tmp_path)]) == 0
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any("@VERSION@" in text for text in texts)
    if name in ("github", "gitlab", "docker", "rocm", "k8s"):
        assert any(f"pgle {pgle.__version__}" in text for text in texts)


@pytest.mark.parametrize(
    ("name", "file"), [("docker", "Dockerfile.pgle"), ("rocm", "Dockerfile.pgle-rocm")]
)
def test_an_image_has_no_base_and_no_wheel_without_a_hash(
    name: str, file: str, tmp_path: Path
) -> None:
    run(["init", name, "-o", str(tmp_path)])
    lines = (tmp_path / file).read_text().splitlines()
    assert "ARG IMAGE" in lines
    assert "FROM ${IMAGE}" in lines
    assert any(
        "${WHEEL_SHA256:?" in line and "sha256sum --check" in line for line in lines
    )


PYTHON = """#!/bin/bash
# python3 of a test: pip keeps what it is asked for.
last=${*: -1}
case "$*" in
*" install "*) echo "$last" >>installed ;;
*" download "*)
    cat "$last" >>wanted
    touch "$(dirname "$last")/x.whl"
    ;;
*) echo "$VERSION" ;;
esac
"""


def installed(
    folder: Path, source: str, digest: str = "", version: str = pgle.__version__
) -> tuple[int, str]:
    """Exit code and errors of the script that a starter installs pgle with."""
    run(["init", "github", "-o", str(folder), "--force"])
    (folder / "python3").write_text(PYTHON)
    (folder / "python3").chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PGLE_SOURCE": source,
        "PGLE_SHA256": digest,
        "VERSION": version,
    }
    done = subprocess.run(
        ["sh", ".github/pgle-install.sh"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_wheel_is_installed_if_its_hash_agrees(tmp_path: Path) -> None:
    (tmp_path / "pgle.whl").write_bytes(b"wheel")
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert installed(tmp_path, "pgle.whl", digest) == (0, "")
    assert (tmp_path / "installed").read_text() == "pgle.whl\n"
    for wrong in ("0" * 64, ""):
        assert installed(tmp_path, "pgle.whl", wrong)[0] != 0
    assert (tmp_path / "installed").read_text() == "pgle.whl\n"


def test_a_published_version_is_installed_by_its_hash(tmp_path: Path) -> None:
    version = f"pgle=={pgle.__version__}"
    code, said = installed(tmp_path, version)
    assert code != 0
    assert "set it to the hash of the wheel" in said
    assert installed(tmp_path, version, "ab") == (0, "")
    assert (tmp_path / "wanted").read_text() == f"{version} --hash=sha256:ab\n"
    assert (tmp_path / "installed").read_text().endswith("/x.whl\n")


def test_another_version_than_the_starters_own_is_refused(tmp_path: Path) -> None:
    code, said = installed(tmp_path, "./pgle", version="9.9")
    assert code == 2
    assert "make them again: pgle init" in said
