"""Each guide followed literally in a clean folder: its `sh` blocks are run in order, its Python
files written first.

What needs a cluster, GPUs or a registry stands in `bash` blocks, which are not run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest

from pgle.cli.main import run

pytestmark = pytest.mark.usefixtures("read_once")

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
COMPILE = ("from-zero", "one-node")
CLUSTER = ("more-than-one-machine",)  # tests/integration/test_dask.py starts one
FRAMEWORKS = ROOT / "docs" / "guides" / "frameworks.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.M | re.S)


def follow(text: str, folder: Path, *, in_shell: bool = True) -> None:
    """Run the blocks of a guide in a folder; unless `in_shell`, commands of `pgle` alone run in
    this process.
    """
    bin_folder = folder / ".bin"
    bin_folder.mkdir()
    for name, words in {"pgle": "-m pgle", "python": ""}.items():
        (bin_folder / name).write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n'
        )
        (bin_folder / name).chmod(0o755)
    (folder / "job").symlink_to(ROOT / "testdata" / "pax_fsdp4")
    environment = {
        **os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / ".cache"),
    }  # fmt: skip
    for language, title, block in BLOCK.findall(text):
        if title:
            (folder / title).write_text(block)
        elif language == "sh":
            for line in block.replace("\\\n", "").splitlines():
                expected = int((re.findall(r"# exit code (\d)$", line) or [0])[0])
                print(f"$ {line}", flush=True)
                begin = time.monotonic()
                if not in_shell and re.match(r"pgle\b[^|;<>$&*`]*$", line):
                    with chdir(folder), pytest.MonkeyPatch.context() as patch:
                        patch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
                        assert run(shlex.split(line, comments=True)[1:]) == expected, (
                            line
                        )
                    continue
                done = subprocess.run(
                    ["bash", "-c", line],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                )
                print(
                    f"{done.stdout}exit code {done.returncode} after {time.monotonic() - begin:.0f} s",
                    flush=True,
                )
                assert done.returncode == expected, (
                    f"{line}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
                )


@pytest.mark.parametrize(
    "guide",
    [path for path in GUIDES if path.stem not in (*COMPILE, "frameworks")],
    ids=lambda path: path.stem,
)
def test_a_guide_is_followed_literally(guide: Path, tmp_path: Path) -> None:
    follow(guide.read_text(), tmp_path, in_shell=False)


@pytest.mark.rehearse
@pytest.mark.minutes
@pytest.mark.parametrize(
    "guide",
    [path for path in GUIDES if path.stem in COMPILE],
    ids=lambda path: path.stem,
)
def test_a_guide_that_compiles_is_followed_literally(
    guide: Path, tmp_path: Path
) -> None:
    follow(guide.read_text(), tmp_path)


@pytest.mark.rehearse
@pytest.mark.minutes
@pytest.mark.parametrize("framework", ["flax", "equinox", "levanter", "maxtext"])
def test_a_program_of_a_framework_runs_as_it_is(framework: str, tmp_path: Path) -> None:
    """`make frameworks` installs them and runs this."""
    if not all(map(importlib.util.find_spec, (framework, "optax"))):
        pytest.skip(f"needs {framework} and optax")
    section = next(
        part
        for part in FRAMEWORKS.read_text().split("\n## ")
        if part.lower().startswith(framework)
    )
    follow(section, tmp_path)
    page = (tmp_path / f"rehearsal-{framework}/rehearsal/timeline.html").read_text()
    assert "train_step" in page


def test_there_are_guides_and_each_runs_something() -> None:
    assert len(GUIDES) == 9
    assert all(
        any(language == "sh" for language, _, _ in BLOCK.findall(guide.read_text()))
        for guide in GUIDES
        if guide.stem not in CLUSTER
    )


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda p: p.name,
)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert not [
        to for to in targets if "://" not in to and not (page.parent / to).exists()
    ]


def test_the_site_has_every_page() -> None:
    pages = {
        str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")
    } - {"README.md"}
    assert pages <= set(re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text())), (
        "add it to nav in mkdocs.yml"
    )
