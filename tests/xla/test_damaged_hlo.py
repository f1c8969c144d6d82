"""Whatever damage a dump has, it reads as a module that can be used, or is refused in one line."""

import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgle.costs.profile.lookup import schedulable
from pgle.errors import UserError
from pgle.xla.collectives import walk_collectives
from pgle.xla.hlo.dumps import read_module
from pgle.xla.lhs_names import lhs_names
from pgle.xla.owners import loops, owner

FOLDER = Path(__file__).parents[2] / "testdata" / "hlo" / "jax-0.12.0.1" / "collectives"
FILES = {
    path.name.removesuffix(".xz"): lzma.decompress(path.read_bytes())
    for path in sorted(FOLDER.glob("*.xz"))
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_never_surprises(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FILES)))
    content = bytearray(FILES[name])
    start = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["cut", "hole", "byte"]))
    if kind == "cut":
        del content[start:]
    elif kind == "hole":
        del content[start : start + data.draw(st.integers(1, 400))]
    else:
        content[start] = data.draw(st.integers(0, 255))
    path = folder / name
    path.write_bytes(content)
    try:
        module = read_module(path)
    except UserError as error:
        assert error.where is not None
        return
    assert lhs_names(module).keys() <= module.instructions.keys()
    assert len(list(walk_collectives(module))) <= len(schedulable(module)) + len(
        module.instructions
    )
    for item in module.walk():
        assert owner(module, item.name) in module.instructions
        loops(module, item.name)
