"""The recorded HLO dumps, and the same made afresh by the installed jax."""

from pathlib import Path

import pytest

HLO = Path(__file__).parents[2] / "testdata" / "hlo"


@pytest.fixture(
    scope="session",
    params=[
        "jax-0.10.2",
        "jax-0.12.0.1",
        pytest.param("live", marks=[pytest.mark.rehearse, pytest.mark.slow]),
    ],
)
def dumps(request: pytest.FixtureRequest) -> Path:
    """A folder as testdata/hlo/README.md describes it."""
    if request.param == "live":
        live: Path = request.getfixturevalue("live_dumps")
        return live
    return HLO / str(request.param)
