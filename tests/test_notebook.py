"""The notebook of the documentation runs without a GPU, and shows what it should and nothing
else.
"""

import html
import re
from pathlib import Path

import pytest
from present import needs

pytestmark = needs("nbclient", "nbformat", "ipykernel")

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
SMALLER = {"VOCABULARY = 4, ": "VOCABULARY = 1, "}
"""Layers: what the test compiles less of than a reader."""


@pytest.mark.rehearse
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter itself
def test_from_a_program_to_a_rehearsal_a_setting_and_a_scaling_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv(
        "XDG_CACHE_HOME", str(tmp_path / "cache")
    )  # nothing is compiled yet
    monkeypatch.setenv(
        "JAX_PLATFORMS", "cpu"
    )  # else jax prints a warning on a machine with a driver and no cuDNN
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for was, smaller in SMALLER.items():
        assert sum(cell.source.count(was) for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(was, smaller)
    at = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=at
    ).execute()

    load, *answers, last = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert load.outputs == []
    assert len(answers[0].source.splitlines()) <= 95
    pages = []
    for cell in answers:
        (shown,) = cell.outputs  # nothing was printed on the way
        assert shown.output_type == "execute_result"
        (page,) = re.findall(r'srcdoc="([^"]+)"', shown.data["text/html"])
        pages.append(html.unescape(page))
    assert ["timeline-data" in page for page in pages] == [True, True, False]
    assert not any(
        re.search(r"<link|@import|src=[\"']?http|url\([\"']?http", page)
        for page in pages
    )
    assert all(
        f"<td>{count}</td>" in re.sub(r'<td class="[^"]*">', "<td>", pages[-1])
        for count in (8, 64, 512)
    )
    (printed,) = last.outputs
    assert printed.name == "stdout"
    assert re.search(r"512 GPUs: [\d.]+ ms, \d+% of it waiting", printed.text)
    assert (tmp_path / "scaled.html").is_file()
    assert (tmp_path / "tuned" / "flags.txt").is_file()


def test_the_stored_text_is_that_of_its_cells() -> None:
    """GitHub shows the notebook as it lies here: with texts and pictures, and without the pages,
    of 300 kB each.
    """
    import nbformat

    cells = [
        cell
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells
        if cell.cell_type == "code"
    ]
    assert len(cells) == 5
    assert all(
        set(output.data) == {"text/plain", "image/png"}
        for cell in cells[1:4]
        for output in cell.outputs
    )
    assert NOTEBOOK.stat().st_size < 1_000_000
    begins = ("Fuse the attention", "Try these flags", "Does not scale")
    assert all(
        begin in cell.outputs[0].data["text/plain"]
        for begin, cell in zip(begins, cells[1:4], strict=True)
    )
