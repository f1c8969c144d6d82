"""Run docs/notebook.ipynb and keep of each answer its text and a picture of its page: GitHub shows
no HTML. Needs Chromium, nbclient and ipykernel: `python scripts/draw_notebook.py`.
"""

from __future__ import annotations

import base64
import html
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbclient
import nbformat

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
PAGE = re.compile(r'srcdoc="([^"]+)"')
# of a picture: verdict, what to do, and the timeline or the charts
WINDOW = "1000,1450"


def main() -> None:
    """Write the notebook with its new outputs."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    about = dict(notebook.metadata)  # a run would add this machine's Python
    with TemporaryDirectory() as folder:
        at = {"metadata": {"path": folder}}
        client = nbclient.NotebookClient(
            notebook, timeout=900, kernel_name="python3", resources=at
        )
        client.execute()
        for cell in notebook.cells:
            cell.get("metadata", {}).pop("execution", None)
            for output in cell.get("outputs", ()):
                _with_picture(output, Path(folder))
    notebook.metadata = nbformat.from_dict(about)
    nbformat.write(notebook, NOTEBOOK)


def _with_picture(output: Any, folder: Path) -> None:
    """Put a picture in the place of an answer's page."""
    data = output.get("data", {})
    found = PAGE.search(data.pop("text/html", ""))
    if found is None:
        return
    page = folder / "page.html"
    page.write_text(html.unescape(found[1]))
    picture = folder / "page.png"
    _draw(page, picture)
    data["image/png"] = base64.b64encode(picture.read_bytes()).decode()


def _draw(page: Path, picture: Path) -> None:
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    drawn = f"--screenshot={picture}"
    window = f"--window-size={WINDOW}"
    wait = "--virtual-time-budget=5000"  # until the timeline is drawn
    command = ["chromium", *options, window, wait, drawn, page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
