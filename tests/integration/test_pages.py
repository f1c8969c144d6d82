"""Pages of real answers in a browser, all details open: axe-core finds nothing, no error, no dead
link, no overflow.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
import recorded
from chromium import CHROMIUM, Page, browser
from documents import DUMP, NEW, OLD, PAX, link_testdata, write_steps

from pgle.cli.main import run
from pgle.run.compiler.compile import Compiler

pytestmark = [
    pytest.mark.usefixtures("read_once"),
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.skipif(
        shutil.which("npm") is None, reason="needs npm, which brings axe-core"
    ),
]
COMPILED = [recorded.PROGRAM, "--no-cache", "--target", "a100"]
PAGES = {
    "report.html": ["report", *PAX, *DUMP, "-o", "report.html"],
    "against.html": ["report", NEW, "--against", OLD, "-o", "against.html"],
    "rehearsal/timeline.html": ["rehearse", *COMPILED, "-o", "rehearsal"],
    "tuned/timeline.html": ["tune", *COMPILED, "--budget", "1", "-o", "tuned"],
    "compare.html": [
        "compare",
        "steps.jsonl",
        "slower.jsonl",
        "--html",
        "compare.html",
    ],
}
AXE = """axe.run().then(found => found.violations.map(
    ({id, nodes}) => `${id}: ${nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(' ')}`))"""
DEAD = """[...document.querySelectorAll('a[href]')].map(link => link.getAttribute('href'))
    .filter(to => to.startsWith('#') ? !document.getElementById(to.slice(1)) : !to.startsWith('https://'))"""
ERRORS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, from the registry of npm."""
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "pack", "axe-core@4", "--silent"]
    if subprocess.run(
        command, cwd=folder, capture_output=True, timeout=120, check=False
    ).returncode:
        pytest.skip("npm does not give axe-core")
    with tarfile.open(next(folder.glob("*.tgz"))) as packed:
        source = packed.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pages")
    link_testdata(place)
    write_steps(place)
    with pytest.MonkeyPatch.context() as patch, chdir(place):
        patch.setattr(Compiler, "_ask", recorded.answer)
        for words in PAGES.values():
            assert run([*words, "--quiet"] if words[0] == "report" else words) == 0
    return place


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_for_everybody_at_every_width(
    name: str, folder: Path, axe: str, chromium: Page
) -> None:
    for width, dark, is_asked in (
        (1400, False, True),
        (1000, False, False),
        (420, True, True),
    ):
        chromium.open(folder / name, width=width, dark=dark)
        chromium.run(
            "document.querySelectorAll('details').forEach(item => { item.open = true; })"
        )
        chromium.frame()
        assert chromium.run("document.documentElement.scrollWidth <= innerWidth"), (
            f"{width} px: too wide"
        )
        assert chromium.run(DEAD) == []
        errors = [event for event in chromium.events if event.get("method") in ERRORS]
        assert not errors, json.dumps(errors)
        if is_asked:  # once in each theme: colours do not depend on the width
            chromium.run(f"{axe}; 0")
            assert chromium.run(AXE) == [], f"{width} px, {'dark' if dark else 'light'}"
