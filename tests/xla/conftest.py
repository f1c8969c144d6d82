"""The recorded HLO dumps, and the same made afresh by the installed jax."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

MADE: dict[str, Path] = {}
HLO = Path(__file__).parents[2] / "testdata" / "hlo"


def has_cuda_plugin() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


@pytest.fixture(
    scope="session",
    params=["jax-0.10.2", "jax-0.12.0.1", pytest.param("live", marks=[pytest.mark.rehearse, pytest.mark.slow])],
)
def dumps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as testdata/hlo/README.md describes it."""
    if request.param != "live":
        return HLO / str(request.param)
    if not has_cuda_plugin():
        pytest.skip("needs the CUDA plugin wheels")
    if "live" not in MADE:  # pytest drops a fixture whenever its parameter changes; compile once in a process
        MADE["live"] = tmp_path_factory.mktemp("live")
        subprocess.run([sys.executable, str(HLO / "record.py"), str(MADE["live"])], check=True)
    return MADE["live"]
